"""``whole``: one rank with all whole snapshots at once; the reference of all other strategies."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.interface import Model, SnapshotModel
from freshet_graph.trainer.models.stages import Carry, CellStage, GraphStage
from freshet_graph.trainer.models.unroll import Layout, unroll
from freshet_graph.trainer.nn.graph import CSRGraph
from freshet_graph.trainer.strategies.figures import TrainingFigure
from freshet_graph.trainer.strategies.interface import STRATEGIES, Needs, OwnKey, Setting, StepReport
from freshet_graph.trainer.strategies.passes import Step, run
from freshet_graph.trainer.strategies.snapshots.windowed import WindowedStrategy, before_any
from freshet_graph.trainer.tasks.interface import QueryBatch, SnapshotExamples
from freshet_graph.trainer.timeline.graph import TimelineView
from freshet_graph.trainer.timeline.timeline import Horizon, Timeline
from freshet_graph.trainer.timeline.transfer import Mode

RATE = 5e-3
"""Adam's default rate: one step per snapshot learns as much as four at the usual rate (decision 46)."""

TRANSFER_BYTES = TrainingFigure(
    name="transfer_bytes",
    meaning="Bytes from the host to the device, graphs and inputs",
    kind="counter",
    labels=("kind", "mode"),
    merge="sum",
)

TransferMode = Annotated[
    Mode, Field(description="Form of a snapshot's message to the device. auto: the smallest message.")
]


class WholeOptions(Section):
    """Options of ``whole``."""

    supervise: Literal["newest", "horizon"] = Field(
        "newest",
        description="Examples of a step: the newest snapshot, or every snapshot of the horizon, each from those before it.",
    )
    steps: int = Field(
        1,
        ge=1,
        description="Most optimiser steps per pass over a snapshot. Each learns an equal part of its items, and no less than "
        "about optimisation.batch_size of them; each costs a pass over the whole horizon.",
    )
    transfer: TransferMode = "auto"


