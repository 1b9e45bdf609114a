"""Which row of a table is whose, for any snapshot of a window."""

import numpy as np
from numba import njit

from stream.snapshots.delta import Int32, Int64
from stream.snapshots.prefetch import AHEAD, prefetch

NONE = -1


class Slots:
    """Slots of dense node ids: taken when a node comes, given back when it leaves, free once the window is past that."""

    def __init__(self) -> None:
        self.used = 0
        self._of: Int32 = np.empty(0, np.int32)
        self._changed: Int32 = np.empty(
            0, np.int32
        )  # of every node, the last snapshot that changed its slot and is noted
        self._node: Int32 = np.empty(0, np.int32)  # of every slot ever used; NONE: nobody's as of now
        self._free: Int32 = np.empty(0, np.int32)
        # What each snapshot changed: nodes ascending, and the slots that they had before.
        self._undone: list[tuple[int, Int32, Int32]] = []

    def grow(self, num_nodes: int) -> None:
        """Make room for ids below ``num_nodes``."""
        if num_nodes > len(self._of):
            none = np.full(num_nodes - len(self._of), NONE, np.int32)
            self._of = np.concatenate([self._of, none])
            self._changed = np.concatenate([self._changed, none])

    def of(self, node: Int64) -> Int32:
        """Slots as of the newest snapshot, int32 of the shape of ``node``; −1 for none, also for ids not in use."""
        if len(self._of) == 0:
            return np.full(len(node), NONE, np.int32)
        slots = self._of[np.minimum(node, len(self._of) - 1)]
        slots[node >= len(self._of)] = NONE
        return slots

    def at(self, node: Int64, sequence: int) -> Int32:
        """Slots as of snapshot ``sequence``, int32 of the shape of ``node``.

        O(nodes), and for those whose slots changed later a search for every later snapshot that changed slots.
        """
        slots, changed = np.empty(len(node), np.int32), np.empty(len(node), np.int32)
        number = look_up(node, sequence, self._of, self._changed, slots, changed)
        if number:
            later = changed[:number]
            slots[later] = self._undo(node[later], slots[later], sequence)
        return slots

    def _undo(self, node: Int64, slots: Int32, sequence: int) -> Int32:
        """Slots of nodes as of snapshot ``sequence``, from what they are now."""
        for changed, nodes, former in reversed(self._undone):
            if changed <= sequence:
                break
            place = np.minimum(np.searchsorted(nodes, node), len(nodes) - 1)
            slots = np.where(nodes[place] == node, former[place], slots)
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
        """Take their slots from ``nodes`` (ascending, each with one); they are free once ``sequence`` is forgotten."""
        slots = self._of[nodes]
        self._of[nodes] = NONE
        self._node[slots] = NONE
        if undo:
            self._remember(sequence, nodes, slots)
        else:
            self._free = np.concatenate([self._free, slots])

    def free_idle(self, slots: Int32) -> None:
        """Free slots whose vectors are zeros in every snapshot of the window; those that nobody has are left alone."""
        slots = slots[self._node[slots] >= 0]
        self._of[self._node[slots]] = NONE
        self._node[slots] = NONE
        self._free = np.concatenate([self._free, slots])

    def forget(self, sequence: int) -> None:
        """Nothing before snapshot ``sequence`` is read again."""
        while self._undone and self._undone[0][0] <= sequence:
            _, _, former = self._undone.pop(0)
            self._free = np.concatenate([self._free, former[former >= 0]])

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        undone = sum(nodes.nbytes + former.nbytes for _, nodes, former in self._undone)
        return self._of.nbytes + self._changed.nbytes + self._node.nbytes + self._free.nbytes + undone

    def _remember(self, sequence: int, nodes: Int64, former: Int32) -> None:
        if len(nodes) == 0:
            return
        self._changed[nodes] = sequence
        if self._undone and self._undone[-1][0] == sequence:
            _, before_nodes, before = self._undone.pop()
            # A node that both left and came in one snapshot had what it had before the first of the two.
            nodes = np.concatenate([before_nodes, nodes])
            nodes, first = np.unique(nodes, return_index=True)
            former = np.concatenate([before, former])[first]
        self._undone.append((sequence, nodes.astype(np.int32), former))


@njit(cache=True, nogil=True)
def look_up(node, sequence, of, changed, slots, later):  # type: ignore[no-untyped-def]  # compiled
    """Set the slots of nodes as they are now; returns for how many they changed after a snapshot, their places in ``later``."""
    number = 0
    for i in range(len(node)):
        ahead = min(i + AHEAD, len(node) - 1)
        if node[ahead] < len(of):
            prefetch(of, node[ahead])
            prefetch(changed, node[ahead])
        if node[i] >= len(of):
            slots[i] = NONE
            continue
        slots[i] = of[node[i]]
        if changed[node[i]] > sequence:
            later[number] = i
            number += 1
    return number
