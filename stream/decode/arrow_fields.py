"""The fields of a mapped topic's Arrow messages as the columns of an event."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from schemas.events import Op, Reason
from schemas.fields import PathKeys
from stream.decode.columns import decoded
from stream.decode.mapping import Mapping
from stream.decode.reading import RefusedError

_NAMES = {"node": "src", "offset": "feature_offset", "values": "features"}
"""Columns of events whose name differs from the field's."""
_UNKNOWN_OP = 2
"""Stands for a word that isn't an op; refused with the reason."""


def mapped(batch: pa.RecordBatch, mapping: Mapping) -> pa.RecordBatch:
    """Columns named like an event's, from their places in a topic's messages.

    Types don't change, except that words of op become numbers and ids with a prefix text.

    Raises:
        RefusedError: A column is missing, or of a type that its use doesn't allow.
    """
    prefix = mapping.prefix
    if mapping.mapped:
        batch = _renamed(batch, mapping)
        if "dst" not in batch.schema.names:
            prefix = prefix._replace(src=prefix.node)
            batch = batch.append_column("dst", pa.nulls(batch.num_rows))
    for name, text in (("src", prefix.src), ("dst", prefix.dst)):
        if text:
            batch = _changed(batch, name, partial(_prefixed, mapping.column(name), prefix=text))
    return _changed(batch, "op", partial(_ops, mapping=mapping)) if mapping.own_ops else batch


def _changed(batch: pa.RecordBatch, name: str, change: Callable[[pa.Array], pa.Array]) -> pa.RecordBatch:
    """The batch with one column changed; a column that is missing or repeated is refused elsewhere."""
    places = batch.schema.get_all_field_indices(name)
    return batch.set_column(places[0], name, change(batch.column(places[0]))) if len(places) == 1 else batch


def _renamed(batch: pa.RecordBatch, mapping: Mapping) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    parts: list[pa.Array] = []
    for (name, part), keys in mapping.paths:
        found = _at(batch, keys)
        if name == "features" and mapping.feature_parts:
            parts.append(_numbers(mapping.shown(name, part), found))
        else:
            columns[_NAMES.get(name, name)] = found
    if parts:
        columns["features"] = _together(parts, batch.num_rows)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _at(batch: pa.RecordBatch, keys: PathKeys) -> pa.Array:
    shown = ".".join(keys)
    places = batch.schema.get_all_field_indices(keys[0])
    if not places:
        found = ", ".join(batch.schema.names) or "none"
        raise RefusedError(Reason.MISSING_FIELD, f"column {shown} is missing; found {found}")
    if len(places) > 1:
        raise RefusedError(Reason.WRONG_TYPE, f"column {keys[0]} stands {len(places)} times")
    column = batch.column(places[0])
    for i, key in enumerate(keys[1:], start=1):
        above = ".".join(keys[:i])
        if not pt.is_struct(column.type):
            raise RefusedError(Reason.WRONG_TYPE, f"column {above} is {column.type}, expected a struct")
        inside = column.type.get_all_field_indices(key)
        if len(inside) != 1:
            found = ", ".join(field.name for field in column.type) or "none"
            raise RefusedError(Reason.MISSING_FIELD, f"column {shown} is missing; {above} has {found}")
        column = pc.struct_field(column, inside)
        if pt.is_dictionary(column.type):  # only text of columns is limited once written out
            raise RefusedError(
                Reason.WRONG_TYPE,
                f"column {shown} is {column.type}, expected plain values inside of a struct",
            )
    return column


def _numbers(shown: str, column: pa.Array) -> pa.Array:
    if not (pt.is_floating(column.type) or pt.is_integer(column.type) or pt.is_null(column.type)):
        raise RefusedError(Reason.WRONG_TYPE, f"column {shown} is {column.type}, expected numbers")
    return pc.cast(column, pa.float32(), safe=False)


def _together(parts: list[pa.Array], rows: int) -> pa.Array:
    """Lists of one value per part, null if all are null; a single null value is refused later."""
    flat = pa.concat_arrays(parts).take(
        pa.array(np.arange(rows * len(parts)).reshape(len(parts), rows).T.ravel())
    )
    missing = np.ones(rows, bool)
    for part in parts:
        missing &= part.is_null().to_numpy(zero_copy_only=False)
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(parts))
    return pa.ListArray.from_arrays(ends, flat, mask=pa.array(missing))


def _prefixed(name: str, column: pa.Array, *, prefix: str) -> pa.Array:
    column = decoded(name, column) if pt.is_dictionary(column.type) else column
    if pt.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    if not (pt.is_string(column.type) or pt.is_large_string(column.type) or pt.is_integer(column.type)):
        raise RefusedError(
            Reason.BAD_ID,
            f"column {name} is {column.type}, expected strings or integers (config key id_prefix)",
        )
    texts = pc.cast(column, pa.string())
    # An empty id stays empty, and so is refused.
    return pc.if_else(pc.equal(texts, ""), "", pc.binary_join_element_wise(prefix, texts, ""))


def _ops(column: pa.Array, *, mapping: Mapping) -> pa.Array:
    name = mapping.column("op")
    column = decoded(name, column) if pt.is_dictionary(column.type) else column
    if pt.is_null(column.type):
        return column
    if not (pt.is_string(column.type) or pt.is_large_string(column.type)):
        raise RefusedError(
            Reason.WRONG_TYPE,
            f"column {name} is {column.type}, expected strings (topic key ops has the words)",
        )
    words, meanings = zip(*mapping.words, strict=True)
    place = pc.index_in(column, pa.array(words, column.type)).fill_null(len(words))
    ops = pa.array([*map(int, meanings), _UNKNOWN_OP], pa.int8()).take(place)
    return pc.if_else(column.is_null(), pa.scalar(int(Op.INSERT), pa.int8()), ops)
