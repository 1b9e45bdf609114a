"""The run loop of the stream job: pipelines in cycles, each from the last commit, until it is told to stop or idle."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from schemas.config import StreamConfig
from stream.held import hold, release
from stream.job.backfill import require_takeover
from stream.job.connecting import Connecting
from stream.job.decoding import Decoding
from stream.job.fit import require_fit
from stream.job.lane_threads import LaneThread, bring_up_to_date
from stream.job.open_log import OpenLog
from stream.job.ran import Busy, Ran
from stream.job.room import RoomForCommits
from stream.job.standby import Standby, StoppedEarly
from stream.kafka.broker_clock import BrokerClock
from stream.kafka.discovery import TopicWatch
from stream.kafka.present import Present
from stream.kafka.reader import PartitionReader
from stream.metrics import StreamMetrics
from stream.microbatch import MicroBatch, RawBatch
from stream.pipeline import HeldStages, run_locally
from stream.service.full_disk import room_to_begin
from stream.service.heartbeat import beat
from stream.service.memory import give_back_memory
from stream.sink.snapshot_sink import log_header
from stream.store.log.writer import LogWriter

STALLED_S = 60.0
"""Not ready when the source has not come round for this long."""

DRAIN_S = 30.0
"""How long the end of a job waits for its dead letters; what is left waits in the log for the next start."""

STOP_DRAIN_S = 2.0
"""The same after SIGTERM."""


class StreamJob:
    """One graph's stream in this process: reads its topics into its log, and its lanes after it.

    Commits are made by the sink, inside the pipeline. After each: dead letters and group offsets are sent from
    threads of their own, and lanes are woken where snapshots were sealed.

    Args:
        config: What to run.
        metrics: Told of everything.
        until_idle_s: End once nothing came for this long; None: only ``stop`` ends it.
        standby: Where another process writes the log or a lane, wait until it is gone instead of failing.
    """

    def __init__(
        self,
        config: StreamConfig,
        metrics: StreamMetrics,
        *,
        until_idle_s: float | None = None,
        standby: bool = False,
    ) -> None:
        self._config, self._metrics, self._until_idle_s = config, metrics, until_idle_s
        self._alone = Standby(
            config.graph,
            waits=standby,
            stop=lambda: self._stopping,
            shown=metrics.standing_by,
            check=lambda: require_fit(config),
        )
        self._room = RoomForCommits(
            config.store, stop=lambda: self._stopping, retried=lambda: metrics.restarted("disk")
        )
        self._names = HeldStages(stages=f"stages-{id(self)}", reader=f"reader-{id(self)}")
        self._present = Present(config)
        wait = None if until_idle_s is not None else lambda s: not self._reader or self._reader.stop.wait(s)
        self._decoding = Decoding(config, self._present, wait, metrics.clock_error)
        self._reader: PartitionReader | None = None
        self._lanes: list[LaneThread] = []
        self._log: OpenLog
        self._topics: TopicWatch
        self._stopping = self._idle = False
        self._connecting = Connecting(config, lambda: self._stopping, metrics.skipped)
        self._busy = Busy()
        self._failure: Exception | None = None
        self._last_round_s: float | None = None

    def stop(self) -> None:
        """Ask the job to end: what was read is committed first. Safe in a signal handler."""
        self._stopping = True
        reader = self._reader
        if reader is not None:
            reader.stop.set()

    def interrupt(self) -> None:
        """``stop`` for signal handlers of the thread in ``run``: ends a wait before anything is read at once.

        Raises:
            StoppedEarly: The thread waits; ``run`` takes it in.
        """
        again = self._stopping
        self.stop()
        if self._connecting.waits and not again:
            raise StoppedEarly

    def not_ready(self) -> str | None:
        """Why the job makes no progress; None when it does."""
        if self._alone.reason is not None:
            return f"standing by: {self._alone.reason}"
        if self._room.reason is not None or self._present.reason is not None:
            return self._room.reason or self._present.reason
        if self._last_round_s is None:
            return "starting"
        reader = self._reader
        silent_s = (reader.answers if reader is not None else self._connecting).silent_s
        if silent_s is not None:
            return f"no broker of {self._config.kafka.bootstrap} has answered for {silent_s:.0f} s"
        stalled_s = time.monotonic() - self._last_round_s
        if stalled_s > STALLED_S:
            return f"no topic partition was looked at for {stalled_s:.0f} s"
        failed = [f"lane {lane.name}: {lane.error}" for lane in self._lanes if lane.error]
        return "; ".join(failed) or None

    def lag(self) -> int:
        """Messages not read yet, over all topic partitions."""
        reader = self._reader
        return sum(reader.lag().values()) if reader is not None else 0

    def lane_lags(self) -> dict[str, int]:
        """Sealed snapshots that each lane lacks."""
        return {lane.name: lane.lag for lane in self._lanes}

    def run(self) -> Ran:
        """Run until stopped or idle.

        Raises:
            Failure: Kafka refuses, a topic doesn't exist or was deleted, with ``until_idle_s`` a lane can't be brought
                up to date, or the disk is full at the end.
            StoreError: The log or a lane is busy, damaged or made for something else; or Kafka lost unread messages.
            OSError: The disk refuses for another reason than being full.
        """
        try:
            return self._run()
        except StoppedEarly:
            return Ran(0, 0, 0, 0, 0.0, idle=False)

    def _run(self) -> Ran:
        config = self._config
        self._decoding.warm_up()
        with ExitStack() as stack:
            with room_to_begin(config.store):
                writer = stack.enter_context(
                    self._alone.alone(lambda: LogWriter.open(config.store, log_header(config)))
                )
            require_takeover(config, writer)
            self._log = OpenLog(config, self._metrics, writer, self._room, stack)
            brokers = self._log.brokers
            with room_to_begin(config.store):
                for lane in config.lanes:
                    self._lanes.append(
                        stack.enter_context(
                            self._alone.alone(partial(LaneThread, config.store, lane, self._metrics))
                        )
                    )
            self._log.keep_house(stack)
            hold(self._names.stages, self)
            stack.callback(release, self._names.stages)
            self._topics = brokers.add(TopicWatch(config.kafka, writer.topic_ids))
            self._present.ask_too(brokers.add(BrokerClock(config.kafka)).ask, lambda: writer.last)
            arrival_s = time.monotonic()
            while True:
                arrival_s = self._cycle(writer, arrival_s)
                if self._topics.lost is not None:
                    raise self._topics.lost
                if self._stopping or self._idle:
                    break
                self._metrics.restarted("partitions" if self._topics.added else "cycle")
                give_back_memory()
            seconds = self._busy.seconds + self._finish(writer)
            totals = self._metrics.totals
            return Ran(totals.snapshots, totals.events, totals.refused, totals.late, seconds, self._idle)

    # The pipeline's stages (stream.stages.Stages).

    def decode(self, raw: RawBatch) -> Iterator[MicroBatch]:
        """Validate one poll, a bounded part of it at a time."""
        with self._shown():
            yield from self._decoding.batches(raw)

    def write(self, batch: MicroBatch) -> list[int]:
        """Append one micro-batch to the log; returns the snapshots that this sealed."""
        with self._shown():
            return self._write(batch)

    def follow(self, lane: str) -> None:
        """Wake a lane."""
        for each in self._lanes:
            if each.name == lane:
                each.wake()

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """The runner passes errors on as text only; what is raised in here is the one to show."""
        try:
            yield
        except Exception as error:
            self._failure = error
            raise

    def _cycle(self, writer: LogWriter, arrival_s: float) -> float:
        """Run one pipeline from the last commit; returns when the last message came."""
        reader = self._connecting.reader(self._log.sink.next_offset, arrival_s)
        if reader is None:
            return arrival_s
        try:
            self._reader = reader
            if self._stopping:  # asked for before there was a reader to tell
                reader.stop.set()
            self._log.begin(reader.starts)
            self._topics.reading([(start.topic, start.partition) for start in reader.starts])
            if self._topics.lost is not None:
                return arrival_s
            writer.topic_ids = self._topics.ids
            hold(self._names.reader, reader)
            try:
                run_locally(reader.starts, self._names, tuple(lane.name for lane in self._lanes))
            except Exception as error:
                raise self._failure or reader.failure or error from error
            finally:
                release(self._names.reader)
            self._log.commit(self._log.sink.flush)
            return reader.last_arrival_s
        finally:
            self._reader = None
            reader.close()

    def _write(self, batch: MicroBatch) -> list[int]:
        reader = self._reader
        assert reader is not None
        begun_s = time.monotonic()
        lag = reader.lag()
        record = self._log.take_in(batch, lag.values())
        now = time.monotonic()
        self._last_round_s = now
        beat()
        self._busy.took(
            messages=batch.end_offset > batch.first_offset,
            committed=record is not None,
            begun_s=begun_s,
            now_s=now,
            first_poll_s=reader.first_poll_s,
        )
        self._metrics.lag(lag)
        # Counted from its first poll, and no message is given up that one brought: so each cycle reads on.
        over = not reader.has_waiting and now - (reader.first_poll_s or now) >= self._config.cycle_s
        # Only while brokers answer: the next cycle has to connect.
        if self._topics.changed or (over and not reader.answers.out and reader.ask()):
            reader.stop.set()
        elif self._until_idle_s is not None and reader.idle_s >= self._until_idle_s and reader.caught_up():
            self._idle = True
            reader.stop.set()
        return [sealed.tau for sealed in record.sealed] if record is not None else []

    def _finish(self, writer: LogWriter) -> float:
        """The last commit, dead letters and lanes; returns the seconds of the commit."""
        begun_s = time.monotonic()
        sink, letters = self._log.sink, self._log.letters
        record = self._log.commit(sink.seal_all if self._idle else sink.flush)
        seconds = time.monotonic() - begun_s if record is not None else 0.0
        if letters is not None:
            asked_to_stop = self._stopping
            letters.drain(
                DRAIN_S if self._idle else STOP_DRAIN_S, stop=lambda: self._stopping and not asked_to_stop
            )
            self._room.made(sink.flush)  # records which are published
        if self._idle:
            bring_up_to_date(self._lanes, lambda: self._stopping)
        return seconds
