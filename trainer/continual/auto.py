"""``strategy: auto`` and ``lane: auto``: measures where a run trains, and changes its strategy at the border of a snapshot.

A change is what a restart does, without the restart: a new session continues from the state of the old one, weights,
optimiser and history included. A strategy that has not trained yet is tried on a copy, which learns one snapshot three
times and is dropped; the first time is not measured, because it compiles.
"""

import copy
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import psutil  # type: ignore[import-untyped]  # no stubs in the development set
import structlog
import torch

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.lane.layout import lane_names
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.interface import MODELS, SnapshotModel
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import lane_of_checkpoint, with_strategy
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.cost_model import (
    AUTO,
    FAMILIES,
    Chooser,
    Cost,
    Load,
    Passes,
    Setup,
    cost,
    volume,
)
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.validation import candidates

PROBE = "probe"
"""The purpose of the collectives that measure the link."""
PROBES = 5
PROBE_BYTES = 1 << 20
"""To each rank: long enough that its bytes count, and not its latency."""
WARM = 2
"""First snapshots of a session that are not measured: one has no past, and the next one compiles."""
BEFORE = WARM + 2
"""Snapshots learned before the first choice."""
FREE_SHARE = 0.5
"""Of the free memory at the start that saved tensors may take."""

log = structlog.get_logger()


class AutoStrategy:
    """Chooses the strategy of a run; every method is a collective.

    Args:
        config: With ``strategy: auto``.
        lane: This rank's reader of the lane.
        ranks: All ranks.

    Attributes:
        predicted: Costs of a pass over the newest snapshot, by strategy; empty until all are measured.

    Raises:
        Failure: No strategy can train the model.
    """

    def __init__(self, config: TrainerConfig, lane: LaneReader, ranks: Ranks) -> None:
        self._config, self._lane, self._ranks = config, lane, ranks
        self._names = candidates(config, ranks.size, lane.header)
        self._chooser, self._passes = Chooser(self._names), Passes()
        self._setup: Setup | None = None
        self._load: Load | None = None
        self._learned = 0  # snapshots by the present session
        self.predicted: dict[str, Cost] = {}

    def open(self) -> Session:
        """A session with the present strategy, from the lane's beginning."""
        self._learned = 0
        return Session(with_strategy(self._config, self._chooser.current), self._lane, self._ranks)

    def at_border(self, session: Session, manifest: LaneManifest) -> Session:
        """The session that learns a snapshot next: the given one, or another that continues from it."""
        if len(self._names) == 1:
            return session
        if self._setup is None:
            self._setup = setup_of(session)
        self._load = load_of(session, manifest)
        if self._load is None or (self._learned < BEFORE and not self.predicted and self._untried()):
            return session
        if names := self._untried():
            state = session.state()
            for name in names:
                self._try(name, copy.deepcopy(state), manifest)
            if self._untried():  # nothing in the snapshot could be learned
                return session
        self.predicted = {name: cost(name, self._setup, self._load, self._passes) for name in self._names}
        is_first, before = self._chooser.is_first, session.config.strategy
        self._chooser.see(self.predicted)
        # Free memory may differ from rank to rank.
        chosen = self._names[self._ranks.from_first(self._names.index(self._chooser.current))]
        self._chooser.current = chosen
        if is_first or chosen != before:
            self._say(chosen, before, manifest)
        if chosen == before:
            return session
        state = session.state()
        session.close()
        following = self.open()
        following.restore(state)
        following.restore_generators(state)
        return following

    def learned(self, session: Session, report: StepReport, passes: float) -> None:
        """Take in how long a snapshot took."""
        if report.steps and self._load is not None and self._learned >= WARM:
            compute_s = (report.seconds["train"] - report.traffic.wait_s) / passes
            self._measured(session.config.strategy, compute_s)
        self._learned += 1

    def line(self) -> dict[str, Any]:
        """Keys of the snapshot's line in the score file."""
        shown = {"strategy": self._chooser.current}
        if not self.predicted:
            return shown
        return {
            **shown,
            "predicted_s": {
                name: of_pass.seconds for name, of_pass in self.predicted.items() if of_pass.fits
            },
        }

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from: what was chosen, and measured passes."""
        return {**self._chooser.state(), "passes": self._passes.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state()``, if its strategy can train on these ranks; otherwise choose again."""
        self._passes.restore(state["passes"])
        if state["strategy"] in self._names:
            self._chooser.restore(state)

    def _untried(self) -> list[str]:
        """Strategies, one of each family, of which no pass was measured."""
        untried: dict[str, str] = {}
        for name in sorted(self._names, key=lambda name: name != self._chooser.current):
            if not self._passes.knows(name):
                untried.setdefault(FAMILIES[name], name)
        return list(untried.values())

    def _try(self, name: str, state: dict[str, Any], manifest: LaneManifest) -> None:
        """Measure a strategy on a copy of the session."""
        devices = [self._ranks.device] if self._ranks.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            trial = Session(with_strategy(self._config, name), self._lane, self._ranks)
            trial.restore(state)
            trial.advance(manifest)
            examples = trial.task.examples(trial.view, trial.strategy)
            for epoch in range(3):
                before, began = self._ranks.traffic.copy(), time.perf_counter()
                report = trial.strategy.learn([examples], epoch)
                seconds = time.perf_counter() - began - self._ranks.traffic.since(before).wait_s
                if epoch and report.steps:
                    self._measured(name, seconds)
            trial.close()

    def _measured(self, name: str, compute_s: float) -> None:
        """Take in a pass, by the slowest rank's seconds of computing, which all ranks know."""
        assert self._setup is not None
        assert self._load is not None
        (most_us,) = self._ranks.maximum([int(compute_s * US_PER_S)])
        self._passes.add(name, most_us / US_PER_S, volume(name, self._setup, self._load).work)

    def _say(self, chosen: str, before: str, manifest: LaneManifest) -> None:
        assert self._setup is not None
        assert self._load is not None
        if self._ranks.rank == 0:
            log.info(
                "the strategy stays" if chosen == before else "the strategy changes",
                tau=manifest.tau, strategy=chosen, before=before, alpha_s=self._setup.alpha_s, beta_s=self._setup.beta_s,
                foreign_parts=self._load.foreign_parts, active=self._load.active / max(self._load.nodes, 1),
                reason=f"{chosen} is predicted to need least for a pass: "
                + "; ".join(f"{name}: {of_pass}" for name, of_pass in self.predicted.items()),
            )  # fmt: skip


