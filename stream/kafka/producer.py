"""Replay: the events of a file into a topic, in file order, at a rate or as fast as the client can."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError, UnknownError

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.decode.columns import id_kind
from freshet_graph.stream.decode.encode import LABEL_FORMATS, EventTooLongError, LabelMessages
from freshet_graph.stream.decode.files import listed, read_events
from freshet_graph.stream.decode.formats.interface import MessageFormat, UnavailableError, create_format
from freshet_graph.stream.decode.history_file import label_drafts, label_ids
from freshet_graph.stream.decode.validate import Rules
from freshet_graph.stream.kafka.client import IN_ORDER, WRITING, client_settings, connected, kafka_failures
from freshet_graph.stream.kafka.greeting import greet
from freshet_graph.stream.kafka.topics import ensure_topic
from freshet_graph.stream.service.config_file import validated
from freshet_graph.stream.service.failure import Failure

ROWS_A_CHUNK = 1 << 15
"""Events encoded at a time: bounds the memory of a replay, whatever the file's size."""

FLUSH_S = 120.0
"""How long the brokers have to acknowledge what was sent."""

SPLIT_S = 0.05
"""Pause before the parts of a batch that the client has split are looked for again."""

CHUNKS_A_SECOND = 20
"""At a rate, events are sent in so many bursts per second."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: acknowledged events, and the seconds from the first send to the last."""

    sent: int
    seconds: float

    @property
    def events_per_s(self) -> float:
        """Acknowledged events per second."""
        return self.sent / self.seconds if self.seconds > 0 else 0.0


class Deliveries:
    """Sends messages and keeps the first error, which Kafka's clients report long after the send."""

    def __init__(self, settings: dict[str, Any], bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._error: BaseException | None = None
        self._row: int | None = None
        self._bytes = 0
        with kafka_failures(bootstrap, f"writing to topic {topic}", "Write"):
            self._producer = connected(KafkaProducer, settings | WRITING | IN_ORDER)

    def send(self, value: bytes, partition: int, row: int | None = None) -> None:
        """Queue one message; blocks while the client's buffer is full.

        Args:
            value: The message.
            partition: Its topic partition.
            row: The row of the file that it holds, from 0; None: several.

        Raises:
            Failure: An earlier message was not delivered, or this one is too long to send.
        """
        if self._error is not None:
            self._fail(self._error)
        try:
            sent = self._producer.send(self._topic, value, partition=partition)
        except KafkaError as error:
            self._failed(row, len(value), error)
            self._fail(error)
        sent.add_errback(self._failed, row, len(value))

    def finish(self) -> None:
        """Wait until the brokers have acknowledged everything.

        Raises:
            Failure: A message was not delivered.
        """
        until_s = time.monotonic() + FLUSH_S
        with kafka_failures(self._bootstrap, f"writing to topic {self._topic}", "Write"):
            while True:
                try:
                    self._producer.flush(timeout=max(0.0, until_s - time.monotonic()))
                    break
                except KafkaError as error:
                    if self._error is not None:
                        break  # the cause
                    # The client stops waiting for a batch that it has split; its parts are on their way.
                    if not isinstance(error, UnknownError) or time.monotonic() >= until_s:
                        raise
                    time.sleep(SPLIT_S)
        if self._error is not None:
            self._fail(self._error)

    def close(self) -> None:
        """Leave the brokers; what is still queued is lost."""
        with suppress(KafkaError):  # undelivered messages were reported, or the caller gave up
            self._producer.close(timeout=5)

    def _failed(self, row: int | None, num_bytes: int, error: BaseException) -> None:
        # The client splits a batch that is too large until it has found the message: the first to fail is the one.
        if self._error is None:
            self._error, self._row, self._bytes = error, row, num_bytes

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, MessageSizeTooLargeError) and self._row is not None:
            raise Failure(
                f"row {self._row + 1} is {self._bytes:,} bytes as a message, more than topic {self._topic} at "
                f"{self._bootstrap} accepts (rows count from 1, without the header). The replay stopped there, and part of "
                "the file is in the topic. Give the row fewer features or shorter ids, or raise the topic's "
                "max.message.bytes"
            ) from error
        raise Failure(
            f"topic {self._topic} at {self._bootstrap} did not accept a message: {one_line(error)}. "
            "The replay stopped there, and part of the file is in the topic"
        ) from error


def replay(
    events: pa.Table,
    *,
    settings: dict[str, Any],
    bootstrap: str,
    topic: str,
    message_format: MessageFormat | LabelMessages,
    rate: float = 0.0,
    partitions: int | None = None,
    progress: Callable[[int], None] = lambda sent: None,
) -> Replayed:
    """Send canonical events to a topic in their order; the topic is made if it is missing.

    With several partitions the hash of ``src`` chooses one: the events of one source stay in order.

    Args:
        events: ``freshet_graph.schemas.events.event_schema``.
        settings: Of ``freshet_graph.stream.kafka.client.client_settings``.
        bootstrap: Brokers, for messages.
        topic: Its name.
        message_format: Encodes events.
        rate: Events per second; 0: as fast as possible.
        partitions: Of a new topic (default 1); an existing topic must have as many if this is given.
        progress: Called with the running total of events sent.

    Raises:
        Failure: A message was not delivered, no broker answers, the topic has another number of partitions, or one
            event alone is too long for a message; the sentence names its row.
    """
    num_partitions = ensure_topic(settings, bootstrap, topic, partitions or 1)
    if partitions is not None and num_partitions != partitions:
        raise Failure(
            f"topic {topic} at {bootstrap} has {num_partitions} partitions, but --partitions is {partitions}. "
            "Leave the option out or choose another topic"
        )
    deliveries = Deliveries(settings, bootstrap, topic)
    try:
        started = time.monotonic()
        sent = 0
        for chunk in _chunks(events, rate):
            for partition, rows, part in _by_partition(chunk, num_partitions):
                try:
                    for value, row in message_format.encode(part):
                        deliveries.send(value, partition, None if row is None else sent + int(rows[row]))
                except EventTooLongError as error:
                    raise _too_long(error, sent + int(rows[error.row])) from None
                except UnavailableError as error:
                    raise Failure(
                        f"{error}. The replay stopped there, and part of the file is in the topic"
                    ) from error
            sent += len(chunk)
            progress(sent)
            if rate > 0:
                time.sleep(max(0.0, started + sent / rate - time.monotonic()))
        deliveries.finish()
        return Replayed(sent, time.monotonic() - started)
    finally:
        deliveries.close()


