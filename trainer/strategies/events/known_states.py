"""Computed states, kept while neither weights nor mails change."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from stream.arrays.kinds import Int64

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

    @property
    def states(self) -> Tensor:
        """All states computed so far, (m, d). A row stays the same, whatever is added or dropped."""
        return self._states[: self._used]

    def rows(self, nodes: Int64, soon: Callable[[], Int64], compute: Callable[[Int64], Tensor]) -> Int64:
        """Rows of the nodes' states in ``states``, int64 (n,).

        Args:
            nodes: int64 (n,), distinct.
            soon: Distinct nodes of the next question; if any state has to be computed, theirs are computed with it.
            compute: Makes the states (k, d) of distinct nodes.
        """
        self._reserve(nodes)
        unknown = nodes[self._slot[nodes] == NONE]
        if len(unknown):
            self._slot[unknown] = ASKED
            later = soon()
            self._reserve(later)
            unknown = np.concatenate([unknown, later[self._slot[later] == NONE]])
            self._take(unknown, compute(unknown))
        return self._slot[nodes]

    def drop(self, nodes: Int64) -> None:
        """Forget the states of nodes that get new mail."""
        self._slot[nodes[nodes < len(self._slot)]] = NONE

    def _reserve(self, nodes: Int64) -> None:
        more = int(nodes.max(initial=-1)) + 1 - len(self._slot)
        if more > 0:
            self._slot = np.concatenate([self._slot, np.full(max(more, len(self._slot) // 4), NONE)])

    def _take(self, nodes: Int64, states: Tensor) -> None:
        end = self._used + len(nodes)
        if end > len(self._states):
            room = states.new_empty(max(end, 2 * len(self._states)), states.shape[1])
            room[: self._used] = self._states[: self._used]
            self._states = room
        self._states[self._used : end] = states
        self._slot[nodes] = np.arange(self._used, end)
        self._used = end
