"""Debezium's change events: rows of a database table before and after each change, as inserts and deletes of edges.

``c`` (created), ``r`` (read by a snapshot) and ``u`` (updated) are an insert of the row after, ``d`` (deleted) is a
delete of the row before. An update that changes the pair is a delete of the old pair and an insert of the new one.
"""

import base64
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.schemas.events import IdKind, Op, Reason
from freshet_graph.schemas.fields import PathKeys, RecordColumn, path_keys
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Bool, Int8, Int64
from freshet_graph.stream.decode.arrow import event_rows
from freshet_graph.stream.decode.encode import encode_json
from freshet_graph.stream.decode.formats.avro import AvroMessages, AvroReader, event_record
from freshet_graph.stream.decode.formats.interface import FORMATS, MessageFormat
from freshet_graph.stream.decode.formats.plain import JsonFormat
from freshet_graph.stream.decode.formats.registered import Columns
from freshet_graph.stream.decode.json_lists import inlined
from freshet_graph.stream.decode.json_meanings import Meanings
from freshet_graph.stream.decode.json_messages import NOT_JSON, read_json
from freshet_graph.stream.decode.mapping import FIELDS, Mapping, Target
from freshet_graph.stream.decode.reading import (
    REFUSAL_SCHEMA,
    DecodedRows,
    Limits,
    Read,
    RefusedError,
    in_order,
    refused_alike,
)
from freshet_graph.stream.decode.times import TimeUnit

AFTER, BEFORE = "after", "before"
CREATED, READ, UPDATED, DELETED = "c", "r", "u", "d"
INSERTS = (CREATED, READ, UPDATED)
_EITHER, _PLAIN, _WRAPPED = range(3)
"""Forms of JSON: plain, or with the schema around it."""

_UNAVAILABLE = b"__debezium_unavailable_value"
UNAVAILABLE = (_UNAVAILABLE.decode(), base64.b64encode(_UNAVAILABLE).decode(), _UNAVAILABLE.hex())
"""Debezium's placeholder of a column that an update left unchanged and the database did not send again, such as a long text of
PostgreSQL (TOAST): as text, and as each form of bytes in JSON."""

Paths = tuple[tuple[Target, PathKeys], ...]


def _paths(columns: dict[str, str]) -> Paths:
    """Paths of a topic without ``fields``: in the row, by column."""
    time_and_op = (("t", 0), ("source", "ts_ms")), (("op", 0), ("op",))
    return (
        *time_and_op,
        *(((name, 0), (AFTER, column)) for name, column in columns.items() if name not in ("t", "op")),
    )


@dataclass(frozen=True, slots=True)
class Images:
    """Rows of a poll's messages; ``messages`` ascend in each.

    Attributes:
        inserted: Rows after creations, reads and updates.
        deleted: Rows before deletions.
        replaced: Rows before updates that have them.
    """

    inserted: list[DecodedRows]
    deleted: list[DecodedRows]
    replaced: list[DecodedRows]


