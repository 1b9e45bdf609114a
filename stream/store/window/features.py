"""Node features over a window, additively: the newest vectors, and the values that every change replaced.

One table holds the vectors at the newest snapshot. Segments that a snapshot changes in a row are first saved to a pool, one
run per row and snapshot. The first read at an older snapshot after a change groups the runs by row, in O(rows + runs), for
all snapshots. A read takes each segment from the row's first run after its snapshot that has it, or else from the table: a
gather, never a copy of the table. A new node takes a slot, which is its row of the table, and a leaving node gives it back
once the window has moved past: this costs no version, only a note of the slot's owner.

A run is several int32: its row of the table, its first row among the saved values, and a bit per segment; the values of its
segments follow each other there. Runs of at least half the segments whose values are whole numbers from 0 to 255 (binary
features, counts) are saved as bytes, in a separate table: ``SMALL`` marks their rows.
"""

from bisect import bisect_right
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int32, Int64, UInt8
from freshet_graph.stream.kernels import njit, or_plain
from freshet_graph.stream.kernels.bits import count_bits, lowest_bit
from freshet_graph.stream.snapshots.node_features import segment_bounds
from freshet_graph.stream.snapshots.prefetch import AHEAD, NODES_AHEAD, prefetch
from freshet_graph.stream.store.lane.diff import segment_width
from freshet_graph.stream.store.window import plain

LINE_BYTES = 64

Scalar = TypeVar("Scalar", np.float32, np.uint8)


def on_lines(rows: int, width: int, kind: type[Scalar]) -> NDArray[Scalar]:
    """An uninitialised array of shape (rows, width) that begins at a cache line."""
    size = rows * width * np.dtype(kind).itemsize
    room = np.empty(size + LINE_BYTES, np.uint8)
    start = -room.ctypes.data % LINE_BYTES
    return room[start : start + size].view(kind).reshape(rows, width)


def joined(first: NDArray[Scalar], second: NDArray[Scalar]) -> NDArray[Scalar]:
    """The rows of two arrays of the same width and kind, copied to an array that begins at a cache line."""
    both = on_lines(len(first) + len(second), first.shape[1], first.dtype.type)
    both[: len(first)] = first
    both[len(first) :] = second
    return both


ROW, START, MASK = 0, 1, 2
NUMBER = ROW
SMALL = 1 << 30

BEGUN = -1
"""Number of runs of a row taken by the current write: its node was zeros before, which needs no version."""

WORD = 32
"""Segments in a word of bits."""
_LARGEST_SMALL = 255


