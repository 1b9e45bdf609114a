"""``group``: every rank trains whole snapshot groups, scheduled so that none waits long (DyGNeX)."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import structlog
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.arrays.kinds import Float32, Float64, Int64
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.learning.soundness import spoil
from freshet_graph.trainer.models.interface import Model
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.dygnex.scheduling.planner import PassPlan, Planner
from freshet_graph.trainer.strategies.dygnex.scheduling.time_model import Profile
from freshet_graph.trainer.strategies.figures import TrainingFigure
from freshet_graph.trainer.strategies.interface import STRATEGIES, Needs, Setting, StepReport
from freshet_graph.trainer.strategies.passes import Step, run
from freshet_graph.trainer.strategies.snapshots.whole import (
    TRANSFER_BYTES,
    TransferMode,
    WholeLayout,
    WholeOptions,
    WholeStrategy,
)
from freshet_graph.trainer.strategies.snapshots.windowed import WINDOWS, before_any
from freshet_graph.trainer.tasks.interface import QueryBatch, SnapshotExamples
from freshet_graph.trainer.timeline.graph import TimelineView
from freshet_graph.trainer.timeline.timeline import GroupHorizon

log = structlog.get_logger()


SCHEDULE_RATIO = TrainingFigure(
    name="schedule_ratio",
    meaning="How evenly ranks train snapshot groups",
    kind="gauge",
    labels=("figure", "of"),
    key="balance",
    shared=True,
)


class GroupOptions(Section):
    """Options of ``group``."""

    composition: Literal["fixed", "schedule"] = Field(
        "fixed",
        description="fixed: the groups of a step follow from their sizes, and results are equal to the bit for any ranks and "
        "timing; schedule: the schedule decides, as in the paper.",
    )
    algorithm: Literal["greedy", "paper", "ilp", "auto", "psg", "psg-sorted"] = Field(
        "greedy",
        description="Of the schedule, see freshet-trainer schedule; composition fixed takes the longest first.",
    )
    groups_per_step: int = Field(4, ge=1, description="Groups of an optimiser step under fixed.")
    groups_per_rank: int = Field(2, ge=1, description="L, most groups of a rank in one step under schedule.")
    alpha_s: float = Field(
        0.0, ge=0, description="α, seconds of the all-reduce that ends a step, for the schedule."
    )
    reproducible: bool = Field(
        True,
        description="Whether gradients are summed in the order of groups, and by one thread per rank on the CPU.",
    )
    transfer: TransferMode = "auto"

    @model_validator(mode="after")
    def _composition_has_the_algorithm(self) -> Self:
        if self.composition == "fixed" and self.algorithm != "greedy":
            raise ValueError(
                f"algorithm {self.algorithm} decides which groups make a step, but composition is fixed. "
                "Set composition: schedule"
            )
        return self


@dataclass(frozen=True, slots=True)
class Group:
    """A window of snapshots with the questions about the next one.

    Attributes:
        tau: The next snapshot.
        before: Interval indices of the window's snapshots, at most w, oldest first.
        queries: Questions.
        truth: float32 (Q,), their true answers.
    """

    tau: int
    before: tuple[int, ...]
    queries: QueryBatch
    truth: Float32


@STRATEGIES.register
class GroupStrategy(WholeStrategy):
    """Groups are independent samples: a rank trains whole groups, and only gradients cross ranks.

    Every rank follows the whole lane and has all examples, so any rank can train any group. A pass takes every group of the
    horizon once.
    """

    name: ClassVar[str] = "group"
    learns_all: ClassVar[bool] = True
    Options: ClassVar[type[Section]] = GroupOptions
    figures: ClassVar[tuple[TrainingFigure, ...]] = (TRANSFER_BYTES, SCHEDULE_RATIO)

    def __init__(self, setting: Setting, options: GroupOptions) -> None:
        super().__init__(setting, WholeOptions(transfer=options.transfer))
        self._reproducible = options.reproducible
        self._window = self._model.window
        self._horizon = setting.horizon or WINDOWS * self._window
        self._planner = Planner(
            self._ranks.size, options.composition, options.algorithm, options.groups_per_rank,
            options.groups_per_step, options.alpha_s,
        )  # fmt: skip
        self._profile = Profile()
        self.steps = GroupSteps(list(self._model.parameters()), self._ranks, ordered=options.reproducible)
        self._live: dict[tuple[int, ...], Int64] = {}  # nodes with an edge, by the snapshots of a group
        step = options.groups_per_step if options.composition == "fixed" else self.needs.example_sets
        idle = self._ranks.size - min(step, self.needs.example_sets)
        if idle > 0 and self._ranks.rank == 0:
            log.warning(
                "strategy group has more ranks than a step has groups, and the others only wait. Start fewer ranks, or raise the "
                "keys horizon and groups_per_step",
                ranks=self._ranks.size,
                groups=self._ranks.size - idle,
            )

    @classmethod
    @override
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """A group needs no rows of other ranks, for any stages."""
        return None

    @property
    @override
    def needs(self) -> Needs:
        example_sets = max(1, self._horizon - self._window + 1)
        return Needs("timeline", self._horizon, parts="all", example_sets=example_sets)

    @override
    def embed_before(self, model: Any, nodes: Int64) -> Tensor:
        """From the last group."""
        return self._embedded(model, self._view.timeline.taus[:-1][-self._window :], nodes)

    @override
    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        return self._embedded(self._model, self._view.timeline.taus[-self._window :], nodes)

    @override
    def take_in(self, view: TimelineView) -> None:
        super().take_in(view)
        self._view = view

    @override
    def learn(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> StepReport:
        groups = self._groups(example_sets)
        if not groups:
            return StepReport()
        newest, sizes, names = example_sets[-1], self._sizes(groups), [group.tau for group in groups]
        began_s = time.perf_counter()
        plan = self._plan(sizes, self._profile.predict(names, sizes), [self._seed, newest.sequence, epoch])
        solving_s = time.perf_counter() - began_s
        planned = plan.schedule.iterations()
        steps = [self._step(groups, of_rank, newest) for of_rank in planned]
        with self._threads():
            report = run(self._model, self.learner, self._ranks, steps)
        began_s = time.perf_counter()
        local_measures = np.zeros((2, len(groups)))  # of this rank's groups
        for row, by_group in zip(local_measures, (self.steps.seconds(), self.steps.losses()), strict=True):
            row[list(by_group)] = list(by_group.values())
        measured_s, losses = self._ranks.sum_array(local_measures, "control")
        self._profile.measured(names, sizes, measured_s)
        profiling_s = time.perf_counter() - began_s
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

    def _step(
        self, groups: Sequence[Group], of_rank: Sequence[Sequence[int]], newest: SnapshotExamples
    ) -> Step:
        """A step over some groups, given each rank's numbers of them."""
        together = [groups[group] for of in of_rank for group in of]
        queries = sum(len(group.truth) for group in together)
        local_groups = sorted(of_rank[self._ranks.rank])
        backward = self.steps.backward(lambda group: self._loss_of(groups[group]), local_groups, 1 / queries)
        has_newest = any(group.tau == newest.tau for group in together)
        return Step(backward, queries, len(newest) if has_newest else 0, summed=self._reproducible)

    @override
    def state(self) -> dict[str, Any]:
        """Measured times, too, which never change the results of ``fixed``."""
        return {**super().state(), "profile": self._profile.state()}

    @override
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._profile.restore(state.get("profile", {}))

    def _groups(self, example_sets: Sequence[SnapshotExamples]) -> list[Group]:
        """The groups whose window is on the timeline; the newest snapshot's may be shorter."""
        host = self._view.timeline
        taus = host.taus
        begins_lane = host.snapshots[host.place(taus[0])].number == 0
        groups = []
        for examples in example_sets:
            if examples.tau not in taus or not len(examples):
                continue
            before = tuple(taus[: taus.index(examples.tau)][-self._window :])
            if len(before) < self._window and not begins_lane and examples is not example_sets[-1]:
                continue
            queries, truth = examples.part(np.arange(len(examples)))
            groups.append(Group(examples.tau, before, queries, truth))
        return groups

    def _sizes(self, groups: Sequence[Group]) -> Float64:
        """Rows, edges, snapshots and questions of each group, float64 (n, 4)."""
        host, former, self._live = self._view.timeline, self._live, {}
        sizes = []
        for group in groups:
            before = group.before
            self._live[before] = live = former[before] if before in former else self._active(before)
            pairs = sum(host.snapshots[host.place(tau)].pairs[0] for tau in before)
            sizes.append((len(live) * len(before), pairs, len(before), len(group.truth)))
        return np.array(sizes, np.float64)

    def _active(self, taus: Sequence[int]) -> Int64:
        """All nodes with an edge in one of some snapshots, int64, ascending."""
        return distinct(*(self.timeline.active(tau) for tau in taus))

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
        nodes = np.unique(np.concatenate(group.queries.ends))
        z = self._of(self._model, group.before, nodes, self._live[group.before])
        return self._loss(group.queries, group.truth, z, nodes.searchsorted)

    def _embedded(self, model: Any, taus: Sequence[int], nodes: Int64) -> Tensor:
        distinct_nodes, back = np.unique(nodes, return_inverse=True)
        model.eval()
        return self._of(model, taus, distinct_nodes, self._active(taus))[to_device(back, self._device)]

    def _of(self, model: Any, taus: Sequence[int], nodes: Int64, live: Int64) -> Tensor:
        """Embeddings of nodes, ascending, after some snapshots; ``live`` are all nodes with an edge in them."""
        horizon = GroupHorizon(self.timeline, self._view, taus, nodes, live)
        places = self._places(horizon, nodes)
        if not taus:
            return before_any(model, len(horizon.nodes))[places]
        return unroll(model.stages, WholeLayout(horizon, model), last=True, nodes=places)[0][0]

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """On the CPU, use one thread for products: their number changes the order of sums."""
        if not self._reproducible or self._device.type != "cpu":
            yield
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


