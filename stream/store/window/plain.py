"""What the compiled kernels of a window do, by NumPy: for readers of stores, which need not have numba.

Features are read at the newest snapshot only: a reader has a window of one snapshot and advances it.
"""

from typing import Any

import numpy as np

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int32, Int64, UInt8
from freshet_graph.stream.kernels.node_sets import locate


def oldest(run: Int64, start: int, gone: UInt8, keys: Int64, rows: Int64) -> None:
    """``pairs.oldest``: equal keys take one row each, in the order of the run."""
    left = np.flatnonzero(~_flags(gone, start, len(run)))
    open_ = np.flatnonzero(rows < 0)
    missing = keys[open_]
    repeat = np.arange(len(missing)) - np.searchsorted(missing, missing)
    place = np.searchsorted(run[left], missing) + repeat
    inside = place < len(left)
    inside[inside] = run[left[place[inside]]] == missing[inside]
    rows[open_[inside]] = start + left[place[inside]]


def newest(run: Int64, start: int, gone: UInt8, later: Int64, keys: Int64, rows: Int64) -> None:
    """``pairs.newest``."""
    open_ = np.flatnonzero(rows < 0)
    place = np.searchsorted(run, keys[open_], side="right") - 1
    known = place >= 0
    known[known] = run[place[known]] == keys[open_[known]]
    open_, place = open_[known], place[known]
    is_left = ~_flags(gone, start, len(run))[place] | locate(later, start + place)[1]
    rows[open_[is_left]] = start + place[is_left]


def _flags(bits: UInt8, start: int, count: int) -> Bool:
    return np.unpackbits(bits, count=start + count, bitorder="little")[start:].view(np.bool_)


def write(
    slots: Int32, segment: Int32, values: Float32, bounds: Int64, table: Float32, run_count: Int32, undo: bool
) -> tuple[Int32, Float32]:
    """``features.write`` without ``undo``."""
    assert not undo, "a window of several snapshots needs numba"
    column = bounds[segment][:, None] + np.arange(values.shape[1])
    inside = column < bounds[segment + 1][:, None]
    table[np.broadcast_to(slots[:, None], column.shape)[inside], column[inside]] = values[inside]
    return np.empty((0, 0), np.int32), values[:0]


def look_up(node: Int64, sequence: int, of: Int32, begin: Int32, noted: Int32, slots: Int32) -> None:
    """``features.look_up`` at the newest snapshot."""
    assert not len(begin), "an earlier snapshot of a window needs numba"
    known = node < len(of)
    slots[~known] = -1
    slots[known] = of[node[known]]


def read(
    slots: Int32, since: int, begin: Int32, runs: Int32, bounds: Int64, table: Float32, *values_and_out: Any
) -> None:
    """``features.read`` at the newest snapshot."""
    assert not len(runs), "an earlier snapshot of a window needs numba"
    out: Float32 = values_and_out[-1]
    out[slots < 0] = 0
    out[slots >= 0] = table[slots[slots >= 0]]
