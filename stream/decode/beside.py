"""Fields of events that a Kafka record has beside its value: time, key, headers, topic and partition.

Each part of a record is read as a message that has some of the fields, whatever the format of the value. The events of the value
then get the columns of these fields.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.schemas.events import IdKind, Op, Reason
from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.stream.decode.arrow import event_rows
from freshet_graph.stream.decode.columns import is_valid
from freshet_graph.stream.decode.confluent import SchemaHeader
from freshet_graph.stream.decode.formats.avro import AvroReader
from freshet_graph.stream.decode.json_messages import read_json
from freshet_graph.stream.decode.mapping import AVRO, JSON, TEXTS, VALUE
from freshet_graph.stream.decode.mapping import Mapping as Fields
from freshet_graph.stream.decode.merging import Merging, whole_draft
from freshet_graph.stream.decode.reading import DecodedRows, RefusedError, renumbered
from freshet_graph.stream.decode.times import TimeUnit
from freshet_graph.stream.decode.validate import Draft, Faults, draft_schema, shorten
from freshet_graph.stream.microbatch import RawBatch

MOST_TEXT_BYTES = 4096
"""Longest key or header that is read as text."""

_HEADER = "$headers."
_BINARY = pa.large_binary()


class BesideFields:
    """The fields of a topic's events that are beside the value.

    Args:
        topic: Its fields, and the format of its keys.
        kafka: The schema registry.
        ids: Kind of node ids of the graph.
        unit: Unit of times that are numbers.
        value: Places of the fields in the value.
    """

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, unit: TimeUnit, value: Fields) -> None:
        self._topic, self._ids, self._unit = topic, ids, unit
        whole = Fields.of(topic)
        self._parts = Fields.parts(topic)
        self._parts.pop(VALUE)
        self._avro: AvroReader | None = None
        self._key_header = SchemaHeader(kafka, "key")
        if AVRO in self._parts:
            assert kafka.schema_registry is not None, "Kafka._keys_have_schemas"
            paths = [keys for _, keys in self._parts[AVRO].paths]
            self._avro = AvroReader(kafka.schema_registry, paths, inside="$key")
        self.shown = whole.column
        self._merging = Merging(whole, {VALUE: value} | self._parts, VALUE, ids)
        names, in_value = whole.names, value.names
        needed = {"src", "dst", "t"} if "src" in names else {"node", "t"}
        self._needs_no_value = not (needed | {"op"}) & in_value
        self._needed = ["src", "t", "dst"] if "src" in names else ["src", "t"]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def prepare(self, raw: RawBatch) -> str | None:
        """Fetch the schemas of keys; see ``MessageFormat.prepare``."""
        if self._avro is None:
            return None
        return self._avro.prepare(self._key_header.as_confluent(_column(raw, "$key"), raw.beside).drop_null())

    def read(self, raw: RawBatch) -> dict[str, Draft]:
        """Each part of a poll's records as drafts of events, of which only the fields of that part mean anything."""
        read = {TEXTS: self._texts, JSON: self._json, AVRO: self._keys}
        return {part: read[part](raw, mapping) for part, mapping in self._parts.items()}

    def without_value(self, drafts: Mapping[str, Draft], rows: Bool) -> Bool:
        """Those of some records without a value that are events all the same: with all that an event needs."""
        if not self._needs_no_value:
            return np.zeros(len(rows), bool)
        is_event = rows.copy()
        for column in self._needed:
            draft = drafts[self._merging.columns[column]]
            absent = [
                code
                for code, (reason, _) in enumerate(draft.faults.kinds, start=1)
                if reason == Reason.MISSING_FIELD
            ]
            is_faulty = ~draft.faults.accepted & ~np.isin(draft.faults.code, absent)
            is_event &= is_valid(draft.batch[column]) | is_faulty
        return is_event

    def blank(self, messages: Int64) -> DecodedRows:
        """Rows of records without a value."""
        count = len(messages)
        columns = {field.name: pa.nulls(count, field.type) for field in draft_schema(self._ids)}
        op = Op.NODE if self._merging.is_node else Op.INSERT
        columns["op"] = pa.repeat(pa.scalar(int(op), pa.int8()), count)
        columns["weight"] = pa.repeat(pa.scalar(1.0, pa.float32()), count)
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=draft_schema(self._ids))
        return DecodedRows(Draft(batch, Faults.none(count)), messages)

    def filled(self, rows: DecodedRows, drafts: Mapping[str, Draft], records: Int64) -> DecodedRows:
        """Rows of values with the fields beside them.

        Args:
            rows: Of the values.
            drafts: The answer of ``read``.
            records: int64, the index of each row's record among those of ``drafts``.
        """
        return self._merging.filled(rows, drafts, records) if drafts else rows

    def _texts(self, raw: RawBatch, mapping: Fields) -> Draft:
        count = len(raw.offsets)
        faults = Faults.none(count)
        names = {str(keys[0]) for _, keys in mapping.paths}
        columns: dict[str, pa.Array] = {}
        if "$timestamp" in names:
            columns["$timestamp"] = raw.beside.get("$timestamp", pa.nulls(count, pa.timestamp("ms")))
        if "$topic" in names:
            columns["$topic"] = pa.repeat(raw.topic, count)
        if "$partition" in names:
            columns["$partition"] = pa.repeat(pa.scalar(raw.partition, pa.int32()), count)
        if "$key" in names:
            read = _integers if self._topic.key_format == "integer" else _utf8
            columns["$key"] = read("$key", _column(raw, "$key"), faults)
        if "$headers" in names:
            headers = sorted({keys[1] for _, keys in mapping.paths if keys[0] == "$headers"})
            texts = [_utf8(_HEADER + name, _column(raw, _HEADER + name), faults) for name in headers]
            columns["$headers"] = pa.StructArray.from_arrays(texts, names=headers)
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return self._draft(batch, mapping, faults)

    def _json(self, raw: RawBatch, mapping: Fields) -> Draft:
        """Keys and headers in one object, as their paths have them."""
        count = len(raw.offsets)
        names = sorted({".".join(keys[:2]) if keys[0] == "$headers" else "$key" for _, keys in mapping.paths})
        headers = [name for name in names if name != "$key"]
        pieces: list[Any] = [b'{"$headers":{' if headers else b"{"]
        for place, name in enumerate(headers):
            quoted = json.dumps(name.removeprefix(_HEADER)).encode()
            pieces += [(b"," if place else b"") + quoted + b":", _json_of(raw, name)]
        pieces += [b"}"] if headers else []
        if "$key" in names:
            pieces += [b',"$key":' if headers else b'"$key":', _json_of(raw, "$key")]
        texts = [
            pa.scalar(piece, _BINARY) if isinstance(piece, bytes) else piece for piece in [*pieces, b"}"]
        ]
        values = pc.binary_join_element_wise(*texts, pa.scalar(b"", _BINARY))
        rows, refused = read_json(values, self._ids, self._unit, mapping)
        return whole_draft(count, self._ids, rows, refused, f"{' and '.join(names)} is no JSON value")

    def _keys(self, raw: RawBatch, mapping: Fields) -> Draft:
        """Keys by the schemas of the registry; a null key has no fields."""
        assert self._avro is not None, "the part has keys in Avro"
        keys = self._key_header.as_confluent(_column(raw, "$key"), raw.beside)
        places = np.flatnonzero(is_valid(keys))
        read, refused = self._avro.read(keys.take(pa.array(places)))
        refused = [renumbered(table, lambda messages: places[messages]) for table in refused]
        rows = []
        for which, batch in read:
            draft = self._draft(batch, mapping, Faults.none(batch.num_rows))
            rows.append(DecodedRows(draft, places[which]))
        return whole_draft(len(keys), self._ids, rows, refused, "$key is no Avro value")

    def _draft(self, batch: pa.RecordBatch, mapping: Fields, faults: Faults) -> Draft:
        try:
            all_rows, own_ops = np.arange(batch.num_rows), replace(mapping, own_ops=True)
            return event_rows(batch, all_rows, self._ids, self._unit, own_ops, faults).draft
        except RefusedError as error:  # a type that a field cannot have
            draft = self.blank(np.arange(batch.num_rows)).draft
            draft.faults.refuse(np.ones(batch.num_rows, bool), error.reason, str(error))
            return draft


