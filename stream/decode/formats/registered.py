"""Messages by schemas of a registry: the schemas by their ids, fetched before a poll is read, and the base of such formats."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.schemas.events import IdKind
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.decode.arrow import event_rows
from freshet_graph.stream.decode.confluent import GUIDS
from freshet_graph.stream.decode.formats.interface import MessageFormat
from freshet_graph.stream.decode.formats.schema_registry import UnknownSchemaError
from freshet_graph.stream.decode.mapping import Mapping
from freshet_graph.stream.decode.reading import Read, RefusedError, in_order, refused_alike, unanswered
from freshet_graph.stream.service.heartbeat import beat

UNKNOWN_SCHEMA = "unknown_schema"
"""Reason of a message whose schema the registry does not have, or that cannot be read."""

KEPT_SCHEMAS = 1024
"""Most schemas in memory besides those of the poll in hand; the least recently used goes first."""
UNKNOWN_AT_ONCE = 64
"""Ids without a schema that one poll may ask for; random ones must not become a request each."""
UNKNOWN_S = 60.0
"""How long an unknown id stays unknown before it is asked for again."""
PREPARE_S = 2.0
"""How long schemas are fetched before the job may commit, or stop."""

_REQUIRED = ("src", "dst", "t", "node")
_log = logging.getLogger(__name__)

Columns = tuple[Int64, pa.RecordBatch]
"""Indices of messages, and the wanted fields of each."""
Schema = TypeVar("Schema")


class RegisteredSchemas(Generic[Schema]):
    """The schemas that messages name.

    Args:
        fetch: Gives the schema of an id. It may raise ``UnknownSchemaError`` if there is none, ``RefusedError`` if it cannot be
            read, and ``UnavailableError`` if the registry does not answer.
    """

    def __init__(self, fetch: Callable[[int], Schema]) -> None:
        self._fetched = fetch
        # On a cluster several threads prepare and read polls of one topic. Only ``prepare`` forgets, and nothing that it has
        # just seen, so ``schema`` finds what was fetched for its poll.
        self._preparing = Lock()
        self._schemas: OrderedDict[int, Schema | RefusedError] = OrderedDict()
        self._unknown: dict[int, tuple[float, str]] = {}  # when they were asked for, and what was said
        self._requested: set[int] = set()  # the unknown ids that the poll in hand has asked for

    def prepare(self, numbers: Int64) -> str | None:
        """Fetch the schemas of messages, those of the most messages first; see ``MessageFormat.prepare``.

        Args:
            numbers: int64, the id of each message's schema; −1: it names none.

        Raises:
            UnavailableError: The registry does not answer.
        """
        distinct, counts = np.unique(numbers[numbers >= 0], return_counts=True)
        wanted = distinct[np.argsort(-counts, kind="stable")].tolist()
        with self._preparing:
            return self._fetch(wanted)

    def _fetch(self, wanted: list[int]) -> str | None:
        began_s = time.monotonic()
        self._requested &= set(wanted)
        for number, (asked_s, _) in list(self._unknown.items()):
            if began_s - asked_s >= UNKNOWN_S and number not in self._requested:
                del self._unknown[number]
        for number in wanted:
            if number in self._schemas:
                self._schemas.move_to_end(number)
        missing = [n for n in wanted if n not in self._schemas and n not in self._unknown]
        for fetched, number in enumerate(missing):
            if len(self._requested) >= UNKNOWN_AT_ONCE:
                break
            if fetched and time.monotonic() - began_s >= PREPARE_S:
                num_known = len(wanted) - len(missing) + fetched
                return f"{num_known:,} of the {len(wanted):,} schemas of its messages were fetched so far"
            beat()
            try:
                self._schemas[number] = self._fetched(number)
            except UnknownSchemaError as error:
                self._unknown[number] = time.monotonic(), str(error)
                self._requested.add(number)
            except RefusedError as error:
                self._schemas[number] = error
        self._requested.clear()
        while len(self._schemas) > max(KEPT_SCHEMAS, len(wanted)):
            self._schemas.popitem(last=False)
        return None

    def schema(self, number: int) -> Schema:
        """The schema of an id that was prepared.

        Raises:
            RefusedError: There is none, or it cannot be read.
        """
        schema = self._schemas.get(number)
        if schema is None:
            not_asked = f"schema {GUIDS.name(number)} was not asked for: {UNKNOWN_AT_ONCE} ids of this poll were unknown already"
            _, sentence = self._unknown.get(number, (0.0, not_asked))
            raise RefusedError(UNKNOWN_SCHEMA, sentence)
        if isinstance(schema, RefusedError):
            raise RefusedError(schema.reason, str(schema))
        return schema


class ColumnMessages(MessageFormat):
    """Base of formats whose messages become columns, by schemas that may differ."""

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: Any) -> None:
        super().__init__(topic, kafka, ids, options)
        self._named_absent: set[str] = set()

    def _events(self, read: Sequence[Columns], refused: list[pa.Table], count: int) -> Read:
        """The events of so many messages in columns, and refusals."""
        rows = []
        for messages, batch in read:
            try:
                mapping = self._present(self.mapping, batch.schema) if self.mapping.mapped else self.mapping
                rows.append(event_rows(batch, messages, self.ids, self.unit, mapping))
            except RefusedError as error:  # a fault of their schema
                refused.append(refused_alike(messages, error.reason, str(error)))
        many = self.mapping.many is not None
        empty = unanswered(rows, refused, count) if many else np.empty(0, np.int64)
        return Read(in_order(rows), refused, count, empty)

    def _present(self, mapping: Mapping, schema: pa.Schema) -> Mapping:
        """The mapping without what the writer's schema lacks, as an older one may: null, if an event can be without it."""
        paths = [
            (target, keys)
            for target, keys in mapping.paths
            if target[0] in _REQUIRED or mapping.in_text(keys) or _has(schema, keys, mapping.many)
        ]
        names = {name for (name, _), _ in paths}
        # Of listed features either all are there, or the first that is missing is named.
        features = [path for path in mapping.paths if path[0][0] == "features"] if "features" in names else []
        paths = [*(path for path in paths if path[0][0] != "features"), *features]
        if self.topic.fields is not None:
            for name in sorted(mapping.names - names - self._named_absent):
                self._named_absent.add(name)
                _log.warning(
                    "topic %s: some messages have no %s by their schema. It is null in them",
                    self.topic.label,
                    mapping.shown(name),
                )
        return replace(mapping, paths=tuple(paths), feature_parts=mapping.feature_parts if features else 0)


def _has(schema: pa.Schema, keys: PathKeys, many: PathKeys | None) -> bool:
    """Whether columns have a path, which may lead through the elements of ``many``."""
    kind: pa.DataType = pa.struct(schema)
    for depth, key in enumerate(keys):
        place = kind.get_field_index(key) if pa.types.is_struct(kind) else -1
        if place < 0:
            return False
        kind = kind.field(place).type
        if keys[: depth + 1] == many and pa.types.is_list(kind):
            kind = kind.value_type
    return True
