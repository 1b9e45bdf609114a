"""Numbers of the remembered nodes: the stream's dense ids, until a node is forgotten."""

from typing import Any

import numpy as np

from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.data.history import KeyTable, find


class NodeNames:
    """The number of each remembered node. Tables by number grow with the remembered nodes, not with the stream.

    Until ``keep`` is first called, numbers are dense ids. From then on remembered nodes are in a hash table, in order of
    their arrival. A forgotten node that returns gets a new number, like a node never seen.
    """

    def __init__(self) -> None:
        self._seen = 0  # dense ids below this have come
        self._size = 0
        self._ids: Int64 | None = None  # dense id by number; None: they are equal
        self._table = KeyTable()

    def __len__(self) -> int:
        return self._size

    @property
    def are_ids(self) -> bool:
        """Whether every number is the stream's dense id, because no node was forgotten so far."""
        return self._ids is None

    def meet(self, num_ids: int) -> None:
        """Give a number to every new dense id below ``num_ids``."""
        fresh = np.arange(self._seen, num_ids)
        self._seen = max(self._seen, num_ids)
        if self._ids is None:
            self._size = self._seen
        elif len(fresh):
            self.numbers(fresh)

    def numbers(self, ids: Int64) -> Int64:
        """Numbers int64 (n,) of dense ids that have come; forgotten ones get new numbers."""
        if self._ids is None:
            return ids
        self._reserve(len(ids))
        numbers = np.empty(len(ids), np.int64)
        self._size = _number(self._table.slots, self._table.shift, self._ids, self._size, (ids, numbers))
        return numbers

    def find(self, ids: Int64) -> Int64:
        """Numbers int64 (n,) of dense ids; −1 for forgotten ones."""
        if self._ids is None:
            return ids
        return self._table.find(self._ids, ids)

    def ids(self, numbers: Int64) -> Int64:
        """Dense ids int64 (n,) of numbers."""
        return numbers if self._ids is None else self._ids[numbers]

    def keep(self, kept_numbers: Int64) -> None:
        """Forget all nodes except those with the ascending numbers ``kept_numbers``, int64; renumber these in their order."""
        self._ids = kept_numbers.copy() if self._ids is None else self._ids[kept_numbers]
        self._size = len(kept_numbers)
        self._table = KeyTable()
        self._reserve(0)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        names = {} if self._ids is None else {"ids": self._ids[: self._size]}
        return {"seen": self._seen, **names}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self._seen = self._size = int(state["seen"])
        self._ids = None
        if "ids" in state:
            self._ids = np.asarray(state["ids"]).copy()
            self._size = len(self._ids)
            self._table = KeyTable()
            self._reserve(0)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._table.slots.nbytes + (0 if self._ids is None else self._ids.nbytes)

    def _reserve(self, more: int) -> None:
        """Room for so many more nodes."""
        assert self._ids is not None
        need = self._size + more
        if need > len(self._ids):
            room = max(need, len(self._ids) * 5 // 4)
            self._ids = np.concatenate([self._ids[: self._size], np.empty(room - self._size, np.int64)])
        self._table.reserve(self._ids, self._size, more)


@njit(cache=True, nogil=True)
def _number(slots, shift, keys, size, wanted):  # type: ignore[no-untyped-def]  # compiled
    ids, out = wanted
    for i in range(len(ids)):
        position = find(slots, shift, keys, ids[i])
        if position < 0:
            slots[-1 - position] = size
            position = np.int64(size)
            keys[size] = ids[i]
            size += 1
        out[i] = position
    return size
