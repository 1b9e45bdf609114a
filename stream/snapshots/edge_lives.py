"""The end of pairs without a delete: edge lives, counted in intervals after the last occurrence."""

from collections import deque

import numpy as np

from stream.arrays.kinds import Int32, Int64
from stream.snapshots.pairs import Change, PairChanges


class EdgeLives:
    """The pairs seen in each of the last snapshots; without an edge life, only the number of snapshots.

    A pair that is seen again stays on its earlier lists, and the caller checks when it was last seen. So every insert is looked
    at once more when its life would end, and no pair at any other time.

    Args:
        life: Intervals that a pair lives after its last occurrence; None: for ever.

    Attributes:
        number: Of the last snapshot, counted from 1.
    """

    def __init__(self, life: int | None) -> None:
        self.life = life
        self.number = 0
        self._tau = 0
        self._seen: deque[tuple[int, int, Int64]] = deque()  # τ, number and slots, oldest first

    def advance(self, tau: int) -> tuple[tuple[Int64, Int32], int]:
        """Advance to snapshot ``tau``.

        Returns:
            Slots whose pairs may end, with the number of the snapshot that saw them; and the number of this snapshot.
        """
        self.number += 1
        self._tau = tau
        ending = self.ending(tau)
        while self.life is not None and self._seen and tau - self._seen[0][0] >= self.life:
            self._seen.popleft()
        return ending, self.number

    def ending(self, tau: int) -> tuple[Int64, Int32]:
        """Slots whose pairs may end with snapshot ``tau``, with the number of the snapshot that saw them."""
        ending = [
            (number, seen)
            for then, number, seen in self._seen
            if self.life is not None and tau - then >= self.life
        ]
        slots = [np.empty(0, np.int64), *(seen for _, seen in ending)]
        numbers = [np.empty(0, np.int32), *(np.full(len(seen), number, np.int32) for number, seen in ending)]
        return np.concatenate(slots), np.concatenate(numbers)

    def saw(self, changes: PairChanges) -> None:
        """Record the pairs that this snapshot inserted."""
        if self.life is not None:
            self._seen.append((self._tau, self.number, changes.slot[changes.change != Change.REMOVED]))

    def state(self) -> dict[str, Int64]:
        """The snapshots of the lists; the lists follow from when live pairs were last seen."""
        listed = [(tau, number) for tau, number, _ in self._seen]
        return {"lives": np.array(listed, np.int64).reshape(-1, 2), "number": np.array(self.number)}

    def restore(self, state: dict[str, Int64], slots: Int64, seen: Int32) -> None:
        """Continue from a ``state``, with the slots of the live pairs and the snapshot that last saw each."""
        self.number = int(state["number"])
        order = np.argsort(seen, kind="stable")
        for tau, number in state["lives"].tolist():
            start, end = np.searchsorted(seen[order], [number, number + 1])
            self._seen.append((tau, number, slots[order[start:end]]))
