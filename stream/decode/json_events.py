"""JSON messages of a whole poll to event columns."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.events import IdKind
from stream.decode.buffers import read_only
from stream.decode.confluent import without_header
from stream.decode.json_diagnosis import diagnose
from stream.decode.json_kernel import Columns, scan
from stream.decode.json_message import NOT_JSON, JsonRow, read_message
from stream.decode.json_paths import EVENT_ID, FEATURES, LABEL, NODE, OFFSET, VALUES, ScanPlan
from stream.decode.json_text import gather_text
from stream.decode.mapping import NATIVE, Mapping
from stream.decode.reading import Refusal, RefusedError, Rows, refusal_table
from stream.decode.times import TimeUnit
from stream.decode.validate import Draft, Faults, draft_schema


@lru_cache(maxsize=256)
def _plan(mapping: Mapping) -> ScanPlan:
    return ScanPlan.of(mapping)


def read_json(
    values: pa.LargeBinaryArray, ids: IdKind, unit: TimeUnit, mapping: Mapping = NATIVE
) -> tuple[list[Rows], list[pa.Table]]:
    """Read messages of one event each, with the scanner, or with ``read_message`` if that doesn't know them.

    Confluent's serializer of JSON puts its header before a message; the message is read without it.

    Returns:
        Rows in the order of the messages, and the messages that are no events (``REFUSAL_SCHEMA``).
    """
    if len(values) == 0:
        return [], []
    values, framed = without_header(values)
    rows, refused = _read_plain(values, ids, unit, mapping)
    return rows, [_with_header(table, framed) for table in refused] if framed.any() else refused


def _with_header(refused: pa.Table, framed: npt.NDArray[np.bool_]) -> pa.Table:
    """Refusals that name the header of messages that are no JSON."""
    named = pc.and_(pa.array(framed[refused["message"].to_numpy()]), pc.equal(refused["reason"], NOT_JSON))
    sentence = pc.binary_join_element_wise(
        refused["sentence"], "after Confluent's header. If it is Avro, the topic's format is avro", ", "
    )
    place = refused.schema.get_field_index("sentence")
    return refused.set_column(
        place, refused.schema.field(place), pc.if_else(named, sentence, refused["sentence"])
    )


def _read_plain(
    values: pa.LargeBinaryArray, ids: IdKind, unit: TimeUnit, mapping: Mapping
) -> tuple[list[Rows], list[pa.Table]]:
    _, ends_buffer, data_buffer = values.buffers()
    ends = read_only(ends_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    data = read_only(data_buffer or b"", np.uint8)
    plan = _plan(mapping)
    columns = scan(data, ends, plan, text_ids=ids == "string", unit=unit)
    batch = _scanned(columns, data, ids, mapping)
    messages = np.flatnonzero(columns.known)
    if len(messages) == len(values):
        return [Rows(Draft(batch, Faults.none(len(messages))), messages)], []

    unknown = np.flatnonzero(~columns.known)
    refused, unknown = diagnose(data, ends, unknown, plan, ids, unit, mapping)
    rows: list[JsonRow] = []
    sources: list[int] = []
    refusals: list[Refusal] = []
    for i in unknown.tolist():
        try:
            rows.append(read_message(values[i].as_py(), ids, unit, mapping))
            sources.append(i)
        except RefusedError as error:
            refusals.append(Refusal(i, None, error.reason, str(error)))
    if rows:
        messages = np.concatenate((messages, np.array(sources, np.int64)))
        order = np.argsort(messages)
        together = pa.Table.from_batches([batch, _read(rows, ids)]).combine_chunks().to_batches()[0]
        batch, messages = together.take(pa.array(order)), messages[order]
    if refusals:
        refused.append(refusal_table(refusals))
    return [Rows(Draft(batch, Faults.none(len(messages))), messages)], refused


def _scanned(columns: Columns, data: npt.NDArray[np.uint8], ids: IdKind, mapping: Mapping) -> pa.RecordBatch:
    """The messages known to the scanner, as columns."""
    known = columns.known
    every = bool(known.all())

    def kept(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if every else values[known]

    given = kept(columns.given)

    def given_bits(bits: int) -> npt.NDArray[np.bool_]:
        return np.asarray((given & bits) != 0)

    is_node = given_bits(NODE)

    def texts(
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        missing: npt.NDArray[np.bool_] | None,
        prefix: str = "",
        of_nodes: str = "",
    ) -> pa.Array:
        before, other = (np.frombuffer(text.encode(), np.uint8) for text in (prefix, of_nodes))
        offsets, text = gather_text(
            data, columns.unescaped, kept(starts), kept(lengths), before, other, is_node
        )
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        array = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
        return array if missing is None else pc.if_else(pa.array(missing), None, array)

    def optional(values: npt.NDArray[Any], bit: int) -> pa.Array:
        present = given_bits(bit)
        if not present.any():
            return pa.nulls(len(given), pa.from_numpy_dtype(values.dtype))
        return pa.array(kept(values), mask=~present)

    no_dst = is_node if is_node.any() else None
    if ids == "string":
        prefix = mapping.prefix
        src = texts(columns.src, columns.src_bytes, None, prefix.src, prefix.node)
        dst = texts(columns.dst, columns.dst_bytes, no_dst, prefix.dst)
    else:
        src = pa.array(kept(columns.src))
        dst = pa.array(kept(columns.dst), mask=no_dst)
    has_features, has_event_id = given_bits(FEATURES | VALUES), given_bits(EVENT_ID)
    features = pa.nulls(len(given), pa.list_(pa.float32()))
    if has_features.any():
        # Unknown messages left no values, so the ends of known ones are running ends.
        ends = np.concatenate(([0], kept(columns.feature_ends))).astype(np.int32)
        flat = pa.array(columns.values[: ends[-1]].copy())
        features = pa.ListArray.from_arrays(ends, flat, mask=pa.array(~has_features))
    event_id = pa.nulls(len(given), pa.string())
    if has_event_id.any():
        event_id = texts(columns.event_id, columns.event_id_bytes, ~has_event_id)
    schema = draft_schema(ids)
    found = {
        "op": pa.array(kept(columns.op)),
        "src": src,
        "dst": dst,
        "t": pa.array(kept(columns.t)),
        "weight": pa.array(kept(columns.weight)),
        "features": features,
        "feature_offset": optional(columns.feature_offset, OFFSET),
        "label": optional(columns.label, LABEL),
        "event_id": event_id,
    }
    return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)


def _read(rows: list[JsonRow], ids: IdKind) -> pa.RecordBatch:
    """The messages known to ``read_message``, as columns."""
    schema = draft_schema(ids)
    return pa.RecordBatch.from_arrays(
        [pa.array([getattr(row, field.name) for row in rows], field.type) for field in schema], schema=schema
    )
