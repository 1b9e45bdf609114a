"""Computed states, kept while neither weights nor mails change."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from stream.arrays.kinds import Int64
from trainer.device import to_device

NONE, ASKED = -1, -2


class KnownStates:
    """Each node's state, computed on first use and again after new mail.

    Predictions of a snapshot are made batch after batch with the same weights, and most nodes of a batch were in the batch
    before.

    Args:
        none: (0, d), of the type and where states are.
    """

    def __init__(self, none: Tensor) -> None:
        self._slot: Int64 = np.empty(0, np.int64)  # of each node, its row below; NONE without
        self._states = none
        self._used = 0

    def of(self, nodes: Int64, soon: Int64, compute: Callable[[Int64], Tensor]) -> Tensor:
        """States (n, d) of nodes.

        Args:
            nodes: int64 (n,), distinct.
            soon: int64 (m,), distinct nodes of the next question; if any state has to be computed, theirs are computed with it.
            compute: Makes the states (k, d) of distinct nodes.
        """
        highest = max(int(nodes.max(initial=-1)), int(soon.max(initial=-1)))
        if highest >= len(self._slot):
            more = max(highest + 1, len(self._slot) * 5 // 4) - len(self._slot)
            self._slot = np.concatenate([self._slot, np.full(more, NONE)])
        unknown = nodes[self._slot[nodes] == NONE]
        if len(unknown):
            self._slot[unknown] = ASKED
            unknown = np.concatenate([unknown, soon[self._slot[soon] == NONE]])
            self._take(unknown, compute(unknown))
        return self._states.index_select(0, to_device(self._slot[nodes], self._states.device))

    def drop(self, nodes: Int64) -> None:
        """Forget the states of nodes that get new mail."""
        self._slot[nodes[nodes < len(self._slot)]] = NONE

    def _take(self, nodes: Int64, states: Tensor) -> None:
        end = self._used + len(nodes)
        if end > len(self._states):
            room = states.new_empty(max(end, 2 * len(self._states)), states.shape[1])
            room[: self._used] = self._states[: self._used]
            self._states = room
        self._states[self._used : end] = states
        self._slot[nodes] = np.arange(self._used, end)
        self._used = end