class Envelope(MessageFormat):
    """Base of Debezium's formats: the meaning of their rows.

    ``fields`` are paths from the envelope, such as ``after.card_id``; for a deletion ``before`` replaces ``after``.
    """

    default_unit: ClassVar[TimeUnit] = "ms"
    many: ClassVar[bool] = True
    atomic: ClassVar[bool] = True
    columns: ClassVar[dict[str, str]]
    """The row's column of each field, in a topic without ``fields``."""

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: Section) -> None:
        super().__init__(topic, kafka, ids, options)
        paths = self.mapping.paths if topic.fields is not None else _paths(self.columns)
        if topic.fields is not None:
            paths = (*paths, (("op", 0), ("op",)))
        self.mapping = replace(self.mapping, paths=paths, mapped=True, own_ops=True)

    @classmethod
    def refuses(cls, topic: Topic, kafka: Kafka) -> str | None:
        """See ``MessageFormat.refuses``."""
        if topic.ops is not None or (topic.fields is not None and topic.fields.op is not None):
            return "the words of op are Debezium's own (c, r, u, d). Leave out ops, and op in fields"
        for name, _, keys in topic.fields.paths() if topic.fields is not None else ():
            in_row = keys[0] == AFTER or isinstance(keys[0], RecordColumn)
            if name in ("src", "dst", "node") and not in_row:
                path = ".".join(keys)
                return f"fields.{name} is {path}, but Debezium has the row under after. Write after.{path}"
        return None

    def read(self, values: pa.LargeBinaryArray, at_once: Limits | None) -> Read:
        """See ``MessageFormat.read``."""
        images, refused = self._images(values)
        for rows in (*images.inserted, *images.deleted, *images.replaced):
            self._refuse_unavailable(rows)
        deleted = [_without_nodes(rows, self.mapping.elsewhere) for rows in images.deleted]
        inserted = in_order([_placed(rows, 1) for rows in images.inserted])
        gone = [_placed(rows, 0, Op.DELETE) for rows in deleted]
        gone += [
            _placed(_moved_pairs(rows, into, self.mapping.elsewhere), 0, Op.DELETE)
            for rows in images.replaced
            for into in inserted
        ]
        return Read(in_order([*inserted, *gone]), refused, len(values))

    def _refuse_unavailable(self, rows: DecodedRows) -> None:
        """Refuse rows with Debezium's placeholder as an id."""
        prefixes = {"", *self.mapping.prefix}
        words = pa.array([prefix + word for prefix in prefixes for word in UNAVAILABLE])
        for name in ("src", "dst", "event_id"):
            column = rows.draft.batch[name]
            if pt.is_string(column.type) and column.null_count < len(column):
                rows.draft.faults.refuse(
                    pc.is_in(column, words).to_numpy(zero_copy_only=False),
                    Reason.BAD_ID,
                    f"{self.mapping.column(name)} is Debezium's placeholder of a value that the database did not send. "
                    "Set REPLICA IDENTITY FULL for the table",
                )

    @abstractmethod
    def _images(self, values: pa.LargeBinaryArray) -> tuple[Images, list[pa.Table]]:
        """The rows of messages, and refusals of messages without rows."""

    def _mapping(self, image: str, words: dict[str, Op], under: tuple[str, ...] = ()) -> Mapping:
        """The mapping of one of the two rows."""

        def placed(keys: PathKeys) -> PathKeys:
            return (*under, image, *keys[1:]) if keys[0] == AFTER else (*under, *keys)

        whole = self.mapping
        return replace(
            whole,
            paths=tuple((target, placed(keys)) for target, keys in whole.paths),
            words=tuple(words.items()),
            text=placed(whole.text) if whole.text is not None else None,
            scales=tuple((placed(keys), scale) for keys, scale in whole.scales),
        )


def _placed(rows: DecodedRows, place: int, op: Op | None = None) -> DecodedRows:
    """Rows with their place in the message, and maybe another op for edges."""
    if op is not None:
        is_node = pc.equal(rows.draft.batch["op"], int(Op.NODE)).to_numpy(zero_copy_only=False)
        rows = _with_op(rows, op, except_=is_node)
    return DecodedRows(rows.draft, rows.messages, np.full(len(rows.messages), place, np.int64))


def _with_op(rows: DecodedRows, op: Op, *, except_: Bool | bool = False) -> DecodedRows:
    batch = rows.draft.batch
    place = batch.schema.get_field_index("op")
    ops = np.where(except_, batch["op"].to_numpy(), np.int8(op))
    batch = batch.set_column(place, batch.schema.field(place), pa.array(ops, pa.int8()))
    return replace(rows, draft=replace(rows.draft, batch=batch))


def _without_nodes(rows: DecodedRows, elsewhere: frozenset[str]) -> DecodedRows:
    """Deletions; those of nodes become faults, also if the node is ``elsewhere``, beside the message."""
    has_node = pc.or_(rows.draft.batch["src"].is_valid(), "node" in elsewhere)
    is_node = pc.and_(pc.equal(rows.draft.batch["op"], int(Op.NODE)), has_node)
    is_node = is_node.to_numpy(zero_copy_only=False)
    rows.draft.faults.refuse(is_node, Reason.UNKNOWN_OP, "op is d, which is known for edges only")
    return rows


