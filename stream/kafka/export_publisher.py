"""A trainer's exports into a topic: every committed export in order, at least once.

The publisher follows the commits of an export folder, sends a commit's file, waits until the brokers have all of it,
and only then records that the topic has it. After a kill in between that one export is sent again, with the same keys.
"""

import json
import math
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from kafka import KafkaProducer

from freshet_graph.schemas.config import Kafka, Publication
from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import US_PER_S, IdKind
from freshet_graph.schemas.exports import ExportCommit, ExportKind
from freshet_graph.schemas.written import avro_schema
from freshet_graph.stream.decode.encode import encode_arrow, ipc_stream
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient
from freshet_graph.stream.kafka.client import IN_ORDER, kafka_failures
from freshet_graph.stream.kafka.topic_schemas import announce
from freshet_graph.stream.kafka.topics import producer_to, send_all
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.errors import LaneBusyError, RetainedError
from freshet_graph.stream.store.exports import COMMITS, PUBLISHED, ExportReader
from freshet_graph.stream.store.files.follow import FolderWatch
from freshet_graph.stream.store.files.sweep import lock_folder, new_writer_id

ROWS_AT_ONCE = 4096
"""Rows turned into Python objects at a time."""

SCORES = ("score", "negative_score")


def arrow_messages(
    name: str, kind: ExportKind, commit: ExportCommit, table: pa.Table
) -> Iterator[tuple[bytes, bytes]]:
    """Arrow IPC streams of up to 4,096 rows and 900 kB each; the key is ``name/kind/export number/part``.

    The schema's metadata has ``export``, ``tau``, ``model`` and ``rows`` of the whole export. An export without rows is
    one message without rows.
    """
    said = {"export": commit.number, "tau": commit.tau, "model": commit.model, "rows": len(table)}
    plain = _plain(table).replace_schema_metadata({key: str(value) for key, value in said.items()})
    for part, value in enumerate(encode_arrow(plain) if len(plain) else [ipc_stream(plain).to_pybytes()]):
        yield f"{name}/{kind}/{commit.number}/{part}".encode(), value


