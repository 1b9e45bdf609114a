"""The number of checkpoint blocks for a device's memory, by measurement (ESDG section 3.1)."""

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
from trainer.timeline.timeline import Horizon

MIB = 1 << 20
LOOSE = 1.25
"""A measurement serves while its bound for other horizons is at most this factor."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement on a horizon.

    Attributes:
        saved: Most bytes that a block of one snapshot of each rank saves.
        carried: Most bytes of a block's carry.
        nodes: Of the horizon.
        fewest: The smallest share of nodes with an edge in so many consecutive snapshots.
        most: The largest.
    """

    saved: int
    carried: int
    nodes: int
    fewest: float
    most: float

    def scale(self, nodes: int, fewest: float, most: float) -> float:
        """The factor by which other horizons of as many snapshots can need more.

        All bytes belong to rows of two kinds, with an edge and without. With the same shares they grow as nodes do. A share
        beyond the measured ones by δ adds δ rows of the larger kind, of which half were measured.
        """
        further = max(0.0, self.fewest - fewest, most - self.most)
        return max(1.0, nodes / max(1, self.nodes)) * (1 + 2 * further)


class Budget:
    """Finds the smallest number of blocks, equal on all ranks, whose saved tensors and carries fit.

    A snapshot is run once where most nodes have an edge, and once where fewest have. Other blocks save an amount between,
    because every node has a row in each snapshot, crossing or not. The measurement serves until horizons differ much.

    Args:
        ranks: All ranks.
        groups: Ranks, or groups of them, among which snapshots are divided.
        mib: The budget of each, MiB.

    Attributes:
        bytes: The budget.
        measured: Measurements by number of snapshots.
    """

    def __init__(self, ranks: Ranks, groups: int, mib: float) -> None:
        self._ranks, self._groups, self.bytes = ranks, groups, int(mib * MIB)
        self.measured: dict[int, Measured] = {}  # by snapshots

    def to_learn(
        self, model: SnapshotModel, horizon: Horizon, pass_in: Callable[[list[range]], Blocks]
    ) -> int:
        """Blocks of a pass with a gradient; a collective.

        Args:
            model: Trained.
            horizon: The snapshots.
            pass_in: A pass in given blocks.

        Raises:
            Failure: Even one snapshot per rank and block is too large.
        """
        steps, size = len(horizon.taus), self._groups
        shares = self._shares(horizon)
        nodes, fewest, most = len(horizon.nodes), float(shares.min()), float(shares.max())
        found = self.measured.get(steps)
        if found is None or found.scale(nodes, fewest, most) > LOOSE or nodes * LOOSE < found.nodes:
            bytes_of = self._measured(model, horizon, pass_in, shares)
            found = self.measured[steps] = Measured(*bytes_of, nodes, fewest, most)
        scale = found.scale(nodes, fewest, most)
        saved, carried = found.saved * scale, found.carried * scale
        for number in range(1, steps + 1):
            longest = -(-steps // number)
            if -(-longest // size) * saved + (number - 1) * carried <= self.bytes:
                return number
        least = saved + (steps - 1) * carried
        raise Failure(
            f"strategy_params of snapshot: device_budget_mib is {self.bytes / MIB:g}, but a rank needs about "
            f"{least / MIB:.3g} even with one snapshot of each rank in a block. Raise it, lower the key horizon, or "
            "start more ranks"
        )

    def to_predict(self, model: SnapshotModel, horizon: Horizon) -> int:
        """Blocks of a pass without a gradient, which holds rows of two stages at a time."""
        steps = len(horizon.taus)
        each = next(model.parameters()).element_size() * len(horizon.nodes)
        rows = -(-steps // self._groups) * 2 * (model.inputs + 4 * model.width)
        return max(1, min(steps, -(-each * rows // self.bytes)))  # no node, no bytes

    def _shares(self, horizon: Horizon) -> NDArray[np.float64]:
        """The share of nodes with an edge in each run of consecutive snapshots, one of each rank."""
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
        """Most bytes that a block of one snapshot of each rank saves, and most bytes of a carry."""
        length = min(self._groups, len(horizon.taus))
        most = [0, 0]
        for first in sorted({int(shares.argmin()), int(shares.argmax())}):
            blocks, before = pass_in([range(first, first + length)]), None
            found: list[list[int]] = []
            # first without a carry, then with those of more and more blocks, which may grow for a while
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
