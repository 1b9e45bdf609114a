"""A process's part of a job on a cluster: opened when a stage first needs it, closed with the last stage."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator

import structlog

from stream.cluster.current import is_current
from stream.cluster.log_host import LogHost
from stream.cluster.partition_readers import PartitionReaders, last_commit
from stream.cluster.plan import Plan
from stream.job.decoding import Decoding
from stream.job.lane_threads import LaneThread, failures
from stream.job.readiness import readiness
from stream.kafka.broker_clock import BrokerClock
from stream.kafka.present import Present
from stream.metrics import StreamMetrics
from stream.microbatch import MicroBatch, RawBatch
from stream.partition.interface import PartitionError
from stream.service.endpoint import Endpoint
from stream.service.failure import Failure
from stream.service.logs import configure_logs
from stream.store.errors import StoreError

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

    def __init__(self, plan: Plan) -> None:
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


def acquire(plan: Plan) -> Worker:
    """This process's worker of a job, made if there is none; every call needs one ``release``."""
    with _lock:
        if not structlog.is_configured():
            # The standard output of a worker pool's processes is not read: they would stop once its pipe is full.
            configure_logs(level="INFO")
        if plan.id not in workers:
            workers[plan.id] = Worker(plan)
        _users[plan.id] += 1
        return workers[plan.id]


def release(plan: Plan) -> None:
    """Give a worker back; it closes with its last user."""
    with _lock:
        _users[plan.id] -= 1
        last = None if _users[plan.id] else workers.pop(plan.id, None)
    if last is not None:
        last.close()


def dismiss(plan: Plan) -> None:
    """Close this process's worker of a job that has ended, if it has one.

    If a connection breaks while Beam ends its harness, it tears no stage down, and this process would hold the log to its end.
    """
    with _lock:
        last = workers.pop(plan.id, None)
    if last is not None:
        last.close()
