"""One exchange of rows by key: each is requested once, and all are answered in bulk."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.trainer.data.neighbours import runs
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.ranks import Ranks

T = TypeVar("T", bound=np.generic)


class Request:
    """One exchange of keys: those that this rank wants from owners, and those that other ranks want from it.

    Args:
        keys: int64 (n,), distinct.
        homes: Rank that owns each key; −1: without an owner, its row is zero.
        ranks: All ranks make a request together.

    Attributes:
        requested: int64 keys that this rank has to answer, repeated if several ranks want one.
    """

    def __init__(self, keys: Int64, homes: Int32, ranks: Ranks) -> None:
        self._ranks = ranks
        self._wanted = len(keys)
        if ranks.size == 1:
            self._order = np.flatnonzero(homes >= 0)
            self._sent = self._received = [len(self._order)]
            self.requested: Int64 = keys if len(self._order) == len(keys) else keys[self._order]
            return
        self._order, self._sent = _by_home(homes, ranks.size)
        self.requested, self._received = ranks.exchange_blocks(keys[self._order], self._sent, "ids")

    @classmethod
    def of_known(cls, keys: Sequence[Int64], homes: Sequence[Int32], ranks: Ranks) -> "Request":
        """A request of keys and homes of each rank that all ranks know: nothing is sent."""
        if ranks.size == 1:
            return cls(keys[0], homes[0], ranks)
        made = cls.__new__(cls)
        made._ranks, made._wanted = ranks, len(keys[ranks.rank])
        made._order, made._sent = _by_home(homes[ranks.rank], ranks.size)
        mine = [wanted[home == ranks.rank] for wanted, home in zip(keys, homes, strict=True)]
        made._received = [len(wanted) for wanted in mine]
        made.requested = np.concatenate(mine)
        return made

    def tell(self, values: NDArray[T]) -> NDArray[T]:
        """Send a value for every key to its owner: (n, …) becomes (asked, …), in the order of ``requested``."""
        return self._ranks.exchange_array(values[self._order], self._sent, self._received, "ids")

    def answer_runs(self, values: NDArray[T], lengths: Int64, expected: Int64, purpose: str) -> NDArray[T]:
        """As ``answer_array``, with a run of values for each key.

        Args:
            values: (Σ lengths,), the runs of ``requested`` one after the other.
            lengths: int64 (asked,).
            expected: int64 (n,), known lengths of the wanted runs; 0 for keys without an owner.
            purpose: Label of the counted bytes.

        Returns:
            (Σ expected,), runs in the order of the keys.
        """
        sent, received = _by_rank(lengths, self._received), _by_rank(expected[self._order], self._sent)
        arrived = self._ranks.exchange_array(values, sent, received, purpose)
        lengths_arrived = expected[self._order]
        starts = np.empty(self._wanted, np.int64)
        starts[self._order] = np.cumsum(lengths_arrived) - lengths_arrived
        expected_rows = np.flatnonzero(expected)
        return arrived[runs(starts[expected_rows], expected[expected_rows])]

    def answer_array(self, rows: NDArray[T], purpose: str) -> NDArray[T]:
        """As ``answer``, from host to host."""
        arrived = self._ranks.exchange_array(rows, self._received, self._sent, purpose)
        answered = np.zeros((self._wanted, *rows.shape[1:]), rows.dtype)
        answered[self._order] = arrived
        return answered

    def answer_tables(self, tables: Sequence[Tensor], purpose: str) -> list[Tensor]:
        """As ``answer`` of several tables, without gradients."""
        arrived = self._ranks.exchange_tables(tables, self._received, self._sent, purpose)
        return [self._placed(rows) for rows in arrived]

    def answer(self, rows: Tensor, purpose: str) -> Tensor:
        """Send the rows of ``requested`` and receive those of the keys.

        Args:
            rows: (asked, d); a gradient travels back to it.
            purpose: Label of the counted bytes.

        Returns:
            (n, d), zero rows for keys without an owner.
        """
        arrived = self._ranks.exchange(rows, self._received, self._sent, purpose)
        if self._ranks.size == 1 and len(self._order) == self._wanted:
            return arrived
        return self._placed(arrived)

    def _placed(self, arrived: Tensor) -> Tensor:
        """Arrived rows in the order of the keys."""
        places = to_device(self._order, arrived.device)
        return arrived.new_zeros((self._wanted, *arrived.shape[1:])).index_copy(0, places, arrived)


def _by_home(homes: Int32, size: int) -> tuple[Int64, list[int]]:
    """Places of the keys that have an owner, rank 0's first, and how many each rank owns."""
    order = np.argsort(homes, kind="stable")
    order = order[np.searchsorted(homes[order], 0) :]
    return order, np.bincount(homes[order], minlength=size).tolist()


def _by_rank(lengths: Int64, keys: list[int]) -> list[int]:
    """Values for each rank, given the length of each key's run and the number of keys of each rank."""
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.concatenate([[0], np.cumsum(keys)])]
    return np.diff(ends).tolist()
