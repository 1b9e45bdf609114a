"""How many checkpoint blocks a device's memory asks for, measured (ESDG section 3.1)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from stream.service.failure import Failure
from trainer.models.interface import SnapshotModel
from trainer.models.unroll import unroll
from trainer.ranks import Ranks
from trainer.strategies.snapshots.blocks import Blocks, carried_bytes, compact
from trainer.strategies.snapshots.saved_bytes import SavedBytes
from trainer.timeline.horizon import Horizon

MIB = 1 << 20
LOOSE = 1.25
"""What was measured serves as long as what it says of other horizons is at most so much more than they can need."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on a horizon.

    Attributes:
        saved: Bytes that a block of one snapshot of each rank saves, at most.
        carried: Bytes that a block takes over, at most.
        nodes: Of the horizon.
        fewest: The least share of nodes with an edge in so many consecutive snapshots.
        most: The largest.
    """

    saved: int
    carried: int
    nodes: int
    fewest: float
    most: float

    def scale(self, nodes: int, fewest: float, most: float) -> float:
        """How many times as much other horizons of as many snapshots can need.

        All bytes are of rows, of two kinds: with an edge, and without. With the same shares of both they grow as nodes do.
        A share that was not measured, farther out by δ, adds δ rows of the larger kind, of which half were measured.
        """
        further = max(0.0, self.fewest - fewest, most - self.most)
        return max(1.0, nodes / max(1, self.nodes)) * (1 + 2 * further)


class Budget:
    """Finds the fewest blocks whose saved tensors and carries fit; all ranks have equally many.

    A snapshot is run once where most nodes have an edge, and once where fewest have: what a block saves lies between, for
    every node has a row in each snapshot, crossing or not. That serves until horizons are quite different.

    Args:
        ranks: All ranks.
        groups: Ranks, or groups of them, among which snapshots are divided.
        mib: The budget of each, MiB.
    """

    def __init__(self, ranks: Ranks, groups: int, mib: float) -> None:
        self._ranks, self._groups, self._bytes = ranks, groups, int(mib * MIB)
        self._found: dict[int, Measured] = {}  # by snapshots

    def to_learn(
        self, model: SnapshotModel, horizon: Horizon, pass_in: Callable[[list[range]], Blocks]
    ) -> int:
        """Blocks of a pass whose gradient is wanted; a collective.

        Args:
            model: Trained.
            horizon: The snapshots.
            pass_in: A pass in given blocks.

        Raises:
            Failure: One snapshot per rank and block is too much.
        """
        steps, size = len(horizon.taus), self._groups
        shares = self._shares(horizon)
        nodes, fewest, most = len(horizon.nodes), float(shares.min()), float(shares.max())
        found = self._found.get(steps)
        if found is None or found.scale(nodes, fewest, most) > LOOSE or nodes * LOOSE < found.nodes:
            bytes_of = self._measured(model, horizon, pass_in, shares)
            found = self._found[steps] = Measured(*bytes_of, nodes, fewest, most)
        scale = found.scale(nodes, fewest, most)
        saved, carried = found.saved * scale, found.carried * scale
        for number in range(1, steps + 1):
            longest = -(-steps // number)
            if -(-longest // size) * saved + (number - 1) * carried <= self._bytes:
                return number
        least = saved + (steps - 1) * carried
        raise Failure(
            f"strategy_params of snapshot: device_budget_mib is {self._bytes / MIB:g}, but a rank needs about "
            f"{least / MIB:.3g} even with one snapshot of each rank in a block. Raise it, lower the key horizon, or "
            "start more ranks"
        )

    def to_predict(self, model: SnapshotModel, horizon: Horizon) -> int:
        """Blocks of a pass without a gradient, of which rows of two stages are there at a time."""
        steps = len(horizon.taus)
        each = next(model.parameters()).element_size() * len(horizon.nodes)
        rows = -(-steps // self._groups) * 2 * (model.inputs + 4 * model.width)
        return max(1, min(steps, -(-each * rows // self._bytes)))  # no node, no bytes

    def _shares(self, horizon: Horizon) -> NDArray[np.float64]:
        """Of each row of consecutive snapshots, one of each rank: the share of nodes that have an edge."""
        length, nodes = min(self._groups, len(horizon.taus)), max(1, len(horizon.nodes))
        counts = np.array([horizon.active(at).sum() for at in range(len(horizon.taus))])
        return np.convolve(counts, np.ones(length), "valid") / (length * nodes)

    @torch.enable_grad()
    def _measured(
        self,
        model: SnapshotModel,
        horizon: Horizon,
        pass_in: Callable[[list[range]], Blocks],
        shares: NDArray[np.float64],
    ) -> tuple[int, int]:
        """Bytes that a block of one snapshot of each rank saves, and those that a block takes over, at most."""
        length = min(self._groups, len(horizon.taus))
        most = [0, 0]
        for first in sorted({int(shares.argmin()), int(shares.argmax())}):
            blocks, before = pass_in([range(first, first + length)]), None
            found: list[list[int]] = []
            # without a carry, then with those of more and more blocks, which may grow for a while
            while len(found) < 2 or (
                len(found) <= len(horizon.taus) and self._ranks.any(found[-1] != found[-2])[0]
            ):
                with SavedBytes(list(model.parameters())) as saved:
                    rows, after = unroll(
                        model.stages, blocks.layout(blocks.ranges[0]), before, last=blocks.last
                    )
                before = blocks.begun(compact(after))
                found.append([saved.bytes, carried_bytes(before)])
                del rows, after
            most = [max(each) for each in zip(most, *found, strict=True)]
            horizon.release(range(first, first + length))
        saved_bytes, carried = self._ranks.maximum(most)
        return saved_bytes, carried
