"""Columns without a value, which most streams have several of, out of one block a type."""

from functools import cache

import pyarrow as pa

NULL_KINDS = frozenset([pa.int32(), pa.int64(), pa.string(), pa.list_(pa.float32())])
"""Types of canonical columns that may hold nothing. Of others a few rows may be gigabytes long."""

SHARED_ROWS = 1 << 18
"""Longer columns have buffers of their own."""


def nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """``pyarrow.nulls`` that share their buffers.

    Args:
        kind: One of ``NULL_KINDS``.
        rows: Length of the column.
    """
    return _block(kind)[:rows] if rows <= SHARED_ROWS else pa.nulls(rows, kind)


@cache
def _block(kind: pa.DataType) -> pa.Array:
    return pa.nulls(SHARED_ROWS, kind)
