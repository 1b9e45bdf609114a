"""``hybrid``: ranks learn batches of some snapshots and some nodes by themselves, and average their weights (DynaHB)."""

import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.trainer.data.views import GraphView
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.learning.step import NEVER
from freshet_graph.trainer.models.interface import SnapshotModel
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.dynahb.adjusters import ADJUSTERS, Outcome
from freshet_graph.trainer.strategies.dynahb.averaging import Average, Averager
from freshet_graph.trainer.strategies.dynahb.batches import WHOLE, BatchMaker, HybridBatch, Recipe
from freshet_graph.trainer.strategies.dynahb.reservoir import BatchGenerator, Reservoir
from freshet_graph.trainer.strategies.figures import TrainingFigure
from freshet_graph.trainer.strategies.interface import STRATEGIES, Needs, OwnKey, Setting, StepReport
from freshet_graph.trainer.strategies.passes import Step, run
from freshet_graph.trainer.strategies.snapshots.halo import MIB
from freshet_graph.trainer.strategies.snapshots.past import Past
from freshet_graph.trainer.strategies.snapshots.sampled_layout import SampledLayout
from freshet_graph.trainer.strategies.snapshots.whole import RATE, combines
from freshet_graph.trainer.strategies.snapshots.windowed import (
    WINDOWS,
    WindowedStrategy,
    before_any,
    convolves_states,
    lane_refusal,
    owned_by_parts,
    stage_refusal,
    summarises,
)  # fmt: skip
from freshet_graph.trainer.tasks.interface import SnapshotExamples

clock = time.perf_counter
"""Seconds of a step, by which an adjuster judges its size."""

PARTS = 1_000_000
"""Parts of a whole, the unit of ratios between ranks."""


