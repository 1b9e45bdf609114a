"""The undirected adjacency of the live pairs, with rows that grow and shrink in place.

Every row is a block of one array, its size a power of two; a full row moves to a block of twice the size, a row that is a quarter
full to one of half, and free blocks are reused. A pair is appended to its two rows, and the last entry of a row takes the place
of a removed one: O(1) per change, amortised, however long the rows are. So rows are unsorted; their order is part of the live
graph's state.
"""

import numpy as np

from stream.arrays.growing import Growing
from stream.arrays.kinds import Int8, Int32, Int64
from stream.kernels import njit
from stream.snapshots.delta import Rows
from stream.snapshots.pair_index import AT_LOW, HIGH, LOW

_SIZES = 40
_NO_BLOCK = -1
_HALF = np.int64(0xFFFFFFFF)


class LiveRows:
    """Neighbours of every node: each live undirected pair in both its rows; no self-loops."""

    def __init__(self) -> None:
        self._start = Growing(0, np.int64)
        self._end = Growing(0, np.int64)
        self._size = Growing(_NO_BLOCK, np.int8)  # log2 of the block
        self._free: Int64 = np.full(_SIZES, -1)  # first free block of each size
        self._used = np.zeros(1, np.int64)
        self._neighbours: Int32 = np.empty(0, np.int32)
        self._records: Int32 = np.empty(0, np.int32)

    def rows(self) -> Rows:
        """The current rows: views."""
        return Rows(self._start.values, self._end.values, self._neighbours)

    @property
    def records(self) -> Int32:
        """Record of the pair of every entry, parallel to ``Rows.indices``."""
        return self._records

    def apply(self, records: Int32, parted: Int64, joined: Int64, num_nodes: int) -> None:
        """Remove and add pairs.

        Args:
            records: int32 (capacity, 8) of ``PairIndex``; their places in rows are updated.
            parted: int64, records of pairs of two nodes to remove.
            joined: int64, records of such pairs to add.
            num_nodes: Dense ids in use.
        """
        rows = self._start.grow(num_nodes), self._end.grow(num_nodes), self._size.grow(num_nodes)
        _part(parted, records, *rows, self._neighbours, self._records, self._free, self._used)
        self._neighbours, self._records = _join(
            joined, records, *rows, self._neighbours, self._records, self._free, self._used
        )

    def restore(self, length: Int32, neighbours: Int32, records: Int32) -> None:
        """Set the rows of a fresh object: all lengths, then entry after entry."""
        start, end, size = (column.grow(len(length)) for column in (self._start, self._end, self._size))
        room = _lay_out(length, start, end, size)
        self._used[0] = room
        self._neighbours, self._records = np.empty(room, np.int32), np.empty(room, np.int32)
        _spread(start, end, neighbours, records, self._neighbours, self._records)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = self._start.nbytes + self._end.nbytes + self._size.nbytes
        return columns + self._neighbours.nbytes + self._records.nbytes


@njit(cache=True, nogil=True)
def _free_block(start: int, size: int, free: Int64, neighbours: Int32, records: Int32) -> None:
    """Put a block on the list of its size; its first entry holds the place of the next one."""
    neighbours[start] = np.int32(free[size] & _HALF)
    records[start] = np.int32(free[size] >> 32)
    free[size] = start


@njit(cache=True, nogil=True)
def _take_block(size: int, free: Int64, used: Int64, neighbours: Int32, records: Int32) -> np.int64:
    """Take a block; the caller has ensured room."""
    start: np.int64 = free[size]
    if start >= 0:
        free[size] = (np.int64(records[start]) << 32) | (np.int64(neighbours[start]) & _HALF)
        return start
    start = used[0]
    used[0] += np.int64(1) << size
    return start


@njit(cache=True, nogil=True)
def _move(
    v: int, block: int, wanted: int, start: Int64, end: Int64, size: Int8,
    neighbours: Int32, records: Int32, free: Int64,
) -> None:  # fmt: skip
    """Move a row to another block."""
    length = end[v] - start[v]
    for k in range(length):
        neighbours[block + k] = neighbours[start[v] + k]
        records[block + k] = records[start[v] + k]
    if size[v] >= 0:
        _free_block(start[v], size[v], free, neighbours, records)
    start[v], end[v], size[v] = block, block + length, wanted


@njit(cache=True, nogil=True)
def _part(
    parted: Int64, pairs: Int32, start: Int64, end: Int64, size: Int8,
    neighbours: Int32, records: Int32, free: Int64, used: Int64,
) -> None:  # fmt: skip
    for i in range(len(parted)):
        for side in range(2):
            v = pairs[parted[i], LOW + side]
            at, last = start[v] + pairs[parted[i], AT_LOW + side], end[v] - 1
            if at != last:
                moved = records[last]
                neighbours[at], records[at] = neighbours[last], moved
                pairs[moved, AT_LOW + np.int64(pairs[moved, HIGH] == v)] = at - start[v]
            end[v] = last
            length = last - start[v]
            if length == 0:
                _free_block(start[v], size[v], free, neighbours, records)
                size[v] = _NO_BLOCK
            elif size[v] > 2 and length <= (1 << size[v]) >> 2:
                half = size[v] - 1
                # Blocks are never split, so that large ones are available again for the next long row.
                if free[half] >= 0 or used[0] + (np.int64(1) << half) <= len(neighbours):
                    block = _take_block(half, free, used, neighbours, records)
                    _move(v, block, half, start, end, size, neighbours, records, free)


@njit(cache=True, nogil=True)
def _join(
    joined: Int64, pairs: Int32, start: Int64, end: Int64, size: Int8,
    neighbours: Int32, records: Int32, free: Int64, used: Int64,
) -> tuple[Int32, Int32]:  # fmt: skip
    for i in range(len(joined)):
        for side in range(2):
            v = pairs[joined[i], LOW + side]
            if size[v] < 0 or end[v] - start[v] == 1 << size[v]:
                if size[v] < 0:
                    end[v] = start[v]
                wanted = size[v] + 1
                if free[wanted] < 0 and used[0] + (np.int64(1) << wanted) > len(neighbours):
                    room = max(used[0] + (np.int64(1) << wanted), len(neighbours) + len(neighbours) // 2)
                    more_neighbours, more_records = np.empty(room, np.int32), np.empty(room, np.int32)
                    more_neighbours[: len(neighbours)] = neighbours
                    more_records[: len(records)] = records
                    neighbours, records = more_neighbours, more_records
                block = _take_block(wanted, free, used, neighbours, records)
                _move(v, block, wanted, start, end, size, neighbours, records, free)
            neighbours[end[v]] = pairs[joined[i], LOW + 1 - side]
            records[end[v]] = joined[i]
            pairs[joined[i], AT_LOW + side] = end[v] - start[v]
            end[v] += 1
    return neighbours, records


@njit(cache=True, nogil=True)
def _lay_out(length: Int32, start: Int64, end: Int64, size: Int8) -> np.int64:
    """Assign a block to each row, one after the other; returns the room taken."""
    room = np.int64(0)
    for v in range(len(length)):
        if length[v] > 0:
            while size[v] < 0 or (1 << size[v]) < length[v]:
                size[v] += 1
            start[v], end[v] = room, room + length[v]
            room += np.int64(1) << size[v]
    return room


@njit(cache=True, nogil=True)
def _spread(
    start: Int64, end: Int64, given: Int32, given_records: Int32, neighbours: Int32, records: Int32
) -> None:
    at = 0
    for v in range(len(start)):
        for k in range(start[v], end[v]):
            neighbours[k] = given[at]
            records[k] = given_records[at]
            at += 1