@STRATEGIES.register
class WholeStrategy(WindowedStrategy):
    """One rank holds the last snapshots whole, for any partitioner of the lane, and passes over all of them at once.

    No neighbour is left out and nothing is sent. A step follows the gradient of all queries of a snapshot or of the
    horizon, or of a part of them.

    Attributes:
        timeline: The last snapshots.
    """

    name: ClassVar[str] = "whole"
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"horizon", "smoothing"})
    Options: ClassVar[type[Section]] = WholeOptions
    figures: ClassVar[tuple[TrainingFigure, ...]] = (TRANSFER_BYTES,)

    def __init__(self, setting: Setting, options: WholeOptions) -> None:
        super().__init__(setting, usual_rate=RATE)
        self._options = options
        self._horizon = setting.horizon or self._model.window
        self.rewind()

    @classmethod
    @override
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        if ranks > 1:
            return (
                f"strategy {cls.name} learns on one rank, found {ranks}. Start one, or choose strategy vertex"
            )
        return None

    @property
    @override
    def needs(self) -> Needs:
        example_sets = self._horizon if self._options.supervise == "horizon" else 1
        return Needs("timeline", self._horizon, parts="all", example_sets=example_sets)

    @override
    def rewind(self) -> None:
        self.timeline = Timeline(self._device, self._options.transfer)

    @override
    def take_in(self, view: TimelineView) -> None:
        self.timeline.take_in(view)

    @override
    def owned(self, num_nodes: int) -> Bool:
        mine: Bool = np.arange(num_nodes) % self._ranks.size == self._ranks.rank
        return mine

    @override
    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        horizon = self.timeline.before_newest(nodes)
        return self._last(model, horizon)[self._places(horizon, nodes)]

    @override
    def learn(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> StepReport:
        if not any(len(examples) for examples in example_sets):
            return StepReport()
        report = run(self._model, self.learner, self._ranks, self._steps(example_sets, epoch))
        return replace(report, figures={TRANSFER_BYTES.name: self.timeline.transfer.since_last()})

    def _steps(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> Iterator[Step]:
        """Steps over equal parts of the examples, which are drawn again in each epoch."""
        parts, horizon = self._parts(example_sets, epoch)
        single = len(example_sets) == 1
        num_before = [
            0 if single else sum(before < examples.tau for before in horizon.taus)
            for examples in example_sets
        ]
        for part in parts:
            z = self._last(self._model, horizon).unsqueeze(0) if single else self._every(horizon)
            losses = [
                self._loss(queries, truth, z[t], horizon.places)
                for t, (queries, truth) in zip(num_before, part, strict=True)
            ]
            queries = sum(len(truth) for _, truth in part)
            yield Step(
                torch.stack(losses).sum(), queries, len(part[-1][1]) // example_sets[-1].queries_per_example
            )

    @override
    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        horizon = self.timeline.through_newest(np.unique(nodes))
        return self._last(self._model, horizon)[self._places(horizon, nodes)]

    @override
    def state(self) -> dict[str, Any]:
        """The order of rows, and so of sums, depends on earlier nodes."""
        return {**super().state(), "nodes": self.timeline.nodes.state()}

    @override
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if "nodes" in state:
            self.timeline.nodes.restore(state["nodes"])

    @property
    @override
    def held_bytes(self) -> dict[str, int]:
        return {"timeline": self.timeline.memory_bytes}

    def _parts(
        self, example_sets: Sequence[SnapshotExamples], epoch: int
    ) -> tuple[list[list[tuple[QueryBatch, Float32]]], Horizon]:
        """Questions and true answers of each step, snapshot by snapshot, at least one per step; and the snapshots before."""
        largest = max(len(examples) for examples in example_sets)
        steps = min(self._options.steps, -(-largest // self._batch))
        shares = []
        for examples in example_sets:
            draw = np.random.default_rng([self._seed, examples.sequence, epoch])
            shares.append(np.array_split(draw.permutation(len(examples)), steps))
        parts = [
            [
                examples.part(np.sort(share[step]))
                for examples, share in zip(example_sets, shares, strict=True)
            ]
            for step in range(steps)
        ]
        ends = [ends for part in parts for queries, _ in part for ends in queries.ends]
        return parts, self.timeline.before_newest(np.unique(np.concatenate(ends)))

    def _last(self, model: SnapshotModel, horizon: Horizon) -> Tensor:
        """Embeddings (n, width) after a horizon."""
        if not torch.is_grad_enabled():
            model.eval()
        if not horizon.taus:
            return before_any(model, len(horizon.nodes))
        return unroll(model.stages, WholeLayout(horizon, model), last=True)[0][0]

    def _every(self, horizon: Horizon) -> Tensor:
        """Embeddings (t + 1, n, width): before the first snapshot, and after each."""
        none = before_any(self._model, len(horizon.nodes)).unsqueeze(0)
        if not horizon.taus:
            return none
        return torch.cat([none, unroll(self._model.stages, WholeLayout(horizon, self._model))[0]])

    def _places(self, horizon: Horizon, nodes: Int64) -> Tensor:
        return to_device(horizon.places(nodes), self._device)


class WholeLayout(Layout):
    """The layout of one rank that holds every row; the reference of all others.

    Args:
        horizon: Snapshots.
        model: Encodes their nodes.
        block: Places of the snapshots of the pass, at least one; None: all of them.

    Attributes:
        steps: Snapshots of the pass.
        present: Which nodes have come, bool (t, n).
        keeps_zeros: Whether rows of the others are zero after every stage along the graph.
        rows: Inputs of all nodes, (t, n, d).
    """

    def __init__(self, horizon: Horizon, model: SnapshotModel, block: range | None = None) -> None:
        block = range(len(horizon.taus)) if block is None else block
        self.steps, self._block = len(block), block
        self._horizon = horizon
        self.present = horizon.present[block.start : block.stop]
        self.keeps_zeros = keeps_zeros(model)
        self._graphs = operators(horizon, model, block)
        rows = torch.stack([model.encode(horizon.inputs(place)) for place in block])
        # A signature follows from the id: without this a node would have one before it has come.
        self.rows = rows.mul_(self.present.unsqueeze(2))

    @override
    def inputs(self) -> Tensor:
        return self.rows

    @override
    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        first = self.steps - len(weights)
        return stage.per_snapshot(self._graphs[first:], x[len(x) - len(weights) :], weights)

    @override
    def summaries(self, stage: GraphStage, x: Tensor) -> list[Tensor]:
        return [stage.summary(graph, rows) for graph, rows in zip(self._graphs, x, strict=True)]

    @override
    def along_both(self, stage: CellStage, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        state, states = carry, []
        graphs = self._horizon.directed[self._block.start : self._block.stop]
        for graph, x_t, present in zip(graphs, x, self.present, strict=True):
            # The state of a node that has not come yet is zero.
            state = stage(graph, x_t, state) * present.unsqueeze(1)
            states.append(state)
        return torch.stack(states), state

    @override
    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        present = self.present[self.steps - len(x) :]
        return x if self.keeps_zeros else x * present.unsqueeze(2), present

    @override
    def to_snapshots(self, rows: Tensor) -> Tensor:
        return rows

    @override
    def embeddings(self, x: Tensor) -> Tensor:
        return self.to_nodes(x)[0]

    def tie(self) -> Tensor:
        """Zero: nothing has crossed ranks."""
        return self.rows.new_zeros(())


def keeps_zeros(model: SnapshotModel) -> bool:
    """Whether no stage along the graph gives a row to a node that has not come."""
    return all(stage.keeps_zeros for stage in model.stages if isinstance(stage, GraphStage))


def combines(model: SnapshotModel, like: Tensor) -> bool:
    """Whether a model's operators combine the graphs of several snapshots."""
    nothing = empty_graph(like)
    return model.operators([nothing])[0] is not nothing


def operators(horizon: Horizon, model: SnapshotModel, places: range) -> list[CSRGraph]:
    """Operators of a model's graph stages in some snapshots; earlier graphs are made only if they are part of one."""
    if not places or not combines(model, horizon.present):
        return [horizon.graph(place) for place in places]
    return model.operators([horizon.graph(place) for place in range(places.stop)])[places.start :]


def empty_graph(like: Tensor) -> CSRGraph:
    """A graph without nodes, on a tensor's device."""
    indptr, sources = (torch.zeros(n, dtype=torch.int64, device=like.device) for n in (1, 0))
    return CSRGraph(indptr, sources, 0, symmetric=True)