class GroupSteps:
    """Computes gradients of groups, and measures the seconds of each.

    Args:
        weights: Of the model.
        ranks: All ranks.
        ordered: Whether gradients are summed in the order of groups, so that the sum is equal to the bit on any number of
            ranks; otherwise each rank sums its own, and an all-reduce sums those of ranks.
    """

    def __init__(self, weights: Sequence[nn.Parameter], ranks: Ranks, *, ordered: bool) -> None:
        self._weights = [weight for weight in weights if weight.requires_grad]
        self._ranks, self._ordered = ranks, ordered
        self._lasted: dict[int, Callable[[], float]] = {}
        self._losses: dict[int, Tensor] = {}

    def backward(
        self, loss: Callable[[int], Tensor], groups: Sequence[int], weight: float
    ) -> Callable[[], Tensor | None]:
        """A function for ``Learner.follow`` that computes the gradient of one step's groups; a collective if ordered.

        Args:
            loss: Of a group, a scalar; its forward pass.
            groups: Numbers of this rank's groups, maybe none.
            weight: Of every loss in the sum.
        """

        def backward() -> Tensor | None:
            losses: list[Tensor] = []
            parts: dict[int, list[Tensor | None]] = {}
            for group in groups:
                end = _begun(self._ranks.device)
                group_loss = loss(group)
                if group_loss.requires_grad:  # no, before the first snapshot and under a head without weights
                    (group_loss * weight).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
                losses.append(group_loss.detach())
                self._losses[group] = losses[-1]
                if self._ordered:
                    spoil(self._weights, group_loss)
                    parts[group] = [parameter.grad for parameter in self._weights]
                    for parameter in self._weights:
                        parameter.grad = None
                self._lasted[group] = end()
            if self._ordered:
                self._sum(parts)
            return torch.stack(losses).sum() if losses else None

        return backward

    def seconds(self) -> dict[int, float]:
        """Seconds of each group since the last call."""
        lasted, self._lasted = self._lasted, {}
        return {group: ended() for group, ended in lasted.items()}

    def losses(self) -> dict[int, float]:
        """The loss of each group since the last call, read from the device at once."""
        losses, self._losses = self._losses, {}
        if not losses:
            return {}
        values = torch.stack([loss.double() for loss in losses.values()]).tolist()
        return dict(zip(losses, values, strict=True))

    def _sum(self, parts: dict[int, list[Tensor | None]]) -> None:
        exist = self._ranks.any(
            *(
                any(part[number] is not None for part in parts.values())
                for number in range(len(self._weights))
            )
        )
        whole = {
            group: [
                torch.zeros_like(weight) if gradient is None else gradient
                for weight, gradient in zip(self._weights, part, strict=True)
            ]
            for group, part in parts.items()
        }
        sums = self._ranks.sum_in_order(whole, self._weights, "gradients")
        for weight, total, exists in zip(self._weights, sums, exist, strict=True):
            weight.grad = total if exists else None


def _begun(device: torch.device) -> Callable[[], Callable[[], float]]:
    """Begin a measurement. Call the result to end it; that returns a function for the seconds. The host never waits for a GPU."""
    if device.type != "cuda":
        # One thread does all the work of a group, so its processor time is the group's, on a busy machine, too.
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        began_s = clock()

        def end() -> Callable[[], float]:
            took_s = clock() - began_s
            return lambda: took_s

        return end
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    first.record()

    def end_on_device() -> Callable[[], float]:
        last.record()
        return lambda: _elapsed_s(first, last)

    return end_on_device


def _elapsed_s(first: torch.cuda.Event, last: torch.cuda.Event) -> float:
    last.synchronize()
    return first.elapsed_time(last) / 1000
