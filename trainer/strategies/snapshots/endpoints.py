"""The loss of a block's lessons on the ranks with its embeddings: the owner of each question, and rows from other ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stream.arrays.kinds import Bool, Float32, Int64
from trainer.device import to_device
from trainer.nn.rows import rows
from trainer.strategies.snapshots.mesh import Mesh
from trainer.tasks.interface import Asked, Task


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions about one snapshot, the same on all ranks.

    Attributes:
        at: Number of snapshots of the horizon before the embeddings that answer them.
        asked: The questions.
        truth: float32 (Q,), their true answers.
        ends: int64 (Q,) compact numbers of each of ``asked.ends``.
    """

    at: int
    asked: Asked
    truth: Float32
    ends: tuple[Int64, ...]

    def of(self, chosen: Bool) -> "Questions":
        """Some of them; ``chosen`` is bool (Q,)."""
        columns: dict[str, Any] = {
            each.name: getattr(self.asked, each.name)[chosen]
            for each in fields(self.asked)  # type: ignore[arg-type]
        }
        asked = type(self.asked)(**columns)
        return Questions(self.at, asked, self.truth[chosen], tuple(end[chosen] for end in self.ends))


class Loss:
    """The loss of questions from rows of embeddings (t, n, d) that are distributed over ranks.

    Args:
        task: Has the loss.
        head: Of the model.
        mesh: All ranks.
        nodes: Number of compact numbers.
    """

    def __init__(self, task: Task, head: nn.Module, mesh: Mesh, nodes: int) -> None:
        self._task, self._head, self._nodes = task, head, nodes
        self._ranks, self._within = mesh.ranks, mesh.within

    def by_snapshot(self, z: Tensor, first: int, questions: Sequence[Questions]) -> Tensor:
        """The sum over questions about this rank's whole snapshots; ranks of a group share them by their first ends.

        Args:
            z: (t, n, d).
            first: ``at`` of the first row.
            questions: Of all ranks.
        """
        losses = [z[:0].sum()]
        for asked in questions:
            if first <= asked.at < first + len(z):
                shared = self._within.size > 1
                each = asked.of(asked.ends[0] % self._within.size == self._within.rank) if shared else asked
                losses.append(
                    self._of(each, [rows(z[each.at - first], self._on_device(e)) for e in each.ends])
                )
        return torch.stack(losses).sum()

    def by_node(self, z: Tensor, first: int, questions: Sequence[Questions]) -> Tensor:
        """The sum over questions whose first end is this rank's, in all snapshots; other ends' rows come from their ranks.

        The rows to exchange follow from the questions, so no rank asks for them.

        Args:
            z: (t, own nodes, d).
            first: ``at`` of the first row.
            questions: Of all ranks, about these snapshots only.
        """
        ranks, n = self._ranks, self._nodes
        flat = z.reshape(-1, z.shape[2])
        of_rank = [
            [each.of(each.ends[0] % ranks.size == rank) for each in questions] for rank in range(ranks.size)
        ]
        wanted = [self._others(theirs, first) for theirs in of_rank]
        own = wanted[ranks.rank]
        homes = own % n % ranks.size
        order = np.argsort(homes, kind="stable")
        leaving = [keys[keys % n % ranks.size == ranks.rank] for keys in wanted]
        arrived = ranks.exchange(
            flat.index_select(0, self._on_device(self._place(np.concatenate(leaving), z.shape[1]))),
            [len(keys) for keys in leaving],
            np.bincount(homes, minlength=ranks.size).tolist(),
            "endpoints",
        )
        place_of = np.empty(len(own), np.int64)
        place_of[order] = np.arange(len(own))
        losses = [arrived[:0].sum()]
        for each in of_rank[ranks.rank]:
            base = (each.at - first) * n
            found = [rows(flat, self._on_device(self._place(base + each.ends[0], z.shape[1])))]
            for end in each.ends[1:]:
                found.append(rows(arrived, self._on_device(place_of[np.searchsorted(own, base + end)])))
            losses.append(self._of(each, found))
        return torch.stack(losses).sum()

    def _others(self, questions: Sequence[Questions], first: int) -> Int64:
        """Keys, snapshot · n + node, of all ends except the first; ascending and distinct."""
        found = [(each.at - first) * self._nodes + end for each in questions for end in each.ends[1:]]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def _place(self, keys: Int64, width: int) -> Int64:
        """Places of keys in the (t, own nodes) table of their owner."""
        at, node = np.divmod(keys, self._nodes)
        return at * width + node // self._ranks.size

    def _of(self, questions: Questions, ends: list[Tensor]) -> Tensor:
        return self._task.loss(questions.asked.read(self._head, ends), self._on_device(questions.truth))

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return to_device(array, self._ranks.device)