def partition_of(src: pa.Array, partitions: int) -> np.ndarray:
    """The topic partition of each event: xxh3 of the source's distinct ids, the same in every run and on every machine.

    Args:
        src: External ids, int64 or string [n].
        partitions: Number of topic partitions.

    Returns:
        int64 [n].
    """
    encoded = src.dictionary_encode()
    distinct = encoded.dictionary
    raw = pc.cast(distinct, pa.string()).cast(pa.binary()).to_pylist()
    hashes = np.fromiter((xxhash.xxh3_64_intdigest(value) for value in raw), np.uint64, len(raw))
    homes = (hashes % np.uint64(partitions)).astype(np.int64)
    return np.take(homes, encoded.indices.to_numpy())


def _chunks(events: pa.Table, rate: float) -> Iterator[pa.RecordBatch]:
    rows = ROWS_A_CHUNK if rate <= 0 else int(min(ROWS_A_CHUNK, max(1, rate / CHUNKS_A_SECOND)))
    yield from events.combine_chunks().to_batches(max_chunksize=rows)


def _by_partition(
    batch: pa.RecordBatch, partitions: int
) -> Iterator[tuple[int, Sequence[int] | np.ndarray, pa.RecordBatch]]:
    """Each topic partition with its rows of the batch, as indices and as a batch."""
    if partitions == 1:
        yield 0, range(len(batch)), batch
        return
    home = partition_of(batch["src"], partitions)
    for partition in np.unique(home):
        rows = np.flatnonzero(home == partition)
        yield int(partition), rows, batch.take(pa.array(rows))


def _too_long(error: EventTooLongError, row: int) -> Failure:
    return Failure(
        f"row {row + 1} is {error.num_bytes:,} bytes as a message of its own, but at most {error.limit:,} are sent (rows "
        "count from 1, without the header). The replay stopped there, and part of the file is in the topic. Give the "
        "row fewer features or a shorter event_id"
    )


def replay_file(
    file: str | Path | Sequence[str | Path],
    kafka: str | Kafka,
    topic: str,
    *,
    message_format: str = "json",
    rate: float = 0.0,
    partitions: int | None = None,
    reading: FileOptions = AS_EVENTS,
    labels: bool = False,
    progress: Callable[[int, int], None] = lambda sent, events: None,
) -> Replayed:
    """Send the events of a file to a topic, in file order, like ``freshet-stream replay``.

    Args:
        file: A file, or several; globs and folders, too.
        kafka: host:port of the brokers, comma-separated; or a stream's section ``kafka``, with certificates and login.
        topic: Its name; made if it is missing.
        message_format: A name of docs/formats.md.
        rate: Events per second; 0: as fast as possible.
        partitions: Of a new topic (default 1); events are distributed by the hash of ``src``.
        reading: How files are read.
        labels: Whether they are files of labels, for a label topic; each label goes where its event's or node's id leads.
        progress: Called with the events sent, and all events.

    Raises:
        Failure: An address has no port, the file can't be read, no broker answers, or a message was not delivered; the
            sentence has the row.
    """
    if isinstance(kafka, str):
        given = {"bootstrap": kafka, "topics": [{"name": topic, "format": message_format}]}
        kafka = validated(Kafka, given, "brokers")
    greet(kafka, f"writing to topic {topic}")
    encoder: MessageFormat | LabelMessages
    if labels:
        events, encoder = _labels(listed(file), message_format)
    else:
        events = read_events(file, options=reading).events
        plain = Topic(name=topic, format=message_format)
        encoder = create_format(plain, kafka, id_kind(events.schema))
    return replay(
        events,
        settings=client_settings(kafka),
        bootstrap=kafka.bootstrap,
        topic=topic,
        message_format=encoder,
        rate=rate,
        partitions=partitions,
        progress=lambda sent: progress(sent, len(events)),
    )


def _labels(files: Sequence[Path], message_format: str) -> tuple[pa.Table, LabelMessages]:
    """The labels of files, read as node events, and what writes them."""
    if message_format not in LABEL_FORMATS:
        raise Failure(
            f"labels are sent as {' or '.join(LABEL_FORMATS)}, not as {message_format}. Give --format"
        )
    tables: list[pa.RecordBatch] = []
    of_events: set[bool] = set()
    for path in files:
        ids = label_ids(path)
        for one in label_drafts(path, ids, Rules(ids, offline=True)):
            draft = one.draft
            for row in draft.faults.refused_rows()[:1]:
                raise Failure(
                    f"{path}, row {one.row + int(row) + 1}: {draft.faults.of(int(row))[1]} (rows count from 1, without the "
                    "header)"
                )
            tables.append(draft.events())
            of_events.add(one.made.of_events)
    if len(of_events) > 1:
        raise Failure("some files have labels of events, others of nodes. Send them to a topic each")
    return pa.Table.from_batches(tables), LabelMessages(message_format, of_events=of_events != {False})
