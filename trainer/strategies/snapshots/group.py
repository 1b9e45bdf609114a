"""``group``: every rank trains whole snapshot groups, scheduled so that none waits long (DyGNeX)."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import structlog
import torch
from torch import Tensor

from schemas.store import LaneHeader
from stream.arrays.kinds import Bool, Float32, Float64, Int64
from stream.nearest import did_you_mean
from stream.service.heartbeat import beat
from trainer.device import to_device
from trainer.models.interface import Model
from trainer.models.unroll import unroll_windows
from trainer.nn.rows import rows
from trainer.scheduling.planner import COMPOSITIONS, Plan, Planner
from trainer.scheduling.profile import Profile
from trainer.scheduling.solve import ALGORITHMS
from trainer.strategies.interface import STRATEGIES, Needs, Setting, StepReport
from trainer.strategies.snapshots.group_steps import GroupSteps
from trainer.strategies.snapshots.whole import WholeOptions, WholeStrategy
from trainer.strategies.snapshots.whole_layout import WholeLayout, combines
from trainer.tasks.interface import Asked, Lesson
from trainer.timeline.group_horizon import GroupHorizon
from trainer.timeline.transfer import MODES
from trainer.timeline.view import TimelineView

WINDOWS = 4
"""Windows that the horizon has, where none is configured."""

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """Options of ``group``.

    Attributes:
        composition: ``fixed``: which groups make a step follows from their sizes, and neither ranks nor timing change a bit
            of what is learned; ``schedule``: the schedule decides, as in the paper.
        algorithm: Of the schedule, as ``freshet-trainer schedule`` has them; ``fixed`` has the longest first.
        groups_per_step: Groups of an optimiser step under ``fixed``.
        groups_per_rank: L, groups of a rank in one step under ``schedule``, at most.
        together: Neighbouring groups, at most, that one rank trains as one, because all but one of their snapshots are the
            same; 1: each by itself, as in the paper.
        alpha_s: α, seconds of the all-reduce that ends a step, for the schedule.
        reproducible: Whether gradients are summed in the order of groups, and by one thread per rank on the CPU.
        transfer: How a snapshot is told to the device, see ``whole``.
    """

    composition: str = "fixed"
    algorithm: str = "greedy"
    groups_per_step: int = 4
    groups_per_rank: int = 2
    together: int = 2
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
        for name in ("groups_per_step", "groups_per_rank", "together"):
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
        tau: The next one.
        before: Interval indices of the window's snapshots, at most w, oldest first.
        asked: Questions.
        truth: float32 (Q,), their true answers.
    """

    tau: int
    before: tuple[int, ...]
    asked: Asked
    truth: Float32


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Groups of neighbouring windows that are trained as one: a unit of the schedule.

    Attributes:
        groups: Oldest first, one at least.
        taus: Interval indices of all their snapshots, ascending.
    """

    groups: tuple[Group, ...]
    taus: tuple[int, ...]

    @property
    def tau(self) -> int:
        """That of the newest group."""
        return self.groups[-1].tau

    @property
    def queries(self) -> int:
        """Questions of all groups."""
        return sum(len(group.truth) for group in self.groups)

    @property
    def rows(self) -> int:
        """Snapshots of all windows, those of several counted in each."""
        return sum(len(group.before) for group in self.groups)

    def windows(self) -> list[range]:
        """Places of each group's snapshots in ``taus``."""
        return [
            range(self.taus.index(group.before[0]), self.taus.index(group.before[-1]) + 1)
            for group in self.groups
        ]


