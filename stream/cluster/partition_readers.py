"""The consumers of a worker process: one for each topic partition that is read here, kept between turns."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from schemas.config import StreamConfig
from schemas.store import CommitRecord
from stream.kafka.answers import Answers
from stream.kafka.greeting import NoBrokerError
from stream.kafka.reader import ASK_S, PartitionReader, Start
from stream.kafka.tls import LOGIN_AGAIN_S, CredentialError, LoginRefusedError
from stream.microbatch import RawBatch
from stream.snapshots.event_time import Key
from stream.store.errors import ConfigMissingError
from stream.store.log.reader import LogReader


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

    def _connected(self, answers: Answers | None) -> PartitionReader:
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
