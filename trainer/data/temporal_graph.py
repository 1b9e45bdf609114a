"""A temporal CSR that grows with the stream: every node's interactions in order of time, appended without a rebuild."""

from collections.abc import Mapping

import numpy as np

from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.data.neighbours import runs

NODE_BITS = 31
"""Dense ids are below 2³¹."""
MAX_EVENTS = 1 << 31
"""Events a graph can number: an entry's second word is the event's number, one bit for the side, and the node."""

CLASSES = 48
"""Slabs have 2⁰ … 2⁴⁷ entries."""
_SMALLEST = 2  # class of a node's first slab: four entries


class TemporalGraph:
    """Interactions of each node, oldest first, in slabs with slack inside one arena.

    An event (u, v, t) adds the entry (v, t) to u and (u, t) to v. A full slab moves to one of twice the size and is
    kept for another node. So the cost of an append depends on its events, not on the graph's size, and at most four
    times the entries are held. Times of appended events must not decrease.

    A sample reads contiguous data: a row is 16 bytes, and so is an entry.

    Attributes:
        row: int64 (nodes, 2), first arena position of each node's slab (−1 without one) and its number of entries.
        room: int8 (nodes,), log₂ of the slab's length.
        entry: int64 (arena, 2), time in microseconds, and ``event`` · 2³¹ + the other end, where ``event`` is
            2 · number of the event, + 1 if the slab's node was the destination.
        num_events: Events appended so far, numbered from 0.
    """

    def __init__(self) -> None:
        self.row: Int64 = np.empty((0, 2), np.int64)
        self.room = np.empty(0, np.int8)
        self.entry: Int64 = np.empty((0, 2), np.int64)
        self.num_events = 0
        self._extra: Int32 = np.empty(0, np.int32)  # zero between appends
        # first free slab of each class; its first word names the next
        self._free = np.full(CLASSES, -1, np.int64)
        self._used = 0

    @property
    def num_nodes(self) -> int:
        """Ids below this have a row."""
        return len(self.row)

    def append(self, src: Int64, dst: Int64, time_us: Int64, num_nodes: int) -> None:
        """Take in events in order of time.

        Args:
            src: int64 (E,) dense ids.
            dst: int64 (E,) dense ids.
            time_us: int64 (E,), not decreasing, not before the newest event so far.
            num_nodes: Larger than every id.
        """
        if self.num_events + len(src) > MAX_EVENTS:
            raise OverflowError(
                f"a temporal graph numbers at most {MAX_EVENTS} events, {self.num_events} are in"
            )
        self._reserve_nodes(num_nodes)
        touched, needed = _plan(self.row, self.room, self._extra, src, dst)
        self._reserve_arena(needed)
        self._used = _append(
            (self.row, self.room, self._extra, self.entry),
            (self._free, self._used),
            touched,
            (src, dst, time_us, self.num_events),
        )
        self.num_events += len(src)

    def forget(self, kept_nodes: Int64, before: Int64) -> None:
        """Forget nodes and events; renumber the rest in its order, and lay it out without gaps.

        Args:
            kept_nodes: int64, ascending nodes that stay.
            before: int64 (num_events + 1,), how many of the events before each stay; none of a forgotten node may.
        """
        place = np.full(len(self.row), -1, np.int64)
        place[kept_nodes] = np.arange(len(kept_nodes))
        size = _count_left(self.row, self.entry, kept_nodes, before)
        row, entry = self.row, self.entry
        self.__init__()  # type: ignore[misc]  # begins empty
        self._used = self._lay_out(size)
        _copy_left((row, entry), (self.row, self.entry), kept_nodes, place, before)
        self.num_events = int(before[-1])

    def state(self) -> dict[str, Int64]:
        """The state that ``restore`` continues from, as arrays without slack."""
        size = self.row[:, 1]
        return {
            "size": size.copy(),
            "entry": self.entry[runs(*self.row.T)],
            "num_events": np.array([self.num_events]),
        }

    def restore(self, state: Mapping[str, Int64]) -> None:
        """Become the graph of a ``state()``."""
        self.__init__()  # type: ignore[misc]  # begins empty
        self._used = self._lay_out(np.asarray(state["size"], np.int64))
        self.entry[runs(*self.row.T)] = state["entry"]
        self.num_events = int(state["num_events"][0])

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self.row.nbytes + self.room.nbytes + self._extra.nbytes + self.entry.nbytes

    def _lay_out(self, size: Int64) -> int:
        """Give every node of an empty graph a slab for ``size`` entries; returns the arena entries taken."""
        self._reserve_nodes(len(size))
        room = np.maximum(np.ceil(np.log2(np.maximum(size, 1))), _SMALLEST).astype(np.int64)
        lengths = np.where(size > 0, np.left_shift(np.int64(1), room), 0)
        ends = np.cumsum(lengths)
        self.room[: len(size)] = room
        self.row[: len(size), 0] = np.where(size > 0, ends - lengths, -1)
        self.row[: len(size), 1] = size
        used = int(ends[-1]) if len(ends) else 0
        self._reserve_arena(used)
        return used

    def _reserve_nodes(self, num_nodes: int) -> None:
        if num_nodes <= len(self.row):
            return
        more = max(num_nodes, len(self.row) + len(self.row) // 4) - len(self.row)
        self.row = np.concatenate([self.row, np.tile(np.array([-1, 0]), (more, 1))])
        self.room = np.concatenate([self.room, np.zeros(more, np.int8)])
        self._extra = np.concatenate([self._extra, np.zeros(more, np.int32)])

    def _reserve_arena(self, needed: int) -> None:
        need = self._used + needed
        if need > len(self.entry):
            grown = np.empty((max(need, len(self.entry) + len(self.entry) // 2, 1024), 2), np.int64)
            grown[: self._used] = self.entry[: self._used]
            self.entry = grown


@njit(cache=True, nogil=True)
def _count_left(row, entry, kept_nodes, before):  # type: ignore[no-untyped-def]  # compiled
    """Number of entries of each kept node whose events stay."""
    size = np.zeros(len(kept_nodes), np.int64)
    for i in range(len(kept_nodes)):
        first, count = row[kept_nodes[i]]
        for j in range(first, first + count):
            number = entry[j, 1] >> (NODE_BITS + 1)
            size[i] += before[number + 1] - before[number]
    return size


@njit(cache=True, nogil=True)
def _copy_left(old, new, kept_nodes, place, before):  # type: ignore[no-untyped-def]  # compiled
    old_row, old_entry = old
    row, entry = new
    rest = (np.int64(1) << NODE_BITS) - 1
    for i in range(len(kept_nodes)):
        first, count = old_row[kept_nodes[i]]
        to = row[i, 0]
        for j in range(first, first + count):
            word = old_entry[j, 1]
            event, other = word >> NODE_BITS, word & rest
            number = event >> 1
            if before[number + 1] > before[number]:
                entry[to, 0] = old_entry[j, 0]
                entry[to, 1] = ((2 * before[number] + (event & 1)) << NODE_BITS) | place[other]
                to += 1


@njit(cache=True, nogil=True, inline="always")
def _class_of(entries):  # type: ignore[no-untyped-def]  # compiled
    room = _SMALLEST
    while (np.int64(1) << room) < entries:
        room += 1
    return room


@njit(cache=True, nogil=True)
def _plan(row, room, extra, src, dst):  # type: ignore[no-untyped-def]  # compiled
    """Nodes that get entries, with their number in ``extra``, and the most arena entries that new slabs may take."""
    touched = np.empty(2 * len(src), np.int64)
    count = 0
    for i in range(len(src)):
        for node in (src[i], dst[i]):
            if extra[node] == 0:
                touched[count] = node
                count += 1
            extra[node] += 1
    needed = np.int64(0)
    for i in range(count):
        node = touched[i]
        total = row[node, 1] + extra[node]
        if row[node, 0] < 0 or total > (np.int64(1) << room[node]):
            needed += np.int64(1) << _class_of(total)
    return touched[:count], needed


@njit(cache=True, nogil=True)
def _append(graph, slabs, touched, events):  # type: ignore[no-untyped-def]  # compiled
    row, room, extra, entry = graph
    free, used = slabs
    src, dst, times, first = events
    for i in range(len(touched)):
        node = touched[i]
        old, size = row[node]
        total = size + extra[node]
        extra[node] = 0
        if old >= 0 and total <= (np.int64(1) << room[node]):
            continue
        kind = _class_of(total)
        if free[kind] >= 0:
            new = free[kind]
            free[kind] = entry[new, 0]
        else:
            new = used
            used += np.int64(1) << kind
        for j in range(size):
            entry[new + j, 0] = entry[old + j, 0]
            entry[new + j, 1] = entry[old + j, 1]
        if old >= 0:
            entry[old, 0] = free[room[node]]
            free[room[node]] = old
        row[node, 0] = new
        room[node] = kind
    for i in range(len(src)):
        for side in range(2):
            node, other = (dst[i], src[i]) if side else (src[i], dst[i])
            place = row[node, 0] + row[node, 1]
            entry[place, 0] = times[i]
            entry[place, 1] = ((2 * (first + i) + side) << NODE_BITS) | other
            row[node, 1] += 1
    return used
