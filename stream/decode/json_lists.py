"""JSON messages of several events each: the elements of an array, or lines; and texts inside of messages that are JSON."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import IdKind, Reason
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.arrays.kinds import Bool, Int64, UInt8
from freshet_graph.stream.decode.confluent import without_header
from freshet_graph.stream.decode.json_kernel import copy_pieces, find_elements, splice_texts
from freshet_graph.stream.decode.json_messages import array_elements, read_json, with_inner, written_spans
from freshet_graph.stream.decode.mapping import ELEMENT, VALUE, WRITTEN, Mapping
from freshet_graph.stream.decode.merging import Merging
from freshet_graph.stream.decode.reading import (
    REFUSAL_SCHEMA,
    DecodedRows,
    Limits,
    Read,
    Refusal,
    RefusedError,
    refusal_table,
)
from freshet_graph.stream.decode.times import TimeUnit
from freshet_graph.stream.kernels import read_only

_BINARY = pa.large_binary()


def read_many(
    values: pa.LargeBinaryArray,
    ids: IdKind,
    unit: TimeUnit,
    mapping: Mapping,
    limits: Limits,
    at_once: Limits | None,
) -> Read:
    """Read messages whose events are the elements of the array at ``mapping.many``; see ``MessageFormat.read``.

    With no keys in ``many``, a message is the array, or has a value per line. A bad element is refused alone.
    """
    assert mapping.many is not None, "a message has several events"
    parts = mapping.elements()
    values, _ = without_header(values)
    refused: list[pa.Table] = []
    around: list[DecodedRows] = []
    messages, texts = np.arange(len(values)), values
    if mapping.many:
        outer = replace(parts[VALUE], paths=(*parts[VALUE].paths, ((WRITTEN, 0), mapping.many)))
        around, refused = read_json(values, ids, unit, outer)
        batch = around[0].draft.batch if around else None
        messages = around[0].messages if around else messages[:0]
        texts = pa.array([], _BINARY) if batch is None else batch[WRITTEN]
    shown = ".".join(mapping.many)
    elements, places, rows, refusals = _elements(texts, limits, shown)
    known = ~np.isin(np.arange(len(texts)), [place for place, *_ in refusals])
    looked_at, counts = len(values), np.bincount(places, minlength=len(texts))
    if at_once is not None:
        beyond = np.flatnonzero(np.cumsum(counts) > at_once.rows)
        beyond = beyond[beyond > (np.flatnonzero(counts)[0] if counts.any() else 0)]
        if len(beyond):
            last = int(beyond[0])
            looked_at, known[last:] = int(messages[last]), False
            elements, rows, places = (
                one[: int(np.searchsorted(places, last))] for one in (elements, rows, places)
            )
    listed = [(int(messages[place]), reason, sentence) for place, reason, sentence in refusals]
    if listed:
        refused = [*refused, refusal_table(listed)]
    refused = [part for table in refused if len(part := table.filter(pc.less(table["message"], looked_at)))]
    empty = messages[np.flatnonzero(known & (counts == 0))]
    read, bad = _read_elements(elements, ids, unit, parts[ELEMENT], mapping.many)
    merging = Merging(mapping, parts, ELEMENT, ids)
    result = []
    for one in read:
        of_elements = DecodedRows(
            one.draft, messages[places[one.messages]], rows[one.messages], one.converted
        )
        drafts = {VALUE: around[0].draft} if around else {}
        result.append(merging.filled(of_elements, drafts, places[one.messages]) if drafts else of_elements)
    for table in bad:
        which = table["message"].to_numpy()
        columns = [pa.array(messages[places[which]]), pa.array(rows[which], pa.int32()), table[2], table[3]]
        refused.append(
            pa.Table.from_arrays(
                [*columns, elements.take(pa.array(which)).cast(pa.binary())], schema=REFUSAL_SCHEMA
            )
        )
    return Read(result, refused, looked_at, empty)


def _read_elements(
    elements: pa.LargeBinaryArray, ids: IdKind, unit: TimeUnit, mapping: Mapping, many: PathKeys
) -> tuple[list[DecodedRows], list[pa.Table]]:
    """Elements as messages of their elements_here, in which the path of the array leads to the one element."""
    if many:
        before = b"".join(b"{" + json.dumps(key).encode() + b":" for key in many)
        pieces = [pa.scalar(before, _BINARY), elements, pa.scalar(b"}" * len(many), _BINARY)]
        elements = pc.binary_join_element_wise(*pieces, pa.scalar(b"", _BINARY))
    return read_json(elements, ids, unit, mapping)


def _elements(
    texts: pa.LargeBinaryArray, limits: Limits, shown: str
) -> tuple[pa.LargeBinaryArray, Int64, Int64, list[Refusal]]:
    """The elements of arrays: each with the place of its array and its own in it; and arrays that are none."""
    data, ends = buffers_of(texts)
    room = int(ends[-1] - ends[0]) + 1
    starts, lengths = np.empty(room, np.int64), np.empty(room, np.int64)
    counts = np.empty(len(texts), np.int64)
    total = find_elements(data, ends, not shown, starts, lengths, counts)
    refusals: list[Refusal] = []
    places = np.repeat(np.arange(len(texts)), np.maximum(counts, 0))
    rows = np.arange(total) - (np.cumsum(np.maximum(counts, 0)) - np.maximum(counts, 0))[places]
    pieces = [pieces_of(data, starts[:total], lengths[:total])]
    more_places: list[int] = []
    more_rows: list[int] = []
    more: list[bytes] = []
    for place in np.flatnonzero(counts < 0).tolist():
        try:
            if not texts[place].is_valid:
                raise RefusedError(Reason.MISSING_FIELD, f"{shown} is missing")
            elements_here = array_elements(texts[place].as_py(), lines=not shown)
        except RefusedError as error:
            sentence = f"{shown} is {error}" if shown and error.reason == Reason.WRONG_TYPE else str(error)
            refusals.append((place, error.reason, sentence))
            continue
        counts[place] = len(elements_here)
        more, more_places = more + elements_here, more_places + [place] * len(elements_here)
        more_rows += range(len(elements_here))
    elements = pa.concat_arrays([*pieces, pa.array(more, _BINARY)])
    places, rows = np.concatenate([places, more_places]), np.concatenate([rows, more_rows])
    large = np.flatnonzero(counts > limits.rows)
    for place in large.tolist():
        sentence = f"{counts[place]} elements, but config key kafka.max_message_rows is {limits.rows}"
        refusals.append((place, Reason.TOO_LARGE, sentence))
    order = np.lexsort((rows, places)) if more or len(large) else None
    if order is not None:
        order = order[~np.isin(places[order], large)]
        elements, places, rows = elements.take(pa.array(order)), places[order], rows[order]
    return elements, places.astype(np.int64), rows.astype(np.int64), refusals


def buffers_of(texts: pa.LargeBinaryArray) -> tuple[UInt8, Int64]:
    """The bytes of texts side by side, and their n + 1 ends; a null is empty."""
    if len(texts) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, ends_buffer, data_buffer = texts.buffers()
    ends = read_only(ends_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return read_only(data_buffer or b"", np.uint8), ends


def pieces_of(data: UInt8, starts: Int64, lengths: Int64) -> pa.LargeBinaryArray:
    """Pieces of bytes as an array."""
    ends, content = copy_pieces(data, starts, lengths)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(content)]
    return pa.LargeBinaryArray.from_buffers(_BINARY, len(starts), buffers)


def inlined(values: pa.LargeBinaryArray, paths: Sequence[PathKeys]) -> pa.LargeBinaryArray:
    """Messages in which the texts at some paths are the JSON values that they hold; other texts stay."""
    values, _ = without_header(values)
    for keys in paths:
        values = _inlined(values, keys)
    return values


def written_at(values: pa.LargeBinaryArray, keys: PathKeys) -> tuple[Int64, Int64, Bool]:
    """Start and length of the value at a path in each message (0: none), and whether the scanner knows the message."""
    wanted = Mapping(paths=(((WRITTEN, 0), keys),), mapped=True, elsewhere=frozenset({"src", "dst", "t"}))
    return written_spans(values, wanted)


def _inlined(values: pa.LargeBinaryArray, keys: PathKeys) -> pa.LargeBinaryArray:
    if len(values) == 0:
        return values
    starts, lengths, known = written_at(values, keys)
    data, ends = buffers_of(values)
    out, out_ends = np.empty(int(ends[-1] - ends[0]), np.uint8), np.empty(len(values) + 1, np.int64)
    splice_texts(data, ends, starts, lengths, out, out_ends)
    buffers = [None, pa.py_buffer(out_ends), pa.py_buffer(out)]
    spliced = pa.LargeBinaryArray.from_buffers(_BINARY, len(values), buffers)
    unknown = np.flatnonzero(~known)
    if not len(unknown):
        return spliced
    whole = [with_inner(value, keys) for value in values.take(pa.array(unknown)).to_pylist()]
    mended = pa.array(whole, _BINARY)
    return pc.replace_with_mask(
        spliced, pa.array(~known), pc.coalesce(mended, spliced.take(pa.array(unknown)))
    )
