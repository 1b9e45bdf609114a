"""A process's part of a job on a cluster: opened when a stage first needs it, closed with the last stage."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import structlog

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.store import CommitRecord, Key
from freshet_graph.stream.cluster.log_host import LogHost
from freshet_graph.stream.cluster.plan import ClusterPlan, is_current
from freshet_graph.stream.job.decoding import Decoding
from freshet_graph.stream.job.lane_threads import LaneThread, failures
from freshet_graph.stream.job.readiness import readiness
from freshet_graph.stream.kafka.answers import BrokerAnswers
from freshet_graph.stream.kafka.broker_clock import BrokerClock
from freshet_graph.stream.kafka.greeting import NoBrokerError
from freshet_graph.stream.kafka.present import Present
from freshet_graph.stream.kafka.reader import ASK_S, PartitionReader, Start
from freshet_graph.stream.kafka.tls import LOGIN_AGAIN_S, CredentialError, LoginRefusedError
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.microbatch import MicroBatch, RawBatch
from freshet_graph.stream.partition.interface import PartitionError
from freshet_graph.stream.service.endpoint import Endpoint
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.store.errors import ConfigMissingError, StoreError
from freshet_graph.stream.store.log.reader import LogReader


class OnePartition:
    """Reads one topic partition from the end of the log.

    Attributes:
        next: First offset that was not taken.
        claimed: End of the previous turn, for the runner; more than ``next`` while something is read again.
    """

    def __init__(self, config: StreamConfig, start: Start) -> None:
        """Connect and seek to the log's end, or to ``start`` if the log doesn't know the topic partition.

        Raises:
            OffsetGapError, Failure: As ``PartitionReader``.
        """
        self._config, self._key = config, (start.topic, start.partition)
        known = committed(config.store, self._key)
        self.next = self.claimed = start.offset if known is None else known
        self._skipped = 0
        self._again_s = 0.0
        self._reader = self._connected(None)

    def take(self) -> RawBatch:
        """The next messages, which begin exactly where the last ones ended."""
        if self._reader.given_up and time.monotonic() >= self._again_s:
            self._reconnect()
        (begun,) = self._reader.starts
        if self._skipped and self.next < begun.offset:
            batch = _nothing(replace(begun, offset=self.next), end_offset=begun.offset)
        else:
            batch = self._reader.take(*self._key)
        self.next, skipped = batch.end_offset, self._skipped
        self._skipped = 0
        return replace(batch, skipped=skipped) if skipped else batch

    def close(self) -> None:
        """Leave the brokers."""
        self._reader.close()

    def _connected(self, answers: BrokerAnswers | None) -> PartitionReader:
        quiet_s = min(ASK_S, self._config.snapshots.idle_timeout_s / 2)
        kafka, key = self._config.kafka, self._key
        return PartitionReader(
            kafka, lambda _: self.next, self._skip, ask_quiet_s=quiet_s, only=key, answers=answers
        )

    def _reconnect(self) -> None:
        answers = self._reader.answers
        try:
            reader = self._connected(answers)
        except (NoBrokerError, CredentialError) as error:
            answers.missed(error)
            if isinstance(error, LoginRefusedError):
                self._again_s = time.monotonic() + LOGIN_AGAIN_S
            return
        answers.heard()
        self._reader.close()
        self._reader = reader

    def _skip(self, topic: str, offsets: int) -> None:
        self._skipped += offsets


class PartitionReaders:
    """Lends each reader to one turn at a time; a reader that isn't at the begin of the turn is replaced."""

    def __init__(self, config: StreamConfig) -> None:
        self._config = config
        self._waiting: dict[Key, OnePartition] = {}
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def lent(self, start: Start, offset: int) -> Iterator[OnePartition]:
        """The reader of a topic partition for one turn.

        Args:
            start: The topic partition, and where the job began to read it.
            offset: End of the previous turn. A reader that is there is used again. Otherwise a new one begins at the log's
                last commit, which may be earlier: the log drops offsets that it has.
        """
        key = (start.topic, start.partition)
        with self._lock:
            reader = self._waiting.pop(key, None)
        if reader is not None and reader.claimed != offset:
            reader.close()
            reader = None
        reader = reader or OnePartition(self._config, start)
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        with self._lock:
            replaced = reader if self._closed else self._waiting.get(key)
            if not self._closed:
                self._waiting[key] = reader
        if replaced is not None:
            replaced.close()

    def close(self) -> None:
        """Leave the brokers; readers that are lent are closed on their return."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, {}
        for reader in waiting.values():
            reader.close()


def committed(store: str, key: Key) -> int | None:
    """First offset of a topic partition that the log doesn't have; None: the log doesn't know it.

    Raises:
        StoreError: The log is damaged.
    """
    log = _opened(store)
    position = None if log is None else log.positions.get(key)
    return None if position is None else position.next


def last_commit(store: str) -> CommitRecord | None:
    """The last commit of a log; None if there is none.

    Raises:
        StoreError: The log is damaged.
    """
    log = _opened(store)
    return None if log is None else log.last


def _opened(store: str) -> LogReader | None:
    try:
        return LogReader(store)
    except ConfigMissingError:
        return None


def _nothing(start: Start, *, end_offset: int) -> RawBatch:
    """A batch of deleted offsets."""
    return RawBatch(
        topic=start.topic,
        partition=start.partition,
        first_offset=start.offset,
        end_offset=end_offset,
        high_watermark=start.end,
        offsets=pa.array([], pa.int64()),
        values=pa.array([], pa.large_binary()),
    )


PORTS = 16
"""Workers on one host serve metrics on the configured port or one of the next."""

STALLED_S = 60.0
"""Not ready when no batch has come for this long: empty ones come several times a second."""

_log = structlog.get_logger()


class Worker:
    """The job's objects in this process: consumers, decoders, and the log and lanes if their batches come here.

    Get it by ``acquire`` and give it back by ``release``.

    Attributes:
        readers: Consumers of the topic partitions that are read here.
        endpoint: Serves metrics, once the log or a lane is here; else None.
    """

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._config = plan.config()
        self.readers = PartitionReaders(self._config)
        self._metrics = StreamMetrics(self._config)
        self._readiness = readiness(self._config, self._metrics, self.not_ready)
        self._present = Present(self._config)
        self._broker_clock = BrokerClock(self._config.kafka)
        self._present.ask_too(self._broker_clock.ask, lambda: last_commit(self._config.store))
        self._decoding = Decoding(self._config, self._present, self._waited, self._show_clock)
        self._lock = threading.RLock()
        self._log: LogHost | None = None
        self._lanes: dict[str, LaneThread] = {}
        self._lane_errors: dict[str, str] = {}
        self.endpoint: Endpoint | None = None

    @property
    def current(self) -> bool:
        """Whether the job may read for its store."""
        return is_current(self._config.store, self._plan.id)

    def decode(self, raw: RawBatch) -> Iterator[MicroBatch]:
        """Validate one poll, a bounded part of it at a time."""
        return self._decoding.batches(raw)

    def write(self, batch: MicroBatch) -> list[int]:
        """Append one micro-batch to the log; returns the sealed snapshots, after opening the log also the last one there.

        Raises:
            StoreError, OSError, Failure: As ``LogHost``; the next batch then opens the log again.
        """
        with self._lock:
            self._serve()
            opened = []
            if self._log is None:
                self._log = LogHost(self._plan, self._config, self._metrics)
                opened = self._log.sealed
            try:
                return opened + self._log.write(batch)
            except BaseException:
                self._close_log(flush=False)
                raise

    def follow(self, name: str) -> None:
        """Wake a lane, which follows the log on a thread of its own; opening a lane is retried at the next call."""
        with self._lock:
            self._serve()
            try:
                if name not in self._lanes:
                    (lane,) = (lane for lane in self._config.lanes if lane.name == name)
                    self._lanes[name] = LaneThread(self._config.store, lane, self._metrics)
                self._lanes[name].wake()
                self._lane_errors.pop(name, None)
            except (StoreError, PartitionError, OSError) as error:
                self._lane_errors[name] = str(error)
                _log.error("lane can't be opened, trying again", lane=name, error=str(error))

    def not_ready(self) -> str | None:
        """Why the log or a lane makes no progress here; None if they do."""
        log = self._log
        waits_for = self._present.reason or self._decoding.reason
        if waits_for is not None:
            return waits_for
        if log is not None and log.waits_for is not None:
            return log.waits_for
        if log is not None and (stalled_s := time.monotonic() - log.last_batch_s) > STALLED_S:
            return f"no batch of any topic partition has come for {stalled_s:.0f} s"
        failed = failures(self._lanes.values())
        failed += [f"lane {name}: {error}" for name, error in self._lane_errors.items()]
        return "; ".join(failed) or None

    def close(self) -> None:
        """Commit what is pending and close everything."""
        self.readers.close()
        self._broker_clock.close()
        with self._lock:
            try:
                self._close_log(flush=True)
            finally:
                lanes, self._lanes = self._lanes, {}
                for lane in lanes.values():
                    lane.close()
                if self.endpoint is not None:
                    self.endpoint.close()
                    self.endpoint = None

    def _waited(self, seconds: float) -> bool:
        time.sleep(seconds)
        return not self.current

    def _show_clock(self, error_s: float) -> None:
        self._metrics.clock_error(error_s)
        with self._lock:
            self._serve()

    def _close_log(self, *, flush: bool) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close(flush=flush)

    def _serve(self) -> None:
        """Serve metrics from processes that hold the log or a lane."""
        if self.endpoint is not None:
            return
        wanted, failure = self._config.metrics, None
        for port in range(wanted.port, wanted.port + PORTS) if wanted.port else [0]:
            try:
                # A lane's thread has no loop that could hang. Flink finds hanging workers.
                here = wanted.model_copy(update={"port": port, "hung_after_s": math.inf})
                self.endpoint = Endpoint(here, self._metrics.registry, self._readiness)
            except Failure as error:
                failure = error
                continue
            _log.info("metrics", url=self.endpoint.url)
            return
        raise Failure(
            f"metrics.port: none of {wanted.port} to {wanted.port + PORTS - 1} can be used. The last try: {failure}"
        )


workers: dict[str, Worker] = {}
_users: Counter[str] = Counter()
_lock = threading.Lock()


def acquire(plan: ClusterPlan) -> Worker:
    """This process's worker of a job, made if there is none; every call needs one ``release``."""
    with _lock:
        if not structlog.is_configured():
            # The standard output of a worker pool's processes is not read: they would stop once its pipe is full.
            configure_logs(level="INFO")
        if plan.id not in workers:
            workers[plan.id] = Worker(plan)
        _users[plan.id] += 1
        return workers[plan.id]


def release(plan: ClusterPlan) -> None:
    """Give a worker back; it closes with its last user."""
    with _lock:
        _users[plan.id] -= 1
        last = None if _users[plan.id] else workers.pop(plan.id, None)
    if last is not None:
        last.close()


def dismiss(plan: ClusterPlan) -> None:
    """Close this process's worker of a job that has ended, if it has one.

    If a connection breaks while Beam ends its harness, it tears no stage down, and this process would hold the log to its end.
    """
    with _lock:
        last = workers.pop(plan.id, None)
    if last is not None:
        last.close()
