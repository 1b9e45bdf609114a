"""One exchange of rows by key: asked for once each, answered in bulk."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainer.device import to_device
from trainer.ranks import Ranks

Int64 = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)


class Request:
    """One exchange of keys: what this rank wants from every owner, and what every rank wants from this one.

    Args:
        keys: int64 (n,), distinct.
        homes: Rank that owns each key; −1: nobody, its row is zero.
        ranks: All ranks make a request together.

    Attributes:
        asked: int64 keys this rank has to answer, with repetitions where several ranks want one.
    """

    def __init__(self, keys: Int64, homes: NDArray[np.int32], ranks: Ranks) -> None:
        self._ranks = ranks
        self._wanted = len(keys)
        order = np.argsort(homes, kind="stable")
        self._order = order[np.searchsorted(homes[order], 0) :]
        self._sent = np.bincount(homes[self._order], minlength=ranks.size).tolist()
        self._received = ranks.exchange_sizes(self._sent)
        wanted = keys[self._order]
        self.asked: Int64 = ranks.exchange_array(wanted, self._sent, self._received, "ids")

    def answer_array(self, rows: NDArray[T], purpose: str) -> NDArray[T]:
        """As ``answer``, from host to host."""
        arrived = self._ranks.exchange_array(rows, self._received, self._sent, purpose)
        answered = np.zeros((self._wanted, *rows.shape[1:]), rows.dtype)
        answered[self._order] = arrived
        return answered

    def answer(self, rows: Tensor, purpose: str) -> Tensor:
        """Send the rows of ``asked`` and get those of the keys.

        Args:
            rows: (asked, d); a gradient travels back to it.
            purpose: Under which bytes are counted.

        Returns:
            (n, d), zero rows for keys without an owner.
        """
        arrived = self._ranks.exchange(rows, self._received, self._sent, purpose)
        places = to_device(self._order, arrived.device)
        return arrived.new_zeros((self._wanted, *rows.shape[1:])).index_copy(0, places, arrived)
