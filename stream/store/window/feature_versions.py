"""Node features over a window, additively: the newest vectors, and what every change replaced.

One table holds the vectors as the newest snapshot sees them; each change of a segment first saves the values
it replaces to a pool, linked from the node's slot, newest first. A read at an older snapshot gathers the
row and walks that chain back: O(S) a node and change, never a copy of the table. A node that comes takes a slot, and one
that leaves gives it back once the window has moved past: neither costs a version, only a note of which slot was whose.
"""

from bisect import bisect_right

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.snapshots.delta import Float32, Int32, Int64
from stream.snapshots.node_features import segment_bounds
from stream.store.lane.diff import segment_width
from stream.store.window.slots import Slots

Int16 = NDArray[np.int16]

_NO_ENTRY = -1
_BEGUN = -2
"""Head of a slot that this very write has taken: before it the node was zeros, which needs no version."""


class FeatureVersions:
    """Vectors of F values in S segments for any snapshot of a window, by dense node id.

    A node that was never written, or was written zeros only, takes no room and reads as zeros.
    """

    def __init__(self, features: int, segments: int) -> None:
        self.features = features
        self.segments = segments
        self.width = segment_width(features, segments)
        self._bounds = segment_bounds(features, segments)
        self._slots = Slots()
        self._table: Float32 = np.empty((0, features), np.float32)
        self._head: Int64 = np.empty(0, np.int64)
        # The pool: entry e stands at row e − _first; entries are numbered for ever, so that a link to a forgotten one
        # is known by its number. A link is how many entries lie between; 0: there is none within reach.
        self._first = 0
        self._marks: list[tuple[int, int]] = []  # (sequence, number of its first entry)
        self._slot: Int32 = np.empty(0, np.int32)
        self._segment: Int16 = np.empty(0, np.int16)
        self._back: Int32 = np.empty(0, np.int32)
        self._values: Float32 = np.empty((0, self.width), np.float32)

    def holds(self, node: Int64) -> NDArray[np.bool_]:
        """Which of ``node`` may have values other than zero, bool of its shape."""
        return self._slots.of(node) >= 0

    def write(
        self, sequence: int, node: Int64, segment: Int32, values: Float32, num_nodes: int, *, undo: bool
    ) -> None:
        """Set segments as of snapshot ``sequence``.

        Args:
            sequence: Not below any earlier one.
            node: int64 (n,), ascending; (node, segment) are distinct.
            segment: int32 (n,).
            values: float32 (n, W).
            num_nodes: Dense ids in use.
            undo: Keep what is replaced, so that earlier snapshots can be read.
        """
        self._slots.grow(num_nodes)
        if len(node) == 0:
            return
        end = self._first + len(self._back)
        without = self._slots.of(node) < 0
        fresh = self._slots.take(sequence, np.unique(node[without][values[without].any(axis=1)]), undo=undo)
        self._make_room(fresh)
        slots = self._slots.of(node)
        has_slot = slots >= 0  # without one: zeros over zeros
        if not has_slot.all():
            slots, segment, values = slots[has_slot], segment[has_slot], values[has_slot]
        self._head[fresh] = _BEGUN
        slot, changed_segment, back, replaced = _write(
            slots, segment, values, self._bounds, self._table, self._head, end, undo
        )
        self._head[fresh] = _NO_ENTRY
        if undo and len(slot):
            if not self._marks or self._marks[-1][0] < sequence:
                self._marks.append((sequence, end))
            self._slot = np.concatenate([self._slot, slot])
            self._segment = np.concatenate([self._segment, changed_segment])
            self._back = np.concatenate([self._back, back])
            self._values = np.concatenate([self._values, replaced])

    def clear(self, sequence: int, node: Int64, *, undo: bool) -> None:
        """Have nodes read as zeros from snapshot ``sequence`` on.

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
            sequence: Not older than what was forgotten.

        Returns:
            float32 (n, F), a fresh contiguous array.
        """
        out = np.empty((len(ids), self.features), np.float32)
        after = bisect_right(self._marks, sequence, key=lambda mark: mark[0])
        bound = self._marks[after][1] if after < len(self._marks) else self._first + len(self._back)
        _read(
            self._slots.at(ids, sequence), bound, self._bounds, self._table, self._head,
            self._first, self._segment, self._back, self._values, out,
        )  # fmt: skip
        return out

    def forget(self, sequence: int) -> None:
        """Drop what changes of snapshots up to ``sequence`` replaced: nothing before it is read again."""
        self._slots.forget(sequence)
        kept = bisect_right(self._marks, sequence, key=lambda mark: mark[0])
        end = self._first + len(self._back)
        dropped = (self._marks[kept][1] if kept < len(self._marks) else end) - self._first
        del self._marks[:kept]
        if dropped == 0:
            return
        slots = np.unique(self._slot[:dropped])
        self._first += dropped
        self._slot = self._slot[dropped:].copy()
        self._segment = self._segment[dropped:].copy()
        self._back = self._back[dropped:].copy()
        self._values = self._values[dropped:].copy()
        # A slot whose vector is zero now and has no version left is as good as none.
        idle = slots[(self._head[slots] < self._first) & ~self._table[slots].any(axis=1)]
        self._slots.free_idle(idle)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, index structures included."""
        arrays = (self._table, self._head, self._slot, self._segment, self._back, self._values)
        return sum(array.nbytes for array in arrays) + self._slots.memory_bytes + 16 * len(self._marks)

    def _make_room(self, fresh: Int32) -> None:
        """Rows of zeros without a version for slots that were just taken."""
        used = self._slots.used
        if used > len(self._head):
            room = used if len(self._head) == 0 else used + used // 16 + 64
            more = room - len(self._head)
            self._table = np.concatenate([self._table, np.zeros((more, self.features), np.float32)])
            self._head = np.concatenate([self._head, np.full(more, _NO_ENTRY, np.int64)])
        self._table[fresh] = 0


@njit(cache=True, nogil=True)
def _write(slots, segment, values, bounds, table, head, number, undo):  # type: ignore[no-untyped-def]  # compiled
    slot = np.empty(len(slots), np.int32)
    changed_segment = np.empty(len(slots), np.int16)
    back = np.empty(len(slots), np.int32)
    replaced = np.zeros((len(slots) if undo else 0, values.shape[1]), np.float32)
    n = 0
    for i in range(len(slots)):
        row, start = slots[i], bounds[segment[i]]
        width = bounds[segment[i] + 1] - start
        if not undo or head[row] == _BEGUN:  # before it had its slot the node was zeros
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
        slot[n] = row
        changed_segment[n] = segment[i]
        distance = number + n - head[row]
        back[n] = distance if head[row] >= 0 and distance < 2**31 else 0
        head[row] = number + n
        for j in range(width):
            replaced[n, j] = table[row, start + j]
            table[row, start + j] = values[i, j]
        n += 1
    return slot[:n].copy(), changed_segment[:n].copy(), back[:n].copy(), replaced[:n].copy()


@njit(cache=True, nogil=True)
def _read(slots, bound, bounds, table, head, first, segment, back, values, out):  # type: ignore[no-untyped-def]  # compiled
    # First which row each segment comes from: the oldest version after the snapshot, or the table; then all copies, none
    # waiting for another. Loops over single values become vector moves; slices would be made one by one.
    segments = len(bounds) - 1
    source = np.full((len(slots), segments), -1, np.int64)
    bound = max(bound, first)
    for i in range(len(slots)):
        entry = head[slots[i]] if slots[i] >= 0 else np.int64(-1)
        while entry >= bound:
            source[i, segment[entry - first]] = entry - first
            if back[entry - first] == 0:
                break
            entry -= back[entry - first]
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0:
            for j in range(out.shape[1]):
                out[i, j] = 0
            continue
        for j in range(out.shape[1]):
            out[i, j] = table[slot, j]
        for s in range(segments):
            row, start = source[i, s], bounds[s]
            if row >= 0:
                for j in range(bounds[s + 1] - start):
                    out[i, start + j] = values[row, j]
