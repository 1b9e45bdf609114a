"""Encounters before an event: the memory behind the baselines and behind a model's encounter features."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int32, Int64
from freshet_graph.stream.kernels import njit

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
def _find_all(slots, shift, keys, wanted, out):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``out`` with the position of every asked key in ``keys``; −1 for those that are missing."""
    for i in range(len(wanted)):
        out[i] = max(find(slots, shift, keys, wanted[i]), np.int64(-1))


@njit(cache=True, nogil=True)
def _fill(slots, shift, keys, positions):  # type: ignore[no-untyped-def]  # compiled
    for position in positions:
        slots[-1 - find(slots, shift, keys, keys[position])] = position


class KeyTable:
    """Where distinct keys stand in an array: a hash table of positions, by linear probing at a load of at most one half.

    Attributes:
        slots: int32, power-of-two length, positions or −1. Kernels read and write it after ``reserve``; see ``find``.
        shift: 64 − log₂(len(slots)).
    """

    def __init__(self) -> None:
        self.slots: Int32 = np.empty(0, np.int32)
        self.shift = 64

    def reserve(self, keys: Int64, size: int, more: int) -> None:
        """Make room for so many keys beside ``keys[:size]``, which are in the table, or will be."""
        if 2 * max(size + more, 1) > len(self.slots):
            self.rebuild(keys, np.arange(size), more)

    def rebuild(self, keys: Int64, positions: Int64, more: int) -> None:
        """Begin again with the keys at some positions, and room for so many more."""
        bits = max(10, int(2 * (len(positions) + more) - 1).bit_length() + 1)
        self.slots, self.shift = np.full(1 << bits, _EMPTY, np.int32), 64 - bits
        _fill(self.slots, self.shift, keys, positions)

    def find(self, keys: Int64, wanted: Int64) -> Int64:
        """Positions int64 (n,) of wanted keys; −1 for those that are missing."""
        positions = np.empty(len(wanted), np.int64)
        _find_all(self.slots, self.shift, keys, wanted, positions)
        return positions


class SeenPairs:
    """Last time and number of occurrences of every directed pair.

    Entries are appended and never removed, so an entry's position is stable: ``keys[:size]`` is the list of
    distinct pairs in order of first appearance. Kernels read and write the arrays directly, after ``reserve``.

    Attributes:
        keys: int64, see ``pair_key``; valid in [0, size).
        last_us: int64, event time of the latest occurrence, microseconds.
        count: int32, occurrences.
        table: Where each pair stands.
    """

    def __init__(
        self, keys: Int64 | None = None, last_us: Int64 | None = None, count: Int32 | None = None
    ) -> None:
        self.keys: Int64 = np.empty(0, np.int64) if keys is None else keys.copy()
        self.last_us: Int64 = np.empty(0, np.int64) if last_us is None else last_us.copy()
        self.count: Int32 = np.empty(0, np.int32) if count is None else count.copy()
        self.size = len(self.keys)
        self.table = KeyTable()
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
        self.table.reserve(self.keys, self.size, new_pairs)

    @property
    def columns(self) -> tuple[Any, ...]:
        """Everything, as ``_replay`` takes it."""
        return self.table.slots, self.table.shift, self.keys, self.last_us, self.count, self.size

    def pairs(self, positions: Int64) -> tuple[Int64, Int64]:
        """Source and destination ids of entries."""
        keys = self.keys[positions]
        return keys >> 32, keys & 0xFFFFFFFF

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.last_us.nbytes + self.count.nbytes + self.table.slots.nbytes


NEVER = np.iinfo(np.int64).min
_FOREVER = np.iinfo(np.int64).max
Moment = Literal["snapshot", "batch", "event"]
BATCH = 200
"""Events predicted together, as in the TGN line of work (docs/semantics.md, Evaluation)."""


class Encounter(IntEnum):
    """Columns of knowledge about (u, v) just before time t.

    ``*_AGE``: seconds since the last such event, +inf without one. ``*_COUNT``: number of such events.
    """

    PAIR_AGE = 0
    REVERSE_AGE = 1
    SRC_OUT_AGE = 2
    SRC_IN_AGE = 3
    DST_OUT_AGE = 4
    DST_IN_AGE = 5
    PAIR_COUNT = 6
    REVERSE_COUNT = 7
    SRC_OUT_COUNT = 8
    SRC_IN_COUNT = 9
    DST_OUT_COUNT = 10
    DST_IN_COUNT = 11