def _moved_pairs(before: DecodedRows, after: DecodedRows, elsewhere: frozenset[str]) -> DecodedRows:
    """Rows before updates whose pair differs afterwards, with the time and the id of the update.

    An end that is ``elsewhere``, beside the message, is the same in both rows.
    """
    _, rows_before, rows_after = np.intersect1d(
        before.messages, after.messages, assume_unique=True, return_indices=True
    )
    old = before.draft.batch.take(pa.array(rows_before))
    new = after.draft.batch.take(pa.array(rows_after))
    same = np.ones(len(old), bool)
    known = np.ones(len(old), bool)
    for name in {"src", "dst"} - elsewhere:
        equal = pc.equal(old[name], new[name])
        known &= equal.is_valid().to_numpy(zero_copy_only=False)
        same &= equal.fill_null(True).to_numpy(zero_copy_only=False)
    same |= ~known | ~before.draft.faults.accepted[rows_before]
    moved = np.flatnonzero(~same)
    for name in ("t", "event_id"):
        place = old.schema.get_field_index(name)
        old = old.set_column(place, old.schema.field(place), new[name])
    batch = old.take(pa.array(moved))
    faults = type(before.draft.faults).none(len(moved))
    return DecodedRows(replace(before.draft, batch=batch, faults=faults), before.messages[rows_before[moved]])


