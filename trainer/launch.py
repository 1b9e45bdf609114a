"""Start several ranks on this machine, as torchrun does, and collect their result."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from freshet_graph.schemas.errors import one_line, system_call
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.logs import take_over
from freshet_graph.stream.service.scratch import WITHIN, scratch_folder
from freshet_graph.trainer.untrained import NOTHING_LEARNED

MAX_RESTARTS = 30
"""How often all ranks are started again after one was killed. Each time they resume from the last checkpoint."""

STARTED = "FRESHET_RUN_STARTED"
"""Environment: when the command began, seconds since the epoch; the same for every restart of its ranks."""

_FEWER = "FRESHET_RUN_FEWER"
"""Environment: how often the launcher reduced the number of ranks."""

_OUTCOME = "FRESHET_RUN_OUTCOME"
_RESULT, _SENTENCE = "result.json", "failure"
_SHUTDOWN_S = 120

log = structlog.get_logger()


class RankRange(NamedTuple):
    """Number of ranks: ``most`` at the start, one fewer each time one dies, down to ``fewest``."""

    fewest: int
    most: int

    @classmethod
    def parse(cls, text: str) -> "RankRange":
        """Read ``N`` or ``MIN:MAX``.

        Raises:
            ValueError: It is neither.
        """
        numbers = text.split(":")
        if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
            raise ValueError(f"{text!r} is neither a number of ranks nor MIN:MAX, such as 4 or 1:4")
        rank_range = cls(int(numbers[0]), int(numbers[-1]))
        if not 1 <= rank_range.fewest <= rank_range.most:
            raise ValueError(f"{text!r} must have one rank at least, and MIN must not be above MAX")
        return rank_range


def launched() -> bool:
    """Whether this process is a rank that torchrun or ``launch`` started."""
    return "RANK" in os.environ


def local_rank() -> int:
    """This process's number among the ranks of its host; 0 unless a launcher says otherwise."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def restarts() -> int:
    """In a rank: how often all ranks were started again, as many or fewer, since the command began."""
    return int(os.environ.get(_FEWER, "0")) + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launch(arguments: Sequence[str], ranks: RankRange) -> dict[str, Any]:
    """Run ``freshet-trainer <arguments>`` as several processes and wait for all of them.

    When a rank dies, all ranks are started again, one fewer while there are more than ``ranks.fewest``. A rank that fails
    with a sentence ends them all. SIGTERM and Ctrl-C are passed on: the ranks finish their snapshot, checkpoint and end.

    Returns:
        The result that rank 0 gave to ``report_result``.

    Raises:
        Failure: With a rank's own sentence, or because ranks kept dying or ended without a result.
    """
    take_over("torch", "torch.distributed")
    from torch.distributed.elastic.multiprocessing import SignalException

    with scratch_folder("ranks") as folder:
        os.environ[_OUTCOME] = os.environ[WITHIN] = str(folder)
        os.environ.setdefault(STARTED, str(time.time()))
        os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_S))  # older torch ignores it
        try:
            for fewer in range(ranks.most - ranks.fewest + 1):
                os.environ[_FEWER] = str(fewer)
                number = ranks.most - fewer
                death = _ended(arguments, number, MAX_RESTARTS if number == ranks.fewest else 0, folder)
                if death is None:
                    break
                if number == ranks.fewest:
                    raise Failure(
                        f"ranks died {MAX_RESTARTS + 1 + fewer} times, the last with exit code {death}. Their own messages "
                        "are above"
                    )
                log.warning("a rank died, the others continue without it", exit_code=death, ranks=number - 1)
        except SignalException:
            if arguments[:1] == ["run"] and not (folder / _RESULT).exists():
                return dict(NOTHING_LEARNED)  # asked to end while ranks loaded
        finally:
            del os.environ[WITHIN], os.environ[_FEWER]
        sentence, result = folder / _SENTENCE, folder / _RESULT
        if sentence.exists():
            raise Failure(sentence.read_text(encoding="utf-8"))
        if not result.exists():
            raise Failure(
                "the ranks ended before they had a result. Start again: run resumes from its last checkpoint"
            )
        totals: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return totals


def _ended(arguments: Sequence[str], ranks: int, restarts: int, folder: Path) -> int | None:
    """Start ranks and wait for their end: the exit code of the first that died once too often; None if none did.

    Raises:
        SignalException: This process was asked to end, and has passed that on.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=f"freshet-{os.getpid()}-{ranks}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=restarts,
        monitor_interval=0.2,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
    )
    try:
        elastic_launch(settings, sys.executable)("-m", "freshet_graph.trainer.cli", *arguments)
    except ChildFailedError as error:
        return error.get_first_failure()[1].exitcode
    return None


def report_result(result: Mapping[str, Any]) -> bool:
    """In rank 0: hand the result to the launcher; False without a launcher: the caller prints it."""
    return _leave(_RESULT, json.dumps(result))


def report_failure(error: Exception) -> bool:
    """In a rank: hand a sentence to the launcher; False without a launcher: the caller fails.

    A rank that could hand it over ends with exit code 0, so that torchrun does not start it again.
    """
    return failed_before() or _leave(_SENTENCE, one_line(error))


def failed_before() -> bool:
    """In a rank: whether a rank of an earlier attempt left a sentence; then another attempt is useless."""
    return _OUTCOME in os.environ and (Path(os.environ[_OUTCOME]) / _SENTENCE).exists()


def _leave(name: str, text: str) -> bool:
    if _OUTCOME not in os.environ:
        return False
    path = Path(os.environ[_OUTCOME]) / name
    with system_call("write", path):
        path.with_suffix(".tmp").write_text(text, encoding="utf-8")
    path.with_suffix(".tmp").replace(path)
    return True