def _column(raw: RawBatch, name: str) -> pa.Array:
    """A column of bytes, null if the poll has none."""
    column = raw.beside.get(name)
    return pa.nulls(len(raw.offsets), _BINARY) if column is None else column


def _json_of(raw: RawBatch, name: str) -> pa.Array:
    return _column(raw, name).fill_null(b"null")


def _utf8(name: str, column: pa.Array, faults: Faults) -> pa.Array:
    """Bytes as text; what is none is null, and a fault of its row."""
    lengths = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    faults.refuse(
        lengths > MOST_TEXT_BYTES,
        Reason.ID_TOO_LONG,
        lambda i: f"{name} has {lengths[i]} bytes, more than the {MOST_TEXT_BYTES} of a text",
    )
    column = pc.if_else(pa.array(lengths > MOST_TEXT_BYTES), None, column).cast(pa.binary())
    with suppress(pa.ArrowInvalid):
        return column.cast(pa.string())
    texts = [None if value is None else value.decode("utf-8", "replace") for value in column.to_pylist()]
    bad = ~pc.equal(pa.array(texts, pa.string()).cast(pa.binary()), column).fill_null(True).to_numpy(
        zero_copy_only=False
    )
    remark = ". If it is a number of Java's, set key_format: integer" if name == "$key" else ""
    faults.refuse(
        bad,
        Reason.WRONG_TYPE,
        lambda i: f"{name} is {shorten(column[i].as_py())}, which is no text in UTF-8{remark}",
    )
    return pc.if_else(pa.array(bad), None, pa.array(texts, pa.string()))


def _integers(name: str, column: pa.Array, faults: Faults) -> pa.Array:
    """Big-endian integers of 4 or 8 bytes as int64; what is none is null, and a fault of its row."""
    lengths = pc.binary_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(column), np.int64)
    for size in (4, 8):
        these = column.filter(pa.array(lengths == size))
        if len(these):
            numbers[lengths == size] = np.frombuffer(these.buffers()[2], f">i{size}", len(these))
    is_number = (lengths == 4) | (lengths == 8)
    faults.refuse(
        (lengths >= 0) & ~is_number,
        Reason.WRONG_TYPE,
        lambda i: f"{name} has {lengths[i]} bytes, expected an integer of 4 or 8 (config key key_format)",
    )
    return pa.array(numbers, mask=~is_number)
