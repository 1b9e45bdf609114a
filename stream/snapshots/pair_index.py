"""Places of node pairs: a hash table with open addressing, and one record per pair.

A record holds both directions of an undirected pair in half a cache line, so that an event costs one look into the table and one
into its record. A *slot* is one direction of one record: ``2 · record`` from the lower node to the higher (and for self-loops),
``2 · record + 1`` back. Slots index arrays beside the records; a slot stays with its pair while it is live, and says nothing
about it.
"""

import numpy as np

from freshet_graph.stream.arrays.kinds import Float32, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.snapshots.pairs import KEY_BITS

LOW, HIGH, AT_LOW, AT_HIGH, WEIGHT, SEEN = 0, 1, 2, 3, 4, 6
"""Columns of a record, int32: the nodes; the place of each in the other's row; of either direction, weight (a float32) and number
of the snapshot of the last insert."""

DEAD = -1
"""``SEEN`` of a direction that is not live."""

_WORDS = 8
_LEAST_BITS = 6
_EMPTY = np.int64(-1)
_HASH_BITS = 31
_RECORD = np.int64(0xFFFFFFFF)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class PairIndex:
    """Records of node pairs, found by their nodes.

    Attributes:
        records: int32 (capacity, 8).
        weights: float32 (capacity, 8), the same bytes, for the columns ``WEIGHT`` and ``WEIGHT + 1``.
        table: int64 (2^bits,), hash and record of each entry, −1 for none.
        bits: Log2 of its size.
        used: Records ever in use; those above never were.
        free: int32, a stack of the unused records among these.
    """

    def __init__(self) -> None:
        self.bits = _LEAST_BITS
        self.table: Int64 = np.full(1 << self.bits, _EMPTY)
        self.records: Int32 = np.empty((0, _WORDS), np.int32)
        self.weights: Float32 = self.records.view(np.float32)
        self.used = 0
        self.free: Int32 = np.empty(0, np.int32)
        self.num_free = 0

    @property
    def in_use(self) -> int:
        """Records in use."""
        return self.used - self.num_free

    def reserve(self, more: int) -> None:
        """Make room for ``more`` pairs, with at most half of the table full."""
        fresh = max(more - self.num_free, 0)
        if self.used + fresh > len(self.records):
            records = np.empty((self.used + fresh + len(self.records) // 2, _WORDS), np.int32)
            records[: self.used] = self.records[: self.used]
            self.records, self.weights = records, records.view(np.float32)
        if 2 * (self.in_use + more) > len(self.table):
            while 2 * (self.in_use + more) > 1 << self.bits:
                self.bits += 1
            self.bits += 1  # so that the next growth is twice as many pairs away
            self.table = np.full(1 << self.bits, _EMPTY)
            index_records(self.table, self.bits, self.records, self.used)

    def give_back(self, freed: Int32) -> None:
        """Mark records, taken out of the table, as free."""
        if self.num_free + len(freed) > len(self.free):
            stack = np.empty(self.num_free + len(freed) + len(self.free) // 2, np.int32)
            stack[: self.num_free] = self.free[: self.num_free]
            self.free = stack
        self.free[self.num_free : self.num_free + len(freed)] = freed
        self.num_free += len(freed)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.table.nbytes + self.records.nbytes + self.free.nbytes


@njit(cache=True, nogil=True, inline="always")
def hashed(low: int, high: int) -> np.int64:
    """31 bits of a pair (two rounds of SplitMix64's mixer)."""
    z = (np.uint64(low) << np.uint64(32)) | np.uint64(high)
    z = (z ^ (z >> np.uint64(30))) * _FIRST_FACTOR
    z = (z ^ (z >> np.uint64(27))) * _SECOND_FACTOR
    return np.int64(z >> np.uint64(64 - _HASH_BITS))


@njit(cache=True, nogil=True)
def find(table: Int64, bits: int, records: Int32, low: int, high: int) -> np.int64:
    """Place of a pair in the table, or ~(the place for it)."""
    mask = (np.int64(1) << bits) - 1
    h = hashed(low, high)
    place = h >> (_HASH_BITS - bits)
    while table[place] != _EMPTY:
        if table[place] >> 32 == h:
            record = table[place] & _RECORD
            if records[record, LOW] == low and records[record, HIGH] == high:
                return place
        place = (place + 1) & mask
    return ~place


@njit(cache=True, nogil=True)
def put(table: Int64, place: int, low: int, high: int, record: int) -> None:
    """Fill a place returned by ``find``."""
    table[place] = (hashed(low, high) << 32) | record


@njit(cache=True, nogil=True)
def take_out(table: Int64, bits: int, place: int) -> None:
    """Empty a place and move up the entries behind it, so that no search ends too early."""
    mask = (np.int64(1) << bits) - 1
    hole, probe = np.int64(place), np.int64(place + 1) & mask
    while table[probe] != _EMPTY:
        wanted = (table[probe] >> 32) >> (_HASH_BITS - bits)
        if (probe - wanted) & mask >= (probe - hole) & mask:
            table[hole] = table[probe]
            hole = probe
        probe = (probe + 1) & mask
    table[hole] = _EMPTY


@njit(cache=True, nogil=True)
def index_records(table: Int64, bits: int, records: Int32, used: int) -> None:
    """Fill an empty table with all records that have a live direction."""
    mask = (np.int64(1) << bits) - 1
    for record in range(used):
        if records[record, SEEN] == DEAD and records[record, SEEN + 1] == DEAD:
            continue
        h = hashed(records[record, LOW], records[record, HIGH])
        place = h >> (_HASH_BITS - bits)
        while table[place] != _EMPTY:
            place = (place + 1) & mask
        table[place] = (h << 32) | record


def live_slots(records: Int32, used: int) -> Int64:
    """Slots of all live directed pairs, ascending."""
    return np.flatnonzero(records[:used, SEEN : SEEN + 2] != DEAD)


def slot_keys(slots: Int64, records: Int32) -> Int64:
    """(src, dst) keys of slots, int64 (n,)."""
    record, back = slots >> 1, slots & 1
    return records[record, LOW + back].astype(np.int64) << KEY_BITS | records[record, HIGH - back]


def slot_weights(slots: Int64, weights: Float32) -> Float32:
    """Weights of slots, float32 (n,)."""
    return weights[slots >> 1, WEIGHT + (slots & 1)]


def record_pairs(records: Int32, chosen: Int64) -> Int64:
    """The nodes of records, the lower first: int64 (n, 2)."""
    return records[chosen, LOW : HIGH + 1].astype(np.int64)
