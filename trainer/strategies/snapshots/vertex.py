"""``vertex``: vertex-parallel training over a window of snapshots (DistDy)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import structlog
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.trainer.data.views import GraphView
from freshet_graph.trainer.models.interface import SnapshotModel
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.figures import TrainingFigure
from freshet_graph.trainer.strategies.interface import STRATEGIES, Needs, Setting, StepReport
from freshet_graph.trainer.strategies.passes import Step, run
from freshet_graph.trainer.strategies.snapshots.halo import MIB, InputRows, Reach
from freshet_graph.trainer.strategies.snapshots.past import Past, PastBuilder, encoded
from freshet_graph.trainer.strategies.snapshots.sampled_layout import SampledLayout, Shared
from freshet_graph.trainer.strategies.snapshots.windowed import (
    WindowedStrategy,
    is_cell,
    lane_refusal,
    owned_by_parts,
    stage_refusal,
    summarises,
)  # fmt: skip
from freshet_graph.trainer.tasks.interface import QueryBatch, SnapshotExamples

log = structlog.get_logger()

ENDS = 3
"""Most distinct nodes of an item: an event's two and a random destination."""


FIGURES = (
    TrainingFigure(
        name="cache_rows",
        meaning="Rows of other ranks' nodes by what was done",
        kind="counter",
        labels=("rank", "outcome"),
        merge="sum",
    ),
    TrainingFigure(
        name="halo_ratio",
        meaning="Kept rows of other ranks' nodes to rows of own nodes",
        kind="gauge",
        labels=("rank",),
        key="halo.ratio",
    ),
)


class VertexOptions(Section):
    """Options of ``vertex``."""

    inference_nodes: int = Field(
        65_536,
        ge=1,
        description="Nodes embedded at once when predicting, and whose inputs are prepared at once when learning: bounds memory.",
    )
    fetch: Literal["auto", "halo", "owner"] = Field(
        "auto",
        description="halo: each rank reads the edges and inputs around the nodes it asks about from the store, and computes "
        "their rows alone; owner: every row is computed by its node's owner and sent on request; auto: halo until a rank needs "
        "more than halo_mib at once, then owner.",
    )
    halo_mib: float = Field(
        1024.0,
        ge=0,
        description="Kept rows of other ranks' nodes, MiB, under halo with their edges; others are fetched or read again. Rows "
        "of the newest step are always kept. 0: all are kept.",
    )
    training_nodes: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the nodes whose examples are learned, drawn once for each node; 0.7 in DistDy section 5.1. All "
        "nodes are predicted.",
    )
    batch_of: Literal["events", "nodes"] = Field(
        "events",
        description="Unit of batch_size; nodes: a step learns all examples of so many sources, as in the paper.",
    )


