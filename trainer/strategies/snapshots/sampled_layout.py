"""A window of rows around some nodes, hop by hop, computed by one rank alone or by the owner of each row.

In DistDy section 3.1 the owner of a training node samples its neighbours, fetches the features of those that other
workers store, and gathers the node's structural embeddings of earlier snapshots from the workers that stored it then.
With several layers the owner of a neighbour has that neighbour's own neighbours. So among several ranks every layer's row
is computed by its owner and sent on request: features of remote neighbours at the lowest layer, embeddings above. Nothing is
computed twice, edges never travel, and with equal samples the result is that of one rank for any partition. A rank that has
the edges and inputs of all hops computes the same alone (DynaHB, definition 3).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from freshet_graph.stream.arrays.kinds import Bool, Int32, Int64
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.trainer.data.neighbours import runs
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.stages import Carry, CellStage, GraphStage, Stage, TimeStage
from freshet_graph.trainer.models.unroll import Layout
from freshet_graph.trainer.nn.graph import CSRGraph
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.request import Request
from freshet_graph.trainer.strategies.snapshots.past import STRIDE, Past


@dataclass(frozen=True, slots=True)
class SampledHop:
    """Targets and their drawn neighbours.

    Attributes:
        targets: int64 (t,), keys, ascending.
        sources: int64 (s,), keys, ascending: the targets and their neighbours.
        indptr: int32 (t + 1,).
        neighbours: int32 (indptr[-1],), places among the sources.
        target_places: int32 (t,), the targets' places among the sources.
        degrees: (s,), neighbours of each source in its whole snapshot; None: no stage asks.
    """

    targets: Int64
    sources: Int64
    indptr: Int32
    neighbours: Int32
    target_places: Int32
    degrees: NDArray[np.generic] | None = None

    @classmethod
    def drawn(cls, past: Past, targets: Int64, fanout: int | None, seed: int) -> "SampledHop":
        """Neighbours of sorted, distinct keys."""
        indptr, neighbours = past.sample(targets, fanout, seed)
        sources = distinct(targets, neighbours)
        places, target_places = (
            np.searchsorted(sources, keys).astype(np.int32) for keys in (neighbours, targets)
        )
        return cls(targets, sources, indptr.astype(np.int32), places, target_places)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = (self.targets, self.sources, self.indptr, self.neighbours, self.target_places, self.degrees)
        return sum(column.nbytes for column in columns if column is not None)

    def spread(self, past: Past) -> "SampledHop":
        """The same with every source in all snapshots, as a time stage below wants it; degrees are not kept."""
        snapshot, node = np.divmod(self.sources, STRIDE)
        marks = np.zeros(int(node.max(initial=-1)) + 1, np.bool_)
        marks[node] = True
        nodes = np.flatnonzero(marks)
        place = (snapshot * len(nodes) + np.cumsum(marks)[node] - 1).astype(np.int32)
        sources = past.keys(nodes).ravel()
        return SampledHop(
            self.targets, sources, self.indptr, place[self.neighbours], place[self.target_places]
        )

    def between(self, first: int, end: int) -> "SampledHop":
        """Of the snapshots at places from ``first`` to before ``end`` only, with places among their sources."""
        rows, below = (
            slice(*np.searchsorted(keys, [first * STRIDE, end * STRIDE]))
            for keys in (self.targets, self.sources)
        )
        edges = slice(self.indptr[rows.start], self.indptr[rows.stop])
        return SampledHop(
            self.targets[rows],
            self.sources[below],
            self.indptr[rows.start : rows.stop + 1] - self.indptr[rows.start],
            self.neighbours[edges] - np.int32(below.start),
            self.target_places[rows] - np.int32(below.start),
            None if self.degrees is None else self.degrees[below],
        )

    def restricted_to(self, chosen: Int64) -> tuple["SampledHop", Int64]:
        """The same for some of the targets, by their places, ascending; and where its sources stand among these."""
        lengths = np.diff(self.indptr)[chosen]
        neighbours = self.neighbours[runs(self.indptr[chosen], lengths)]
        target_places = self.target_places[chosen]
        is_used = np.zeros(len(self.sources), np.bool_)
        is_used[neighbours] = is_used[target_places] = True
        used, place = np.flatnonzero(is_used), (np.cumsum(is_used) - 1).astype(np.int32)
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        hop = SampledHop(
            self.targets[chosen], self.sources[used], indptr, place[neighbours], place[target_places]
        )
        return hop, used


Encode = Callable[[Int64], tuple[Tensor, NDArray[np.generic]]]


@dataclass(frozen=True, slots=True)
class Shared:
    """A sample and its inputs, shared by steps over parts of its nodes.

    Attributes:
        hops: One per graph stage, in order.
        inputs: Rows of the lowest hop's sources; if the lowest stage gathers, what it has gathered for its targets.
        gathers: Whether it does, see ``GraphStage.gather``.
    """

    hops: list[SampledHop]
    inputs: Tensor
    gathers: bool


@dataclass(frozen=True, slots=True)
class _Level:
    """One graph stage, as this rank computes it.

    Attributes:
        present: bool, of each wanted row: its node had come by its snapshot.
        hop: Its targets and their sources; None: of a shared sample, whose inputs are gathered.
        request: Who wants which of its rows; None: this rank alone.
        answered: int64, the target of each row that is requested.
    """

    present: Bool
    hop: SampledHop | None
    request: Request | None
    answered: Tensor | None


class SampledLayout(Layout):
    """Rows of some nodes in every snapshot.

    Several ranks can have models only whose graph stages all come before their time stages, with the same weights in all
    snapshots.

    Args:
        stages: The model's, in order.
        past: The window; alone, with all edges of the nodes' hops.
        nodes: int64 (n,) sorted and distinct; other ranks may ask for others, or for none.
        encode: Input rows (m, d₀) of sorted, distinct keys and their degrees (m,) in whole snapshots; a collective.
        ranks: All ranks make a layout together; a single one computes alone.
        seed: Of the neighbour samples; equal on all ranks. None: all neighbours are taken, so operators can be normalised.
        shared: Shared data of a layout with the same seed, whose nodes include these.

    Attributes:
        steps: Snapshots.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        past: Past,
        nodes: Int64,
        encode: Encode,
        ranks: Ranks,
        seed: int | None,
        shared: Shared | None = None,
    ) -> None:
        self.steps, self._nodes, self._device = len(past.snapshots), len(nodes), ranks.device
        self._levels: list[_Level] = []  # the lowest first
        wanted, used = past.keys(nodes).ravel(), np.empty(0, np.int64)
        numbers = [number for number, stage in enumerate(stages) if isinstance(stage, GraphStage)]
        for layer in reversed(range(len(numbers))):
            stage, homes = stages[numbers[layer]], past.homes(wanted)
            assert isinstance(stage, GraphStage)
            targets, request, answered = wanted, None, None
            if ranks.size > 1:
                request = Request(wanted, homes, ranks)
                targets, place = np.unique(request.requested, return_inverse=True)
                answered = to_device(place, ranks.device)
            hop = None
            if shared is None:
                fanout, draw = (None, 0) if seed is None else (stage.fanout, seed + layer)
                hop = SampledHop.drawn(past, targets, fanout, draw)
                if numbers[layer] and isinstance(stages[numbers[layer] - 1], TimeStage):
                    hop = hop.spread(past)
            else:
                if request is not None or layer == len(numbers) - 1:  # alone, targets are all sources above
                    used = np.searchsorted(shared.hops[layer].targets, targets)
                if layer or not shared.gathers:
                    hop, used = shared.hops[layer].restricted_to(used)
            self._levels.insert(0, _Level(homes >= 0, hop, request, answered))
            wanted = targets if hop is None else hop.sources
        self._present = self._wanted_present = past.homes(wanted) >= 0
        if shared is None:
            self._x, degrees = encode(wanted)
            for depth, level in enumerate(self._levels if seed is None else []):
                assert level.hop is not None
                self._levels[depth] = replace(level, hop=replace(level.hop, degrees=degrees))
                degrees = np.diff(level.hop.indptr)  # of the targets, the sources of the level above
        else:
            self._x = shared.inputs.index_select(0, self._places(used))
        self._next: Iterator[_Level] = iter(self._levels)

    @property
    def edges(self) -> int:
        """Edges of all hops."""
        return sum(len(level.hop.neighbours) for level in self._levels if level.hop is not None)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._x.nbytes + sum(level.hop.nbytes for level in self._levels if level.hop is not None)

    @override
    def inputs(self) -> Tensor:
        """Of the neighbours farthest away, or what is gathered of them."""
        self._next, self._present = iter(self._levels), self._wanted_present
        return self._x if self._x.device == self._device else to_device(self._x, self._device)

    def share(self, stage: GraphStage) -> Shared:
        """Data for layouts of some of these nodes, without a gradient; the lowest stage gathers, if it can."""
        hops = [level.hop for level in self._levels if level.hop is not None]
        table = stage.gather(self._graph(hops[0]), self._places(hops[0].target_places), self._x)
        return Shared(hops, self._x if table is None else table, table is not None)

    @override
    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        """All snapshots in one product, unless this rank is alone and weights evolve."""
        level = next(self._next)
        self._present = level.present
        if level.hop is None:
            rows = stage.gathered(x)
        elif level.request is None and (
            len(weights) < self.steps or any(weight is not None for weight in weights)
        ):
            first = self.steps - len(weights)
            hops = [level.hop.between(step, step + 1) for step in range(first, self.steps)]
            below = torch.split(
                x[-sum(sizes) :] if (sizes := [len(hop.sources) for hop in hops]) else x, sizes
            )
            by_snapshot = zip(hops, below, weights, strict=True)
            return torch.cat([self._convolved(stage, *inputs) for inputs in by_snapshot])
        else:
            rows = self._convolved(stage, level.hop, x, weights[0] if weights else None)
        if level.request is None:
            return rows
        assert level.answered is not None
        return level.request.answer(rows.index_select(0, level.answered), "embeddings")

    @override
    def along_both(self, stage: CellStage, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Of a cell that looks at no neighbour."""
        state, states = carry, []
        for x_t, present in zip(*self.to_nodes(x), strict=True):
            state = stage(None, x_t, state) * present.unsqueeze(1)
            states.append(state)
        return torch.cat(states), state

    @override
    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A stage's bias gives no row to a node that has not come."""
        count = len(self._present) // self.steps if self.steps else self._nodes
        rows = x.view(len(x) // count if count else self.steps, count, x.shape[1])
        present = self._present[len(self._present) - len(x) :].reshape(rows.shape[:2])
        on_device = to_device(present, self._device)
        return rows if present.all() else rows * on_device.unsqueeze(2), on_device

    @override
    def to_snapshots(self, rows: Tensor) -> Tensor:
        return rows.flatten(0, 1)

    @override
    def embeddings(self, x: Tensor) -> Tensor:
        return self.to_nodes(x)[0]

    def _convolved(self, stage: GraphStage, hop: SampledHop, x: Tensor, weights: Any) -> Tensor:
        graph, target_places = self._graph(hop), self._places(hop.target_places)
        table = stage.gather(graph, target_places, x)
        if table is not None:
            return stage.gathered(table)
        rows: Tensor = stage(graph, x.index_select(0, target_places), x, weights)
        return rows

    def _graph(self, hop: SampledHop) -> CSRGraph:
        indptr, neighbours = self._places(hop.indptr), self._places(hop.neighbours)
        if hop.degrees is None:
            return CSRGraph(indptr, neighbours, len(hop.sources))
        return _OfDegrees(indptr, neighbours, self._places(hop.degrees))

    def _places(self, places: Any) -> Tensor:
        return to_device(places, self._device)


class _OfDegrees(CSRGraph):
    """Some rows of a snapshot's graph, with the degrees of the sources in the whole of it, which its operator needs."""

    def __init__(self, indptr: Tensor, sources: Tensor, degrees: Tensor) -> None:
        super().__init__(indptr, sources, len(degrees))
        self._degrees = degrees

    @cached_property
    @override
    def operator(self) -> CSRGraph:
        of_sources = (self._degrees.to(torch.get_default_dtype()) + 1).rsqrt()
        values = self.scale.squeeze(1).index_select(0, self.targets) * of_sources.index_select(
            0, self.sources
        )
        return CSRGraph(self.indptr, self.sources, self.num_sources, values=values)
