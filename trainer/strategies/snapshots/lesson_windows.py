"""The questions of some consecutive snapshots by the node of each question: the candidates of hybrid batches' targets."""

from collections.abc import Mapping, Sequence

import numpy as np

from stream.arrays.kinds import Float32, Float64, Int64
from stream.kernels.node_sets import distinct
from trainer.strategies.request import runs
from trainer.strategies.snapshots.load_sampler import LoadBalancedSampler
from trainer.tasks.interface import Asked, Lesson


class AskedNodes:
    """One lesson's items by the node of the question, its source, and the load that they add to a batch.

    Args:
        lesson: This rank's.
        items: int64, ascending, those of its items that may be learned.
        loads: Load of each dense id in the snapshot before, float64; nodes beyond have ``least``.
        least: Load of a node without an edge.
    """

    def __init__(self, lesson: Lesson, items: Int64, loads: Float64, least: float) -> None:
        self.lesson = lesson
        asked, _ = lesson.part(items)
        first = asked.ends[0][: len(items)]
        order = np.argsort(first, kind="stable")
        self._items = items[order]
        self.nodes, begins = np.unique(first[order], return_index=True)
        self._begins = np.append(begins, len(items))
        place = np.searchsorted(self.nodes, asked.ends[0])
        weight = np.zeros(len(place))
        for ends in asked.ends[1:]:
            known = ends < len(loads)
            weight += np.where(known, loads[np.where(known, ends, 0)] if len(loads) else least, least)
        own = np.full(len(self.nodes), least)
        known = self.nodes < len(loads)
        own[known] = loads[self.nodes[known]]
        self.load: Float64 = own + np.bincount(place, weight, len(self.nodes))

    def items_of(self, nodes: Int64) -> Int64:
        """Items that ask about nodes, ascending; ``nodes`` int64, ascending."""
        if not len(self.nodes):
            return self._items
        at = np.minimum(np.searchsorted(self.nodes, nodes), len(self.nodes) - 1)
        at = at[self.nodes[at] == nodes]
        return np.sort(self._items[runs(self._begins[at], self._begins[at + 1] - self._begins[at])])


class LessonWindow:
    """Questions after each of some consecutive snapshots, and a sampler over all nodes with questions.

    Args:
        asked: By place of the snapshot before the questions.
    """

    def __init__(self, asked: Mapping[int, AskedNodes]) -> None:
        self._asked = dict(asked)
        self.nodes: Int64 = np.unique(
            np.concatenate([np.empty(0, np.int64), *(each.nodes for each in asked.values())])
        )
        load = np.zeros(len(self.nodes))
        for each in asked.values():
            load[np.searchsorted(self.nodes, each.nodes)] += each.load
        self.sampler = LoadBalancedSampler(load)

    def questions(self, targets: Int64) -> tuple[list[tuple[int, Asked, Float32]], dict[int, Int64]]:
        """Questions about targets, int64 ascending, by place, and their items; places without questions are left out."""
        items = {place: each.items_of(targets) for place, each in self._asked.items()}
        items = {place: chosen for place, chosen in items.items() if len(chosen)}
        return [(place, *self._asked[place].lesson.part(chosen)) for place, chosen in items.items()], items


def roots(asked: Sequence[tuple[int, Asked, Float32]]) -> Int64:
    """All nodes that questions are about, int64, ascending."""
    return distinct(np.empty(0, np.int64), *(ends for _, each, _ in asked for ends in each.ends))


def least_load(hops: int) -> float:
    """The load of a node without an edge: itself in every layer."""
    return float(hops + 1)
