"""The stream job on a cluster: submits the pipeline, follows the log that its workers write, and ends it."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

import apache_beam as beam
import structlog
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.portable_runner import PortableRunner

from freshet_graph.schemas.config import Runner, StreamConfig
from freshet_graph.stream.cluster.log_host import open_log
from freshet_graph.stream.cluster.plan import ClusterPlan, announce, withdraw
from freshet_graph.stream.cluster.stages import build
from freshet_graph.stream.cluster.worker import dismiss
from freshet_graph.stream.job.backfill import require_takeover
from freshet_graph.stream.job.loop import Ran, StreamJob
from freshet_graph.stream.job.standby import require_same
from freshet_graph.stream.kafka.discovery import TopicWatch
from freshet_graph.stream.kafka.reader import PartitionReader, Start
from freshet_graph.stream.metrics import StreamMetrics, Totals
from freshet_graph.stream.pipeline import holding
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.sink import SnapshotSink
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.refusals import newest_refused


class JobTotals(Totals):
    """Counts of a store's log since ``begin``."""

    def __init__(self, store: str) -> None:
        super().__init__()
        self._store = store
        self._reader: LogReader | None = None
        self._before: Counter[str] = Counter()
        self._refused_before: Counter[str] = Counter()

    def begin(self) -> None:
        """Count from here on."""
        self.refresh()
        self._before, self._refused_before = self._all(), self._all_refused()
        self._show()

    def refresh(self) -> bool:
        """Look at the log; returns whether there are new commits.

        Raises:
            CorruptError, FormatVersionError: A commit is damaged.
        """
        before = self._n
        try:
            self._reader = self._reader or LogReader(self._store)
        except ConfigMissingError:
            return False
        self._reader.refresh()
        if self._n == before:
            return False
        self._show()
        return True

    def next_offset(self, key: tuple[str, int]) -> int | None:
        """First offset of a topic partition that the log doesn't have; None: the log doesn't know it."""
        position = self._reader.positions.get(key) if self._reader is not None else None
        return None if position is None else position.next

    def _show(self) -> None:
        now = self._all()
        for name in now:
            setattr(self, name, now[name] - self._before[name])
        counts = self._all_refused() - self._refused_before
        if counts != {reason: one.count for reason, one in self.refused_by_reason.items()}:
            assert self._reader is not None
            self.refused_by_reason = newest_refused(self._reader, counts)

    def _all(self) -> Counter[str]:
        last = self._reader.last if self._reader is not None else None
        if self._reader is None or last is None:
            return Counter()
        return Counter(
            snapshots=len(self._reader.snapshots),
            events=self._reader.totals.events + last.tail_events,
            refused=sum(last.refused.values()),
            late=last.late,
            duplicates=last.duplicates,
            in_history=last.in_history,
        )

    def _all_refused(self) -> Counter[str]:
        last = self._reader.last if self._reader is not None else None
        return Counter() if last is None else Counter(last.refused)

    @property
    def _n(self) -> int | None:
        last = self._reader.last if self._reader is not None else None
        return None if last is None else last.n


SUBMIT_TIMEOUT_S = 20
"""How long a job server has to answer."""

_RAISED = re.compile(r"^[\w.]+(?:Error|Failure|Exception): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^.*\b(?:java|org)\.[\w.$]+(?:Error|Exception): ")