def lane_of(config: TrainerConfig, ranks: int) -> str:
    """The configured lane; under ``auto`` that of the newest checkpoint, or else the best one of the store.

    The busiest rank of ``vertex`` learns from its share of the pairs and reads λ rows for each of its own, so the lane with
    the least of that product is taken. For no other strategy for snapshot models does the lane matter. An event model on
    several ranks gets the lane that discards fewest events.

    Raises:
        ConfigMissingError: There is no lane that can be used yet.
        Failure: The newest checkpoint is damaged.
    """
    if config.lane != AUTO:
        return config.lane
    assert config.store is not None
    if (resumed := lane_of_checkpoint(config)) is not None:
        return resumed
    costs: dict[str, float] = {}
    is_event = MODELS.find(config.model).kind == "event"
    for name in lane_names(config.store):
        lane = LaneReader(config.store, name)
        if lane.header.parts < ranks or not len(lane.manifests):
            continue
        newest_of_lane = lane.manifests[len(lane.manifests) - 1]
        quality = newest_of_lane.quality
        if is_event:
            costs[name] = quality.cut or 0.0
        elif lane.header.kind == "vertex":
            share = largest_share([part.edges for part in newest_of_lane.parts], ranks)
            costs[name] = share * (1 + merged(quality.foreign_parts or 0.0, lane.header.parts, ranks))
    if not costs:
        raise ConfigMissingError(f"{config.store} has no lane with a snapshot and at least {ranks} parts")
    chosen = min(costs, key=lambda name: costs[name])
    shown = ", ".join(f"{name} {value:.3g}" for name, value in costs.items())
    log.info("the lane is chosen", lane=chosen, reason=f"{chosen} costs least: {shown}")
    return chosen


