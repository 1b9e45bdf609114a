"""Hybrid batches of a horizon: graphs and inputs on the host, windows of lessons, and a batch from its recipe."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Float32, Float64, Int64
from trainer.models.interface import NodeInputs, SnapshotModel
from trainer.models.stages import GraphStage
from trainer.strategies.snapshots.closed_batch import Closure, HybridBatch, close
from trainer.strategies.snapshots.closure import HostGraph
from trainer.strategies.snapshots.lesson_windows import AskedNodes, LessonWindow, least_load, roots
from trainer.strategies.snapshots.reservoir import Recipe
from trainer.tasks.interface import Asked, Lesson
from trainer.timeline.horizon import node_rows, split_rows
from trainer.timeline.view import TimelineView

Shares = Sequence[tuple[float, float]]


class BatchMaker:
    """Makes batches from the last snapshots of a view, in any thread, while the view does not move.

    Args:
        model: Encodes inputs; its stages decide the closure.
        sizes: Shares of snapshots and of vertices of each size.
        seed: Of this rank's draws.
    """

    def __init__(self, model: SnapshotModel, sizes: Shares, seed: Sequence[int]) -> None:
        self._model, self._sizes, self._seed = model, sizes, list(seed)
        self.hops = sum(isinstance(stage, GraphStage) for stage in model.stages)
        self._view: TimelineView | None = None
        self._graphs: dict[int, HostGraph] = {}
        self._loads: dict[int, Float64] = {}
        self._asked: dict[int, AskedNodes] = {}
        self._windows: dict[tuple[int, int], LessonWindow] = {}
        self._reading, self._windowing = (
            threading.Lock(),
            threading.Lock(),
        )  # of generators, never of training

    def take_in(self, view: TimelineView) -> None:
        """Take in the newest snapshots of a view; data of the others stay."""
        host = view.timeline
        if view is not self._view:
            self._view, self._graphs, self._loads = view, {}, {}
        taus = host.taus
        self._graphs = {
            tau: self._graphs[tau] if tau in self._graphs else host_graph(view, tau) for tau in taus
        }
        self._loads = {tau: loads for tau, loads in self._loads.items() if tau in taus}

    def open(self, lessons: Sequence[tuple[Lesson, Int64]]) -> None:
        """Take in the next lessons, each with its items to learn, int64, ascending; the newest last."""
        taus = list(self._graphs)
        self._asked, self._windows = {}, {}
        for lesson, items in lessons:
            if lesson.tau not in taus[1:]:
                continue
            before = taus[taus.index(lesson.tau) - 1]
            if before not in self._loads:
                self._loads[before] = self._graphs[before].loads(self.hops)
            if len(items):
                self._asked[before] = AskedNodes(lesson, items, self._loads[before], least_load(self.hops))
        self._newest = taus[-1]

    def make(self, recipe: Recipe) -> HybridBatch:
        """The batch of a recipe, the same at any time."""
        taus = self._window(recipe.first, recipe.length)
        window = self._lesson_window(taus)
        share = self._sizes[recipe.size][1]
        draw = np.random.default_rng([*self._seed, recipe.size, recipe.number])
        count = max(1, round(share * len(window.nodes)))
        targets = window.nodes[window.sampler.draw(count, draw)]
        asked, items = window.questions(targets)
        newest = recipe.length - 1 if recipe.until == self._newest else -1
        learned = items.get(newest, np.empty(0, np.int64))
        return replace(self.batch(taus, asked), items=learned, targets=len(targets), size=recipe.size)

    def batch(self, taus: Sequence[int], asked: list[tuple[int, Asked, Float32]]) -> HybridBatch:
        """A batch of given questions after snapshots."""
        closure = self.close(taus, roots(asked))
        return HybridBatch(closure, self.inputs(self._model.encode, taus, closure), asked)

    def close(self, taus: Sequence[int], nodes: Int64) -> Closure:
        """See ``closed_batch.close``."""
        assert self._view is not None
        num_nodes = max(self._view.num_nodes, int(nodes.max(initial=-1)) + 1)
        return close([self._graphs[tau] for tau in taus], self._model.stages, nodes, num_nodes)

    def inputs(self, encode: Callable[[NodeInputs], Tensor], taus: Sequence[int], closure: Closure) -> Tensor:
        """Encoded inputs (m, d) of a closure's lowest rows, on the host."""
        assert self._view is not None
        if not taus:
            return torch.empty(0, self._model.inputs)
        ends, rows, degrees = np.cumsum([0, *closure.lowest_of]), [], []
        for tau, begin, end in zip(taus, ends[:-1], ends[1:], strict=True):
            nodes = closure.lowest[begin:end]
            with self._reading:
                rows.append(node_rows(self._view, tau, nodes))
            degrees.append(self._graphs[tau].degrees(nodes))
        means = self._view.timeline.smoothing.kind == "m-product"
        known = None if means else torch.from_numpy(np.concatenate(degrees))
        with torch.no_grad():
            return encode(split_rows(closure.lowest, torch.from_numpy(np.concatenate(rows)), known))

    @property
    def taus(self) -> list[int]:
        """Interval indices of the present snapshots, the newest included."""
        return list(self._graphs)

    @property
    def held_bytes(self) -> int:
        """Bytes of graphs and loads."""
        return sum(each.nbytes for each in self._graphs.values()) + sum(
            each.nbytes for each in self._loads.values()
        )

    def _window(self, first: int, length: int) -> list[int]:
        at = self.taus.index(first)
        return self.taus[at : at + length]

    def _lesson_window(self, taus: Sequence[int]) -> LessonWindow:
        key = taus[0], len(taus)
        with self._windowing:
            if key not in self._windows:
                self._windows[key] = LessonWindow(
                    {place: self._asked[tau] for place, tau in enumerate(taus) if tau in self._asked}
                )
            return self._windows[key]


def host_graph(view: TimelineView, tau: int) -> HostGraph:
    """The adjacency of a snapshot for strategies that hold whole ones, smoothing included."""
    host = view.timeline
    place = host.place(tau)
    entries = host.whole(place, directed=False)
    values = None
    if host.smooths:
        divisor = len(host.members(place)) if host.smoothing.kind == "m-product" else 1
        values = entries.values / np.float32(divisor)
    low, high = entries.keys >> 32, entries.keys & 0xFFFFFFFF
    return HostGraph.of_pairs(tau, host.snapshots[place].num_nodes, low, high, values)