FIGURES = (
    TrainingFigure(
        name="batch_size",
        meaning="Mean size of a hybrid batch",
        kind="gauge",
        labels=("rank", "of"),
        key="batches.size",
    ),
    TrainingFigure(
        name="adjuster_epsilon",
        meaning="Probability that the size of batches is drawn",
        kind="gauge",
        key="batches.epsilon",
        shared=True,
    ),
    TrainingFigure(
        name="adjuster_reward",
        meaning="What the adjuster learned from last",
        kind="gauge",
        key="batches.reward",
        shared=True,
    ),
    TrainingFigure(
        name="reservoir_batches",
        meaning="Batches that may be learned again",
        kind="gauge",
        labels=("rank", "size"),
        key="batches.reservoir",
    ),
    TrainingFigure(
        name="reservoir_reads",
        meaning="Batches by outcome",
        kind="counter",
        labels=("rank", "outcome"),
        merge="sum",
        key="batches.reads",
    ),
    TrainingFigure(
        name="generator_wait_seconds",
        meaning="Training's wait for a batch that was not there",
        kind="histogram",
        labels=("rank",),
        merge="sum",
        key="batches.waits_s",
        buckets=(0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
    ),
    TrainingFigure(
        name="averages",
        meaning="Averages of all ranks' weights",
        kind="counter",
        merge="sum",
        key="batches.averages",
        shared=True,
    ),
    TrainingFigure(
        name="divergence_ratio",
        meaning="Largest distance of a rank's weights from their mean, to its norm",
        kind="gauge",
        merge="most",
        key="batches.divergence",
        shared=True,
    ),
)


Share = Annotated[float, Field(gt=0, le=1)]


class HybridOptions(Section):
    """Options of ``hybrid``."""

    snapshots: list[Share] = Field(
        default=[0.1, 0.2, 0.3],
        min_length=1,
        description="Shares of the horizon that a batch may have, above 0 and at most 1; with vertices they are the sizes to "
        "choose from.",
    )
    vertices: list[Share] = Field(
        default=[0.01, 0.05, 0.1], min_length=1, description="Shares of the nodes with questions."
    )
    adjuster: Literal["fixed", "dqn"] = Field(
        "fixed",
        description="Choice of the size. fixed: fewest snapshots, most vertices; dqn: after every step, by the paper's network.",
    )
    steps: int = Field(
        16,
        ge=0,
        description="Optimiser steps of each rank per pass over a snapshot. 0: until seconds_per_snapshot have passed.",
    )
    seconds_per_snapshot: float = Field(
        0.0, ge=0, description="A pass ends after so many seconds, if steps are not taken before. 0: never."
    )
    average: Average = Field(
        "every_steps",
        description="When ranks average their weights. every_s: as published; delayed: every so many steps, while the next are "
        "taken.",
    )
    every_steps: int = Field(4, ge=1, description="Steps between averages.")
    every_s: float = Field(0.2, gt=0, description="Seconds between averages, under every_s.")
    newest_share: float = Field(
        0.5, ge=0, le=1, description="Share of batches that must contain the newest examples."
    )
    reservoir_mib: float = Field(
        512.0, gt=0, description="Memory of kept batches, MiB; others are made again."
    )
    snapshot_mib: float = Field(
        0.0,
        ge=0,
        description="MiB of a rank's edges in a batch's snapshots up to which a draw that misses the reservoir learns all nodes "
        "with questions in them, and leaves its batch for later draws (DynaHB, algorithm 3). 0: it learns the batch.",
    )
    refresh: float = Field(0.2, ge=0, le=1, description="Share of former batches that a snapshot drops.")
    halo_mib: float = Field(
        0.0,
        ge=0,
        description="Memory of edges and inputs of other ranks' nodes, MiB; others are read from the store again. Rows of the "
        "newest examples, or of the newest prediction, are always kept. 0: all are kept.",
    )
    threads: int = Field(1, ge=1, description="Threads that make batches.")
    inference_nodes: int = Field(
        65_536, ge=1, description="Nodes embedded at once when predicting: bounds memory."
    )

    @model_validator(mode="after")
    def _a_pass_ends(self) -> Self:
        if not self.steps and not self.seconds_per_snapshot:
            raise ValueError(
                "steps is 0 and seconds_per_snapshot is 0, so a pass would not end. Set one of them"
            )
        return self


@STRATEGIES.register
class HybridStrategy(WindowedStrategy):
    """Each rank learns hybrid batches of the nodes that it owns, and weights are averaged.

    A rank reads the surroundings of its questions, so that a batch has all inputs of its embeddings and only weights cross
    ranks. A batch has some consecutive snapshots of the horizon, and questions after each of them about some of the
    rank's nodes, which are drawn by load.
    """

    name: ClassVar[str] = "hybrid"
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"horizon"})
    learns_all: ClassVar[bool] = True  # only rank 0's former examples are in a checkpoint
    Options: ClassVar[type[Section]] = HybridOptions
    figures: ClassVar[tuple[TrainingFigure, ...]] = FIGURES

    def __init__(self, setting: Setting, options: HybridOptions) -> None:
        super().__init__(setting, averages_every=NEVER, usual_rate=RATE)
        self.options = options
        self._horizon = setting.horizon or WINDOWS * self._model.window
        every = options.every_s if options.average == "every_s" else options.every_steps
        self.averager = Averager(self.learner, self._ranks, options.average, every)
        self._sizes = [(float(s), float(v)) for s in options.snapshots for v in options.vertices]
        self.adjuster = ADJUSTERS[options.adjuster](self._sizes, self._seed)
        self._action = self.adjuster.choose()
        self.reservoir = Reservoir(self._sizes, options.newest_share, options.refresh)
        self.maker = BatchMaker(
            self._model, self._sizes, [self._seed, self._ranks.rank], self._ranks, self._horizon,
            setting.lane.node_features, int(options.halo_mib * MIB) or None, int(options.snapshot_mib * MIB),
        )  # fmt: skip
        self.generator = BatchGenerator(self.maker.make, int(options.reservoir_mib * MIB), options.threads)
        self._view: GraphView | None = None

    @classmethod
    @override
    def refuses(cls, model: Any, lane: LaneHeader | None, ranks: int) -> str | None:
        combined = (
            f"strategy {cls.name} has the neighbours of each snapshot, but {model.name} looks along means of several "
            "snapshots' operators. Set normalise: after, or choose strategy group or whole"
        )
        return (
            stage_refusal(
                cls.name, model, convolves_states,
                "has what is a few hops away, but stage {stage} of {model} convolves states and so looks further with every "
                "snapshot. Choose strategy group or whole",
            )
            or stage_refusal(
                cls.name, model, summarises,
                "has some rows of each snapshot, but the weights of {model} evolve by the best of all of them. Choose model "
                "evolvegcn-o, or strategy group or whole",
            )
            or (combined if combines(model, next(model.parameters())) else None)
            or lane_refusal(cls.name, lane, ranks)
        )  # fmt: skip

    @property
    @override
    def needs(self) -> Needs:
        return Needs("graph", self._horizon, example_sets=self._horizon)

    @override
    def rewind(self) -> None:
        self.reservoir.begin()
        self.generator.retain(set())

    @override
    def take_in(self, view: GraphView) -> None:
        self._view = view
        self.maker.take_in(view)

    @override
    def owned(self, num_nodes: int) -> Bool:
        assert self._view is not None
        return owned_by_parts(self._view, num_nodes, self._ranks)

    @override
    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        """From a state of zero at the beginning of the window, and alone."""
        return self._embed_all(model, self._last(-1), nodes)

    @override
    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        distinct, place = np.unique(nodes, return_inverse=True)
        z = self._embed_all(self._model, self._last(0), distinct)
        return z[to_device(place, z.device)]

    @override
    def learn(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> StepReport:
        taus, newest = self.maker.taus, example_sets[-1]
        draws = np.random.default_rng([self._seed, newest.sequence, epoch, 3])
        work = HybridPass(self, self._ranks, taus, draws, self._action)
        if len(taus) < 2:
            steps = self._first(newest, work.learned)
        else:
            self.reservoir.slide(taus, draws)
            self.generator.retain(self.reservoir.recipes())
            self.maker.open([(examples, self.local_items(examples)) for examples in example_sets])
            steps = work.steps()
        report = run(self._model, self.learner, self._ranks, steps)
        self.generator.drain()
        self._action = work.action
        return self._of_all_ranks(report, work.learned)

    @override
    def state(self) -> dict[str, Any]:
        """Batches are made again from their recipes."""
        return {
            **super().state(),
            "adjuster": self.adjuster.state(),
            "action": self._action,
            "reservoir": self.reservoir.state(),
        }

    @override
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if "reservoir" not in state:  # a state of the learner alone
            return
        self.adjuster.restore(state["adjuster"])
        self._action = int(state["action"])
        self.reservoir.restore(state["reservoir"])
        self.generator.retain(set())

    @override
    def close(self) -> None:
        self.generator.close()

    @property
    @override
    def held_bytes(self) -> dict[str, int]:
        return {**self.maker.held_bytes, "reservoir": self.generator.held_bytes}

    def _first(self, examples: SnapshotExamples, learned: list[HybridBatch]) -> Iterator[Step]:
        """The step of a pass over the first snapshot, without a past: over all of it."""
        items = self.local_items(examples)
        queries = [(0, *examples.part(items))]
        batch = replace(self.maker.batch(Past([], 0), queries), items=items, targets=len(items))
        learned.append(batch)
        self.averager.begin()
        yield Step(self.loss(batch), batch.queries, items)
        self.averager.stepped(batch.queries)
        self.averager.average(last=True)

    def local_items(self, examples: SnapshotExamples) -> Int64:
        """Items that this rank learns, int64, ascending: those that ask about its nodes of that snapshot."""
        assert self._view is not None
        queries, _ = examples.part(np.arange(len(examples)))
        first = queries.ends[0][: len(examples)]
        tau = examples.tau if examples.tau in self._view.taus else None
        mine = owned_by_parts(self._view, int(first.max(initial=-1)) + 1, self._ranks, tau)
        return np.flatnonzero(mine[first])

    def loss(self, batch: HybridBatch) -> Tensor:
        """Sum of a batch's losses, a scalar."""
        z = self._rows(self._model, batch.layout, len(batch.nodes))
        losses = [
            self._loss(queries, truth, z[place], batch.nodes.searchsorted)
            for place, queries, truth in batch.questions
        ]
        return torch.stack(losses).sum()

    def _rows(self, model: SnapshotModel, layout: SampledLayout, nodes: int, *, last: bool = False) -> Tensor:
        """Embeddings (t, n, width) of a layout's nodes; without snapshots (1, n, width), those before any."""
        if not layout.steps:
            return before_any(model, nodes).unsqueeze(0)
        return unroll(model.stages, layout, last=last)[0]

    def _last(self, end: int) -> Past:
        """The last snapshots of a window, or those before the newest (−1)."""
        most = len(self.maker.taus) + end
        first = max(0, most - self._model.window)
        return self.maker.past.part(first, most - first)

    def _embed_all(self, model: SnapshotModel, past: Past, nodes: Int64) -> Tensor:
        """Embeddings (n, width) of nodes, ascending, after snapshots."""
        assert self._view is not None
        model.eval()
        tables = [next(model.parameters()).new_zeros(0, model.width)]
        for first in range(0, len(nodes), self.options.inference_nodes):
            beat()
            chunk = nodes[first : first + self.options.inference_nodes]
            self.maker.reach.cover(self._view, past, [chunk] * len(past.snapshots))
            tables.append(self._rows(model, self.maker.layout(model, past, chunk), len(chunk), last=True)[0])
        return torch.cat(tables)

    def _of_all_ranks(self, report: StepReport, learned: Sequence[HybridBatch]) -> StepReport:
        """The report with the most steps of a rank, and figures of the learned batches; a collective."""
        averages, divergence = self.averager.since_last()
        steps, nonfinite, apart = self._ranks.maximum(
            [report.steps, report.nonfinite, round(divergence * PARTS)]
        )
        waits_s, reads = self.generator.since_last()
        counts = self.reservoir.counts()
        return replace(
            report,
            steps=steps,
            nonfinite=nonfinite,
            seconds={**report.seconds, "batches": math.fsum(waits_s)},
            figures={
                "batch_size": {
                    "snapshots": np.mean([batch.layout.steps for batch in learned]),
                    "vertices": np.mean([batch.targets for batch in learned]),
                },
                "adjuster_epsilon": self.adjuster.epsilon,
                "adjuster_reward": self.adjuster.reward,
                "reservoir_batches": {
                    f"{s:g}x{v:g}": counts[number] for number, (s, v) in enumerate(self._sizes)
                },
                "reservoir_reads": reads,
                "generator_wait_seconds": waits_s,
                "averages": averages,
                "divergence_ratio": apart / PARTS,
            },
        )


class HybridPass:
    """One pass over a horizon, which all ranks make: steps that a rank takes alone, and averages between them.

    Args:
        strategy: Whose pass it is.
        ranks: All ranks.
        taus: Interval indices, the newest examples' last.
        draws: Draws batches, equal on all ranks.
        action: Size of the first planned batches.

    Attributes:
        action: Size of the next planned batches.
        learned: Batches that were learned, in order.
    """

    def __init__(
        self,
        strategy: HybridStrategy,
        ranks: Ranks,
        taus: Sequence[int],
        draws: np.random.Generator,
        action: int,
    ) -> None:
        self._strategy, self._ranks, self._taus, self._draws = strategy, ranks, taus, draws
        self.action = action
        self._most = strategy.options.steps  # 0: no limit
        limit_s = strategy.options.seconds_per_snapshot
        self._until_s = time.perf_counter() + limit_s if limit_s else None
        # Batches planned before their use. A size that was chosen since would not be that of a batch planned earlier.
        self._ahead = 1 if strategy.adjuster.adapts else strategy.options.every_steps
        self._queue: deque[tuple[Recipe, bool]] = deque()
        self._planned = 0
        self.learned: list[HybridBatch] = []

    def steps(self) -> Iterator[Step]:
        """Steps, and averages between them; weights are equal on all ranks afterwards.

        If time ends a period or the pass, ranks take different numbers of steps. A rank that has finished continues to take
        part in averages until the last one has. Under an adjuster that adapts, ranks meet after every step instead, and the
        first to finish ends the period or the pass of all.
        """
        averager, ranks = self._strategy.averager, self._ranks
        over, timed = False, self._until_s is not None or averager.timed
        averager.begin()
        while True:
            ended = over
            while not ended:
                queries = yield from self._step()
                late = self._until_s is not None and time.perf_counter() >= self._until_s
                over = late or bool(self._most and len(self.learned) >= self._most)
                ended = averager.stepped(queries) or over
                if self._strategy.adjuster.adapts:
                    over, ended = self._choose(over, ended)
            more = ranks.any(not over)[0] if timed else not over
            averager.average(last=not more)
            if not more:
                return

    def _step(self) -> Generator[Step, None, int]:
        """A step over one batch; returns its questions."""
        while len(self._queue) <= self._ahead and not (self._most and self._planned >= self._most):
            self._plan()
        recipe, known = self._queue.popleft()
        began_s, adjuster = clock(), self._strategy.adjuster
        batch = self._strategy.generator.take(recipe, known=known)
        self.learned.append(batch)
        loss = self._strategy.loss(batch) if batch.queries else None
        yield Step(loss, batch.queries, batch.items)
        if adjuster.adapts and loss is not None:
            mean = float(loss.detach()) / batch.queries  # the host waits for the device here, and only here
            if math.isfinite(mean):
                adjuster.observe(Outcome(batch.size, mean, clock() - began_s))
        return batch.queries

    def _plan(self) -> None:
        recipe, known = self._strategy.reservoir.draw(self.action, self._taus, self._draws)
        if not known and self._strategy.maker.fits_whole(recipe):
            recipe = replace(recipe, number=WHOLE)
        self._strategy.generator.want(recipe)
        self._queue.append((recipe, known))
        self._planned += 1

    def _choose(self, over: bool, ended: bool) -> tuple[bool, bool]:
        """Choose the size of the next planned batch (algorithm 2, lines 12 and 13); a collective.

        Returns:
            Whether the pass, and whether the period, is over for any rank.
        """
        ranks, chosen = self._ranks, self._strategy.adjuster.choose()
        self.action, *ends = ranks.maximum([chosen if ranks.rank == 0 else 0, over, ended])
        return bool(ends[0]), bool(ends[1])
