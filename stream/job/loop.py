"""The run loop of the stream job: pipelines in cycles, each from the last commit, until it is stopped or idle."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.job.backfill import require_takeover
from freshet_graph.stream.job.beam import BeamLoading
from freshet_graph.stream.job.decoding import Decoding
from freshet_graph.stream.job.lane_threads import LaneThread, bring_up_to_date, failures
from freshet_graph.stream.job.open_log import OpenLog, RoomForCommits
from freshet_graph.stream.job.standby import Standby, StoppedEarly, require_fit, require_same
from freshet_graph.stream.kafka.answers import BrokerAnswers
from freshet_graph.stream.kafka.broker_clock import BrokerClock
from freshet_graph.stream.kafka.client import NoBrokerError
from freshet_graph.stream.kafka.discovery import TopicWatch
from freshet_graph.stream.kafka.present import Present
from freshet_graph.stream.kafka.reader import ASK_S, NextOffset, PartitionReader, Skipped
from freshet_graph.stream.kafka.tls import LOGIN_AGAIN_S, CredentialError, LoginRefusedError
from freshet_graph.stream.kafka.topics import NoLeaderError
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.microbatch import MicroBatch, RawBatch
from freshet_graph.stream.service.full_disk import room_to_begin
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.service.memory import give_back_memory
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.store.log.writer import LogWriter


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a run: events and snapshots that it made durable.

    Attributes:
        seconds: From the first poll to the last commit, without the idle tail.
        idle: Whether it ended because nothing more came; otherwise it was stopped.
        held_topics: Why topics were held, or not read any more, a sentence or two each.
        held_messages: Unread messages of these topics.
    """

    snapshots: int
    events: int
    refused: int
    late: int
    seconds: float
    idle: bool
    held_topics: tuple[str, ...] = ()
    held_messages: int = 0

    @property
    def events_per_s(self) -> float:
        """Events per second."""
        return self.events / self.seconds if self.seconds > 0 else 0.0


class Busy:
    """Counts the seconds from the first poll until the last message is in the log or waits for its commit.

    Attributes:
        round_s: Monotonic seconds when the last poll, empty ones included, had been taken in; None: no poll yet.
    """

    def __init__(self) -> None:
        self.round_s: float | None = None
        self._first_poll_s: float | None = None
        self._until_s: float | None = None  # when the last message was taken in
        self._late_commits_s = 0.0  # commits since then, the idle time between them left out

    def took(
        self, *, messages: bool, committed: bool, begun_s: float, now_s: float, first_poll_s: float | None
    ) -> None:
        """One micro-batch was taken in."""
        self.round_s = now_s
        if self._first_poll_s is None:
            self._first_poll_s = first_poll_s
        if messages:
            self._until_s, self._late_commits_s = now_s, 0.0
        elif committed:
            self._late_commits_s += now_s - begun_s

    @property
    def seconds(self) -> float:
        """So far."""
        if self._first_poll_s is None or self._until_s is None:
            return 0.0
        return self._until_s - self._first_poll_s + self._late_commits_s


AGAIN_S = 1.0
"""Pause before brokers are looked for again: some refuse at once."""

_log = structlog.get_logger()


