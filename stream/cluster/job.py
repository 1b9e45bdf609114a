"""The stream job on a cluster: submits the pipeline, follows the log that its workers write, and ends it."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

import structlog

from schemas.config import StreamConfig
from stream.cluster.current import announce, withdraw
from stream.cluster.log_host import open_log
from stream.cluster.plan import Plan
from stream.cluster.submission import Submission
from stream.cluster.totals import JobTotals
from stream.cluster.worker import dismiss
from stream.held import holding
from stream.job.backfill import require_takeover
from stream.job.loop import Ran, StreamJob
from stream.job.standby import require_same
from stream.kafka.discovery import TopicWatch
from stream.kafka.reader import PartitionReader, Start
from stream.metrics import StreamMetrics
from stream.service.failure import Failure
from stream.sink import SnapshotSink
from stream.store.lane.writer import LaneWriter

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
        plan = Plan.of(self._config, [])
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

    def _follow(self, submission: Submission, plan: Plan, reader: PartitionReader, watch: TopicWatch) -> None:
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
        told = self._stopping or self._idle or watch.changed
        withdraw(self._config.store, plan.id)
        if submission.wait(DRAIN_S):
            dismiss(plan)
        else:
            submission.cancel()
            _log.warning("the pipeline didn't end by itself and was cancelled", waited_s=DRAIN_S)
        if not told:
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