def run_columns(segments: int) -> int:
    """Columns of a run, for a number of segments."""
    return MASK + -(-segments // WORD)


@or_plain(plain.write)
@njit(cache=True, nogil=True)
def write(slots, segment, values, bounds, table, run_count, undo):  # type: ignore[no-untyped-def]  # compiled
    """Set segments of rows (ascending by node); returns the runs of replaced segments, and their values."""
    columns = MASK + (len(bounds) - 1 + WORD - 1) // WORD
    runs = np.zeros((len(slots) if undo else 0, columns), np.int32)
    replaced = np.zeros((len(slots) if undo else 0, values.shape[1]), np.float32)
    r = -1
    n = 0
    for i in range(len(slots)):
        row, start = slots[i], bounds[segment[i]]
        width = bounds[segment[i] + 1] - start
        if not undo or run_count[row] == BEGUN:  # the node was zeros before it had its row
            for j in range(width):
                table[row, start + j] = values[i, j]
            continue
        same = True
        for j in range(width):
            if table[row, start + j] != values[i, j]:
                same = False
                break
        if same:
            continue
        if r < 0 or runs[r, ROW] != row:
            r += 1
            runs[r, ROW] = row
            runs[r, START] = n
        runs[r, MASK + segment[i] // WORD] |= np.int32(1) << np.int32(segment[i] % WORD)
        for j in range(width):
            replaced[n, j] = table[row, start + j]
            table[row, start + j] = values[i, j]
        n += 1
    return runs[: r + 1].copy(), replaced[:n].copy()


@njit(cache=True, nogil=True)
def pack(runs, replaced, segments, rows, small_rows):  # type: ignore[no-untyped-def]  # compiled
    """Save the values of new runs after the existing rows of either table; returns the new rows of both."""
    small = np.ones(len(runs), np.bool_)
    width, small_count = replaced.shape[1], 0
    for r in range(len(runs)):
        low = runs[r, START]
        high = runs[r + 1, START] if r + 1 < len(runs) else len(replaced)
        small[r] = 2 * (high - low) >= segments  # short runs as bytes would slow reads down
        for e in range(low, high if small[r] else low):
            for j in range(width):
                value = replaced[e, j]
                whole = 0 <= value <= _LARGEST_SMALL and np.float32(np.uint8(value)) == value
                if not whole or (value == 0 and np.signbit(value)):
                    small[r] = False
                    break
            if not small[r]:
                break
        if small[r]:
            small_count += high - low
    numbers = np.empty((len(replaced) - small_count, width), np.float32)
    bytes_ = np.empty((small_count, width), np.uint8)
    n = b = 0
    for r in range(len(runs)):
        low = runs[r, START]
        high = runs[r + 1, START] if r + 1 < len(runs) else len(replaced)
        runs[r, START] = (small_rows + b) | SMALL if small[r] else rows + n
        for e in range(low, high):
            if small[r]:
                for j in range(width):
                    bytes_[b, j] = np.uint8(replaced[e, j])
                b += 1
            else:
                for j in range(width):
                    numbers[n, j] = replaced[e, j]
                n += 1
    return numbers, bytes_


@njit(cache=True, nogil=True)
def sort_by_row(runs, rows):  # type: ignore[no-untyped-def]  # compiled
    """Group the runs by row, oldest first; their numbers replace the rows.

    Returns where each row's runs begin, and where the last one's end, int32 (rows + 1,); and the runs.
    """
    begin, by_row = np.zeros(rows + 1, np.int32), np.empty_like(runs)
    for number in range(len(runs)):
        begin[runs[number, ROW] + 1] += 1
    for row in range(rows):
        begin[row + 1] += begin[row]
    for number in range(len(runs)):
        row = runs[number, ROW]
        place = begin[row]
        begin[row] = place + 1
        by_row[place, NUMBER] = number
        for column in range(START, runs.shape[1]):
            by_row[place, column] = runs[number, column]
    for row in range(rows, 0, -1):  # each begins where its predecessor has ended
        begin[row] = begin[row - 1]
    begin[0] = 0
    return begin, by_row


NONE = -1
_CHANGED, _FORMER = 1, 2
"""Columns of a note of a node: the snapshot that changed its slot, and the former slot."""
_NOTHING = (np.empty(0, np.int32), np.empty((0, 3), np.int32))


class Slots:
    """Slots of dense node ids: taken by new nodes, given back by leaving ones, free once the window has moved past."""

    def __init__(self) -> None:
        self.used = 0
        self._of: Int32 = np.empty(0, np.int32)
        self._node: Int32 = np.empty(0, np.int32)  # by slot ever used; NONE: no node at present
        self._free: Int32 = np.empty(0, np.int32)
        # The changes of each snapshot: nodes ascending, and their former slots.
        self._undone: list[tuple[int, Int32, Int32]] = []
        self._by_node: tuple[Int32, Int32] | None = None  # the same as ``sort_by_row`` returns it

    def grow(self, num_nodes: int) -> None:
        """Make room for ids below ``num_nodes``."""
        if num_nodes > len(self._of):
            self._of = np.concatenate([self._of, np.full(num_nodes - len(self._of), NONE, np.int32)])
            self._by_node = None

    def of(self, node: Int64) -> Int32:
        """Slots as of the newest snapshot, int32 of the shape of ``node``; −1 for none, also for ids not in use."""
        if len(self._of) == 0:
            return np.full(len(node), NONE, np.int32)
        slots = self._of[np.minimum(node, len(self._of) - 1)]
        slots[node >= len(self._of)] = NONE
        return slots

    def as_of(self, node: Int64, sequence: int) -> Int32:
        """Slots at snapshot ``sequence``, int32 of the shape of ``node``; O(nodes and their changes since).

        The first call for an older snapshot after a change sorts the notes, in O(dense ids + changes of the window).
        """
        slots = np.empty(len(node), np.int32)
        later = bool(self._undone) and self._undone[-1][0] > sequence
        begin, noted = self._sorted() if later else _NOTHING
        look_up(node, sequence, self._of, begin, noted, slots)
        return slots

    def take(self, sequence: int, nodes: Int64, *, undo: bool) -> Int32:
        """Give a slot to each of ``nodes`` (ascending, without one); returns the slots."""
        reused = min(len(nodes), len(self._free))
        fresh = len(nodes) - reused
        slots = np.concatenate(
            [self._free[len(self._free) - reused :], np.arange(self.used, self.used + fresh, dtype=np.int32)]
        )
        self._free = self._free[: len(self._free) - reused].copy()
        self.used += fresh
        self._node = np.concatenate([self._node, np.full(fresh, NONE, np.int32)])
        self._of[nodes] = slots
        self._node[slots] = nodes
        if undo:
            self._remember(sequence, nodes, np.full(len(nodes), NONE, np.int32))
        return slots

    def give_back(self, sequence: int, nodes: Int64, *, undo: bool) -> None:
        """Take the slots of ``nodes`` (ascending, each with one); they are free once ``sequence`` is forgotten."""
        slots = self._of[nodes]
        self._of[nodes] = NONE
        self._node[slots] = NONE
        if undo:
            self._remember(sequence, nodes, slots)
        else:
            self._free = np.concatenate([self._free, slots])

    def free_idle(self, slots: Int32) -> None:
        """Free slots with zero vectors in every snapshot of the window; slots without a node are left alone."""
        slots = slots[self._node[slots] >= 0]
        self._of[self._node[slots]] = NONE
        self._node[slots] = NONE
        self._free = np.concatenate([self._free, slots])

    def forget(self, sequence: int) -> None:
        """Give up reading before snapshot ``sequence``."""
        while self._undone and self._undone[0][0] <= sequence:
            _, _, former = self._undone.pop(0)
            self._free = np.concatenate([self._free, former[former >= 0]])
            self._by_node = None

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        undone = sum(nodes.nbytes + former.nbytes for _, nodes, former in self._undone)
        by_node = sum(array.nbytes for array in self._by_node or ())
        return self._of.nbytes + self._node.nbytes + self._free.nbytes + undone + by_node

    def _sorted(self) -> tuple[Int32, Int32]:
        """Where each node's notes begin, and the notes by node, oldest first."""
        if self._by_node is None:
            notes = [
                np.column_stack([nodes, np.full(len(nodes), changed, np.int32), former])
                for changed, nodes, former in self._undone
            ]
            self._by_node = sort_by_row(np.concatenate(notes), len(self._of))
        return self._by_node

    def _remember(self, sequence: int, nodes: Int64, former: Int32) -> None:
        if len(nodes) == 0:
            return
        self._by_node = None
        if self._undone and self._undone[-1][0] == sequence:
            _, before_nodes, before = self._undone.pop()
            # A node that both left and came in one snapshot had the slot from before the first of the two.
            nodes = np.concatenate([before_nodes, nodes])
            nodes, first = np.unique(nodes, return_index=True)
            former = np.concatenate([before, former])[first]
        self._undone.append((sequence, nodes.astype(np.int32), former))


@or_plain(plain.look_up)
@njit(cache=True, nogil=True)
def look_up(node, sequence, of, begin, noted, slots):  # type: ignore[no-untyped-def]  # compiled
    """Set the slots of nodes: the slot that the first change after a snapshot replaced, or else the present one.

    Node v has the notes [begin[v], begin[v + 1]), oldest first; an empty ``begin`` means no notes.
    """
    for i in range(len(node)):
        ahead = min(i + AHEAD, len(node) - 1)
        if node[ahead] < len(of):
            prefetch(of, node[ahead])
            if len(begin):
                prefetch(begin, node[ahead])
        if node[i] >= len(of):
            slots[i] = NONE
            continue
        slots[i] = of[node[i]]
        if len(begin):
            for k in range(begin[node[i]], begin[node[i] + 1]):
                if noted[k, _CHANGED] > sequence:
                    slots[i] = noted[k, _FORMER]
                    break


_LINE = 16
"""Float32 values per cache line."""


@or_plain(plain.read)
@njit(cache=True, nogil=True)
def read(slots, since, begin, runs, bounds, table, values, small, out):  # type: ignore[no-untyped-def]  # compiled
    """Gather rows: each segment from the row's first run that has it and is numbered ``since`` or later, else from the table.

    A row below 0 reads as zeros. Indices are unsigned, because one that may be negative prevents vector moves.
    """
    segments, features, width = len(bounds) - 1, np.uint64(out.shape[1]), np.uint64(values.shape[1])
    rows, versions, target = table.reshape(-1), values.reshape(-1), out.reshape(-1)
    bytes_, records = small.reshape(-1), runs.reshape(-1)
    one, columns = np.uint64(1), runs.shape[1]
    missing = np.empty(columns - MASK, np.uint64)
    even = segments * width == features  # then adjacent segments are adjacent in a run
    for i in range(len(slots)):
        ahead = slots[min(i + AHEAD, len(slots) - 1)]
        if ahead >= 0 and len(runs):
            prefetch(begin, ahead)
        ahead = slots[min(i + NODES_AHEAD, len(slots) - 1)]
        if ahead >= 0:
            for line in range(0, features, _LINE):
                prefetch(rows, np.uint64(ahead) * features + line)
            if len(runs):
                prefetch(records, begin[ahead] * columns)
                prefetch(records, begin[ahead + 1] * columns - 1)
        to = np.uint64(i) * features
        if slots[i] < 0:
            for j in range(features):
                target[to + j] = 0
            continue
        row = np.uint64(slots[i]) * features
        missing[:] = ~np.uint64(0)
        left = segments
        first, end = (begin[slots[i]], begin[slots[i] + 1]) if len(runs) else (np.int32(0), np.int32(0))
        for run in range(first, end):
            if runs[run, NUMBER] < since:
                continue
            place = runs[run, START]
            for word in range(len(missing)):
                mask = np.uint64(np.uint32(runs[run, MASK + word]))
                new = mask & missing[word]
                missing[word] &= ~mask
                left -= count_bits(new)
                while new != 0:
                    bit = lowest_bit(new)
                    many = lowest_bit(~(new >> np.uint64(bit))) if even else 1
                    new &= ~(((one << np.uint64(many)) - one) << np.uint64(bit))
                    begins, ends = bounds[word * WORD + bit], bounds[word * WORD + bit + many]
                    start, length = to + np.uint64(begins), np.uint64(ends - begins)
                    value = np.uint64(place + count_bits(mask & ((one << np.uint64(bit)) - one)))
                    if place < SMALL:
                        for j in range(length):
                            target[start + j] = versions[value * width + j]
                    else:
                        for j in range(length):
                            target[start + j] = bytes_[(value - np.uint64(SMALL)) * width + j]
                place += count_bits(mask)
            if left == 0:
                break
        if left == segments:
            for j in range(features):
                target[to + j] = rows[row + j]
        elif left:
            for segment in range(segments):
                if missing[segment // WORD] >> np.uint64(segment % WORD) & one:
                    for j in range(np.uint64(bounds[segment]), np.uint64(bounds[segment + 1])):
                        target[to + j] = rows[row + j]


class FeatureVersions:
    """Vectors of F values in S segments for any snapshot of a window, by dense node id.

    A node that was never written, or only with zeros, takes no memory and reads as zeros.
    """

    def __init__(self, features: int, segments: int) -> None:
        self.features = features
        self.segments = segments
        self.width = segment_width(features, segments)
        self._bounds = segment_bounds(features, segments)
        self._slots = Slots()
        self._table: Float32 = np.empty((0, features), np.float32)
        self._run_count: Int32 = np.empty(0, np.int32)  # runs of each row
        # The pool: run r is at place r − _first; runs keep their numbers, so that marks stay valid.
        self._first = 0
        self._marks: list[tuple[int, int]] = []  # (sequence, number of its first run)
        self._runs: Int32 = np.empty((0, run_columns(segments)), np.int32)
        self._values: Float32 = np.empty((0, self.width), np.float32)
        self._small: UInt8 = np.empty((0, self.width), np.uint8)
        self._by_row: tuple[Int32, Int32] | None = None  # ``sort_by_row`` of the current runs

    def holds(self, node: Int64) -> Bool:
        """Which of ``node`` may have values other than zero, bool of its shape."""
        return self._slots.of(node) >= 0

    def write(
        self, sequence: int, node: Int64, segment: Int32, values: Float32, num_nodes: int, *, undo: bool
    ) -> None:
        """Set segments as of snapshot ``sequence``.

        Args:
            sequence: Not below any earlier one, and above those written with ``undo``.
            node: int64 (n,), ascending.
            segment: int32 (n,), ascending for each node, distinct.
            values: float32 (n, W).
            num_nodes: Dense ids in use.
            undo: Keep the replaced values, so that earlier snapshots can be read.

        Raises:
            ValueError: Values that this snapshot replaced are kept already.
        """
        if undo and self._marks and self._marks[-1][0] >= sequence:
            raise ValueError(f"snapshot {sequence} can't be written after {self._marks[-1][0]}")
        self._slots.grow(num_nodes)
        if len(node) == 0:
            return
        end = self._first + len(self._runs)
        without = self._slots.of(node) < 0
        fresh = self._slots.take(sequence, np.unique(node[without][values[without].any(axis=1)]), undo=undo)
        self._make_room(fresh)
        slots = self._slots.of(node)
        has_slot = slots >= 0  # the others are zeros over zeros
        if not has_slot.all():
            slots, segment, values = slots[has_slot], segment[has_slot], values[has_slot]
        self._run_count[fresh] = BEGUN
        runs, replaced = write(slots, segment, values, self._bounds, self._table, self._run_count, undo)
        self._run_count[fresh] = 0
        if undo and len(runs):
            self._marks.append((sequence, end))
            numbers, small = pack(runs, replaced, self.segments, len(self._values), len(self._small))
            self._runs = np.concatenate([self._runs, runs])
            self._values = joined(self._values, numbers)
            self._small = joined(self._small, small)
            self._run_count[runs[:, ROW]] += 1
            self._by_row = None

    def clear(self, sequence: int, node: Int64, *, undo: bool) -> None:
        """Make nodes read as zeros from snapshot ``sequence`` on.

        Args:
            sequence: Not below any earlier one.
            node: int64 (n,), ascending, distinct.
            undo: Keep their vectors, so that earlier snapshots can be read.
        """
        self._slots.give_back(sequence, node[self.holds(node)], undo=undo)

    def read(self, ids: Int64, sequence: int) -> Float32:
        """Vectors as of snapshot ``sequence``.

        Args:
            ids: int64 (n,), any order, repeats allowed, each ≥ 0; ids not yet in use read as zeros.
            sequence: Not before the last ``forget``.

        Returns:
            float32 (n, F), a fresh contiguous array.
        """
        out = on_lines(len(ids), self.features, np.float32)
        since = self._through(sequence)
        begin, runs = self._sorted() if since < len(self._runs) else (self._run_count[:0], self._runs[:0])
        read(
            self._slots.as_of(ids, sequence), since, begin, runs, self._bounds, self._table, self._values, self._small,
            out,
        )  # fmt: skip
        return out

    def forget(self, sequence: int) -> None:
        """Drop the values that snapshots up to ``sequence`` replaced: nothing before it is read again."""
        self._slots.forget(sequence)
        dropped = self._through(sequence)
        del self._marks[: bisect_right(self._marks, sequence, key=_sequence)]
        if dropped == 0:
            return
        self._by_row = None
        rows, counts = np.unique(self._runs[:dropped, ROW], return_counts=True)
        self._run_count[rows] -= counts.astype(np.int32)
        self._first += dropped
        self._runs = self._runs[dropped:].copy()
        start = self._runs[:, START]
        small = start >= SMALL
        numbers, bytes_ = start[~small], start[small] - SMALL
        large_rows = numbers[0] if len(numbers) else len(self._values)
        small_rows = bytes_[0] if len(bytes_) else len(self._small)
        start -= np.where(small, small_rows, large_rows).astype(np.int32)
        self._values = joined(self._values[large_rows:], self._values[:0])
        self._small = joined(self._small[small_rows:], self._small[:0])
        # A slot with a zero vector and no version is not needed.
        idle = rows[(self._run_count[rows] == 0) & ~self._table[rows].any(axis=1)]
        self._slots.free_idle(idle)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, index structures included."""
        total = self._table.nbytes + self._run_count.nbytes + self._runs.nbytes
        total += self._values.nbytes + self._small.nbytes
        by_row = sum(array.nbytes for array in self._by_row or ())
        return total + by_row + self._slots.memory_bytes + 16 * len(self._marks)

    @property
    def spared_bytes(self) -> int:
        """Bytes saved by holding replaced whole numbers below 256 as bytes instead of float32."""
        return 3 * self._small.nbytes

    def _through(self, sequence: int) -> int:
        """Number of kept runs of snapshots up to ``sequence``, which is the place of the next one."""
        later = bisect_right(self._marks, sequence, key=_sequence)
        return self._marks[later][1] - self._first if later < len(self._marks) else len(self._runs)

    def _sorted(self) -> tuple[Int32, Int32]:
        """Where each row's runs begin, and the runs by row."""
        if self._by_row is None:
            self._by_row = sort_by_row(self._runs, len(self._run_count))
        return self._by_row

    def _make_room(self, fresh: Int32) -> None:
        """Provide rows of zeros without a version for newly taken slots."""
        used = self._slots.used
        if used > len(self._run_count):
            room = used if len(self._run_count) == 0 else used + used // 16 + 64
            more = room - len(self._run_count)
            self._table = joined(self._table, np.zeros((more, self.features), np.float32))
            self._run_count = np.concatenate([self._run_count, np.zeros(more, np.int32)])
            self._by_row = None
        self._table[fresh] = 0


def _sequence(mark: tuple[int, int]) -> int:
    return mark[0]
