"""Gradient checkpoint blocks: the gradient over many snapshots in the memory of a few (ESDG section 3.1)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.models.stages import Carry, Stage
from trainer.models.unroll import Layout, unroll


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
            found = loss(number, rows)
            handed = zip(_tensors(after), wanted, strict=True) if wanted else ()
            roots = [(found + layout.tie(), None), *((each, of) for each, of in handed if of is not None)]
            learned = [(root, of) for root, of in roots if root.requires_grad]
            if learned:
                torch.autograd.backward([root for root, _ in learned], [of for _, of in learned])
            wanted = [each.grad for each in _tensors(before)]
            total = found.detach() if total is None else total + found.detach()
            del rows, after, found, roots, learned, layout
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
            begun.append(_mapped(carry, lambda each: _leaf(each, learned)))  # noqa: B023  called at once
        return begun


def compact(carries: list[Carry]) -> list[Carry]:
    """Carries that hold no larger storage of which they are views."""
    return [_mapped(carry, _compact) for carry in carries]


def carried_bytes(carries: Any) -> int:
    """Bytes of carries."""
    return sum(each.untyped_storage().nbytes() for each in _tensors(carries))


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
