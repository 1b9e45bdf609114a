"""How many checkpoint blocks a device's memory asks for, measured (ESDG section 3.1)."""

from collections.abc import Callable

import numpy as np
import torch

from stream.service.failure import Failure
from trainer.models.interface import SnapshotModel
from trainer.models.unroll import unroll
from trainer.ranks import Ranks
from trainer.strategies.snapshots.blocks import Blocks, carried_bytes
from trainer.strategies.snapshots.saved_bytes import SavedBytes
from trainer.timeline.horizon import Horizon

MIB = 1 << 20


class Budget:
    """Finds the fewest blocks whose saved tensors and carries fit; all ranks have equally many.

    A snapshot is run once where most nodes have an edge, and once where fewest have: what a block saves lies between, for
    every node has a row in each snapshot, crossing or not.

    Args:
        ranks: All ranks.
        mib: The budget of each, MiB.
    """

    def __init__(self, ranks: Ranks, mib: float) -> None:
        self._ranks, self._bytes = ranks, int(mib * MIB)
        self._found: dict[tuple[object, ...], int] = {}

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
        steps, size = len(horizon.taus), self._ranks.size
        key = (*horizon.taus, len(horizon.nodes))
        if key not in self._found:
            saved, carried = self._measured(model, horizon, pass_in)
            for number in range(1, steps + 1):
                longest = -(-steps // number)
                if -(-longest // size) * saved + (number - 1) * carried <= self._bytes:
                    break
            else:
                least = saved + (steps - 1) * carried
                raise Failure(
                    f"strategy_params of snapshot: device_budget_mib is {self._bytes / MIB:g}, but a rank needs about "
                    f"{least / MIB:.3g} even with one snapshot of each rank in a block. Raise it, lower the key horizon, or "
                    "start more ranks"
                )
            self._found = {key: number}
        return self._found[key]

    def to_predict(self, model: SnapshotModel, horizon: Horizon) -> int:
        """Blocks of a pass without a gradient, of which rows of two stages are there at a time."""
        steps = len(horizon.taus)
        each = next(model.parameters()).element_size() * len(horizon.nodes)
        rows = -(-steps // self._ranks.size) * 2 * (model.inputs + 4 * model.width)
        return max(1, min(steps, -(-each * rows // self._bytes)))  # no node, no bytes

    @torch.enable_grad()
    def _measured(
        self, model: SnapshotModel, horizon: Horizon, pass_in: Callable[[list[range]], Blocks]
    ) -> tuple[int, int]:
        """Bytes that a block of one snapshot of each rank saves, and those that a block takes over, at most."""
        length = min(self._ranks.size, len(horizon.taus))
        counts = np.array([horizon.active(at).sum() for at in range(len(horizon.taus))])
        sums = np.convolve(counts, np.ones(length), "valid")
        most, further = [0, 0], len(horizon.taus) // length
        for first in sorted({int(sums.argmin()), int(sums.argmax())}):
            blocks, found, before = pass_in([range(first, first + length)]), [], None
            for _ in range(2):  # without a carry, and with one, which may grow from block to block
                with SavedBytes(list(model.parameters())) as saved:
                    rows, after = unroll(
                        model.stages, blocks.layout(blocks.ranges[0]), before, last=blocks.last
                    )
                before = blocks.begun(after)
                found.append([saved.bytes, carried_bytes(before)])
                del rows, after
            at_last = [each + further * max(0, each - none) for none, each in zip(*found, strict=True)]
            most = [max(each) for each in zip(most, found[0], at_last, strict=True)]
            horizon.release(range(first, first + length))
        saved_bytes, carried = self._ranks.maximum(most)
        return saved_bytes, carried