class Connecting:
    """Makes the readers.

    Attributes:
        begun: Whether something was read. Until then, brokers that don't answer end the job, and so does a stop.
        waits: Whether nothing is being read yet, or no longer: the job waits for the log, lanes or brokers.
        answers: Whether brokers answer.
        no_leader: The sentence about the topic partitions whose leaders the next reader waits for; else None.
    """

    def __init__(self, config: StreamConfig, stopping: Callable[[], bool], skipped: Skipped) -> None:
        self._config, self._stopping, self._skipped = config, stopping, skipped
        self.begun = self.waits = False
        self.answers = BrokerAnswers(config.kafka.bootstrap)
        self.no_leader: str | None = None

    def reader(
        self, next_offset: NextOffset, arrival_s: float, topics: TopicWatch | None = None
    ) -> PartitionReader | None:
        """A reader that resumes where the log ends; None if the job was stopped while it waited for brokers.

        The end of a wait counts as an arrival; otherwise the last message came at ``arrival_s``. Topics that ``topics`` has
        left are not read.

        Raises:
            NoBrokerError, CredentialError: The first reader finds no broker, or none that it may trust or log in at.
            StoppedEarly: The job was stopped before the first reader.
        """
        self.waits = True
        waited = False
        quiet_s = min(ASK_S, self._config.snapshots.idle_timeout_s / 2)
        try:
            while not self._stopping():
                beat()
                pause_s = AGAIN_S
                try:
                    reader = PartitionReader(
                        self._config.kafka,
                        next_offset,
                        self._skipped,
                        ask_quiet_s=quiet_s,
                        answers=self.answers,
                        ids=None if topics is None else topics.ids,
                        without=() if topics is None else topics.left,
                        joins=self.begun,
                    )
                except NoLeaderError as error:
                    self.answers.heard()
                    self._wait_for_leader(str(error))
                except (NoBrokerError, CredentialError) as error:
                    if not self.begun:
                        raise
                    self.answers.missed(error)
                    pause_s = LOGIN_AGAIN_S if isinstance(error, LoginRefusedError) else AGAIN_S
                else:
                    if not (self.answers.heard() or waited):
                        reader.last_arrival_s = arrival_s
                    self.no_leader = None
                    return reader
                waited = True
                time.sleep(pause_s)
        except StoppedEarly:
            if not self.begun:
                raise
        finally:
            self.waits = not self.begun
        return None

    def begin(self) -> None:
        """What a reader has found is checked, and is read from now on."""
        self.begun, self.waits = True, False

    def _wait_for_leader(self, reason: str) -> None:
        if self.no_leader is None:
            _log.warning("a topic partition has no leader, waiting for it", reason=reason)
        self.no_leader = reason


class Cycle:
    """The ``Stages`` of one pipeline, from its first poll until its reader is stopped.

    It ends when the topics change, when brokers don't answer its reader any more, after ``cycle_s``, or once nothing came for
    ``until_idle_s`` (None: never for that).

    Attributes:
        reader: Reads the topic partitions.
        idle: Whether it ended because nothing came.
        failure: The error that a stage raised. A runner passes on its text only.
    """

    def __init__(
        self,
        reader: PartitionReader,
        decoding: Decoding,
        log: OpenLog,
        lanes: Mapping[str, LaneThread],
        busy: Busy,
        cycle_s: float,
        until_idle_s: float | None,
    ) -> None:
        self.reader = reader
        self.idle = False
        self.failure: Exception | None = None
        self._decoding, self._log, self._lanes, self._busy = decoding, log, lanes, busy
        self._cycle_s, self._until_idle_s = cycle_s, until_idle_s

    def decode(self, raw: RawBatch) -> Iterator[MicroBatch]:
        """See ``Stages.decode``."""
        with self._recording_failure():
            yield from self._decoding.batches(raw)

    def write(self, batch: MicroBatch) -> list[int]:
        """See ``Stages.write``."""
        with self._recording_failure():
            begun_s = time.monotonic()
            lag, key = self.reader.lag(), (batch.topic, batch.partition)
            # The rest of its poll is in hand.
            lag[key] = max(lag[key], batch.high_watermark - batch.end_offset)
            record = self._log.take_in(batch, lag)
            if batch.topic in self._log.held_by_name:
                self.reader.hold(batch.topic, self._log.sink.next_offset)
            now_s = time.monotonic()
            beat()
            self._busy.took(
                messages=batch.end_offset > batch.first_offset,
                committed=record is not None,
                begun_s=begun_s,
                now_s=now_s,
                first_poll_s=self.reader.first_poll_s,
            )
            if self._over(now_s):
                self.reader.stop.set()
            return [sealed.tau for sealed in record.sealed] if record is not None else []

    def follow(self, lane: str) -> None:
        """See ``Stages.follow``."""
        self._lanes[lane].wake()

    def _over(self, now_s: float) -> bool:
        reader = self.reader
        if reader.left:
            self._log.topics.leave(reader.left)
        if self._log.topics.changed or reader.given_up:
            return True
        # Counted from its first poll, and never while messages wait: each cycle makes progress.
        late = not reader.has_waiting and now_s - (reader.first_poll_s or now_s) >= self._cycle_s
        if late and not reader.answers.out and reader.ask():  # the next cycle has to connect
            return True
        if self._until_idle_s is None or self._decoding.reason is not None:
            return False
        self.idle = reader.idle_s >= self._until_idle_s and reader.caught_up()
        return self.idle

    @contextmanager
    def _recording_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


