"""Tables as record batches whose bytes depend only on their values.

Arrow does not define the values under nulls, the last bits of a sliced validity bitmap, or bytes beyond a sliced buffer. Here
the first two are zero (or absent), and there are no such bytes.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_OFFSET_BYTES = 4


def canonical_batches(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    """A table as record batches of canonical bytes; buffers that are canonical already are not copied.

    Args:
        table: Any table.
        rows: Rows of every batch but the last.

    Returns:
        At least one batch.
    """
    starts = range(0, max(len(table), 1), rows)
    return [_canonical_batch(table.slice(start, rows)) for start in starts]


def _canonical_batch(piece: pa.Table) -> pa.RecordBatch:
    columns = [
        pa.nulls(len(column), column.type) if column.null_count == len(column) else _canonical(_one(column))
        for column in piece.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=piece.schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    chunks = column.chunks
    if pa.types.is_list(column.type) and _is_numeric(column.type.value_type):
        filled = [k for k, chunk in enumerate(chunks) if chunk.null_count < len(chunk)]
        if len(filled) == 1 and _is_compact(chunks[filled[0]]):
            return _among_nulls(chunks, filled[0])
    return pa.concat_arrays(chunks)


def _among_nulls(chunks: list[pa.Array], filled: int) -> pa.Array:
    """One array of lists that all lie in one chunk, such as vectors before or after edges; values are not copied."""
    lists = chunks[filled]
    begin = sum(len(chunk) for chunk in chunks[:filled])
    end, length = begin + len(lists), sum(len(chunk) for chunk in chunks)
    offsets, valid = np.zeros(length + 1, np.int32), np.zeros(length, np.bool_)
    offsets[begin : end + 1] = np.frombuffer(lists.buffers()[1], np.int32)
    offsets[end:] = offsets[end]
    valid[begin:end] = _validity(lists)
    buffers = [_bitmap(valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(lists.type, length, buffers, children=[lists.values])


def _canonical(column: pa.Array) -> pa.Array:
    if _is_numeric(column.type):
        if column.null_count == 0 and _fills(column.buffers()[1], column, column.type.bit_width // 8):
            return column
        return _canonical_numbers(column)
    if _is_listlike(column.type) and _is_compact(column):
        validity, *buffers = column.buffers()[:3]
        if column.null_count == 0 and validity is None:
            return column
        validity = None if column.null_count == 0 else _bitmap(_validity(column))
        children = [column.values] if pa.types.is_list(column.type) else None
        return pa.Array.from_buffers(
            column.type, len(column), [validity, *buffers[: 1 if children else 2]], children=children
        )
    return column.take(pa.array(np.arange(len(column))))  # new buffers of the exact length


def _canonical_numbers(column: pa.Array) -> pa.Array:
    values = np.array(column.fill_null(0) if column.null_count else column)
    validity = _bitmap(_validity(column)) if column.null_count else None
    return pa.Array.from_buffers(column.type, len(column), [validity, pa.py_buffer(values)])


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_listlike(kind: pa.DataType) -> bool:
    """Whether the type is lists of numbers or strings: 32-bit offsets into one buffer of values."""
    if pa.types.is_list(kind):
        return _is_numeric(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_compact(column: pa.Array) -> bool:
    """Whether offsets and values fill their buffers, every value is in a list, and nulls have no values."""
    ends = column.buffers()[1]
    if ends is None or column.offset or ends.size != (len(column) + 1) * _OFFSET_BYTES:
        return False
    offsets = np.frombuffer(ends, np.int32)
    if pa.types.is_list(column.type):
        values = column.values
        filled = not values.null_count and _fills(
            values.buffers()[1], values, column.type.value_type.bit_width // 8
        )
        if not filled or offsets[0] or offsets[-1] != len(values):
            return False
    else:
        text = column.buffers()[2]
        if offsets[0] or offsets[-1] != (0 if text is None else text.size):
            return False
    return column.null_count == 0 or not np.diff(offsets)[~_validity(column)].any()


def _fills(buffer: pa.Buffer | None, column: pa.Array, width: int) -> bool:
    return buffer is not None and column.offset == 0 and buffer.size == len(column) * width


def _validity(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