@dataclass(frozen=True, slots=True)
class Inserts:
    """Insert events of one snapshot in log order, all of shape (E,).

    ``visible_us`` is non-decreasing: the log is ordered by event time, and late events, marked by ``late``, count from
    the snapshot's start.
    """

    src: Int64
    dst: Int64
    visible_us: Int64
    late: Bool

    def __len__(self) -> int:
        return len(self.src)


NO_EVENTS = Inserts(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
)


class History:
    """Last time and count of every node and directed pair, advanced event by event in log order.

    Every rank holds all of it (24 bytes per node, about 30 per distinct pair): negatives may name any node, and the owner
    of an event's source must know the pair even if another rank owned the source yesterday.

    An event sees only strictly earlier events, up to its moment: all before its ``snapshot``, all before the first event of
    its ``batch`` of ``BATCH``, or all before the ``event`` itself. Events of equal time never see each other, even across
    the border of two batches.

    Args:
        moment: The moment of answers.
        across: Whether a batch continues into the next snapshot, as in the offline evaluation of event models, whose
            protocol ignores snapshots. Otherwise a batch ends with its snapshot: then all of the previous snapshot is known.
        borders: Numbers of further events that begin a batch, ascending, counted over all snapshots from 0.
    """

    def __init__(
        self, moment: Moment = "batch", *, across: bool = False, borders: Sequence[int] = ()
    ) -> None:
        self._moment: Moment = moment
        self._across = across
        self._borders = np.unique(np.array([0, *borders], np.int64))
        self._seen = 0  # events of all snapshots
        self._batch_us = 0  # time of the open batch's first event
        self._open = NO_EVENTS  # those that the open batch may not see yet
        self.pairs = SeenPairs()
        self.last_out = np.empty(0, np.int64)
        self.last_in = np.empty(0, np.int64)
        self.count_out = np.empty(0, np.int32)
        self.count_in = np.empty(0, np.int32)
        self.destinations: Int64 = np.empty(0, np.int64)
        """Distinct destinations in order of first appearance: the pool of random negatives."""

    def replay(self, events: Inserts, num_nodes: int, rows: Int64, src: Int64, dst: Int64) -> Float32:
        """Answer queries about one snapshot's events, then remember them.

        Args:
            events: The snapshot's inserts.
            num_nodes: Dense ids in use after the snapshot; queries may name higher ones, which are unknown.
            rows: int64 (Q,), ascending: each query is asked just before event ``rows[q]``.
            src: int64 (Q,), u of each query.
            dst: int64 (Q,), v of each query.

        Returns:
            float32 (Q, len(Encounter)).
        """
        self._grow(max(num_nodes, *(int(ids.max(initial=-1)) + 1 for ids in (src, dst))))
        self.pairs.reserve(len(self._open) + len(events))
        known = np.zeros(len(self.last_out), np.bool_)
        known[self.destinations] = True
        fresh = first_appearances(events.dst[~known[events.dst]])
        out = np.empty((len(rows), len(Encounter)), np.float32)
        waiting, table = self._open, self.pairs
        before_us = self._before(events)
        self._pass(events)
        columns = tuple(
            np.concatenate([getattr(waiting, name), getattr(events, name)])
            for name in ("src", "dst", "visible_us")
        )
        table.size, known_events = _replay(
            table.columns,
            (self.last_out, self.last_in, self.count_out, self.count_in),
            columns,
            (events.visible_us[rows], before_us[rows], src, dst),
            self._batch_us if self._across else _FOREVER,
            out,
        )
        src_left, dst_left, visible_left = (column[known_events:] for column in columns)
        self._open = Inserts(src_left, dst_left, visible_left, np.zeros(len(src_left), np.bool_))
        self.destinations = np.concatenate([self.destinations, fresh])
        return out

    def look(self, src: Int64, dst: Int64, time_us: int | Int64) -> Float32:
        """Answer queries at times after all remembered events, without a change. Not with ``across``.

        Args:
            src: int64 (Q,), u of each query.
            dst: int64 (Q,), v of each query.
            time_us: Of all queries, or int64 (Q,).

        Returns:
            float32 (Q, len(Encounter)).
        """
        assert not self._across
        self._grow(max(int(ids.max(initial=-1)) + 1 for ids in (src, dst)))
        out = np.empty((len(src), len(Encounter)), np.float32)
        table, nothing, time = self.pairs, np.empty(0, np.int64), np.broadcast_to(time_us, len(src)).copy()
        _replay(
            table.columns,
            (self.last_out, self.last_in, self.count_out, self.count_in),
            (nothing, nothing, nothing),
            (time, time, src, dst),
            NEVER,
            out,
        )
        return out

    def visible_before(self, events: Inserts) -> Int64:
        """Time of the first event of each event's batch, for any moment: a model's memory is as of strictly before that.

        Args:
            events: The snapshot's inserts, before they are replayed.

        Returns:
            int64 (E,), microseconds, not decreasing.
        """
        known = np.append(events.visible_us, self._batch_us)
        times: Int64 = known[np.maximum(self._batch_begins(len(events)), -1)]
        return times

    def see(self, src: Int64, dst: Int64, time_us: Int64) -> None:
        """Remember a few events, int64 (E,) each, as ``remember`` does, but not as destinations of random negatives."""
        assert not len(self._open), "between snapshots everything is known"
        self._grow(max(int(ids.max(initial=-1)) + 1 for ids in (src, dst)))
        self.pairs.reserve(len(src))
        nothing = np.empty(0, np.int64)
        nodes = (self.last_out, self.last_in, self.count_out, self.count_in)
        no_queries = (nothing, nothing, nothing, nothing)
        no_answers = np.empty((0, len(Encounter)), np.float32)
        self.pairs.size, _ = _replay(
            self.pairs.columns, nodes, (src, dst, time_us), no_queries, _FOREVER, no_answers
        )

    def remember(self, events: Inserts, num_nodes: int) -> None:
        """Take in a snapshot's events without queries."""
        nothing = np.empty(0, np.int64)
        self.replay(events, num_nodes, nothing, nothing, nothing)

    @property
    def last_seen_us(self) -> Int64:
        """int64 (nodes,), time of each node's latest event; ``NEVER`` without one."""
        latest: Int64 = np.maximum(self.last_out, self.last_in)
        return latest

    def forget(self, kept_nodes: Int64, since_us: int) -> int:
        """Forget nodes with their pairs, and pairs that did not meet since a time; renumber the kept nodes.

        Args:
            kept_nodes: int64, ascending nodes that stay, in their order.
            since_us: Microseconds.

        Returns:
            Pairs forgotten.
        """
        assert not len(self._open), "between snapshots everything is known"
        place = np.full(len(self.last_out), -1, np.int64)
        place[kept_nodes] = np.arange(len(kept_nodes))
        for name in ("last_out", "last_in", "count_out", "count_in"):
            setattr(self, name, getattr(self, name)[kept_nodes])
        destinations = place[self.destinations]
        self.destinations = destinations[destinations >= 0]
        table, size = self.pairs, self.pairs.size
        src, dst = (place[ends] for ends in table.pairs(np.arange(size)))
        stay = np.flatnonzero((src >= 0) & (dst >= 0) & (table.last_us[:size] >= since_us))
        self.pairs = SeenPairs((src[stay] << 32) | dst[stay], table.last_us[stay], table.count[stay])
        return size - len(stay)

    def state(self) -> dict[str, NDArray[np.signedinteger]]:
        """The state that ``restore`` continues from, as arrays. Not with ``across``."""
        assert not self._across
        size = self.pairs.size
        return {
            "pair_keys": self.pairs.keys[:size],
            "pair_last_us": self.pairs.last_us[:size],
            "pair_count": self.pairs.count[:size],
            "last_out": self.last_out,
            "last_in": self.last_in,
            "count_out": self.count_out,
            "count_in": self.count_in,
            "destinations": self.destinations,
        }

    def restore(self, state: dict[str, NDArray[np.signedinteger]]) -> None:
        """Continue from a ``state()``."""
        self.pairs = SeenPairs(state["pair_keys"], state["pair_last_us"], state["pair_count"])
        for name in ("last_out", "last_in", "count_out", "count_in", "destinations"):
            setattr(self, name, state[name].copy())

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        nodes = (self.last_out, self.last_in, self.count_out, self.count_in, self.destinations)
        return self.pairs.memory_bytes + sum(column.nbytes for column in nodes)

    def _batch_begins(self, events: int) -> Int64:
        """Place of the first event of each event's batch, int64 (events,), in the snapshot; negative: in an earlier one."""
        borders = self._borders if self._across else np.union1d(self._borders, self._seen)
        number = np.arange(self._seen, self._seen + events)
        border = borders[np.searchsorted(borders, number, "right") - 1]
        begins: Int64 = number - (number - border) % BATCH - self._seen
        return begins

    def _before(self, events: Inserts) -> Int64:
        """Time until which, exclusively, each event's questions see events, int64 (E,)."""
        if self._moment == "batch":
            return self.visible_before(events)
        return events.visible_us if self._moment == "event" else np.full(len(events), NEVER)

    def _pass(self, events: Inserts) -> None:
        """Note the time of the batch that is open after the snapshot."""
        if len(events):
            begin = int(self._batch_begins(len(events))[-1])
            self._batch_us = int(events.visible_us[begin]) if begin >= 0 else self._batch_us
            self._seen += len(events)

    def _grow(self, num_nodes: int) -> None:
        new = num_nodes - len(self.last_out)
        if new > 0:
            never, zero = np.full(new, NEVER, np.int64), np.zeros(new, np.int32)
            self.last_out = np.concatenate([self.last_out, never])
            self.last_in = np.concatenate([self.last_in, never])
            self.count_out = np.concatenate([self.count_out, zero])
            self.count_in = np.concatenate([self.count_in, zero])


