"""Node features over a window, additively: the newest vectors, and what every change replaced.

One table holds the vectors as the newest snapshot sees them; each change of a segment first saves the values
it replaces to a pool, linked from the node's slot, newest first. A read at an older snapshot gathers the
row and walks that chain back: O(S) a node and change, never a copy of the table.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.snapshots.delta import Float32, Int32, Int64
from stream.snapshots.node_features import segment_bounds
from stream.store.lane.diff import segment_width

_NO_SLOT = -1


class FeatureVersions:
    """Vectors of F values in S segments for any snapshot of a window, by dense node id.

    A node that was never written, or was written zeros only, takes no room and reads as zeros.
    """

    def __init__(self, features: int, segments: int) -> None:
        self.features = features
        self.segments = segments
        self.width = segment_width(features, segments)
        self._bounds = segment_bounds(features, segments)
        self._slot_of: Int32 = np.empty(0, np.int32)
        self._node_of: Int32 = np.empty(0, np.int32)
        self._table: Float32 = np.empty((0, features), np.float32)
        self._head: Int64 = np.empty(0, np.int64)
        self._used = 0
        self._free: list[int] = []
        # The pool: entry e stands at row e − _first; entries are numbered for ever, so that a link to a
        # forgotten one is known by its number.
        self._first = 0
        self._sequence: Int64 = np.empty(0, np.int64)
        self._slot: Int32 = np.empty(0, np.int32)
        self._segment: Int32 = np.empty(0, np.int32)
        self._next: Int64 = np.empty(0, np.int64)
        self._values: Float32 = np.empty((0, self.width), np.float32)

    def holds(self, node: Int64) -> NDArray[np.bool_]:
        """Which of ``node`` may have values other than zero, bool of its shape."""
        known = node < len(self._slot_of)
        known[known] = self._slot_of[node[known]] >= 0
        return known

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
        if num_nodes > len(self._slot_of):
            grown = np.full(num_nodes, _NO_SLOT, np.int32)
            grown[: len(self._slot_of)] = self._slot_of
            self._slot_of = grown
        if len(node) == 0:
            return
        self._take_slots(node, values)
        slots = self._slot_of[node]
        has_slot = slots >= 0  # without one: zeros over zeros
        if not has_slot.all():
            slots, segment, values = slots[has_slot], segment[has_slot], values[has_slot]
        slot, changed_segment, link, replaced = _write(
            slots, segment, values, self._bounds, self._table, self._head, self._first + len(self._next), undo
        )
        self._sequence = np.concatenate([self._sequence, np.full(len(slot), sequence, np.int64)])
        self._slot = np.concatenate([self._slot, slot])
        self._segment = np.concatenate([self._segment, changed_segment])
        self._next = np.concatenate([self._next, link])
        self._values = np.concatenate([self._values, replaced])

    def read(self, ids: Int64, sequence: int) -> Float32:
        """Vectors as of snapshot ``sequence``.

        Args:
            ids: int64 (n,), any order, repeats allowed, each ≥ 0; ids not yet in use read as zeros.
            sequence: Not older than what was forgotten.

        Returns:
            float32 (n, F), a fresh contiguous array.
        """
        out = np.zeros((len(ids), self.features), np.float32)
        if self.features and self._used:
            _read(
                ids, sequence, self._slot_of, self._bounds, self._table, self._head,
                self._first, self._sequence, self._segment, self._next, self._values, out,
            )  # fmt: skip
        return out

    def forget(self, sequence: int) -> None:
        """Drop what changes of snapshots up to ``sequence`` replaced: nothing before it is read again."""
        dropped = int(np.searchsorted(self._sequence, sequence, side="right"))
        if dropped == 0:
            return
        slots = np.unique(self._slot[:dropped])
        self._first += dropped
        self._sequence = self._sequence[dropped:].copy()
        self._slot = self._slot[dropped:].copy()
        self._segment = self._segment[dropped:].copy()
        self._next = self._next[dropped:].copy()
        self._values = self._values[dropped:].copy()
        # A slot whose vector is zero now and has no version left is as good as none.
        idle = slots[(self._head[slots] < self._first) & ~self._table[slots].any(axis=1)]
        self._slot_of[self._node_of[idle]] = _NO_SLOT
        self._head[idle] = -1
        self._free.extend(idle.tolist())

    @property
    def memory_bytes(self) -> int:
        """Bytes held, index structures included."""
        arrays = (
            self._slot_of, self._node_of, self._table, self._head,
            self._sequence, self._slot, self._segment, self._next, self._values,
        )  # fmt: skip
        return sum(array.nbytes for array in arrays) + 8 * len(self._free)

    def _take_slots(self, node: Int64, values: Float32) -> None:
        """Give a slot to every node that has none and gets a value other than zero."""
        without = self._slot_of[node] < 0
        new = np.unique(node[without][values[without].any(axis=1)])
        if len(new) == 0:
            return
        reused = min(len(new), len(self._free))
        fresh = len(new) - reused
        slots = np.empty(len(new), np.int32)
        slots[:reused] = self._free[len(self._free) - reused :]
        del self._free[len(self._free) - reused :]
        slots[reused:] = np.arange(self._used, self._used + fresh)
        self._used += fresh
        if self._used > len(self._head):
            room = self._used if len(self._head) == 0 else self._used + self._used // 8 + 64
            more = room - len(self._head)
            self._table = np.concatenate([self._table, np.zeros((more, self._table.shape[1]), np.float32)])
            self._head = np.concatenate([self._head, np.full(more, -1, np.int64)])
            self._node_of = np.concatenate([self._node_of, np.full(more, -1, np.int32)])
        self._slot_of[new] = slots
        self._node_of[slots] = new


@njit(cache=True, nogil=True)
def _write(slots, segment, values, bounds, table, head, number, undo):  # type: ignore[no-untyped-def]  # compiled
    slot = np.empty(len(slots), np.int32)
    changed_segment = np.empty(len(slots), np.int32)
    link = np.empty(len(slots), np.int64)
    replaced = np.zeros((len(slots) if undo else 0, values.shape[1]), np.float32)
    n = 0
    for i in range(len(slots)):
        row, start = slots[i], bounds[segment[i]]
        width = bounds[segment[i] + 1] - start
        if not undo:
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
        link[n] = head[row]
        head[row] = number + n
        for j in range(width):
            replaced[n, j] = table[row, start + j]
            table[row, start + j] = values[i, j]
        n += 1
    return slot[:n], changed_segment[:n], link[:n], replaced[:n]


@njit(cache=True, nogil=True)
def _read(ids, sequence, slot_of, bounds, table, head, first, sequences, segment, link, values, out):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(ids)):
        if ids[i] >= len(slot_of) or slot_of[ids[i]] < 0:
            continue
        slot = slot_of[ids[i]]
        for j in range(out.shape[1]):
            out[i, j] = table[slot, j]
        entry = head[slot]
        while entry >= first and sequences[entry - first] > sequence:
            start = bounds[segment[entry - first]]
            for j in range(bounds[segment[entry - first] + 1] - start):
                out[i, start + j] = values[entry - first, j]
            entry = link[entry - first]
