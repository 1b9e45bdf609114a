"""The owner of each row of a table, for any snapshot of a window."""

import numpy as np

from stream.arrays.kinds import Int32, Int64
from stream.kernels import njit
from stream.snapshots.prefetch import AHEAD, prefetch
from stream.store.window.version_kernels import sort_by_row

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

    def at(self, node: Int64, sequence: int) -> Int32:
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
