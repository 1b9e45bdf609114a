"""One pipeline submitted to a Beam job server: its state, its end, and a sentence about its failure."""

import re
import threading

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.portable_runner import PortableRunner

from schemas.config import Runner
from stream.cluster.plan import Plan
from stream.cluster.stages import build
from stream.service.failure import Failure

SUBMIT_TIMEOUT_S = 20
"""How long a job server has to answer."""

_RAISED = re.compile(r"^[\w.]+(?:Error|Failure|Exception): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^.*\b(?:java|org)\.[\w.$]+(?:Error|Exception): ")


class Submission:
    """A pipeline that runs on Flink from construction on.

    Raises:
        Failure: No job server answers, or it refuses the pipeline.
    """

    def __init__(self, runner: Runner, plan: Plan) -> None:
        self.error: str | None = None
        pipeline = beam.Pipeline(runner=PortableRunner(), options=PipelineOptions(options(runner, plan)))
        build(pipeline, plan)
        try:
            self._result = pipeline.run()
        except Exception as error:  # gRPC's, and any answer of the server
            told = sentence(str(error)) if str(error) else f"no answer in {SUBMIT_TIMEOUT_S} s"
            raise Failure(
                f"the job can't be submitted to runner.job_server {runner.job_server}: {told}. "
                "Start the job server, or correct its address"
            ) from error
        self._thread = threading.Thread(target=self._follow, name="submission", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the pipeline has ended, well or with ``error``."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; returns whether it came in time."""
        self._thread.join(timeout_s)
        return self.ended

    def cancel(self) -> None:
        """Cancel the pipeline if it doesn't end by itself."""
        try:
            self._result.cancel()
        except Exception as error:  # noqa: BLE001  a server that is gone has nothing to cancel
            self.error = self.error or sentence(str(error))

    def _follow(self) -> None:
        try:
            self._result.wait_until_finish()
        except Exception as error:  # noqa: BLE001  kept as ``error``
            self.error = sentence(str(error))


def options(runner: Runner, plan: Plan) -> list[str]:
    """Beam's options of a submission.

    None is about checkpoints, so they stay off: a restarted job resumes from the log's commits.
    """
    kind, _, address = runner.environment.partition(":")
    return [
        f"--job_endpoint={runner.job_server}",
        f"--job_server_timeout={SUBMIT_TIMEOUT_S}",
        f"--job_name=freshet-{plan.graph}-{plan.id[:8]}",
        f"--environment_type={kind.upper()}",
        *([f"--environment_config={address}"] if address else []),
        "--streaming",
        f"--parallelism={runner.parallelism}",
        f"--sdk_worker_parallelism={runner.workers}",
        f"--number_of_execution_retries={runner.restarts}",
        f"--execution_retry_delay={round(runner.restart_delay_s * 1000)}",
    ]


def sentence(text: str) -> str:
    """The cause of a runner's error: the last exception of a traceback in it, else its first line."""
    raised = _RAISED.findall(text)
    told = _JAVA.sub("", " ".join((raised[-1] if raised else text).split()))
    return told[:500] or "the runner gave no reason"
