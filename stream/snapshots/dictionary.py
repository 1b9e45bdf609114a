"""External node ids to dense ones: 0, 1, 2 … in order of first appearance, ``src`` before ``dst`` in a row."""

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import IdKind
from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.snapshots.prefetch import AHEAD, prefetch
from freshet_graph.stream.snapshots.string_dictionary import StringDictionary

_FIRST_SLOTS = 1 << 10


class IdDictionary(Protocol):
    """Dense ids of all external ids seen so far."""

    @property
    def size(self) -> int:
        """Dense ids in use: they are 0 … size − 1."""

    def encode(self, src: pa.ChunkedArray, dst: pa.ChunkedArray) -> tuple[Int64, Int64]:
        """Dense ids of both columns; new ids get the next ones.

        Args:
            src: External ids, shape (E,), no nulls.
            dst: External ids, shape (E,), null for a node event.

        Returns:
            Two int64 arrays of shape (E,); −1 where ``dst`` is null.
        """

    def ids(self, start: int = 0) -> pa.Array | pa.ChunkedArray:
        """External ids in dense order from ``start`` on; in chunks if one array can't hold them."""

    def of(self, dense: Int64) -> pa.Array:
        """External ids of dense ones in use, int64 (n,)."""

    def extend(self, ids: pa.Array | pa.ChunkedArray) -> None:
        """Add distinct new ids in dense order, as read from ``nodes.arrow``.

        Raises:
            ValueError: An id is known already.
        """

    def truncate(self, size: int) -> None:
        """Remove the newest ids until ``size`` are left, after a failed commit."""


def new_dictionary(ids: IdKind) -> IdDictionary:
    """An empty dictionary for a graph's kind of ids."""
    return IntDictionary() if ids == "int" else StringDictionary()


class IntDictionary:
    """int64 ids in an open-addressing hash table with linear probing, at most half full (32 to 64 bytes per id)."""

    def __init__(self) -> None:
        self._slots = _empty_slots(_FIRST_SLOTS)
        self._ids = np.empty(_FIRST_SLOTS // 2, np.int64)
        self._size = 0

    @property
    def size(self) -> int:
        """See ``IdDictionary.size``."""
        return self._size

    def encode(self, src: pa.ChunkedArray, dst: pa.ChunkedArray) -> tuple[Int64, Int64]:
        """See ``IdDictionary.encode``."""
        sources = _int64(src)
        targets = _int64(dst.fill_null(0) if dst.null_count else dst)
        valid = _valid(dst)
        dense_src = np.empty(len(sources), np.int64)
        dense_dst = np.full(len(sources), -1, np.int64)
        row = 0
        while True:
            row, self._size = _encode(
                sources, targets, valid, row, self._slots, self._ids, self._size, dense_src, dense_dst
            )
            if row == len(sources):
                return dense_src, dense_dst
            self._grow()

    def ids(self, start: int = 0) -> pa.Array:
        """See ``IdDictionary.ids``."""
        return pa.array(self._ids[start : self._size].copy(), pa.int64())

    def of(self, dense: Int64) -> pa.Array:
        """See ``IdDictionary.of``."""
        return pa.array(self._ids[dense], pa.int64())

    def extend(self, ids: pa.Array | pa.ChunkedArray) -> None:
        """See ``IdDictionary.extend``."""
        values = _int64(ids)
        while self._size + len(values) > len(self._ids):
            self._grow()
        before = self._size
        self._ids[before : before + len(values)] = values
        self._size += len(values)
        if _insert_new(self._slots, self._ids, before, self._size) < self._size:
            raise ValueError("an id appears twice in the dictionary")

    def truncate(self, size: int) -> None:
        """See ``IdDictionary.truncate``."""
        _remove_newest(self._slots, self._ids, size, self._size)
        self._size = size

    def _grow(self) -> None:
        self._slots = _empty_slots(2 * len(self._slots))
        grown = np.empty(len(self._slots) // 2, np.int64)
        grown[: self._size] = self._ids[: self._size]
        self._ids = grown
        _insert_new(self._slots, self._ids, 0, self._size)


def _int64(column: pa.Array | pa.ChunkedArray) -> Int64:
    """Read-only however many chunks there are: one is read in place, several are copied, and kernels are compiled once."""
    values = np.ascontiguousarray(column.to_numpy(), np.int64)
    values.flags.writeable = False
    return values


def _valid(column: pa.ChunkedArray) -> Bool:
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    return np.asarray(pc.is_valid(column).to_numpy(), np.bool_)


def _empty_slots(count: int) -> Int64:
    slots = np.empty((count, 2), np.int64)  # rows (external id, dense id; −1: free); a cache line holds 4
    slots[:, 1] = -1
    return slots


@njit(cache=True, nogil=True)
def _home(slots: Int64, key: np.int64) -> np.uint64:
    """First slot of the search for ``key``."""
    mixed = np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finaliser
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) & np.uint64(len(slots) - 1)


@njit(cache=True, nogil=True)
def _find(slots: Int64, key: np.int64) -> np.int64:
    """Slot of ``key``, or the free slot for it."""
    mask = np.uint64(len(slots) - 1)
    slot = _home(slots, key)
    while slots[slot, 1] != -1 and slots[slot, 0] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@njit(cache=True, nogil=True)
def _encode(
    src: Int64,
    dst: Int64,
    dst_valid: Bool,
    row: int,
    slots: Int64,
    ids: Int64,
    size: int,
    dense_src: Int64,
    dense_dst: Int64,
) -> tuple[int, int]:
    """Densify rows from ``row`` on, until done or fewer than two ids fit; returns (next row, size)."""
    lines = slots.reshape(-1)
    while row < len(src) and size + 2 <= len(ids):
        ahead = min(row + AHEAD, len(src) - 1)
        prefetch(lines, 2 * _home(slots, src[ahead]))
        prefetch(lines, 2 * _home(slots, dst[ahead]))
        slot = _find(slots, src[row])
        if slots[slot, 1] == -1:
            slots[slot, 0], slots[slot, 1], ids[size] = src[row], size, src[row]
            size += 1
        dense_src[row] = slots[slot, 1]
        if dst_valid[row]:
            slot = _find(slots, dst[row])
            if slots[slot, 1] == -1:
                slots[slot, 0], slots[slot, 1], ids[size] = dst[row], size, dst[row]
                size += 1
            dense_dst[row] = slots[slot, 1]
        row += 1
    return row, size


@njit(cache=True, nogil=True)
def _insert_new(slots: Int64, ids: Int64, start: int, stop: int) -> int:
    """Insert ids [start, stop) with their dense ids; returns the first one known already, or stop."""
    for dense in range(start, stop):
        slot = _find(slots, ids[dense])
        if slots[slot, 1] != -1:
            return dense
        slots[slot, 0], slots[slot, 1] = ids[dense], dense
    return stop


@njit(cache=True, nogil=True)
def _remove_newest(slots: Int64, ids: Int64, start: int, stop: int) -> None:
    """Free the slots of ids [start, stop), newest first, because no older id was probed past a newer one."""
    for dense in range(stop - 1, start - 1, -1):
        slots[_find(slots, ids[dense]), 1] = -1
