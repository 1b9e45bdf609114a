"""One cycle of the local job: what its pipeline's stages do in this process, and when the pipeline ends."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stream.job.decoding import Decoding
from stream.job.lane_threads import LaneThread
from stream.job.open_log import OpenLog
from stream.job.ran import Busy
from stream.kafka.reader import PartitionReader
from stream.microbatch import MicroBatch, RawBatch
from stream.service.heartbeat import beat


class Cycle:
    """The ``Stages`` of one pipeline, from its first poll until its reader is told to stop.

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
        with self._kept():
            yield from self._decoding.batches(raw)

    def write(self, batch: MicroBatch) -> list[int]:
        """See ``Stages.write``."""
        with self._kept():
            begun_s = time.monotonic()
            lag, key = self.reader.lag(), (batch.topic, batch.partition)
            # The rest of its poll is in hand.
            lag[key] = max(lag[key], batch.high_watermark - batch.end_offset)
            record = self._log.take_in(batch, lag)
            if batch.topic in self._log.held:
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
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = error
            raise
