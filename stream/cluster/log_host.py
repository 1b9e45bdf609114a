"""The log in a worker process: opened for the first batch, closed when no stage of the job uses it here any more."""

import time
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.cluster.plan import ClusterPlan, is_current
from freshet_graph.stream.job.open_log import OpenLog, RoomForCommits
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.store.errors import LaneBusyError, OffsetGapError
from freshet_graph.stream.store.log.writer import LogWriter

LOCK_WAIT_S = 60.0
"""How long to wait for a log that is being written by a worker of the previous attempt, which may take time to end."""

LOCK_LOOK_S = 0.3

_log = structlog.get_logger()


def open_log(
    config: StreamConfig, *, wait_s: float = LOCK_WAIT_S, stop: Callable[[], bool] = lambda: False
) -> LogWriter:
    """Open a graph's log for writing, waiting for its writer to end.

    Raises:
        LaneBusyError: It is still being written after ``wait_s``, or when ``stop`` returns True.
        StoreError, OSError: As ``LogWriter.open``.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            return LogWriter.open(config.store, log_header(config))
        except LaneBusyError:
            if time.monotonic() > deadline_s or stop():
                raise
            time.sleep(LOCK_LOOK_S)


class LogHost:
    """Takes in the micro-batches of all topic partitions of a job, and commits them.

    A batch may be offered again, by the same attempt of a job or the next: the log takes each offset once. A batch
    that skips offsets is refused: those between were lost with a worker, and must be read again.

    Attributes:
        log: The log.
        last_batch_s: Monotonic seconds of the last batch.
    """

    def __init__(self, plan: ClusterPlan, config: StreamConfig, metrics: StreamMetrics) -> None:
        """Open the log and resume from its last commit.

        Raises:
            StoreError: The log is busy, damaged or made for something else.
            Failure: The dead letters' topic can't be made.
            OSError: The disk refuses.
        """
        self._metrics = metrics
        self._lag: dict[tuple[str, int], int] = {}
        self._room = RoomForCommits(
            config.store,
            stop=lambda: not is_current(config.store, plan.id),
            retried=lambda: metrics.restarted("disk"),
        )
        self.last_batch_s = time.monotonic()
        with ExitStack() as stack:
            self._writer = stack.enter_context(open_log(config))
            self._writer.topic_ids = dict(plan.topic_ids)
            self.log = OpenLog(config, metrics, self._writer, self._room, stack, holds=False)
            self.log.begin(plan.starts)
            self.log.start_compaction(stack)
            self._open = stack.pop_all()
        _log.info("log opened", graph=config.graph, writer=self._writer.writer_id)

    @property
    def waits_for(self) -> str | None:
        """Why nothing is taken in; None while batches are taken."""
        return self._room.reason

    @property
    def sealed(self) -> list[int]:
        """τ of the last sealed snapshot, as a list; empty if there is none."""
        return [self._writer.snapshots[-1].tau] if self._writer.snapshots else []

    def write(self, batch: MicroBatch) -> list[int]:
        """Take one micro-batch in, and commit if that is due; returns the snapshots τ that this sealed.

        Raises:
            OffsetGapError: Offsets before it are missing.
            Failure: The disk is full, and the job was told to end.
            StoreError, OSError: As ``SnapshotSink.advance``; a full disk is waited for.
        """
        key = (batch.topic, batch.partition)
        expected = self.log.sink.next_offset(key)
        if expected is None or batch.first_offset > expected:
            raise OffsetGapError(
                f"topic {batch.topic} partition {batch.partition}: expected offset {expected}, found a batch that "
                f"begins at {batch.first_offset}. A failed worker took the messages between them with it, and they are read "
                "again. If this repeats at every restart, switch Flink's checkpoints off: the log needs none"
            )
        if batch.skipped:
            self._metrics.skipped(batch.topic, batch.skipped)
        self._lag[key] = max(0, batch.high_watermark - batch.end_offset)
        record = self.log.take_in(batch, self._lag)
        self.last_batch_s = time.monotonic()
        return [sealed.tau for sealed in record.sealed] if record is not None else []

    def close(self, *, flush: bool = True) -> None:
        """Commit what is pending, unless ``flush`` is False after a failure, and release the log."""
        with self._open:
            if flush:
                self.log.committed(self.log.sink.flush())
        _log.info("log closed", writer=self._writer.writer_id)
