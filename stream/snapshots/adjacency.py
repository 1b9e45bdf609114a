"""The whole undirected adjacency in sorted rows: built from pairs or from rows, or advanced."""

import numpy as np

from freshet_graph.stream.arrays.growing import Growing
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int8, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.snapshots.delta import Csr, NeighbourRows
from freshet_graph.stream.snapshots.pair_index import AT_LOW, HIGH, LOW, SEEN, WEIGHT, find
from freshet_graph.stream.snapshots.pairs import KEY_BITS

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

    def rows(self) -> NeighbourRows:
        """The current rows: views."""
        return NeighbourRows(self._start.values, self._end.values, self._neighbours)

    @property
    def records(self) -> Int32:
        """Record of the pair of every entry, parallel to ``NeighbourRows.indices``."""
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
        size[:] = np.where(length > 0, np.frexp(length - 1.0)[1], _NO_BLOCK)
        room = np.where(length > 0, 1 << np.maximum(size, 0).astype(np.int64), 0)
        start[:] = np.cumsum(room) - room
        end[:] = start + length
        self._used[0] = room.sum()
        self._neighbours, self._records = (np.empty(room.sum(), np.int32) for _ in range(2))
        # How far each entry moves: the spare room of the rows before it.
        place = np.arange(len(neighbours)) + np.repeat(
            start - (np.cumsum(length, dtype=np.int64) - length), length
        )
        self._neighbours[place], self._records[place] = neighbours, records

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
            place, last = start[v] + pairs[parted[i], AT_LOW + side], end[v] - 1
            if place != last:
                moved = records[last]
                neighbours[place], records[place] = neighbours[last], moved
                pairs[moved, AT_LOW + np.int64(pairs[moved, HIGH] == v)] = place - start[v]
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


_REBUILD_SHARE = 4
"""Above one changed pair in this many, building is faster than advancing (both give equal arrays)."""

_RECORD = np.int64(0xFFFFFFFF)


def worth_advancing(changed: int, whole: Csr) -> bool:
    """Whether advancing an adjacency is faster than building it, for a number of changed pairs."""
    return changed * 2 * _REBUILD_SHARE <= len(whole.indices)


def advance_adjacency(
    before: Csr, num_nodes: int, changed: Int64, table: Int64, bits: int, records: Int32, weights: Float32
) -> Csr:
    """Adjacency some snapshots later.

    Args:
        before: The earlier adjacency.
        num_nodes: Rows of the new one.
        changed: int64 (c,) keys of the added, refreshed and removed pairs, in any order.
        table: Of ``PairIndex``, as are the next three.
        bits: See there.
        records: See there.
        weights: See there.
    """
    entries = distinct(changed, _swap(changed))
    present, combined = _combine(entries, table, bits, records, weights)
    arrays = before.indptr, before.indices, before.weights
    return Csr(*_advance(*arrays, num_nodes, entries, present, combined))


@njit(cache=True, nogil=True)
def sorted_rows(
    rows: NeighbourRows, entries: Int32, records: Int32, weights: Float32
) -> tuple[Int64, Int32, Float32]:
    """Sorted adjacency of unsorted rows: both directions, weights of directions added.

    Visits nodes in order and appends each to its neighbours' rows.

    Args:
        rows: Of N nodes.
        entries: int32, record of each entry.
        records: int32 (capacity, 8) of ``PairIndex``.
        weights: float32, the same bytes.

    Returns:
        indptr int64 (N + 1,), indices int32 (entries,), weights float32 (entries,).
    """
    nodes = len(rows.start)
    indptr = np.zeros(nodes + 1, np.int64)
    for v in range(nodes):
        indptr[v + 1] = indptr[v] + rows.end[v] - rows.start[v]
    indices = np.empty(indptr[-1], np.int32)
    combined = np.empty(indptr[-1], np.float32)
    filled = indptr[:-1].copy()
    for v in range(nodes):
        for k in range(rows.start[v], rows.end[v]):
            u = rows.indices[k]
            indices[filled[u]] = v
            combined[filled[u]] = _both(entries[k], records, weights)
            filled[u] += 1
    return indptr, indices, combined


