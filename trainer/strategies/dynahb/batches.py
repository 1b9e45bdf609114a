"""Hybrid batches of a horizon: some nodes, drawn by load, in some consecutive snapshots, with all that their embeddings need."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from freshet_graph.stream.arrays.kinds import Float32, Float64, Int64
from freshet_graph.stream.kernels.node_sets import distinct, locate
from freshet_graph.trainer.data.neighbours import runs
from freshet_graph.trainer.data.views import GraphView
from freshet_graph.trainer.models.interface import SnapshotModel
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.snapshots.halo import Reach
from freshet_graph.trainer.strategies.snapshots.past import Past, PastBuilder, encoded
from freshet_graph.trainer.strategies.snapshots.sampled_layout import SampledLayout
from freshet_graph.trainer.tasks.interface import QueryBatch, SnapshotExamples

GROUPS = 10
"""N_bg of the authors' code."""


class LoadBalancedSampler:
    """Draws targets so that every batch of a size has nearly the same load.

    Loads have heavy tails, so a group is divided again, into as many strata as it has targets in the batch.

    Args:
        load: float64 (n,), of each candidate.
        groups: N_bg; there are never more than candidates.
    """

    def __init__(self, load: Float64, groups: int = GROUPS) -> None:
        self._order = np.argsort(-load, kind="stable")
        self._size, groups = len(load), max(1, min(groups, len(load)))
        numbers = np.arange(groups + 1)
        self._begins: Int64 = numbers * (self._size // groups) + np.minimum(numbers, self._size % groups)

    def draw(self, count: int, generator: np.random.Generator) -> Int64:
        """Distinct candidates, int64 (min(count, n),), ascending: count / N_bg of each group, the rest of drawn groups."""
        count = min(count, self._size)
        quotas = self._quotas(count, generator)
        group = np.repeat(np.arange(len(quotas)), quotas)
        of, sizes = quotas[group], np.diff(self._begins)[group]
        stratum = np.arange(count) - (np.cumsum(quotas) - quotas)[group]
        low, high = stratum * sizes // of, (stratum + 1) * sizes // of
        drawn = self._begins[group] + low + (generator.random(count) * (high - low)).astype(np.int64)
        return np.sort(self._order[drawn])

    def _quotas(self, count: int, generator: np.random.Generator) -> Int64:
        sizes = np.diff(self._begins)
        quotas = np.minimum(count // len(sizes), sizes)
        while (left := count - int(quotas.sum())) > 0:
            room = np.flatnonzero(quotas < sizes)
            quotas[generator.permutation(room)[:left]] += 1
        return quotas


class QueriesByNode:
    """One snapshot's items by the node of the question, its source, and the load that they add to a batch.

    Args:
        examples: This rank's.
        items: int64, ascending, those of its items that may be learned.
        loads: Load of each dense id in the snapshot before, float64; nodes beyond have ``least``.
        least: Load of a node without an edge.
    """

    def __init__(self, examples: SnapshotExamples, items: Int64, loads: Float64, least: float) -> None:
        self.examples = examples
        queries, _ = examples.part(items)
        first = queries.ends[0][: len(items)]
        order = np.argsort(first, kind="stable")
        self._items = items[order]
        self.nodes, begins = np.unique(first[order], return_index=True)
        self._begins = np.append(begins, len(items))
        place = np.searchsorted(self.nodes, queries.ends[0])
        weight = np.zeros(len(place))
        for ends in queries.ends[1:]:
            known = ends < len(loads)
            weight += np.where(known, loads[np.where(known, ends, 0)] if len(loads) else least, least)
        own_load = np.full(len(self.nodes), least)
        known = self.nodes < len(loads)
        own_load[known] = loads[self.nodes[known]]
        self.load: Float64 = own_load + np.bincount(place, weight, len(self.nodes))

    def items_of(self, nodes: Int64) -> Int64:
        """Items that ask about nodes, ascending; ``nodes`` int64, ascending."""
        place, known = locate(self.nodes, nodes)
        place = place[known]
        return np.sort(self._items[runs(self._begins[place], self._begins[place + 1] - self._begins[place])])


class ExampleSampler:
    """Questions after each of some consecutive snapshots, and a sampler over all nodes with questions.

    Args:
        queries: By place of the snapshot before the questions.
    """

    def __init__(self, queries: Mapping[int, QueriesByNode]) -> None:
        self._queries = dict(queries)
        self.nodes: Int64 = distinct(*(snapshot.nodes for snapshot in queries.values()))
        load = np.zeros(len(self.nodes))
        for snapshot in queries.values():
            load[np.searchsorted(self.nodes, snapshot.nodes)] += snapshot.load
        self.sampler = LoadBalancedSampler(load)

    def questions(self, targets: Int64) -> tuple[list[tuple[int, QueryBatch, Float32]], dict[int, Int64]]:
        """Questions about targets, int64 ascending, by place, and their items; places without questions are left out."""
        items = {place: queries.items_of(targets) for place, queries in self._queries.items()}
        items = {place: chosen for place, chosen in items.items() if len(chosen)}
        return [
            (place, *self._queries[place].examples.part(chosen)) for place, chosen in items.items()
        ], items


Shares = Sequence[tuple[float, float]]

WHOLE = -1
"""Number of a draw that takes all nodes with questions."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines a batch, beside examples and snapshots.

    Attributes:
        size: Number of the size of batches.
        first: Interval index of its first snapshot.
        length: Its snapshots.
        until: Interval index of its last examples.
        number: Of the draw, or ``WHOLE``.
    """

    size: int
    first: int
    length: int
    until: int
    number: int


@dataclass(frozen=True, slots=True)
class HybridBatch:
    """Rows and edges for the embeddings of some nodes in some snapshots, and questions (DynaHB, definition 3).

    Attributes:
        nodes: int64 (n,), ascending: those that the questions are about.
        layout: Their hops, with inputs on the host.
        questions: For each snapshot with questions: the place of the snapshot before them, questions and true answers.
        items: int64, its items of the newest examples.
        targets: Nodes that were drawn.
        size: Number of its size.
    """

    nodes: Int64
    layout: SampledLayout
    questions: list[tuple[int, QueryBatch, Float32]]
    items: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    targets: int = 0
    size: int = 0

    @property
    def queries(self) -> int:
        """Questions."""
        return sum(len(truth) for _, _, truth in self.questions)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        truths = sum(truth.nbytes for _, _, truth in self.questions)
        ends = sum(nodes.nbytes for _, queries, _ in self.questions for nodes in queries.ends)
        return self.layout.nbytes + truths + ends


class BatchMaker:
    """Makes batches from the last snapshots of a view, in any thread, while the view does not move.

    Args:
        model: Encodes inputs; its stages decide how far a batch reaches.
        sizes: Shares of snapshots and of vertices of each size.
        seed: Of this rank's draws.
        ranks: All ranks, of which each makes batches for itself.
        horizon: Snapshots before the newest.
        features: F.
        budget_bytes: See ``Reach``.
        snapshot_bytes: See ``fits_whole``.
    """

    def __init__(
        self,
        model: SnapshotModel,
        sizes: Shares,
        seed: Sequence[int],
        ranks: Ranks,
        horizon: int,
        features: int,
        budget_bytes: int | None = None,
        snapshot_bytes: int = 0,
    ) -> None:
        self._model, self._sizes, self._seed = model, sizes, list(seed)
        self._snapshot_bytes = snapshot_bytes
        self._alone = Ranks(device=ranks.device)
        self.hops = sum(isinstance(stage, GraphStage) for stage in model.stages)
        self.reach = Reach(ranks, model.stages, features, budget_bytes)
        self._builder = PastBuilder(horizon + 1, ranks)
        self.past = Past([], horizon + 1)
        self._view: GraphView | None = None
        self._queries: dict[int, QueriesByNode] = {}
        self._windows: dict[tuple[int, int], ExampleSampler] = {}
        # Taken by threads of the generator only.
        self._reading, self._windowing = threading.Lock(), threading.Lock()

    def take_in(self, view: GraphView) -> None:
        """Take in the newest snapshots of a view; data of the others stay."""
        self._view, self.past = view, self._builder.through_latest(view)
        self.reach.keep(self.past)

    def open(self, example_sets: Sequence[tuple[SnapshotExamples, Int64]]) -> None:
        """Take in the next examples, each with its items to learn, int64, ascending; the newest last."""
        assert self._view is not None
        self._queries, self._windows = {}, {}
        by_place = {
            self.taus.index(examples.tau) - 1: (examples, items)
            for examples, items in example_sets
            if examples.tau in self.taus[1:] and len(items)
        }
        longest = max(1, *(round(share * (len(self.taus) - 1)) for share, _ in self._sizes))
        about: list[list[Int64]] = [[np.empty(0, np.int64)] for _ in self.taus]
        for place, (examples, items) in by_place.items():
            ends = examples.part(items)[0].ends
            first = max(0, place - longest + 1)
            for nodes in about[first : place + longest]:  # in the snapshots of every batch that may ask this
                nodes.extend(ends)
        known = self.reach.cover(self._view, self.past, [np.concatenate(parts) for parts in about])
        for place, (examples, items) in by_place.items():
            loads = known.snapshots[place].loads(self.hops)
            # A node without an edge has the load of itself in every layer.
            self._queries[place] = QueriesByNode(examples, items, loads, float(self.hops + 1))

    def make(self, recipe: Recipe) -> HybridBatch:
        """The batch of a recipe, the same at any time."""
        first = self.taus.index(recipe.first)
        window = self._example_sampler(first, recipe.length)
        targets = window.nodes
        if recipe.number != WHOLE:
            draw = np.random.default_rng([*self._seed, recipe.size, recipe.number])
            count = max(1, round(self._sizes[recipe.size][1] * len(targets)))
            targets = targets[window.sampler.draw(count, draw)]
        queries, items = window.questions(targets)
        newest = recipe.length - 1 if recipe.until == self.taus[-1] else -1
        learned = items.get(newest, np.empty(0, np.int64))
        batch = self.batch(self.past.part(first, recipe.length), queries)
        return replace(batch, items=learned, targets=len(targets), size=recipe.size)

    def fits_whole(self, recipe: Recipe) -> bool:
        """Whether this rank's edges in a batch's snapshots take no more bytes than snapshot batches may."""
        part = self.past.part(self.taus.index(recipe.first), recipe.length)
        return sum(snapshot.memory_bytes for snapshot in part.snapshots) <= self._snapshot_bytes

    def batch(self, past: Past, queries: list[tuple[int, QueryBatch, Float32]]) -> HybridBatch:
        """A batch of given questions, whose nodes are covered, after snapshots."""
        nodes = distinct(*(ends for _, about, _ in queries for ends in about.ends))
        return HybridBatch(nodes, self.layout(self._model, past, nodes), queries)

    def layout(self, model: SnapshotModel, past: Past, nodes: Int64) -> SampledLayout:
        """Hops and encoded inputs, on the host, of nodes that are covered."""
        known = self.reach.known(past)
        encode = partial(self._encode, model, past)
        return SampledLayout(model.stages, known, nodes, encode, self._alone, seed=None)

    @property
    def taus(self) -> list[int]:
        """Interval indices of the present snapshots, the newest included."""
        return [snapshot.tau for snapshot in self.past.snapshots]

    @property
    def held_bytes(self) -> dict[str, int]:
        """Bytes of own rows, and of those of other ranks' nodes."""
        return {"past": self._builder.memory_bytes, "halo": self.reach.nbytes}

    @torch.no_grad()
    def _encode(self, model: SnapshotModel, past: Past, keys: Int64) -> tuple[Tensor, Float32]:
        assert self._view is not None
        with self._reading:
            stored = self.reach.inputs(self._view, past, keys)
        return encoded(model, past, keys, stored, torch.device("cpu"))

    def _example_sampler(self, first: int, length: int) -> ExampleSampler:
        with self._windowing:
            if (first, length) not in self._windows:
                places = range(first, first + length)
                self._windows[first, length] = ExampleSampler(
                    {place - first: self._queries[place] for place in places if place in self._queries}
                )
            return self._windows[first, length]
