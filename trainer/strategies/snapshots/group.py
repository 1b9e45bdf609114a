"""``group``: every rank trains whole snapshot groups, scheduled so that none waits long (DyGNeX)."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import structlog
import torch
from torch import Tensor

from schemas.store import LaneHeader
from stream.arrays.kinds import Bool, Float32, Float64, Int64
from stream.nearest import did_you_mean
from trainer.device import to_device
from trainer.models.interface import Model
from trainer.models.unroll import unroll
from trainer.nn.rows import rows
from trainer.scheduling.planner import COMPOSITIONS, PassPlan, Planner
from trainer.scheduling.profile import Profile
from trainer.scheduling.solve import ALGORITHMS
from trainer.strategies.figures import TrainingFigure
from trainer.strategies.interface import STRATEGIES, Needs, Setting, StepReport
from trainer.strategies.passes import Step, run
from trainer.strategies.snapshots.group_steps import GroupSteps
from trainer.strategies.snapshots.whole import TRANSFER_BYTES, WholeOptions, WholeStrategy
from trainer.strategies.snapshots.whole_layout import WholeLayout
from trainer.tasks.interface import Asked, Lesson
from trainer.timeline.graph import TimelineView
from trainer.timeline.timeline import GroupHorizon
from trainer.timeline.transfer import MODES

WINDOWS = 4
"""Windows of the horizon by default."""

log = structlog.get_logger()


SCHEDULE_RATIO = TrainingFigure(
    name="schedule_ratio",
    meaning="How evenly ranks train snapshot groups",
    kind="gauge",
    labels=("figure", "of"),
    key="balance",
    shared=True,
)


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """Options of ``group``.

    Attributes:
        composition: ``fixed``: the groups of a step follow from their sizes, and results are equal to the bit for any ranks
            and timing; ``schedule``: the schedule decides, as in the paper.
        algorithm: Of the schedule, see ``freshet-trainer schedule``; ``fixed`` takes the longest first.
        groups_per_step: Groups of an optimiser step under ``fixed``.
        groups_per_rank: L, most groups of a rank in one step under ``schedule``.
        alpha_s: α, seconds of the all-reduce that ends a step, for the schedule.
        reproducible: Whether gradients are summed in the order of groups, and by one thread per rank on the CPU.
        transfer: See ``whole``.
    """

    composition: str = "fixed"
    algorithm: str = "greedy"
    groups_per_step: int = 4
    groups_per_rank: int = 2
    alpha_s: float = 0.0
    reproducible: bool = True
    transfer: str = "auto"

    def __post_init__(self) -> None:
        if self.composition not in COMPOSITIONS:
            raise ValueError(f"composition must be {' or '.join(COMPOSITIONS)}, found {self.composition!r}")
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"algorithm must be one of {', '.join(ALGORITHMS)}, found {self.algorithm!r}"
                f"{did_you_mean(self.algorithm, list(ALGORITHMS))}"
            )
        if self.composition == "fixed" and self.algorithm != "greedy":
            raise ValueError(
                f"algorithm {self.algorithm} decides which groups make a step, but composition is fixed. "
                "Set composition: schedule"
            )
        for name in ("groups_per_step", "groups_per_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}")
        if not 0 <= self.alpha_s < float("inf"):
            raise ValueError(f"alpha_s must be at least 0, found {self.alpha_s}")
        if self.transfer not in MODES:
            raise ValueError(f"transfer must be one of {', '.join(MODES)}, found {self.transfer!r}")


@dataclass(frozen=True, slots=True)
class Group:
    """A window of snapshots with the questions about the next one.

    Attributes:
        tau: The next snapshot.
        before: Interval indices of the window's snapshots, at most w, oldest first.
        asked: Questions.
        truth: float32 (Q,), their true answers.
    """

    tau: int
    before: tuple[int, ...]
    asked: Asked
    truth: Float32


@STRATEGIES.register
class GroupStrategy(WholeStrategy):
    """Groups are independent samples: a rank trains whole groups, and only gradients cross ranks.

    Every rank follows the whole lane and has all lessons, so any rank can train any group. A pass takes every group of the
    horizon once.
    """

    name: ClassVar[str] = "group"
    learns_all: ClassVar[bool] = True
    Options: ClassVar[type] = GroupOptions
    figures: ClassVar[tuple[TrainingFigure, ...]] = (TRANSFER_BYTES, SCHEDULE_RATIO)

    def __init__(self, setting: Setting, options: GroupOptions) -> None:
        super().__init__(setting, WholeOptions(transfer=options.transfer))
        self._chosen = options
        self._window = self._model.window
        self._horizon = setting.horizon or WINDOWS * self._window
        self._planner = Planner(
            self._ranks.size, options.composition, options.algorithm, options.groups_per_rank,
            options.groups_per_step, options.alpha_s,
        )  # fmt: skip
        self._profile = Profile()
        self.steps = GroupSteps(list(self._model.parameters()), self._ranks, ordered=options.reproducible)
        self._live: dict[int, tuple[tuple[int, ...], Int64, int]] = {}
        step = options.groups_per_step if options.composition == "fixed" else self.needs.lessons
        idle = self._ranks.size - min(step, self.needs.lessons)
        if idle > 0 and self._ranks.rank == 0:
            log.warning(
                f"Strategy group has {self._ranks.size} ranks, and a step has {self._ranks.size - idle} groups at most, so "
                f"{idle} of them only wait. Start fewer ranks, or raise the key horizon and groups_per_step"
            )

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """See ``Strategy.refuses``: a group needs no rows of other ranks, for any stages."""
        return None

    @property
    def needs(self) -> Needs:
        """See ``Strategy.needs``."""
        lessons = max(1, self._horizon - self._window + 1)
        return Needs("timeline", self._horizon, parts="all", lessons=lessons)

    def owned(self, num_nodes: int) -> Bool:
        """See ``Strategy.owned``: for predictions; every rank has all lessons."""
        mine: Bool = np.arange(num_nodes) % self._ranks.size == self._ranks.rank
        return mine

    def embed_before(self, model: Any, nodes: Int64) -> Tensor:
        """See ``WindowedStrategy.embed_before``: from the last group."""
        return self._embedded(model, self._view.timeline.taus[:-1][-self._window :], nodes)

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``."""
        return self._embedded(self._model, self._view.timeline.taus[-self._window :], nodes)

    def take_in(self, view: TimelineView) -> None:
        """See ``Strategy.take_in``."""
        super().take_in(view)
        self._view = view

    def learn(self, lessons: Sequence[Lesson], epoch: int) -> StepReport:
        """See ``Strategy.learn``; all ranks have the same lessons."""
        groups = self._groups(lessons)
        if not groups:
            return StepReport()
        newest, sizes, names = lessons[-1], self._sizes(groups), [group.tau for group in groups]
        at = time.perf_counter()
        plan = self._plan(sizes, self._profile.predict(names, sizes), [self._seed, newest.sequence, epoch])
        solving_s = time.perf_counter() - at
        planned = plan.schedule.iterations()
        steps = [self._step(groups, of_rank, newest) for of_rank in planned]
        with self._threads():
            report = run(self._model, self.learner, self._ranks, steps)
        at = time.perf_counter()
        found = np.zeros((2, len(groups)))
        for row, by_group in zip(found, (self.steps.seconds(), self.steps.losses()), strict=True):
            row[list(by_group)] = list(by_group.values())
        measured_s, losses = self._ranks.sum_array(found, "control")
        self._profile.measured(names, sizes, measured_s)
        profiling_s = time.perf_counter() - at
        # Summed by group, so the sum does not depend on the ranks that trained them.
        taken = [of_rank for of_rank, step in zip(planned, steps, strict=True) if not step.left_out]
        loss = float(losses[sorted(group for of_rank in taken for of in of_rank for group in of)].sum())
        queries = sum(step.queries for step in steps if not step.left_out)
        return replace(
            report,
            loss=loss / queries if queries else None,
            seconds={**report.seconds, "schedule": solving_s, "profile": profiling_s},
            figures={
                TRANSFER_BYTES.name: self.timeline.transfer.since_last(),
                SCHEDULE_RATIO.name: plan.balance(measured_s, self._profile.error),
            },
        )

    def _step(self, groups: Sequence[Group], of_rank: Sequence[Sequence[int]], newest: Lesson) -> Step:
        """A step over some groups, given each rank's numbers of them."""
        together = [groups[group] for of in of_rank for group in of]
        queries = sum(len(group.truth) for group in together)
        own = sorted(of_rank[self._ranks.rank])
        backward = self.steps.backward(lambda group: self._loss_of(groups[group]), own, 1 / queries)
        has_newest = any(group.tau == newest.tau for group in together)
        return Step(backward, queries, len(newest) if has_newest else 0, summed=self._chosen.reproducible)

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``; measured times, too, which never change the results of ``fixed``."""
        return {**super().state(), "profile": self._profile.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``."""
        super().restore({name: value for name, value in state.items() if name != "profile"})
        self._profile.restore(state.get("profile", {}))

    def _groups(self, lessons: Sequence[Lesson]) -> list[Group]:
        """The groups whose window is on the timeline; the newest snapshot's may be shorter."""
        host = self._view.timeline
        taus = host.taus
        begins_lane = host.snapshots[host.place(taus[0])].number == 0
        found = []
        for lesson in lessons:
            if lesson.tau not in taus or not len(lesson):
                continue
            before = tuple(taus[: taus.index(lesson.tau)][-self._window :])
            if len(before) < self._window and not begins_lane and lesson is not lessons[-1]:
                continue
            asked, truth = lesson.part(np.arange(len(lesson)))
            found.append(Group(lesson.tau, before, asked, truth))
        return found

    def _sizes(self, groups: Sequence[Group]) -> Float64:
        """Rows, edges, snapshots and questions of each group, float64 (n, 4)."""
        host, kept = self._view.timeline, {}
        for group in groups:
            known = self._live.get(group.tau)
            if known is None or known[0] != group.before:
                active = [self.timeline.active(tau) for tau in group.before]
                live = np.unique(np.concatenate([np.empty(0, np.int64), *active]))
                edges = [host.snapshots[host.place(tau)].pairs[0] for tau in group.before]
                known = group.before, live, sum(edges)
            kept[group.tau] = known
        self._live = kept
        sizes = []
        for group in groups:
            before, live, pairs = kept[group.tau]
            sizes.append((len(live) * len(before), pairs, len(before), len(group.truth)))
        return np.array(sizes, np.float64)

    def _plan(self, sizes: Float64, times_s: Float64, seed: list[int]) -> PassPlan:
        """Rank 0's plan, on every rank."""
        plan = self._planner.plan(sizes, times_s, seed)
        if self._ranks.size == 1:
            return plan
        iterations = self._ranks.from_first(len(plan.schedule.slots))
        shape = iterations, *plan.schedule.slots.shape[1:]
        slots = plan.schedule.slots.copy() if self._ranks.rank == 0 else np.zeros(shape, np.int64)
        return plan.with_slots(self._ranks.sum_array(slots, "control"))

    def _loss_of(self, group: Group) -> Tensor:
        asked = np.unique(np.concatenate(group.asked.ends))
        z = self._of(self._model, group.before, asked, self._live[group.tau][1])
        ends = [rows(z, to_device(np.searchsorted(asked, nodes), self._device)) for nodes in group.asked.ends]
        answers = group.asked.read(self._model.decoder, ends)
        return self._task.loss(answers, to_device(group.truth, self._device))

    def _embedded(self, model: Any, taus: Sequence[int], nodes: Int64) -> Tensor:
        active = [self.timeline.active(tau) for tau in taus]
        live = np.unique(np.concatenate([np.empty(0, np.int64), *active]))
        asked, back = np.unique(nodes, return_inverse=True)
        model.eval()
        return self._of(model, taus, asked, live)[to_device(back, self._device)]

    def _of(self, model: Any, taus: Sequence[int], asked: Int64, live: Int64) -> Tensor:
        """Embeddings of nodes, ascending, after some snapshots; ``live`` are all nodes with an edge in them."""
        horizon = GroupHorizon(self.timeline, self._view, taus, asked, live)
        places = self._places(horizon, asked)
        if not taus:
            return self._before_any(model, horizon)[places]
        return unroll(model.stages, WholeLayout(horizon, model), last=True, nodes=places)[0][0]

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """On the CPU, use one thread for products: their number changes the order of sums."""
        if not self._chosen.reproducible or self._device.type != "cpu":
            yield
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