@njit(cache=True, nogil=True)
def build_adjacency(num_nodes: int, keys: Int64, weight: Float32) -> tuple[Int64, Int32, Float32]:
    """Adjacency of pairs sorted by key: both directions, self-loops dropped, weights of directions added.

    Returns:
        indptr int64 (num_nodes + 1,), indices int32 (entries,), weights float32 (entries,).
    """
    mask = (np.int64(1) << KEY_BITS) - 1
    n = len(keys)
    forward = np.zeros(num_nodes + 1, np.int64)
    backward = np.zeros(num_nodes + 1, np.int64)
    for i in range(n):
        forward[(keys[i] >> KEY_BITS) + 1] += 1
        backward[(keys[i] & mask) + 1] += 1
    for v in range(num_nodes):
        forward[v + 1] += forward[v]
        backward[v + 1] += backward[v]
    incoming = np.empty(n, np.int64)  # rows of pairs by dst, then src: a stable counting sort
    fill = backward[:-1].copy()
    for i in range(n):
        dst = keys[i] & mask
        incoming[fill[dst]] = i
        fill[dst] += 1
    indptr = np.zeros(num_nodes + 1, np.int64)
    indices = np.empty(2 * n, np.int32)
    weights = np.empty(2 * n, np.float32)
    m = 0
    for v in range(num_nodes):
        i, end_i, j, end_j = forward[v], forward[v + 1], backward[v], backward[v + 1]
        while i < end_i or j < end_j:
            out = (keys[i] & mask) if i < end_i else mask
            into = (keys[incoming[j]] >> KEY_BITS) if j < end_j else mask
            total = np.float32(0)
            if out <= into:
                total = weight[i]
                i += 1
            if into <= out:
                total = weight[incoming[j]] if into < out else np.float32(total + weight[incoming[j]])
                j += 1
            if min(out, into) != v:
                indices[m], weights[m] = min(out, into), total
                m += 1
        indptr[v + 1] = m
    return indptr, indices[:m].copy(), weights[:m].copy()


def _swap(keys: Int64) -> Int64:
    return ((keys & ((1 << KEY_BITS) - 1)) << KEY_BITS) | (keys >> KEY_BITS)


@njit(cache=True, nogil=True, inline="always")
def _both(record: int, records: Int32, weights: Float32) -> np.float32:
    """Sum of the weights of a record's live directions."""
    forward = weights[record, WEIGHT] if records[record, SEEN] >= 0 else np.float32(0)
    back = weights[record, WEIGHT + 1] if records[record, SEEN + 1] >= 0 else np.float32(0)
    return np.float32(forward + back)


@njit(cache=True, nogil=True)
def _combine(
    entries: Int64, table: Int64, bits: int, records: Int32, weights: Float32
) -> tuple[Bool, Float32]:
    """Whether an undirected entry is live now, and its weight over both directions."""
    mask = (np.int64(1) << KEY_BITS) - 1
    present = np.zeros(len(entries), np.bool_)
    combined = np.zeros(len(entries), np.float32)
    for e in range(len(entries)):
        u, v = entries[e] >> KEY_BITS, entries[e] & mask
        place = find(table, bits, records, min(u, v), max(u, v)) if u != v else np.int64(-1)
        if place >= 0:
            present[e] = True
            combined[e] = _both(table[place] & _RECORD, records, weights)
    return present, combined


@njit(cache=True, nogil=True)
def _advance(
    indptr: Int64,
    indices: Int32,
    weights: Float32,
    num_nodes: int,
    entries: Int64,
    present: Bool,
    combined: Float32,
) -> tuple[Int64, Int32, Float32]:
    """Merge changed entries, sorted by (row, column), into the rows of an adjacency."""
    mask = (np.int64(1) << KEY_BITS) - 1
    new_indptr = np.zeros(num_nodes + 1, np.int64)
    new_indices = np.empty(len(indices) + len(entries), np.int32)
    new_weights = np.empty(len(indices) + len(entries), np.float32)
    m = e = 0
    old_nodes = len(indptr) - 1
    for v in range(num_nodes):
        i = indptr[v] if v < old_nodes else 0
        end = indptr[v + 1] if v < old_nodes else 0
        while e < len(entries) and (entries[e] >> KEY_BITS) == v:
            column = entries[e] & mask
            while i < end and indices[i] < column:
                new_indices[m], new_weights[m] = indices[i], weights[i]
                m += 1
                i += 1
            if i < end and indices[i] == column:
                i += 1
            if present[e]:
                new_indices[m], new_weights[m] = column, combined[e]
                m += 1
            e += 1
        while i < end:
            new_indices[m], new_weights[m] = indices[i], weights[i]
            m += 1
            i += 1
        new_indptr[v + 1] = m
    return new_indptr, new_indices[:m].copy(), new_weights[:m].copy()