@STRATEGIES.register
class VertexStrategy(WindowedStrategy):
    """Each rank holds its parts over the window and learns the events whose source it owns.

    Part k belongs to rank k mod ranks. An event is learned by the owner of its source in the newest snapshot; a source
    without an owner belongs to rank id mod ranks. Gradients are summed over ranks with equal weights for all queries, so a
    step of several ranks equals one rank's step over the union of their batches. A rank without events in a step takes
    part with an empty batch.
    """

    name: ClassVar[str] = "vertex"
    Options: ClassVar[type[Section]] = VertexOptions
    figures: ClassVar[tuple[TrainingFigure, ...]] = FIGURES

    def __init__(self, setting: Setting, options: VertexOptions) -> None:
        super().__init__(setting)
        self._features = setting.lane.node_features
        self._inference_nodes = options.inference_nodes
        self._training_nodes, self._batch_of = options.training_nodes, options.batch_of
        budget = int(options.halo_mib * MIB) or None
        self.inputs = InputRows(setting.ranks, self._features, setting.lane.segments, budget)
        self.reach: Reach | None = None
        self._chooses = options.fetch == "auto" and setting.ranks.size > 1
        if options.fetch != "owner" or setting.ranks.size == 1:
            self.reach = Reach(setting.ranks, self._model.stages, self._features, budget)
        self._alone = Ranks(device=setting.ranks.device)
        self.view: GraphView | None = None
        self.rewind()

    @classmethod
    @override
    def refuses(cls, model: Any, lane: LaneHeader | None, ranks: int) -> str | None:
        along = [stage.along for stage in model.stages]
        mixed = (
            f"strategy {cls.name} needs all graph stages before the time stages, but {model.name} has {', '.join(along)}: "
            "rows that a later graph stage looks at are on other ranks. Choose strategy whole"
        )
        return (
            stage_refusal(
                cls.name, model, is_cell,
                "knows neighbours of a few hops, but stage {stage} of {model} convolves states and so looks further with every "
                "snapshot. Choose strategy whole",
            )
            or (mixed if along != sorted(along) else None)
            or stage_refusal(
                cls.name, model, summarises,
                "has a part of each snapshot on every rank, but the weights of {model} evolve by the best of all its rows. "
                "Choose strategy whole",
            )
            or stage_refusal(
                cls.name, model, lambda stage: isinstance(stage, GraphStage) and not stage.samples,
                "samples neighbours, which stage {stage} of {model} is not defined on. Choose strategy whole",
            )
            or lane_refusal(cls.name, lane, ranks)
        )  # fmt: skip

    @property
    @override
    def needs(self) -> Needs:
        return Needs("graph", self._model.window)

    @override
    def rewind(self) -> None:
        self._builder = PastBuilder(self._model.window, self._ranks)
        self.past = Past([], self._model.window)
        self._held_rows.keep(self.past)

    @override
    def take_in(self, view: GraphView) -> None:
        self.view = view
        self.past = self._builder.before_latest(view)
        self._held_rows.keep(self.past)

    @override
    def owned(self, num_nodes: int) -> Bool:
        assert self.view is not None
        return owned_by_parts(self.view, num_nodes, self._ranks)

    @override
    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        """In chunks, which bound memory."""
        return self._embed_all(model, self.past, nodes)

    @override
    def learn(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> StepReport:
        report = run(self._model, self.learner, self._ranks, self._steps(example_sets, epoch))
        return replace(report, figures=self._row_figures())

    def _steps(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> Iterator[Step]:
        """Steps over batches of all ranks; a rank that has fewer takes the last steps with an empty batch."""
        (examples,) = example_sets
        outgrown = self._chooses and self.reach is not None and self.reach.outgrown
        batches = self._batches(examples, epoch)
        everyones = self._ranks.gather_numbers([len(batches), outgrown])
        if everyones[:, 1].any():
            self._leave_to_owners()
        batches += [np.empty(0, np.int64)] * (int(everyones[:, 0].max()) - len(batches))
        if not batches:
            return
        sizes = self._ranks.gather_numbers([len(batch) for batch in batches])
        together = max(1, self._inference_nodes // (ENDS * int(sizes.max())))
        for first in range(0, len(batches), together):
            parts = [examples.part(batch) for batch in batches[first : first + together]]
            draw = (epoch << 32) + first
            shared = self._share(parts, draw)
            for (queries, truth), total in zip(parts, sizes.sum(axis=0)[first:].tolist(), strict=False):
                yield Step(
                    self._step_loss(queries, truth, draw, shared), examples.queries_per_example * total, total
                )

    def _batches(self, examples: SnapshotExamples, epoch: int) -> list[Int64]:
        """This rank's items of each step, int64, ascending."""
        items = np.arange(len(examples))
        source = items
        if self._training_nodes < 1 or self._batch_of == "nodes":
            source = examples.part(items)[0].ends[0][: len(items)]
        if self._training_nodes < 1:
            share = np.random.default_rng(self._seed).random(int(source.max(initial=0)) + 1)
            items = items[share[source] < self._training_nodes]
        if not len(items):
            return []
        unit = np.arange(len(items))
        if self._batch_of == "nodes":
            unit = np.unique(source[items], return_inverse=True)[1]
        draw = np.random.default_rng([self._seed, examples.sequence, epoch])
        step = np.argsort(draw.permutation(unit.max() + 1))[unit] // self._batch
        return np.split(items[np.argsort(step, kind="stable")], np.bincount(step).cumsum()[:-1])

    @override
    def state(self) -> dict[str, Any]:
        """What was chosen stays, or a run that resumed would sum in another order."""
        return {**super().state(), "left_to_owners": self._chooses and self.reach is None}

    @override
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if self._chooses and state.get("left_to_owners"):
            self._leave_to_owners()

    def _leave_to_owners(self) -> None:
        if self.reach is not None and self._ranks.rank == 0:
            log.info("rows of other ranks' nodes exceed halo_mib, so their owners compute them from now on")
        self.reach = None

    @override
    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        assert self.view is not None
        return self._embed_all(self._model, self._builder.through_latest(self.view), nodes)

    @property
    @override
    def step_events(self) -> int:
        return self._batch * self._ranks.size

    @property
    @override
    def held_bytes(self) -> dict[str, int]:
        """Own rows, and those of other ranks' nodes."""
        return {"past": self._builder.memory_bytes, "halo": self._held_rows.nbytes}

    @property
    def _held_rows(self) -> InputRows | Reach:
        return self.inputs if self.reach is None else self.reach

    def _row_figures(self) -> dict[str, Any]:
        if self.reach is None:
            return {"cache_rows": self.inputs.cache.since_last()}
        return {"cache_rows": self.reach.rows.since_last(), "halo_ratio": self.reach.ratio(self.past)}

    def _step_loss(self, queries: QueryBatch, truth: Float32, draw: int, shared: Shared | None) -> Tensor:
        """Sum of this rank's losses in one step, a scalar; a collective, differentiable across ranks."""
        ends = np.sort(np.concatenate(queries.ends))
        nodes = ends[np.append(True, ends[1:] != ends[:-1])[: len(ends)]]  # a tenth of unique's time
        z = self._embed(self._model, self.past, nodes, draw, shared)
        return self._loss(queries, truth, z, nodes.searchsorted)

    @torch.no_grad()
    def _share(self, parts: Sequence[tuple[QueryBatch, Float32]], draw: int) -> Shared | None:
        """Inputs of several steps with one sample: they are fetched and gathered once."""
        stages = self.graph_stages(self._model)
        if len(parts) == 1 or not stages:
            return None
        nodes = np.unique(np.concatenate([ends for queries, _ in parts for ends in queries.ends]))
        return self.layout(self._model, self.past, nodes, draw).share(stages[0])

    def _embed(
        self, model: SnapshotModel, past: Past, nodes: Int64, draw: int, shared: Shared | None = None
    ) -> Tensor:
        beat()
        z, _ = unroll(model.stages, self.layout(model, past, nodes, draw, shared), last=True)
        return z[0]

    def layout(
        self, model: SnapshotModel, past: Past, nodes: Int64, draw: int, shared: Shared | None = None
    ) -> SampledLayout:
        """The layout of a step or of a prediction; a collective under ``fetch: owner``."""
        view, seed = self.view, self._seed + 7919 * draw
        assert view is not None
        window, ranks = past, self._ranks
        stored_rows: Callable[[GraphView, Past, Int64], Float32] = self.inputs.rows
        if self.reach is not None:
            window, stored_rows, ranks = self.reach.known(past), self.reach.inputs, self._alone
            if shared is None:
                window = self.reach.cover(view, past, [nodes] * len(past.snapshots))

        def encode(keys: Int64) -> tuple[Tensor, Float32]:
            return encoded(model, past, keys, stored_rows(view, past, keys), ranks.device)

        return SampledLayout(model.stages, window, nodes, encode, ranks, seed, shared)

    @staticmethod
    def graph_stages(model: SnapshotModel) -> list[GraphStage]:
        """The stages of a model along the graph, in its order."""
        return [stage for stage in model.stages if isinstance(stage, GraphStage)]

    def _embed_all(self, model: SnapshotModel, past: Past, nodes: Int64) -> Tensor:
        model.eval()
        parts = [self._embed(model, past, chunk, 0) for chunk in self._chunks(nodes)]
        return torch.cat(parts)

    def _chunks(self, nodes: Int64) -> Iterator[Int64]:
        assert self.view is not None
        most = len(nodes)
        if self.view.num_nodes > self._inference_nodes:  # otherwise one chunk is enough on all ranks
            (most,) = self._ranks.maximum([most])
        for begin in range(0, max(most, 1), self._inference_nodes):
            yield nodes[begin : begin + self._inference_nodes]
