"""``hybrid``: ranks learn batches of some snapshots and some nodes by themselves, and average their weights (DynaHB)."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from schemas.store import LaneHeader
from stream.arrays.kinds import Bool, Int64
from stream.nearest import did_you_mean
from stream.service.heartbeat import beat
from trainer.data.views import GraphView
from trainer.device import to_device
from trainer.learning.step import NEVER, Learner
from trainer.models.interface import Model, SnapshotModel
from trainer.models.stages import CellStage, GraphStage, TimeStage
from trainer.models.unroll import unroll
from trainer.nn.rows import rows
from trainer.strategies.figures import TrainingFigure
from trainer.strategies.interface import STRATEGIES, Needs, OwnKey, Setting, StepReport
from trainer.strategies.passes import Step, run
from trainer.strategies.snapshots.adjusters import ADJUSTERS
from trainer.strategies.snapshots.averaging import AVERAGES, Averager
from trainer.strategies.snapshots.batch_maker import BatchMaker, HybridBatch
from trainer.strategies.snapshots.hybrid_pass import HybridPass
from trainer.strategies.snapshots.past import Past
from trainer.strategies.snapshots.reach import MIB
from trainer.strategies.snapshots.reservoir import BatchGenerator, Reservoir
from trainer.strategies.snapshots.sampled_layout import SampledLayout
from trainer.strategies.snapshots.whole import RATE
from trainer.strategies.snapshots.whole_layout import combines
from trainer.strategies.snapshots.windowed import WindowedStrategy, lane_refusal, owned_by_parts
from trainer.tasks.interface import Lesson

WINDOWS = 4
"""Windows of the horizon by default."""

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


@dataclass(frozen=True, kw_only=True)
class HybridOptions:
    """Options of ``hybrid``.

    Attributes:
        snapshots: Shares of the horizon that a batch may have, in (0, 1]; with ``vertices`` they are the sizes to choose from.
        vertices: Shares of the nodes with questions, in (0, 1].
        adjuster: Choice of the size: ``fixed`` (fewest snapshots, most vertices), or after every step by the paper's network,
            ``dqn``.
        steps: Optimiser steps of each rank per pass over a snapshot. 0: until ``seconds_per_snapshot`` have passed.
        seconds_per_snapshot: A pass ends after so many seconds, if ``steps`` are not taken before. 0: never.
        average: When ranks average their weights: ``every_steps``, ``every_s`` (as published), or ``delayed``: every so many
            steps, while the next are taken.
        every_steps: Steps between averages.
        every_s: Seconds between them, under ``every_s``.
        newest_share: Of batches that must contain the newest lesson, in 0 … 1.
        reservoir_mib: Memory of kept batches, MiB; others are made again.
        refresh: Share of former batches that a snapshot drops, in 0 … 1.
        halo_mib: Memory of edges and inputs of other ranks' nodes, MiB; others are read from the store again. Rows of the
            newest lessons, or of the newest prediction, are always kept. 0: all are kept.
        threads: Number of threads that make batches.
        inference_nodes: Nodes embedded at once when predicting: bounds memory.
    """

    snapshots: Sequence[float] = (0.1, 0.2, 0.3)
    vertices: Sequence[float] = (0.01, 0.05, 0.1)
    adjuster: str = "fixed"
    steps: int = 16
    seconds_per_snapshot: float = 0.0
    average: str = "every_steps"
    every_steps: int = 4
    every_s: float = 0.2
    newest_share: float = 0.5
    reservoir_mib: float = 512.0
    refresh: float = 0.2
    halo_mib: float = 0.0
    threads: int = 1
    inference_nodes: int = 65_536

    def __post_init__(self) -> None:
        for name in ("snapshots", "vertices"):
            shares = getattr(self, name)
            if not shares or not all(isinstance(each, (int, float)) and 0 < each <= 1 for each in shares):
                raise ValueError(f"{name} must name shares above 0 and at most 1, found {list(shares)}")
        for name, known in (("adjuster", list(ADJUSTERS)), ("average", list(AVERAGES))):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, found {value!r}{did_you_mean(value, known)}"
                )
        for name in ("every_steps", "threads", "inference_nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}")
        for name in ("steps", "seconds_per_snapshot", "halo_mib"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be at least 0, found {getattr(self, name)}")
        for name in ("every_s", "reservoir_mib"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, found {getattr(self, name)}")
        for name in ("newest_share", "refresh"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in 0 … 1, found {getattr(self, name)}")
        if not self.steps and not self.seconds_per_snapshot:
            raise ValueError(
                "steps is 0 and seconds_per_snapshot is 0, so a pass would not end. Set one of them"
            )


@STRATEGIES.register
class HybridStrategy(WindowedStrategy):
    """Each rank learns hybrid batches of the nodes that it owns, and weights are averaged.

    A rank follows the whole lane, as under ``group``, so that a batch has all inputs of its embeddings and only weights
    cross ranks. A batch has some consecutive snapshots of the horizon, and questions after each of them about some of the
    rank's nodes, which are drawn by load.
    """

    name: ClassVar[str] = "hybrid"
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"horizon"})
    learns_all: ClassVar[bool] = (
        True  # a checkpoint has the former lessons of rank 0 alone, so those have every item
    )
    Options: ClassVar[type] = HybridOptions
    figures: ClassVar[tuple[TrainingFigure, ...]] = FIGURES

    def __init__(self, setting: Setting, options: HybridOptions) -> None:
        self._model: SnapshotModel = setting.model
        self._task, self._ranks, self._seed = setting.task, setting.ranks, setting.seed
        self._device, self._options = setting.ranks.device, options
        self._horizon = setting.horizon or WINDOWS * self._model.window
        self.learner = Learner(
            self._model, setting.optimisation, self._ranks, averages_every=NEVER, usual_rate=RATE
        )
        every = options.every_s if options.average == "every_s" else options.every_steps
        self._averager = Averager(self.learner, self._ranks, options.average, every)
        self._sizes = [(float(s), float(v)) for s in options.snapshots for v in options.vertices]
        self.adjuster = ADJUSTERS[options.adjuster](self._sizes, self._seed)
        self._action = self.adjuster.choose()
        self._reservoir = Reservoir(self._sizes, options.newest_share, options.refresh)
        self.maker = BatchMaker(
            self._model, self._sizes, [self._seed, self._ranks.rank], self._ranks, self._horizon,
            setting.lane.node_features, int(options.halo_mib * MIB) or None,
        )  # fmt: skip
        self._generator = BatchGenerator(self.maker.make, int(options.reservoir_mib * MIB), options.threads)
        # a size that was chosen since would not be that of a batch planned earlier
        ahead = 1 if self.adjuster.adapts else options.every_steps
        self._pass = partial(
            HybridPass, self._ranks, self._averager, self.adjuster, self._reservoir, self._generator, ahead
        )
        self._view: GraphView | None = None

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """See ``Strategy.refuses``."""
        assert isinstance(model, SnapshotModel)
        for stage in model.stages:
            if isinstance(stage, CellStage):
                return (
                    f"strategy {cls.name} has what is a few hops away, but stage {type(stage).__name__} of {model.name} "
                    "convolves states and so looks further with every snapshot. Choose strategy group or whole"
                )
            if isinstance(stage, GraphStage) and stage.summarises:
                return (
                    f"strategy {cls.name} has some rows of each snapshot, but the weights of {model.name} evolve by the best "
                    "of all of them. Choose model evolvegcn-o, or strategy group or whole"
                )
        if combines(model, next(model.parameters())):
            return (
                f"strategy {cls.name} has the neighbours of each snapshot, but {model.name} looks along means of several "
                "snapshots' operators. Set normalise: after, or choose strategy group or whole"
            )
        return lane_refusal(cls.name, lane, ranks)

    @property
    def needs(self) -> Needs:
        """See ``Strategy.needs``."""
        return Needs("graph", self._horizon, lessons=self._horizon)

    def rewind(self) -> None:
        """See ``Strategy.rewind``."""
        self._reservoir.begin()
        self._generator.retain(set())

    def take_in(self, view: GraphView) -> None:
        """See ``Strategy.take_in``."""
        self._view = view
        self.maker.take_in(view)

    def owned(self, num_nodes: int) -> Bool:
        """See ``Strategy.owned``."""
        assert self._view is not None
        return owned_by_parts(self._view, num_nodes, self._ranks)

    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        """See ``WindowedStrategy.embed_before``: from a state of zero at the beginning of the window, and alone."""
        return self._embed_all(model, self._last(-1), nodes)

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``."""
        distinct, place = np.unique(nodes, return_inverse=True)
        z = self._embed_all(self._model, self._last(0), distinct)
        return z[to_device(place, z.device)]

    def learn(self, lessons: Sequence[Lesson], epoch: int) -> StepReport:
        """See ``Strategy.learn``."""
        limit_s = self._options.seconds_per_snapshot
        until_s = time.perf_counter() + limit_s if limit_s else None
        taus, newest = self.maker.taus, lessons[-1]
        draws = np.random.default_rng([self._seed, newest.sequence, epoch, 3])
        work = self._pass(taus, draws, self._action, self.loss, self._options.steps, until_s)
        if len(taus) < 2:
            steps = self._first(newest, work.learned)
        else:
            self._reservoir.slide(taus, draws)
            self._generator.retain(self._reservoir.recipes())
            self.maker.open([(each, self.own(each)) for each in lessons])
            steps = work.steps()
        report = run(self._model, self.learner, self._ranks, steps)
        self._generator.drain()
        self._action = work.action
        return self._of_all_ranks(report, work.learned)

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``: batches are made again from their recipes."""
        return {
            **super().state(),
            "adjuster": self.adjuster.state(),
            "action": self._action,
            "reservoir": self._reservoir.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``."""
        super().restore(state)
        if "reservoir" not in state:  # a state of the learner alone
            return
        self.adjuster.restore(state["adjuster"])
        self._action = int(state["action"])
        self._reservoir.restore(state["reservoir"])
        self._generator.retain(set())

    def close(self) -> None:
        """See ``Strategy.close``."""
        self._generator.close()

    @property
    def step_events(self) -> int:
        """See ``Strategy.step_events``: a share of a snapshot, whatever its size."""
        return 1

    @property
    def held_bytes(self) -> dict[str, int]:
        """See ``Strategy.held_bytes``."""
        return {**self.maker.held_bytes, "reservoir": self._generator.held_bytes}

    def _first(self, lesson: Lesson, learned: list[HybridBatch]) -> Iterator[Step]:
        """The step of a pass over the first snapshot, without a past: over all of it."""
        items = self.own(lesson)
        asked = [(0, *lesson.part(items))]
        batch = replace(self.maker.batch(Past([], 0), asked), items=items, targets=len(items))
        learned.append(batch)
        self._averager.begin()
        yield Step(self.loss(batch), batch.queries, items)
        self._averager.stepped(batch.queries)
        self._averager.average(last=True)

    def own(self, lesson: Lesson) -> Int64:
        """Items of a lesson that this rank learns, int64, ascending: those that ask about its nodes of that snapshot."""
        assert self._view is not None
        asked, _ = lesson.part(np.arange(len(lesson)))
        first = asked.ends[0][: len(lesson)]
        tau = lesson.tau if lesson.tau in self._view.taus else None
        mine = owned_by_parts(self._view, int(first.max(initial=-1)) + 1, self._ranks, tau)
        return np.flatnonzero(mine[first])

    def loss(self, batch: HybridBatch) -> Tensor:
        """Sum of a batch's losses, a scalar."""
        z, nodes = self._rows(self._model, batch.layout, len(batch.nodes)), batch.nodes
        losses = []
        for place, asked, truth in batch.asked:
            ends = [
                rows(z[place], to_device(np.searchsorted(nodes, each), self._device)) for each in asked.ends
            ]
            losses.append(
                self._task.loss(asked.read(self._model.decoder, ends), to_device(truth, self._device))
            )
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
        found = [next(model.parameters()).new_zeros(0, model.width)]
        for first in range(0, len(nodes), self._options.inference_nodes):
            beat()
            chunk = nodes[first : first + self._options.inference_nodes]
            self.maker.reach.cover(self._view, past, [chunk] * len(past.snapshots))
            found.append(self._rows(model, self.maker.layout(model, past, chunk), len(chunk), last=True)[0])
        return torch.cat(found)

    def _of_all_ranks(self, report: StepReport, learned: Sequence[HybridBatch]) -> StepReport:
        """The report with the most steps of a rank, and figures of the learned batches; a collective."""
        averages, divergence = self._averager.since_last()
        steps, nonfinite, apart = self._ranks.maximum(
            [report.steps, report.nonfinite, round(divergence * PARTS)]
        )
        waits_s, reads = self._generator.since_last()
        counts = self._reservoir.counts()
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
                "reservoir_batches": {f"{s:g}x{v:g}": counts[at] for at, (s, v) in enumerate(self._sizes)},
                "reservoir_reads": reads,
                "generator_wait_seconds": waits_s,
                "averages": averages,
                "divergence_ratio": apart / PARTS,
            },
        )


def before_any(model: SnapshotModel, nodes: int) -> Tensor:
    """Embeddings (nodes, width) before the first snapshot."""
    none, last = next(model.parameters()).new_zeros(nodes, model.width), model.stages[-1]
    return last.before_any(none) if isinstance(last, TimeStage) else none


__all__ = ["HybridOptions", "HybridStrategy"]