def first_appearances(ids: Int64) -> Int64:
    """Distinct ids in order of first appearance."""
    distinct, first = np.unique(ids, return_index=True)
    return distinct[np.argsort(first)]


@njit(cache=True, nogil=True, inline="always")
def _age_s(now, then):  # type: ignore[no-untyped-def]  # compiled
    return np.float32(np.inf) if then == NEVER else np.float32(max(now - then, 0) / 1e6)


@njit(cache=True, nogil=True)
def _replay(table, nodes, events, queries, until_us, out):  # type: ignore[no-untyped-def]  # compiled
    """Answer each query from the events before its moment, then remember all events before a time.

    Args:
        table: Of ``SeenPairs``.
        nodes: Last times and counts of ``History``.
        events: src, dst and time, int64 (E,), times not decreasing.
        queries: Their time, their moment (not decreasing), u and v, int64 (Q,).
        until_us: Events of strictly earlier time are remembered.
        out: float32 (Q, len(Encounter)).

    Returns:
        Size of the table, and number of events that were remembered.
    """
    slots, shift, keys, last_us, count, size = table
    last_out, last_in, count_out, count_in = nodes
    src, dst, time = events
    query_time, query_before, query_src, query_dst = queries
    num_events, num_queries = len(src), len(query_src)
    remembered = 0
    for q in range(num_queries + 1):
        before = query_before[q] if q < num_queries else until_us
        while remembered < num_events and time[remembered] < before:
            u, v, now = src[remembered], dst[remembered], time[remembered]
            key = pair_key(u, v)
            position = find(slots, shift, keys, key)
            if position < 0:
                slots[-1 - position] = size
                position = size
                keys[position] = key
                count[position] = 0
                size += 1
            last_us[position] = now
            count[position] += 1
            last_out[u] = now
            count_out[u] += 1
            last_in[v] = now
            count_in[v] += 1
            remembered += 1
        if q == num_queries:
            break
        u, v, now = query_src[q], query_dst[q], query_time[q]
        row = out[q]
        forth = find(slots, shift, keys, pair_key(u, v))
        back = find(slots, shift, keys, pair_key(v, u))
        row[0] = _age_s(now, last_us[forth]) if forth >= 0 else np.float32(np.inf)
        row[1] = _age_s(now, last_us[back]) if back >= 0 else np.float32(np.inf)
        row[2] = _age_s(now, last_out[u])
        row[3] = _age_s(now, last_in[u])
        row[4] = _age_s(now, last_out[v])
        row[5] = _age_s(now, last_in[v])
        row[6] = count[forth] if forth >= 0 else 0
        row[7] = count[back] if back >= 0 else 0
        row[8] = count_out[u]
        row[9] = count_in[u]
        row[10] = count_out[v]
        row[11] = count_in[v]
    return size, remembered
