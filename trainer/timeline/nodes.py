"""Compact numbers of the nodes with an edge in a horizon: slots, which stay while the horizon slides."""

from typing import Any

import numpy as np

from freshet_graph.stream.arrays.growing import Growing
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.data.history import KeyTable, find

FREE = -1
_LIVES = np.iinfo(np.int64).max
FEW = 4096
"""So few slots are never renumbered: their rows cost less than a new beginning of the device."""


class HorizonNodes:
    """The slot of every node that has an edge in the horizon; a slot is used again after its node has left.

    Tensors are over slots, so memory follows the live nodes, not the number of ids that the stream has had, and a node's
    rows on the device stay in place. When most slots are free, all nodes are renumbered.

    Attributes:
        version: Grows whenever a slot gets another node.
        generation: Grows whenever all nodes are renumbered.
    """

    def __init__(self) -> None:
        self.version = self.generation = 0
        self._size = self._num_free = self._entries = 0
        self._leaving: dict[int, list[Int64]] = {}
        self._begin(np.empty(0, np.int64), np.empty(0, np.int64))

    def __len__(self) -> int:
        """Slots, free ones included."""
        return self._size

    @property
    def ids(self) -> Int64:
        """Dense ids by slot, int64 (slots,); ``FREE`` for free slots. A view."""
        values: Int64 = self._ids.values[: self._size]
        return values

    def find(self, ids: Int64) -> Int64:
        """Slots int64 (n,) of dense ids; −1 for those without."""
        return self._table.find(self.ids, ids)

    def enter(self, ids: Int64) -> None:
        """Nodes that have an edge from now on."""
        self._reserve(len(ids))
        slots, state = np.empty(len(ids), np.int64), np.array([self._num_free, self._size])
        room = self._ids.grow(self._size + len(ids))
        _enter(self._table.slots, self._table.shift, room, self._free.values, state, ids, slots)
        given = int(state[1] - self._size + self._num_free - state[0])
        self._num_free, self._size = state.tolist()
        self._entries += given
        self.version += given > 0
        self._last.grow(self._size)[slots] = _LIVES

    def leave(self, ids: Int64, last: int) -> None:
        """Nodes whose newest edge is of snapshot ``last``; they keep their slots as long as the horizon has it."""
        slots = self.find(ids)
        slots = slots[slots >= 0]
        self._last.values[slots] = last
        self._leaving.setdefault(last, []).append(slots)

    def forget(self, oldest: int) -> None:
        """Free the slots of nodes without an edge since snapshot ``oldest``."""
        gone = [number for number in self._leaving if number < oldest]
        slots = [
            np.empty(0, np.int64),
            *(leaving_slots for number in gone for leaving_slots in self._leaving.pop(number)),
        ]
        former = np.unique(np.concatenate(slots))
        self._give_back(former[self._last.values[former] < oldest])

    def begin(self) -> None:
        """No node has an edge yet; one that enters before the next ``end_of_beginning`` keeps its slot."""
        self._leaving = {}
        self._last.values[:] = -1

    def end_of_beginning(self, oldest: int) -> None:
        """As ``forget``, after a ``begin``."""
        self.forget(oldest)
        self._give_back(np.flatnonzero((self.ids != FREE) & (self._last.values < oldest)))

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from: a node's slot depends on earlier nodes."""
        return {"ids": self.ids.copy(), "free": self._free.values[: self._num_free].copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``, with a ``begin``."""
        self._begin(np.asarray(state["ids"], np.int64), np.asarray(state["free"], np.int64))
        self.generation += 1

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        lists = sum(leaving_slots.nbytes for lists in self._leaving.values() for leaving_slots in lists)
        return self._ids.nbytes + self._last.nbytes + self._free.nbytes + self._table.slots.nbytes + lists

    def _begin(self, ids: Int64, free: Int64) -> None:
        self._ids, self._last, self._free = (Growing(fill, np.int64) for fill in (FREE, -1, FREE))
        self._ids.replace(ids)
        self._last.grow(len(ids))
        self._free.replace(free)
        self._size, self._num_free = len(ids), len(free)  # the last of the free ones is given first
        self._leaving = {}
        self._table = KeyTable()
        self._entries = 0  # of the table, those of former nodes included
        self._reserve(0)

    def _give_back(self, slots: Int64) -> None:
        self._ids.values[slots] = FREE
        end = self._num_free + len(slots)
        self._free.grow(end)[self._num_free : end] = slots[::-1]
        self._num_free = end
        if self._size > FEW and 4 * end > 3 * self._size:
            self._number_anew()

    def _number_anew(self) -> None:
        live_slots = np.flatnonzero(self.ids != FREE)
        live_slots = live_slots[np.argsort(self.ids[live_slots])]
        place = np.full(self._size, -1, np.int64)
        place[live_slots] = np.arange(len(live_slots))
        last = self._last.values[live_slots]
        leaving = {
            number: [
                renumbered[renumbered >= 0]
                for renumbered in (place[leaving_slots] for leaving_slots in lists)
            ]
            for number, lists in self._leaving.items()
        }
        self._begin(self.ids[live_slots], np.empty(0, np.int64))
        self._last.values[:], self._leaving = last, leaving
        self.version += 1
        self.generation += 1

    def _reserve(self, more: int) -> None:
        """Room in the table for so many more nodes."""
        if 2 * (self._entries + more) >= len(self._table.slots):
            slots = np.flatnonzero(self.ids != FREE)
            self._table.rebuild(self.ids, slots, more)
            self._entries = len(slots)


# An entry whose slot was given to another node stays in the table. A search for the former node passes it, and one for the
# new node may end there, since the slot is the same.


@njit(cache=True, nogil=True)
def _enter(table, shift, ids, free, state, wanted, out):  # type: ignore[no-untyped-def]  # compiled
    left, size = state
    for i in range(len(wanted)):
        entry = find(table, shift, ids, wanted[i])
        if entry < 0:
            slot = size
            if left > 0:
                left -= 1
                slot = free[left]
            else:
                size += 1
            table[-1 - entry] = slot
            ids[slot] = wanted[i]
            entry = np.int64(slot)
        out[i] = entry
    state[0], state[1] = left, size