def measured_link(ranks: Ranks) -> tuple[float, float]:
    """α, seconds of a collective, and β, seconds of a byte that a rank sends: the fastest of a few; zeros for one rank."""
    if ranks.size == 1:
        return 0.0, 0.0
    box = torch.zeros(1, device=ranks.device)
    rows = torch.zeros(ranks.size, PROBE_BYTES, dtype=torch.uint8, device=ranks.device)
    one_row = [1] * ranks.size
    alpha_s = min(_seconds(ranks, lambda: ranks.sum_rows(box, PROBE)) for _ in range(PROBES))
    long_s = min(
        _seconds(ranks, lambda: ranks.exchange(rows, one_row, one_row, PROBE)) for _ in range(PROBES)
    )
    return alpha_s, max(0.0, long_s - alpha_s) / (PROBE_BYTES * (ranks.size - 1))


def _seconds(ranks: Ranks, collective: Any) -> float:
    before = ranks.traffic.copy()
    collective()
    return ranks.traffic.since(before).wait_s


def setup_of(session: Session) -> Setup:
    """What stays in a run of a snapshot model; measures the link."""
    model, ranks = session.model, session.ranks
    assert isinstance(model, SnapshotModel)
    stages, device = model.stages, ranks.device
    alpha_s, beta_s = measured_link(ranks)
    free = (
        torch.cuda.mem_get_info(device)[0]
        if device.type == "cuda"
        else psutil.virtual_memory().available / ranks.size
    )
    return Setup(
        ranks=ranks.size,
        alpha_s=alpha_s,
        beta_s=beta_s,
        free_bytes=FREE_SHARE * free,
        width=model.width,
        weights=sum(weights.numel() for weights in model.parameters()),
        stages=len(stages),
        fanouts=tuple(stage.fanout for stage in reversed(stages) if isinstance(stage, GraphStage)),
        turns=sum(one.along != other.along for one, other in pairwise(stages)),
        window=model.window,
        batch=session.config.optimisation.batch,
    )


def load_of(session: Session, manifest: LaneManifest) -> Load | None:
    """The size of a pass over a snapshot, from the lane's records alone; None: no earlier one is there.

    Smoothing makes other graphs of the events than the lane's; the sizes are those of the lane's then.
    """
    manifests, size = session.lane.manifests, session.ranks.size
    most = session.config.horizon or session.config.window
    first = max(manifests.first, manifest.sequence - most)
    horizon = [manifests[number] for number in range(first, manifest.sequence)]
    if not horizon:
        return None
    newest = horizon[-1]
    parts = [part.edges for part in newest.parts]
    return Load(
        snapshots=len(horizon),
        nodes=newest.num_nodes,
        active=sum(past.live_nodes for past in horizon) / len(horizon),
        edges=sum(past.live_edges for past in horizon) / len(horizon),
        events=manifest.num_events,
        foreign_parts=merged(newest.quality.foreign_parts or 0.0, len(parts), size),
        largest_share=largest_share(parts, size),
    )


def largest_share(edges: list[int], ranks: int) -> float:
    """The share of a lane's pairs on the rank that has most, given those of each part."""
    largest = max(sum(edges[rank::ranks]) for rank in range(ranks))
    return largest / sum(edges) if sum(edges) else 1 / ranks


def merged(foreign_parts: float, parts: int, ranks: int) -> float:
    """λ between ranks, given that between parts: of parts of one rank none is foreign."""
    return foreign_parts * (1 - 1 / ranks) / (1 - 1 / parts) if parts > 1 else 0.0