def rows_of(
    name: str, kind: ExportKind, commit: ExportCommit, table: pa.Table
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Key and fields of a message per row, ``t`` in microseconds; a score that is absent or not finite is None.

    The key of an embedding is the node's id, so a compacted topic keeps each node's newest. The key of a score is the
    event's id, or ``tau/row`` without one. ``export`` and the key identify a message: the same pair twice is a
    repetition.
    """
    plain = _plain(table)
    plain = plain.set_column(plain.schema.get_field_index("t"), "t", pc.cast(plain["t"], pa.int64()))
    for batch in plain.to_batches(ROWS_AT_ONCE):
        for row in batch.to_pylist():
            row |= {column: None for column in SCORES if column in row and not _is_finite(row[column])}
            if kind == "embeddings":
                del row["node"]
                key = str(row["id"])
            else:
                key = row["event_id"] if row["event_id"] is not None else f"{commit.tau}/{row['row']}"
            yield key.encode(), {**row, "tau": commit.tau, "export": commit.number, "exports": name}


def json_messages(
    name: str, kind: ExportKind, commit: ExportCommit, table: pa.Table
) -> Iterator[tuple[bytes, bytes]]:
    """One JSON object per row (``rows_of``), with ``t`` in seconds."""
    for key, row in rows_of(name, kind, commit, table):
        row["t"] /= US_PER_S
        yield key, json.dumps(row, ensure_ascii=False, allow_nan=False).encode()


def avro_messages(
    name: str, kind: ExportKind, commit: ExportCommit, table: pa.Table, schema: dict[str, Any], number: int
) -> Iterator[tuple[bytes, bytes]]:
    """One Avro record per row (``rows_of``), behind Confluent's header with the schema's number in the registry."""
    from fastavro import parse_schema, schemaless_writer

    parsed = parse_schema(schema)
    for key, row in rows_of(name, kind, commit, table):
        value = BytesIO()
        value.write(b"\0" + number.to_bytes(4, "big"))
        schemaless_writer(value, parsed, row)
        yield key, value.getvalue()


def _is_finite(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def _plain(table: pa.Table) -> pa.Table:
    """The table with its dictionary written out, so that message sizes follow from rows."""
    column = table.schema.get_field_index("model_version")
    return table.set_column(column, "model_version", table["model_version"].cast(pa.string()))


RETRY_S = 5.0
"""Pause before a failed try is made again."""

FLUSH_S = 60.0
"""How long brokers have to take an export."""

FOLLOW_S = 1.0
"""How often the end of the process is noticed while nothing is exported."""

log = structlog.get_logger()


class ExportPublisher:
    """Publishes one kind of export from a thread of its own; a failure stops nothing else and is tried again.

    Of two publishers of one topic the second waits until the first is gone.
    """

    def __init__(self, store: str, publication: Publication, kafka: Kafka, metrics: StreamMetrics) -> None:
        self.error: str | None = None
        self.topic = publication.topic
        self._store, self._to, self._kafka, self._metrics = store, publication, kafka, metrics
        self._announced = False
        self._number: int | None = None  # of the schema in the registry
        self._stopping, self._caught_up = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"publish {publication.topic}", daemon=True)

    def start(self) -> Self:
        """Start the thread; returns the publisher."""
        self._thread.start()
        return self

    def drain(self, timeout_s: float) -> bool:
        """Wait until the topic has all exports of now; False: not in time."""
        self._caught_up.clear()
        return self._caught_up.wait(timeout_s)

    def close(self, timeout_s: float = RETRY_S) -> None:
        """Stop; the next start publishes the rest."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._publish_all()
            except LaneBusyError:
                pass  # another process publishes
            except Exception as error:  # noqa: BLE001  no failure here ends the stream
                text = one_line(error)
                if text != self.error:
                    log.error("publishing failed, trying again", topic=self._to.topic, error=text)
                self.error = text
            self._stopping.wait(RETRY_S)

    def _publish_all(self) -> None:
        reader = ExportReader(self._store, self._to.exports)
        for folder in (COMMITS, PUBLISHED):
            (reader.root / folder).make()
        # Before brokers are asked, which may refuse.
        self._show_lag(reader, reader.published(self._to.topic, self._to.kind))
        lock = lock_folder(reader.root / PUBLISHED, new_writer_id(), f"{self._to.topic}.{self._to.kind}.lock")
        try:
            producer = producer_to(self._kafka, self._to.topic, self._to.partitions, **IN_ORDER)
            try:
                with FolderWatch(reader.root / COMMITS) as watch:
                    self._follow(reader, producer, lock.require, watch)
            finally:
                producer.close(timeout=RETRY_S)
        finally:
            lock.release()

    def _follow(
        self,
        reader: ExportReader,
        producer: KafkaProducer,
        still_ours: Callable[[], None],
        watch: FolderWatch,
    ) -> None:
        following = reader.published(self._to.topic, self._to.kind)
        while not self._stopping.is_set():
            reader.refresh()
            if following < reader.commits.first:
                log.error(
                    "exports were removed before they were published",
                    topic=self._to.topic, first=following, last=reader.commits.first - 1,
                )  # fmt: skip
                following = reader.commits.first
            try:
                for commit in reader.follow(
                    following, timeout_s=FOLLOW_S, stop=self._stopping.is_set, watch=watch
                ):
                    self._metrics.publish_lag(self._to.topic, len(reader.commits) - commit.number)
                    sent = self._publish(reader, commit, producer)
                    still_ours()
                    crash_point("publish.sent")
                    following = commit.number + 1
                    reader.mark_published(self._to.topic, self._to.kind, following)
                    crash_point("publish.marked")
                    self._metrics.published(self._to.topic, sent)
                    self.error = None
            except RetainedError:
                continue  # just removed, maybe with others: the reader knows the first one left
            self._show_lag(reader, following)
            if following >= len(reader.commits):
                self._caught_up.set()

    def _show_lag(self, reader: ExportReader, following: int) -> None:
        self._metrics.publish_lag(self._to.topic, max(0, len(reader.commits) - following))

    def _publish(self, reader: ExportReader, commit: ExportCommit, producer: KafkaProducer) -> int:
        """Send one export and wait until the brokers have it; returns the number of messages."""
        table = reader.table(commit, self._to.kind)
        if table is None:
            return 0
        encoded = self._messages(commit, table)
        with kafka_failures(self._kafka.bootstrap, f"writing to topic {self._to.topic}", "Write"):
            return send_all(producer, self._to.topic, encoded, FLUSH_S)

    def _messages(self, commit: ExportCommit, table: pa.Table) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each message of an export; what they look like is registered before the first."""
        id_type = table.schema.field("id" if self._to.kind == "embeddings" else "src").type
        ids: IdKind = "int" if pa.types.is_integer(id_type) else "string"
        return {"json": self._json, "avro": self._avro, "arrow": self._arrow}[self._to.format](
            commit, table, ids
        )

    def _arrow(self, commit: ExportCommit, table: pa.Table, _: IdKind) -> Iterator[tuple[bytes, bytes]]:
        return arrow_messages(self._to.exports, self._to.kind, commit, table)

    def _json(self, commit: ExportCommit, table: pa.Table, ids: IdKind) -> Iterator[tuple[bytes, bytes]]:
        if not self._announced:
            announce(self._kafka, self._to.topic, self._to.kind, ids)
            self._announced = True
        return json_messages(self._to.exports, self._to.kind, commit, table)

    def _avro(self, commit: ExportCommit, table: pa.Table, ids: IdKind) -> Iterator[tuple[bytes, bytes]]:
        schema = avro_schema(self._to.kind, ids)
        if self._number is None:
            assert self._kafka.schema_registry is not None, "the configuration was checked"
            registry = RegistryClient(self._kafka.schema_registry)
            self._number = registry.register(f"{self._to.topic}-value", schema)
        return avro_messages(self._to.exports, self._to.kind, commit, table, schema, self._number)


class ExportPublishers:
    """All publishers of a configuration."""

    def __init__(
        self, store: str, publications: list[Publication], kafka: Kafka, metrics: StreamMetrics
    ) -> None:
        self._publishers = [ExportPublisher(store, one, kafka, metrics) for one in publications]

    def start(self) -> Self:
        """Start all of them."""
        for publisher in self._publishers:
            publisher.start()
        return self

    def drain(self, timeout_s: float) -> None:
        """Wait until every topic has all exports of now.

        Raises:
            Failure: One has not, in time.
        """
        behind = [
            f"{publisher.topic}: {publisher.error or 'not in time'}"
            for publisher in self._publishers
            if not publisher.drain(timeout_s)
        ]
        if behind:
            raise Failure(
                f"exports are not all published ({'; '.join(behind)}). Nothing is lost. Start again to resume"
            )

    def close(self) -> None:
        """Stop all of them."""
        for publisher in self._publishers:
            publisher.close()
