"""Directed pairs by key: an open-addressing hash table with entries in order of first appearance."""

import numpy as np

from stream.arrays.kinds import Int32, Int64
from stream.kernels import njit

_EMPTY = -1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: the high bits of key × 2⁶⁴/φ are well mixed


@njit(cache=True, nogil=True, inline="always")
def pair_key(src, dst):  # type: ignore[no-untyped-def]  # compiled
    """Key of the directed pair (src, dst); dense ids are below 2³¹."""
    return (np.int64(src) << 32) | np.int64(dst)


@njit(cache=True, nogil=True)
def find(slots, shift, keys, key):  # type: ignore[no-untyped-def]  # compiled
    """Position of ``key`` in ``keys`` (≥ 0), or −1 − (the slot where it belongs)."""
    mask = len(slots) - 1
    slot = np.int64((np.uint64(key) * _MULTIPLIER) >> np.uint64(shift))
    while True:
        position = slots[slot]
        if position == _EMPTY:
            return np.int64(-1) - slot
        if keys[position] == key:
            return np.int64(position)
        slot = (slot + 1) & mask


@njit(cache=True, nogil=True)
def find_all(slots, shift, keys, asked, out):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``out`` with the position of every asked key in ``keys``; −1 for those that are missing."""
    for i in range(len(asked)):
        out[i] = max(find(slots, shift, keys, asked[i]), np.int64(-1))


@njit(cache=True, nogil=True)
def fill(slots, shift, keys, size):  # type: ignore[no-untyped-def]  # compiled
    """Enter ``keys[:size]`` into empty slots."""
    for position in range(size):
        slots[-1 - find(slots, shift, keys, keys[position])] = position


def shift_of(slots: Int32) -> int:
    """The ``shift`` of ``find`` for so many slots, a power of two."""
    return 64 - (len(slots).bit_length() - 1)


class SeenPairs:
    """Last time and number of occurrences of every directed pair.

    Entries are appended and never removed, so an entry's position is stable: ``keys[:size]`` is the list of
    distinct pairs in order of first appearance. Kernels read and write the arrays directly, after ``reserve``.

    Attributes:
        keys: int64, see ``pair_key``; valid in [0, size).
        last_us: int64, event time of the latest occurrence, microseconds.
        count: int32, occurrences.
        slots: int32, power-of-two length, positions in ``keys`` or −1.
        shift: 64 − log2(len(slots)).
    """

    def __init__(
        self, keys: Int64 | None = None, last_us: Int64 | None = None, count: Int32 | None = None
    ) -> None:
        self.keys: Int64 = np.empty(0, np.int64) if keys is None else keys.copy()
        self.last_us: Int64 = np.empty(0, np.int64) if last_us is None else last_us.copy()
        self.count: Int32 = np.empty(0, np.int32) if count is None else count.copy()
        self.size = len(self.keys)
        self.slots: Int32 = np.empty(0, np.int32)
        self.shift = 64
        self.reserve(0)

    def reserve(self, new_pairs: int) -> None:
        """Make room for ``new_pairs`` more entries at a load of at most one half."""
        need = self.size + new_pairs
        if need > len(self.keys):
            room = max(need, 2 * len(self.keys), 1024)
            self.keys, self.last_us, self.count = (
                np.concatenate([column[: self.size], np.empty(room - self.size, column.dtype)])
                for column in (self.keys, self.last_us, self.count)
            )
        if 2 * max(need, 1) > len(self.slots):
            bits = max(10, int(2 * need - 1).bit_length() + 1)
            self.slots = np.full(1 << bits, _EMPTY, np.int32)
            self.shift = 64 - bits
            fill(self.slots, self.shift, self.keys, self.size)

    def pairs(self, positions: Int64) -> tuple[Int64, Int64]:
        """Source and destination ids of entries."""
        keys = self.keys[positions]
        return keys >> 32, keys & 0xFFFFFFFF

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.last_us.nbytes + self.count.nbytes + self.slots.nbytes
