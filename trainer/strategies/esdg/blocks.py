"""Gradient checkpoint blocks: the gradient over many snapshots in the memory of a few, and their number (ESDG section 3.1)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.models.interface import SnapshotModel
from freshet_graph.trainer.models.stages import Carry, Stage
from freshet_graph.trainer.models.unroll import Layout, unroll
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.timeline.timeline import Horizon


class BlockLayout(Layout, Protocol):
    """The layout of a block."""

    def tie(self) -> Tensor:
        """Zero, with a gradient of zero to all rows that crossed ranks, so that all ranks take their way back."""
        ...


@dataclass(frozen=True, slots=True)
class Blocks:
    """A pass over consecutive blocks of snapshots.

    Attributes:
        stages: Of the model.
        ranges: Places of the snapshots of each block.
        layout: Makes the layout of a block.
        leave: Called after each block, to release data that only its layout needs.
        last: Whether only the newest snapshot's rows are wanted.
    """

    stages: Sequence[Stage]
    ranges: Sequence[range]
    layout: Callable[[range], BlockLayout]
    leave: Callable[[range], None]
    last: bool

    def forward(self) -> Tensor:
        """Rows of the last block; nothing is kept for a gradient."""
        carries = self.carries()
        rows, _ = self._unrolled(self.layout(self.ranges[-1]), carries[-1])
        return rows

    def backward(self, loss: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Add the gradient of the sum of all blocks' losses to the weights.

        The forward pass keeps only the carries between blocks. Then, from the last block to the first, each block is run
        again with a gradient, and the gradient of its carry by its loss and later blocks is handed on.

        Args:
            loss: From the number of a block and its rows, a scalar.

        Returns:
            The sum of the losses.
        """
        carries = self.carries()
        total: Tensor | None = None
        wanted: list[Tensor | None] = []
        for number in reversed(range(len(self.ranges))):
            before = self.begun(carries.pop())
            layout = self.layout(self.ranges[number])
            rows, after = self._unrolled(layout, before)
            block_loss = loss(number, rows)
            handed = zip(_tensors(after), wanted, strict=True) if wanted else ()
            roots = [
                (block_loss + layout.tie(), None),
                *((tensor, of) for tensor, of in handed if of is not None),
            ]
            learned = [(root, of) for root, of in roots if root.requires_grad]
            if learned:
                torch.autograd.backward([root for root, _ in learned], [of for _, of in learned])
            wanted = [tensor.grad for tensor in _tensors(before)]
            total = block_loss.detach() if total is None else total + block_loss.detach()
            del rows, after, block_loss, roots, learned, layout
            self.leave(self.ranges[number])
        assert total is not None
        return total

    @torch.no_grad()
    def carries(self) -> list[list[Carry] | None]:
        """The carry of each block from the one before."""
        carries: list[list[Carry] | None] = [None]
        for block in self.ranges[:-1]:
            _, after = self._unrolled(self.layout(block), carries[-1])
            carries.append(compact(after))
            self.leave(block)
        return carries

    def _unrolled(self, layout: BlockLayout, before: list[Carry] | None) -> tuple[Tensor, list[Carry]]:
        return unroll(self.stages, layout, before, last=self.last)

    def begun(self, before: list[Carry] | None) -> list[Carry] | None:
        """A carry as leaves of a gradient, from the first stage with weights on."""
        if before is None:
            return None
        learned, begun = False, []
        for stage, carry in zip(self.stages, before, strict=True):
            learned = learned or any(weight.requires_grad for weight in stage.parameters())
            begun.append(_mapped(carry, lambda tensor: _leaf(tensor, learned)))  # noqa: B023  called at once
        return begun


def compact(carries: list[Carry]) -> list[Carry]:
    """Carries that hold no larger storage of which they are views."""
    return [_mapped(carry, _compact) for carry in carries]


def carried_bytes(carries: Any) -> int:
    """Bytes of carries."""
    return sum(tensor.untyped_storage().nbytes() for tensor in _tensors(carries))


def _leaf(tensor: Tensor, learned: bool) -> Tensor:
    leaf = tensor.detach()
    return leaf.requires_grad_(learned and leaf.is_floating_point())


def _compact(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _tensors(carry: Any) -> Iterator[Tensor]:
    if isinstance(carry, Tensor):
        yield carry
    elif isinstance(carry, tuple | list):
        for part in carry:
            yield from _tensors(part)


def _mapped(carry: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(carry, Tensor):
        return change(carry)
    if isinstance(carry, tuple | list):
        return type(carry)(_mapped(part, change) for part in carry)
    return carry


class SavedBytes:
    """A context that counts the bytes of storages saved for backward, each once, without those of the model's weights."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.bytes = 0
        self._seen = {weight.untyped_storage().data_ptr() for weight in weights}
        self._saved_tensors: list[Tensor] = []  # so that no storage gets the address of another
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._saved, lambda tensor: tensor)

    def __enter__(self) -> "SavedBytes":
        """Count from now on."""
        self._hooks.__enter__()
        return self

    def __exit__(self, *caught: object) -> None:
        """Count no more."""
        self._saved_tensors.clear()
        self._hooks.__exit__()

    def _saved(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
            self._saved_tensors.append(tensor.detach())
        # An operation's result and its graph would refer to each other for ever.
        return tensor.detach()


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


class BlockBudget:
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
        known = self.measured.get(steps)
        if known is None or known.scale(nodes, fewest, most) > LOOSE or nodes * LOOSE < known.nodes:
            bytes_of = self._measured(model, horizon, pass_in, shares)
            known = self.measured[steps] = Measured(*bytes_of, nodes, fewest, most)
        scale = known.scale(nodes, fewest, most)
        saved, carried = known.saved * scale, known.carried * scale
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
        column_bytes = next(model.parameters()).element_size() * len(horizon.nodes)
        rows = -(-steps // self._groups) * 2 * (model.inputs + 4 * model.width)
        return max(1, min(steps, -(-column_bytes * rows // self.bytes)))  # no node, no bytes

    def _shares(self, horizon: Horizon) -> NDArray[np.float64]:
        """The share of nodes with an edge in each run of consecutive snapshots, one of each rank."""
        length, nodes = min(self._groups, len(horizon.taus)), max(1, len(horizon.nodes))
        counts = np.array([horizon.active(place).sum() for place in range(len(horizon.taus))])
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
            sizes: list[list[int]] = []
            # first without a carry, then with those of more and more blocks, which may grow for a while
            while len(sizes) < 2 or (
                len(sizes) <= len(horizon.taus) and self._ranks.any(sizes[-1] != sizes[-2])[0]
            ):
                with SavedBytes(list(model.parameters())) as saved:
                    rows, after = unroll(
                        model.stages, blocks.layout(blocks.ranges[0]), before, last=blocks.last
                    )
                before = blocks.begun(compact(after))
                sizes.append([saved.bytes, carried_bytes(before)])
                del rows, after
            most = [max(bytes_of_blocks) for bytes_of_blocks in zip(most, *sizes, strict=True)]
            horizon.release(range(first, first + length))
        saved_bytes, carried = self._ranks.maximum(most)
        return saved_bytes, carried
