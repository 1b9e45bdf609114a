"""Rows of a batch as JSON texts, columnar: the content of a refused row's dead letter."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def row_texts(batch: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object (binary, UTF-8), nulls included; NaN and infinities by Python's names."""
    pieces: list[pa.Array | str] = []
    for i, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        pieces += [("{" if i == 0 else ", ") + json.dumps(name) + ": ", _texts(column)]
    texts = pc.binary_join_element_wise(*pieces, "}", "")
    # Where no column has a value, all rows have one text.
    return (texts if isinstance(texts, pa.Array) else pa.repeat(texts, batch.num_rows)).cast(pa.binary())


def _texts(column: pa.Array) -> pa.Array | str:
    if column.null_count == len(column):
        return "null"
    if pt.is_integer(column.type):
        return column.cast(pa.string()).fill_null("null")
    if pt.is_floating(column.type):
        return _spelled(column.cast(pa.string()).fill_null("null"))
    # Texts may need escapes, and lists are rare: one by one, but each value once.
    words = column.dictionary_encode() if pt.is_string(column.type) else None
    if words is None:
        return pa.array([json.dumps(value) for value in column.to_pylist()])
    quoted = [*map(json.dumps, words.dictionary.to_pylist()), "null"]
    places = words.indices.fill_null(len(quoted) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    return pa.array(quoted).take(pa.array(places))


def _spelled(texts: pa.Array) -> pa.Array:
    """Numbers without a JSON form, as Python writes them."""
    for found, word in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        texts = pc.if_else(pc.equal(texts, found), word, texts)
    return texts