@STRATEGIES.register
class GroupStrategy(WholeStrategy):
    """Groups are independent samples: a rank trains whole ones, and only gradients cross.

    Every rank follows the whole lane and has all lessons, so any rank can train any group. A pass takes every group of the
    horizon once.
    """

    name: ClassVar[str] = "group"
    learns_all: ClassVar[bool] = True
    Options: ClassVar[type] = GroupOptions

    def __init__(self, setting: Setting, options: GroupOptions) -> None:
        super().__init__(setting, WholeOptions(transfer=options.transfer))
        self._ranks, self._chosen = setting.ranks, options
        self._window = self._model.window
        self._horizon = setting.horizon or WINDOWS * self._window
        # operators that are made of several snapshots' graphs depend on where a window begins
        self._together = 1 if combines(self._model, torch.empty(0)) else options.together
        self._planner = Planner(
            self._ranks.size, options.composition, options.algorithm, self._units(options.groups_per_rank),
            self._units(options.groups_per_step), options.alpha_s,
        )  # fmt: skip
        self._profile = Profile()
        self._steps = GroupSteps(
            list(self._model.parameters()), self.learner, self._ranks, ordered=options.reproducible
        )
        self._live: dict[int, tuple[tuple[int, ...], Int64, int]] = {}
        step = options.groups_per_step if options.composition == "fixed" else self.needs.lessons
        busy = self._units(min(step, self.needs.lessons))
        idle = self._ranks.size - busy
        if idle > 0 and self._ranks.rank == 0:
            log.warning(
                f"Strategy group has {self._ranks.size} ranks, and a step has work for {busy}, so {idle} of them only wait. "
                "Start fewer ranks, raise the key horizon and groups_per_step, or lower together"
            )

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """See ``Strategy.refuses``: a group needs nobody else's rows, whatever its stages look along."""
        return None

    @property
    def needs(self) -> Needs:
        """See ``Strategy.needs``."""
        lessons = max(1, self._horizon - self._window + 1)
        return Needs("timeline", self._horizon, parts="all", lessons=lessons)

    def owned(self, num_nodes: int) -> Bool:
        """See ``Strategy.owned``: of predictions; lessons are everyone's."""
        mine: Bool = np.arange(num_nodes) % self._ranks.size == self._ranks.rank
        return mine

    def embed_before(self, model: Any, nodes: Int64) -> Tensor:
        """See ``WindowedStrategy.embed_before``; by the last group."""
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
        began = time.perf_counter()
        units = self._neighbours(self._groups(lessons))
        if not units:
            return StepReport()
        sizes, names = self._sizes(units), [unit.tau for unit in units]
        seed = [self._seed, lessons[-1].tau % (1 << 63), epoch]
        at = time.perf_counter()
        plan = self._plan(sizes, self._profile.predict(names, sizes), seed)
        solving_s = time.perf_counter() - at
        self._model.train()
        with self._threads():
            for of_rank in plan.schedule.iterations():
                beat()
                queries = sum(units[unit].queries for of in of_rank for unit in of)
                own = sorted(of_rank[self._ranks.rank])
                self._steps.step(lambda unit: self._loss_of(units[unit]), own, 1 / queries)
            self._model.eval()
            ended = self.learner.settled()
        at = time.perf_counter()
        measured_s = np.zeros(len(units))
        for unit, took_s in self._steps.seconds().items():
            measured_s[unit] = took_s
        measured_s = self._ranks.sum_array(measured_s, "control")
        self._profile.measured(names, sizes, measured_s)
        profiling_s = time.perf_counter() - at
        return self._report(
            units,
            plan,
            ended,
            measured_s,
            lessons[-1],
            {
                "train": time.perf_counter() - began,
                **self.learner.seconds(),
                "schedule": solving_s,
                "profile": profiling_s,
            },
        )

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``; times that were measured, too: they never change what ``fixed`` learns."""
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

    def _neighbours(self, groups: Sequence[Group]) -> list[Neighbours]:
        """Groups that are trained as one, oldest first; counted from the newest, so only the oldest may have fewer."""
        found: list[list[Group]] = []
        for group in reversed(groups):
            last = found[-1] if found else []
            if last and len(last) < self._together and group.before[-1:] and group.tau == last[0].before[-1]:
                last.insert(0, group)
            else:
                found.append([group])
        taus = [tuple(sorted({tau for group in unit for tau in group.before})) for unit in found]
        return [Neighbours(tuple(unit), of) for unit, of in zip(found, taus, strict=True)][::-1]

    def _units(self, groups: int) -> int:
        """Units of the schedule that so many groups are, one at least."""
        return max(1, groups // self._together)

    def _sizes(self, units: Sequence[Neighbours]) -> Float64:
        """Rows, edges and snapshots of each unit, float64 (n, 3): rows of each window, edges and snapshots once."""
        host, kept = self._view.timeline, {}
        for unit in units:
            known = self._live.get(unit.tau)
            if known is None or known[0] != unit.taus:
                active = [self._timeline.active(tau) for tau in unit.taus]
                live = np.unique(np.concatenate([np.empty(0, np.int64), *active]))
                edges = [host.snapshots[host.place(tau)].pairs[0] for tau in unit.taus]
                known = unit.taus, live, sum(edges)
            kept[unit.tau] = known
        self._live = kept
        found = [(len(kept[unit.tau][1]) * unit.rows, kept[unit.tau][2], len(unit.taus)) for unit in units]
        return np.array(found, np.float64)

    def _plan(self, sizes: Float64, times_s: Float64, seed: list[int]) -> Plan:
        """Rank 0's plan, on every rank."""
        plan = self._planner.plan(sizes, times_s, seed)
        if self._ranks.size == 1:
            return plan
        iterations = self._ranks.from_first(len(plan.schedule.slots))
        shape = iterations, *plan.schedule.slots.shape[1:]
        slots = plan.schedule.slots.copy() if self._ranks.rank == 0 else np.zeros(shape, np.int64)
        return plan.with_slots(self._ranks.sum_array(slots, "control"))

    def _loss_of(self, unit: Neighbours) -> Tensor:
        asked = [np.unique(np.concatenate(group.asked.ends)) for group in unit.groups]
        live = self._live[unit.tau][1]
        horizon = GroupHorizon(self._timeline, self._view, unit.taus, np.unique(np.concatenate(asked)), live)
        found = self._after(self._model, horizon, unit.windows() if unit.taus else [range(0)], asked)
        losses = []
        for group, nodes, z in zip(unit.groups, asked, found, strict=True):
            ends = [
                rows(z, to_device(np.searchsorted(nodes, ends), self._device)) for ends in group.asked.ends
            ]
            answers = group.asked.read(self._model.decoder, ends)
            losses.append(self._task.loss(answers, to_device(group.truth, self._device)))
        return torch.stack(losses).sum()

    def _embedded(self, model: Any, taus: Sequence[int], nodes: Int64) -> Tensor:
        active = [self._timeline.active(tau) for tau in taus]
        live = np.unique(np.concatenate([np.empty(0, np.int64), *active]))
        asked, back = np.unique(nodes, return_inverse=True)
        horizon = GroupHorizon(self._timeline, self._view, taus, asked, live)
        model.eval()
        (found,) = self._after(model, horizon, [range(len(taus))], [asked])
        return found[to_device(back, self._device)]

    def _after(
        self, model: Any, horizon: GroupHorizon, windows: Sequence[range], asked: Sequence[Int64]
    ) -> list[Tensor]:
        """Embeddings of nodes, ascending, after each window."""
        places = [self._places(horizon, nodes) for nodes in asked]
        if not horizon.taus:
            none = self._before_any(model, horizon)
            return [none[place] for place in places]
        return unroll_windows(model.stages, WholeLayout(horizon, model), windows, places)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """On the CPU, products by one thread: how many there are changes the order of sums."""
        if not self._chosen.reproducible or self._device.type != "cpu":
            yield
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def _report(
        self,
        units: Sequence[Neighbours],
        plan: Plan,
        ended: Sequence[tuple[float, bool]],
        measured_s: Float64,
        newest: Lesson,
        seconds: dict[str, float],
    ) -> StepReport:
        """The report of a pass over all units."""
        steps = plan.schedule.iterations()
        taken = [
            unit
            for of_rank, (_, left_out) in zip(steps, ended, strict=True)
            for of in of_rank
            for unit in of
            if not left_out
        ]
        queries = sum(units[unit].queries for unit in taken)
        losses = np.zeros(len(units))
        for unit, loss_of_unit in self._steps.losses().items():
            losses[unit] = loss_of_unit
        # By unit: whoever trained it, the sum is the same.
        loss = float(self._ranks.sum_array(losses, "control")[sorted(taken)].sum())
        learned = any(units[unit].tau == newest.tau for unit in taken)
        return StepReport(
            steps=len(steps),
            events=len(newest) if learned else 0,
            loss=loss / queries if queries else None,
            nonfinite=sum(left_out for _, left_out in ended),
            seconds=seconds,
            transfer_bytes=self._timeline.transfer.since_last(),
            balance=plan.balance(measured_s, self._profile.error),
        )


__all__ = ["GroupOptions", "GroupStrategy"]
