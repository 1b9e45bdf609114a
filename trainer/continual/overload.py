"""Policies for snapshots that arrive faster than they are learned."""

from dataclasses import dataclass
from typing import Literal

Overload = Literal["train-all", "skip-to-latest", "subsample"]


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """The next snapshot, and the share of it to learn, by the lag of training.

    ``train-all``: each, whole. ``skip-to-latest``: with more than ``max_snapshots`` waiting, the latest. ``subsample``: up
    to a quarter of ``max_snapshots`` waiting, each whole; from there on fewer and fewer passes, none at ``max_snapshots``;
    beyond, skip until half of ``max_snapshots`` wait. Snapshots that are not learned update graph and memory under all three.

    Attributes:
        overload: The policy.
        max_snapshots: Largest number of waiting snapshots without lag.
    """

    overload: Overload
    max_snapshots: int

    def next(self, after: int, newest: int) -> int:
        """Sequence number of the snapshot to take, after number ``after``; ``newest`` > ``after`` is there."""
        if self.overload == "train-all" or newest - after <= self.max_snapshots:
            return after + 1
        return newest if self.overload == "skip-to-latest" else newest - self.max_snapshots // 2

    def passes(self, lag: int, epochs: int) -> float:
        """Passes over a snapshot's events, in 0 … ``epochs``.

        Args:
            lag: Snapshots that wait after it.
            epochs: Passes without lag.
        """
        free = self.max_snapshots // 4
        if self.overload != "subsample" or lag <= free:
            return float(epochs)
        return epochs * max(0.0, 1.0 - (lag - free) / (self.max_snapshots - free))