STALLED_S = 60.0
"""Not ready if no topic partition was looked at for this long."""

DRAIN_S = 30.0
"""How long the end of a job waits for its dead letters; the rest waits in the log for the next start."""

STOP_DRAIN_S = 2.0
"""The same after SIGTERM."""


class StreamJob:
    """One graph's stream in this process: reads its topics into its log, and updates its lanes from the log.

    Args:
        config: What to run.
        metrics: Counts and shows everything.
        until_idle_s: End once nothing came for this long; None: only ``stop`` ends it.
        standby: If another process writes the log or a lane, wait until it is gone instead of failing.
        on_begin: Called once log, lanes and topics are found to be those of the configuration, before the first message.
    """

    def __init__(
        self,
        config: StreamConfig,
        metrics: StreamMetrics,
        *,
        until_idle_s: float | None = None,
        standby: bool = False,
        on_begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._config, self._metrics, self._until_idle_s = config, metrics, until_idle_s
        self._on_begin = on_begin
        self._alone = Standby(
            config.graph,
            waits=standby,
            stop=lambda: self._stopping,
            shown=metrics.standing_by,
            check=self._before_standby,
        )
        self._room = RoomForCommits(
            config.store, stop=lambda: self._stopping, retried=lambda: metrics.restarted("disk")
        )
        self._present = Present(config)
        self._decoding = Decoding(
            config,
            self._present,
            lambda s: not self._reader or self._reader.stop.wait(s),
            metrics.clock_error,
            gives_up=until_idle_s is not None,
        )
        self._connecting = Connecting(config, lambda: self._stopping, metrics.skipped)
        self._reader: PartitionReader | None = None
        self._lanes: dict[str, LaneThread] = {}
        self.log: OpenLog  # while ``run`` has it open
        self._stopping = self._idle = False
        self._busy = Busy()

    def stop(self) -> None:
        """Ask the job to end: what was read is committed first. Safe in a signal handler."""
        self._stopping = True
        reader = self._reader
        if reader is not None:
            reader.stop.set()

    def interrupt(self) -> None:
        """``stop`` for signal handlers of the thread in ``run``: also ends a wait before anything is read.

        Raises:
            StoppedEarly: The thread waits; ``run`` catches it.
        """
        again = self._stopping
        self.stop()
        if self._connecting.waits and not again:
            raise StoppedEarly

    def not_ready(self) -> str | None:
        """Why the job makes no progress; None if it does."""
        if self._alone.reason is not None:
            return f"standing by: {self._alone.reason}"
        waits_for = self._room.reason or self._present.reason or self._decoding.reason
        if waits_for is not None:
            return waits_for
        reader = self._reader
        no_leader = reader.no_leader if reader is not None else self._connecting.no_leader
        if self._busy.round_s is None:
            return no_leader or "starting"
        away = self._connecting.answers.reason or no_leader
        if away is not None:
            return away
        stalled_s = time.monotonic() - self._busy.round_s
        if stalled_s > STALLED_S:
            return f"no topic partition was looked at for {stalled_s:.0f} s"
        return "; ".join([*self._held_reasons(), *failures(self._lanes.values())]) or None

    def _held_reasons(self) -> tuple[str, ...]:
        """Why topics are held, or not read any more, a sentence or two each."""
        return (*map(str, self.log.held_by_name.values()), *self.log.topics.left.values())

    def lag(self) -> int | None:
        """Messages not read yet, over all topic partitions; None while that is not known."""
        reader = self._reader
        return sum(reader.lag().values()) + self._decoding.unread if reader is not None else None

    def lane_lags(self) -> dict[str, int]:
        """Sealed snapshots that each lane lacks."""
        return {name: lane.lag for name, lane in self._lanes.items()}

    def run(self) -> Ran:
        """Run until stopped or idle.

        Raises:
            Failure: Kafka refuses, a topic doesn't exist or was deleted, with ``until_idle_s`` a lane can't be brought
                up to date, or the disk is full at the end.
            StoreError: The log or a lane is busy, damaged or made for something else; or Kafka lost unread messages.
            OSError: The disk refuses for another reason than being full.
        """
        try:
            self._connecting.waits = True  # from here on, until ``finally``, StoppedEarly is caught
            with ExitStack() as stack:
                self._open(stack)
                self._read(stack.enter_context(BeamLoading()))
                seconds = self._busy.seconds + self._finish()
                totals = self._metrics.totals
                counts = totals.snapshots, totals.events, totals.refused, totals.late
                unread = self._metrics.unread_of(self.log.held_by_name)
                return Ran(*counts, seconds, self._idle, self._held_reasons(), unread)
        except StoppedEarly:
            return Ran(0, 0, 0, 0, 0.0, idle=False)
        finally:
            self._connecting.waits = False

    def _before_standby(self) -> None:
        """All that would delay or prevent a takeover."""
        require_fit(self._config)
        self._decoding.warm_up()

    def _open(self, stack: ExitStack) -> None:
        """Open the log, its lanes, and what watches brokers; the stack closes them."""
        config = self._config
        require_same(config)
        with room_to_begin(config.store):
            writer = stack.enter_context(
                self._alone.alone(lambda: LogWriter.open(config.store, log_header(config)))
            )
            require_takeover(config, writer)
            self.log = OpenLog(config, self._metrics, writer, self._room, stack, holds=True)
            for lane in config.lanes:
                thread = self._alone.alone(partial(LaneThread, config.store, lane, self._metrics))
                self._lanes[lane.name] = stack.enter_context(closing(thread))
        self.log.start_compaction(stack)
        brokers = self.log.brokers
        self._present.ask_too(brokers.add(BrokerClock(config.kafka)).ask, lambda: writer.last)

    def _read(self, beam: BeamLoading) -> None:
        """Run cycles, each from the last commit, until the job is stopped or idle."""
        arrival_s = time.monotonic()
        while True:
            arrival_s = self._cycle(arrival_s, beam)
            if self.log.topics.lost is not None:
                raise self.log.topics.lost
            if self._stopping or self._idle:
                return
            self._metrics.restarted("partitions" if self.log.topics.added else "cycle")
            give_back_memory()

    def _cycle(self, arrival_s: float, beam: BeamLoading) -> float:
        """Run one pipeline from the last commit; returns when the last message came."""
        log = self.log
        reader = self._connecting.reader(log.sink.next_offset, arrival_s, log.topics)
        if reader is None:
            return arrival_s
        log.topics.know(reader.ids)
        log.topics.leave(reader.left)
        try:
            self._reader = reader
            if self._stopping:  # asked for before there was a reader
                reader.stop.set()
            beam.wait()
            from freshet_graph.stream.pipeline import (  # nothing else of a job needs Beam
                InProcess,
                holding,
                run_locally,
            )

            log.begin(reader.starts)
            if not self._connecting.begun:
                self._on_begin()
            self._connecting.begin()
            ends = self._config.cycle_s, self._until_idle_s
            cycle = Cycle(reader, self._decoding, log, self._lanes, self._busy, *ends)
            where = InProcess(f"cycle-{id(cycle)}")
            try:
                with holding(where.name, cycle):
                    run_locally(reader.starts, where, tuple(self._lanes))
            except Exception as error:
                raise cycle.failure or reader.failure or error from error
            self._idle = cycle.idle
            log.committed(log.sink.flush())
            return reader.last_arrival_s
        finally:
            self._reader = None
            reader.close()

    def _finish(self) -> float:
        """The last commit, dead letters and lanes; returns the seconds of the commit."""
        begun_s = time.monotonic()
        sink, letters = self.log.sink, self.log.letters
        self.log.rest()
        made = self.log.committed(sink.seal_all() if self._idle else sink.flush()) is not None
        seconds = time.monotonic() - begun_s if made else 0.0
        while self._idle and made:
            if self._stopping:  # the rest is durable, and open
                self._idle = False
                break
            made = self.log.committed(sink.seal_all()) is not None
            seconds = time.monotonic() - begun_s
        if letters is not None:
            asked_to_stop = self._stopping
            letters.drain(
                DRAIN_S if self._idle else STOP_DRAIN_S, stop=lambda: self._stopping and not asked_to_stop
            )
            sink.flush()  # records which are published
        if self._idle:
            bring_up_to_date(self._lanes.values(), lambda: self._stopping)
        return seconds