@FORMATS.register
class DebeziumFormat(Envelope):
    """Debezium's events in JSON, with or without their schema around them.

    The scanner reads a message once for each row that it may have. A search for ``"d"`` and ``"u"`` finds the possible
    operations, and the scanner then decides.
    """

    name: ClassVar[str] = "debezium"
    about: ClassVar[str] = "Debezium's change events in JSON"
    inner_json: ClassVar[bool] = True
    reasons: ClassVar[dict[str, str]] = JsonFormat.reasons
    columns: ClassVar[dict[str, str]] = {name: name for name in FIELDS}

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: Section) -> None:
        super().__init__(topic, kafka, ids, options)
        paths = {
            (name, keys) for image in (AFTER, BEFORE) for (name, _), keys in self._mapping(image, {}).paths
        }
        times = [keys for name, keys in paths if name == "t"]
        scales = {
            (image, *keys[1:]) if keys[0] == AFTER else keys: scale
            for keys, scale in ((path_keys(path), scale) for path, scale in (topic.scale or {}).items())
            for image in (AFTER, BEFORE)
        }
        self._meanings = Meanings((keys for _, keys in paths), times, self.unit, scales)

    def _images(self, values: pa.LargeBinaryArray) -> tuple[Images, list[pa.Table]]:
        if self.topic.json_text is not None:
            keys = path_keys(self.topic.json_text)
            images = [(image, *keys[1:]) for image in (AFTER, BEFORE)] if keys[0] == AFTER else [keys]
            values = inlined(values, [(*under, *path) for path in images for under in ((), ("payload",))])
        form = np.full(len(values), _PLAIN, np.int8)
        form[_may_hold(values, "payload")] = _EITHER
        values = self._meanings.read(values, form == _EITHER)
        may_delete = _may_hold(values, DELETED)
        deleted, not_deleted = self._pass(values, may_delete, BEFORE, {DELETED: Op.INSERT}, form)
        gone = np.concatenate([np.empty(0, np.int64), *(rows.messages for rows in deleted)])
        rest = np.setdiff1d(np.arange(len(values)), gone, assume_unique=True)
        words = dict.fromkeys(INSERTS, Op.INSERT) | {DELETED: Op.DELETE}
        inserted, refused = self._pass(values, rest, AFTER, words, form)
        # A deletion without its row has no row after either: the first pass names the cause.
        refused = _preferred(not_deleted, refused, unless=Reason.UNKNOWN_OP)
        inserted_messages = np.concatenate([np.empty(0, np.int64), *(rows.messages for rows in inserted)])
        may_move = np.intersect1d(_may_hold(values, UPDATED), inserted_messages, assume_unique=True)
        replaced, _ = self._pass(values, may_move, BEFORE, {UPDATED: Op.INSERT}, form)
        return Images(inserted, deleted, replaced), [refused] if len(refused) else []

    def _pass(
        self, values: pa.LargeBinaryArray, which: Int64, image: str, words: dict[str, Op], form: Int8
    ) -> tuple[list[DecodedRows], pa.Table]:
        """Read one row of some messages; with the schema around them they are ``{"schema": …, "payload": …}``.

        A message that is read in one ``form``, or refused for its op there, has that form. The others are read in both.
        """
        perhaps = which[form[which] != _PLAIN]
        wrapped_rows, refused = self._read_json(values, perhaps, self._mapping(image, words, ("payload",)))
        _note(form, _WRAPPED, wrapped_rows, refused)
        plain = which[form[which] != _WRAPPED]
        more, refused_plain = self._read_json(values, plain, self._mapping(image, words))
        _note(form, _PLAIN, more, refused_plain)
        wrapped = refused.filter(pa.array(form[refused["message"].to_numpy()] == _WRAPPED))
        return in_order([*wrapped_rows, *more]), pa.concat_tables(
            [wrapped, _preferred(refused, refused_plain)]
        )

    def _read_json(
        self, values: pa.LargeBinaryArray, which: Int64, mapping: Mapping
    ) -> tuple[list[DecodedRows], pa.Table]:
        wanted = values if len(which) == len(values) else values.take(pa.array(which))
        decoded, refused = read_json(wanted, self.ids, self.unit, mapping)
        table = pa.concat_tables([REFUSAL_SCHEMA.empty_table(), *refused])
        places = pa.array(which[table["message"].to_numpy()], pa.int64())
        table = table.set_column(0, REFUSAL_SCHEMA.field("message"), places)
        return [DecodedRows(rows.draft, which[rows.messages]) for rows in decoded], table

    def encode(self, events: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        """See ``MessageFormat.encode``: a row's columns are the event's fields, and updates are inserts."""
        times = events["t"].to_numpy() / (1_000 if self.unit == "ms" else 1)
        lines = encode_json(events, time_unit="us")
        ops = events["op"].to_pylist()
        for row, (line, op, t) in enumerate(zip(lines, ops, times.tolist(), strict=True)):
            when = str(int(t)) if t == int(t) else repr(t)
            images = b'%b,"after":null' % line if op == Op.DELETE else b'null,"after":%b' % line
            word = DELETED if op == Op.DELETE else CREATED
            yield (
                b'{"before":%b,"source":{"ts_ms":%b},"op":"%b"}' % (images, when.encode(), word.encode()),
                row,
            )

    @classmethod
    def schema(cls, ids: IdKind | None) -> dict[str, Any]:
        """JSON Schema of one message whose row's columns are the fields of an event."""
        event = JsonFormat.schema(ids)
        row = {"anyOf": [*event["anyOf"], {"type": "null"}]}
        source = {"type": "object", "properties": {"ts_ms": {"type": "integer"}}, "required": ["ts_ms"]}
        return {
            **{key: event[key] for key in ("$schema", "$defs")},
            "title": "Debezium change event",
            "type": "object",
            "properties": {
                BEFORE: row,
                AFTER: row,
                "source": source,
                "op": {"enum": [*INSERTS, DELETED]},
            },
            "required": ["op", "source"],
        }


@FORMATS.register
class DebeziumAvroFormat(AvroMessages, Envelope):
    """Debezium's events in Avro, by a schema registry."""

    name: ClassVar[str] = "debezium-avro"
    about: ClassVar[str] = "Debezium's change events in Avro, by Confluent's schema registry"
    columns: ClassVar[dict[str, str]] = {
        name: "feature_offset" if name == "offset" else name
        for name in FIELDS
        if name not in ("node", "values")
    }

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: Section) -> None:
        super().__init__(topic, kafka, ids, options)
        assert kafka.schema_registry is not None  # refuses
        paths = (*self.mapping.columns, *self._mapping(BEFORE, {}).columns)
        self._reader = AvroReader(kafka.schema_registry, paths)

    def _images(self, values: pa.LargeBinaryArray) -> tuple[Images, list[pa.Table]]:
        read, refused = self._reader.read(values)
        inserted: list[DecodedRows] = []
        deleted: list[DecodedRows] = []
        replaced: list[DecodedRows] = []
        for columns in read:
            try:
                self._split(columns, inserted, deleted, replaced, refused)
            except RefusedError as error:  # a fault of their schema
                refused.append(refused_alike(columns[0], error.reason, str(error)))
        return Images(in_order(inserted), in_order(deleted), in_order(replaced)), refused

    def _split(
        self,
        columns: Columns,
        inserted: list[DecodedRows],
        deleted: list[DecodedRows],
        replaced: list[DecodedRows],
        refused: list[pa.Table],
    ) -> None:
        messages, batch = columns
        for name in ("op", AFTER, BEFORE):
            if name not in batch.schema.names:
                raise RefusedError(
                    Reason.MISSING_FIELD, f"field {name} is missing: it is no event of Debezium's"
                )
        op = batch["op"]
        if not (pt.is_string(op.type) or pt.is_null(op.type)):
            raise RefusedError(Reason.WRONG_TYPE, f"field op is {op.type}, expected a string")
        op = pc.cast(op, pa.string())
        has_before = batch[BEFORE].is_valid().to_numpy(zero_copy_only=False)
        is_update = pc.equal(op, UPDATED).fill_null(False).to_numpy(zero_copy_only=False)
        is_delete = pc.equal(op, DELETED).fill_null(False).to_numpy(zero_copy_only=False)
        known = pc.is_in(op, pa.array(INSERTS)).to_numpy(zero_copy_only=False)
        other = np.flatnonzero(~known & ~is_delete)
        if len(other):
            words = ", ".join([*INSERTS, DELETED])
            sentences = [
                f"op is {word!r}, expected one of {words}" for word in op.take(pa.array(other)).to_pylist()
            ]
            refused.append(refused_alike(messages[other], Reason.UNKNOWN_OP, sentences))
        for rows, which, image in (
            (inserted, known, AFTER),
            (deleted, is_delete, BEFORE),
            (replaced, is_update & has_before, BEFORE),
        ):
            places = np.flatnonzero(which)
            if not len(places):
                continue
            try:
                rows.append(self._rows(messages[places], batch.take(pa.array(places)), image))
            except RefusedError as error:  # a fault of their schema
                if rows is not replaced:  # an update whose former row cannot be read is an insert
                    refused.append(refused_alike(messages[places], error.reason, str(error)))

    def _rows(self, messages: Int64, batch: pa.RecordBatch, image: str) -> DecodedRows:
        mapping = replace(self._mapping(image, {}), own_ops=False)
        paths = [path for path in mapping.paths if path[0][0] != "op"]
        mapping = self._present(replace(mapping, paths=tuple(paths)), batch.schema)
        rows = event_rows(batch, messages, self.ids, self.unit, mapping)
        is_of_edges = self.topic.fields is not None and self.topic.fields.src is not None
        # Without dst a row of columns is a node event, unless the topic declares edges.
        return _with_op(rows, Op.INSERT) if is_of_edges else rows

    def _record(self, event: dict[str, Any]) -> dict[str, Any]:
        gone = event["op"] == Op.DELETE
        source = {"ts_ms": event["t"] // (1_000 if self.unit == "ms" else 1)}
        images = {BEFORE: event if gone else None, AFTER: None if gone else event}
        return {**images, "source": source, "op": DELETED if gone else CREATED}

    @classmethod
    def schema(cls, ids: IdKind | None) -> dict[str, Any]:
        """The Avro schema of an envelope whose row's columns are the fields of an event."""
        row = event_record(ids or "int", "Row")
        source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
        fields = [
            {"name": BEFORE, "type": ["null", row], "default": None},
            {"name": AFTER, "type": ["null", "Row"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
        ]
        return {"type": "record", "name": "Envelope", "namespace": "freshet", "fields": fields}


def _may_hold(values: pa.LargeBinaryArray, word: str) -> Int64:
    """Messages that may have a string of one word, written plainly or with its first letter escaped."""
    plain = pc.match_substring(values, f'"{word}"')
    escaped = pc.match_substring(values, f"\\u00{ord(word[0]):02x}", ignore_case=True)
    return np.flatnonzero(pc.or_(plain, escaped).to_numpy(zero_copy_only=False))


def _note(form: Int8, kind: int, decoded: list[DecodedRows], refused: pa.Table) -> None:
    """Note the form of messages that have rows in it, or an op that is none, or are no JSON in either."""
    for rows in decoded:
        form[rows.messages] = kind
    known = refused.filter(pc.is_in(refused["reason"], pa.array([str(Reason.UNKNOWN_OP), NOT_JSON])))
    form[known["message"].to_numpy()] = kind


def _preferred(first: pa.Table, second: pa.Table, *, unless: str = "") -> pa.Table:
    """The refusals of a second pass, each replaced by the first pass's refusal of the message unless that has a given reason."""
    preferred = first.filter(pc.not_equal(first["reason"], str(unless)))
    preferred = preferred.filter(pc.is_in(preferred["message"], second["message"].combine_chunks()))
    others = second.filter(pc.invert(pc.is_in(second["message"], preferred["message"].combine_chunks())))
    return pa.concat_tables([preferred, others])
