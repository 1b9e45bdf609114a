"""Columns without a value, of which most streams have several, out of one block per type."""

from functools import cache

import pyarrow as pa

NULL_KINDS = frozenset([pa.int32(), pa.int64(), pa.string(), pa.list_(pa.float32())])
"""Types of canonical columns that may be all null. A few rows of other types may be gigabytes."""

SHARED_ROWS = 1 << 18
"""Longer columns have buffers of their own."""


def nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """``pyarrow.nulls`` of one of ``NULL_KINDS``, sharing buffers."""
    return _block(kind)[:rows] if rows <= SHARED_ROWS else pa.nulls(rows, kind)


@cache
def _block(kind: pa.DataType) -> pa.Array:
    return pa.nulls(SHARED_ROWS, kind)
