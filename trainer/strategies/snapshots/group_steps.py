"""The gradient of a step over several groups, whose separate gradients are summed in order of the groups' numbers."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trainer.learning.soundness import spoil
from trainer.ranks import Ranks


class GroupSteps:
    """Computes gradients of groups, and measures the seconds of each.

    Args:
        weights: Of the model.
        ranks: All ranks.
        ordered: Whether gradients are summed in the order of groups, so that the sum is equal to the bit on any number of
            ranks; otherwise each rank sums its own, and an all-reduce sums those of ranks.
    """

    def __init__(self, weights: Sequence[nn.Parameter], ranks: Ranks, *, ordered: bool) -> None:
        self._weights = [weight for weight in weights if weight.requires_grad]
        self._ranks, self._ordered = ranks, ordered
        self._lasted: dict[int, Callable[[], float]] = {}
        self._losses: dict[int, Tensor] = {}

    def backward(
        self, loss: Callable[[int], Tensor], groups: Sequence[int], weight: float
    ) -> Callable[[], Tensor | None]:
        """A function, a collective if gradients are ordered, that computes the gradient of one step's groups.

        Args:
            loss: Of a group, a scalar; its forward pass.
            groups: Numbers of this rank's groups, maybe none.
            weight: Of every loss in the sum.

        Returns:
            See ``Learner.follow``.
        """

        def backward() -> Tensor | None:
            losses: list[Tensor] = []
            parts: dict[int, list[Tensor | None]] = {}
            for group in groups:
                end = _begun(self._ranks.device)
                found = loss(group)
                if found.requires_grad:  # no, before the first snapshot and under a head without weights
                    (found * weight).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
                losses.append(found.detach())
                self._losses[group] = found.detach()
                if self._ordered:
                    spoil(self._weights, found)
                    parts[group] = [each.grad for each in self._weights]
                    for each in self._weights:
                        each.grad = None
                self._lasted[group] = end()
            if self._ordered:
                self._sum(parts)
            return torch.stack(losses).sum() if losses else None

        return backward

    def seconds(self) -> dict[int, float]:
        """Seconds of each group since the last call."""
        lasted, self._lasted = self._lasted, {}
        return {group: ended() for group, ended in lasted.items()}

    def losses(self) -> dict[int, float]:
        """The loss of each group since the last call, read from the device at once."""
        found, self._losses = self._losses, {}
        if not found:
            return {}
        values = torch.stack([each.double() for each in found.values()]).tolist()
        return dict(zip(found, values, strict=True))

    def _sum(self, parts: dict[int, list[Tensor | None]]) -> None:
        there = self._ranks.any(
            *(any(part[at] is not None for part in parts.values()) for at in range(len(self._weights)))
        )
        whole = {
            group: [
                torch.zeros_like(each) if gradient is None else gradient
                for each, gradient in zip(self._weights, part, strict=True)
            ]
            for group, part in parts.items()
        }
        sums = self._ranks.sum_in_order(whole, self._weights, "gradients")
        for each, total, has in zip(self._weights, sums, there, strict=True):
            each.grad = total if has else None


def _begun(device: torch.device) -> Callable[[], Callable[[], float]]:
    """Begin a measurement. Call the result to end it; that returns a function for the seconds. The host never waits for a GPU."""
    if device.type != "cuda":
        # One thread does all the work of a group, so its processor time is the group's, on a busy machine, too.
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        began_s = clock()

        def end() -> Callable[[], float]:
            took_s = clock() - began_s
            return lambda: took_s

        return end
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    first.record()

    def end_on_device() -> Callable[[], float]:
        last.record()
        return lambda: _elapsed_s(first, last)

    return end_on_device


def _elapsed_s(first: torch.cuda.Event, last: torch.cuda.Event) -> float:
    last.synchronize()
    return first.elapsed_time(last) / 1000
