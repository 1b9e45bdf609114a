"""Confluent's header before a message: a zero byte and the id of its schema in a registry."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.stream.arrays.kinds import Bool, Int64, UInt8
from freshet_graph.stream.kernels import read_only

HEADER_BYTES = 5


def schema_ids(values: pa.LargeBinaryArray) -> Int64:
    """The schema id of each message, int64; −1: no header (null messages too)."""
    _, ends_buffer, data_buffer = values.buffers()
    if len(values) == 0 or data_buffer is None:
        return np.full(len(values), -1, np.int64)
    ends = read_only(ends_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    data: UInt8 = read_only(data_buffer, np.uint8)
    numbers = np.full(len(values), -1, np.int64)
    whole = np.flatnonzero((np.diff(ends) >= HEADER_BYTES) & values.is_valid().to_numpy(zero_copy_only=False))
    starts = ends[whole]
    framed = data[starts] == 0
    starts = starts[framed]
    numbers[whole[framed]] = sum(data[starts + 1 + k].astype(np.int64) << (24 - 8 * k) for k in range(4))
    return numbers


def without_header(values: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Bool]:
    """Messages without the header, and which had one; a JSON text never begins with a zero byte."""
    framed = schema_ids(values) >= 0
    if framed.any():
        values = pc.if_else(pa.array(framed), pc.binary_slice(values, HEADER_BYTES), values)
    return values, framed