class Submission:
    """A pipeline that runs on Flink from construction on.

    Raises:
        Failure: No job server answers, or it refuses the pipeline.
    """

    def __init__(self, runner: Runner, plan: ClusterPlan) -> None:
        self.error: str | None = None
        pipeline = beam.Pipeline(runner=PortableRunner(), options=PipelineOptions(options(runner, plan)))
        build(pipeline, plan)
        try:
            self._result = pipeline.run()
        except Exception as error:  # gRPC's, and any answer of the server
            cause = sentence(str(error)) if str(error) else f"no answer in {SUBMIT_TIMEOUT_S} s"
            raise Failure(
                f"the job can't be submitted to runner.job_server {runner.job_server}: {cause}. "
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


def options(runner: Runner, plan: ClusterPlan) -> list[str]:
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
    cause = _JAVA.sub("", " ".join((raised[-1] if raised else text).split()))
    return cause[:500] or "the runner gave no reason"


LOOK_S = 0.3
"""How often the log is checked."""

ASK_S = 1.0
"""How often the brokers are asked for the topics' ends."""

DRAIN_S = 60.0
"""How long a pipeline has to end by itself before the job server is asked to cancel it."""

_log = structlog.get_logger()


class ClusterJob:
    """One graph's stream on Flink: other processes read its topics into its log, and update its lanes.

    Everything meets in the log: workers resume from its last commit, whatever died, and this process follows their
    progress there. The end (sealing what is open, bringing the lanes up to date) is the local job's.

    Args:
        config: What to run; ``runner.name`` is flink.
        until_idle_s: End once nothing came for this long; None: only ``stop`` ends it.
        on_begin: Called once log, lanes and topics are found to be those of the configuration, before the first submission.
    """

    def __init__(
        self,
        config: StreamConfig,
        *,
        until_idle_s: float | None = None,
        on_begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._config, self._until_idle_s, self._on_begin = config, until_idle_s, on_begin
        self._stopping = self._idle = self._counting = self._begun = False
        self.totals = JobTotals(config.store)
        self._starts_by_key: dict[tuple[str, int], Start] = {}
        self._unread: int | None = None
        self._watch: TopicWatch | None = None
        self._begun_s: float | None = None
        self._last_commit_s: float | None = None

    def stop(self) -> None:
        """Ask the job to end: what was read is committed first. Safe in a signal handler."""
        self._stopping = True

    def lag(self) -> int | None:
        """Messages that are not in the log yet, over all topic partitions; None while that is not known."""
        return self._unread

    def lane_lags(self) -> dict[str, int]:
        """Empty: workers report the lags of their lanes."""
        return {}

    interrupt = stop

    def run(self) -> Ran:
        """Run until stopped or idle.

        Raises:
            Failure: No job server answers, Flink gave up, Kafka refuses, or lanes can't be brought up to date.
            StoreError: The log is busy, damaged or made for something else; or Kafka lost unread messages.
            PartitionError: A lane's algorithm or parameters.
            OSError: The disk refuses.
        """
        require_same(self._config)  # before another submission for the store is ended
        with ExitStack() as stack:
            while not (self._stopping or self._idle):
                self._submit(stack)
                if self._watch is not None and self._watch.lost is not None:
                    raise self._watch.lost
        if self._idle:
            self._seal()
        self.totals.refresh()
        counts, seconds = self.totals, 0.0
        if self._begun_s is not None and self._last_commit_s is not None:
            seconds = max(0.0, self._last_commit_s - self._begun_s)
        return Ran(counts.snapshots, counts.events, counts.refused, counts.late, seconds, self._idle)

    def _submit(self, whole: ExitStack) -> None:
        """One submission, from the log's last commit until it must end or topics have new partitions."""
        plan = ClusterPlan.of(self._config, [])
        announce(
            self._config.store, plan.id
        )  # ends the sources of another submission, which releases the log
        try:
            with ExitStack() as stack:
                reader, known_ids = self._opened(stack)
                if self._watch is None:
                    self._watch = TopicWatch(self._config.kafka, known_ids)
                    whole.callback(self._watch.close)
                watch = self._watch
                watch.reading(self._starts_by_key)
                if watch.lost is not None:
                    return
                plan = replace(
                    plan, starts=tuple(self._starts_by_key.values()), topic_ids=tuple(watch.ids.items())
                )
                stack.enter_context(holding(plan.id, self._config))
                if not self._begun:
                    self._begun = True
                    self._on_begin()
                self._follow(Submission(self._config.runner, plan), plan, reader, watch)
        finally:
            withdraw(self._config.store, plan.id)

    def _opened(self, stack: ExitStack) -> tuple[PartitionReader, Mapping[str, str]]:
        """Check that log and lanes can be written; returns where reading begins, and the topics' ids in the log.

        Errors are raised here, not in a worker.
        """
        config = self._config
        with open_log(config, stop=lambda: self._stopping) as writer:
            require_takeover(config, writer)
            if not self._counting:
                self.totals.begin()
                self._counting = True
            known, topic_ids = SnapshotSink(writer, config).next_offset, writer.topic_ids
            reader = PartitionReader(config.kafka, known, lambda topic, offsets: None)
            stack.callback(reader.close)
            # The log's next offset, not the first retained one: workers count skipped offsets.
            self._starts_by_key = {}
            for start in reader.starts:
                key = (start.topic, start.partition)
                offset = known(key)
                self._starts_by_key[key] = start if offset is None else replace(start, offset=offset)
        for lane in config.lanes:
            LaneWriter(config.store, lane).close()
        return reader, topic_ids

    def _follow(
        self, submission: Submission, plan: ClusterPlan, reader: PartitionReader, watch: TopicWatch
    ) -> None:
        """Watch log and topics until the submission has ended."""
        server = self._config.runner.job_server
        _log.info("submitted", graph=self._config.graph, job_server=server)
        moved_s = asked_s = time.monotonic()
        self._begun_s = self._begun_s or moved_s
        while not (self._stopping or self._idle or watch.changed or submission.ended):
            time.sleep(LOOK_S)
            now = time.monotonic()
            if self.totals.refresh():
                moved_s = self._last_commit_s = now
            if now - asked_s >= ASK_S:
                asked_s = now
                unread = self._ask(reader)
                if unread is None or unread != self._unread:
                    moved_s = now
                self._unread = self._unread if unread is None else unread
                quiet = self._until_idle_s is not None and now - moved_s >= self._until_idle_s
                self._idle = quiet and unread == 0
        end_expected = self._stopping or self._idle or watch.changed
        withdraw(self._config.store, plan.id)
        if submission.wait(DRAIN_S):
            dismiss(plan)
        else:
            submission.cancel()
            _log.warning("the pipeline didn't end by itself and was cancelled", waited_s=DRAIN_S)
        if not end_expected:
            if submission.error is None:
                raise Failure(
                    "the pipeline ended by itself, because another submission reads for this store now"
                )
            raise Failure(
                f"Flink gave the job up: {submission.error}. The log is whole. Start again to resume"
            )

    def _ask(self, reader: PartitionReader) -> int | None:
        """Offsets between the log and the topics' ends; None if not all leaders answer."""
        if not reader.ask() or reader.no_leader is not None:
            return None
        written, unread = reader.lag(), 0
        for start in reader.starts:
            key = (start.topic, start.partition)
            known = self.totals.next_offset(key)
            unread += max(0, start.offset + written[key] - (start.offset if known is None else known))
        return unread

    def _seal(self) -> None:
        """The end of ``run --until-idle``, by a local job: nothing is left to read."""
        with open_log(self._config):
            pass  # wait until the workers have released it
        StreamJob(self._config, StreamMetrics(self._config), until_idle_s=0.0).run()
