"""``strategy: auto`` and ``lane: auto``: measures where a run trains, and changes its strategy at the border of a snapshot.

A change is what a restart does, without the restart: a new session continues from the state of the old one, weights,
optimiser and history included. A strategy that has not trained yet is tried on a copy, which learns one snapshot a few
times and is dropped.
"""

import copy
from collections.abc import Mapping
from typing import Any

import structlog
import torch

from freshet_graph.schemas.store import LaneManifest
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.lane.layout import lane_names
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import lane_of_checkpoint, with_strategy
from freshet_graph.trainer.session.measurement import (
    cheapest,
    lane_cost,
    load_of,
    setup_of,
    slowest_s,
    trial_seconds,
)
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
    reason_for,
    volume,
)
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.validation import candidates

WARM = 2
"""First snapshots of a session that are not measured: one has no past, and the next one compiles."""
BEFORE = WARM + 2
"""Snapshots learned before the first choice."""

log = structlog.get_logger()


class AutoStrategy:
    """Chooses the strategy of a run; every method is a collective.

    Args:
        config: With ``strategy: auto``.
        lane: This rank's reader of the lane.
        ranks: All ranks.

    Attributes:
        predicted: Costs of a pass over the newest snapshot, by strategy; empty until all are measured.
        reason: Why the strategy was taken, at its first snapshot; None at others.

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
        self.reason: str | None = None

    def open(self) -> Session:
        """A session with the present strategy, from the lane's beginning."""
        self._learned = 0
        return Session(with_strategy(self._config, self._chooser.current), self._lane, self._ranks)

    def at_border(self, session: Session, manifest: LaneManifest) -> Session:
        """The session that learns a snapshot next: the given one, or another that continues from it."""
        self.reason = None
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
            self._measured(session.config.strategy, slowest_s(self._ranks, compute_s))
        self._learned += 1

    @property
    def predicted_s(self) -> dict[str, float]:
        """Predicted seconds of a pass over the newest snapshot, by strategy, of those that fit into memory."""
        return {name: of_pass.seconds for name, of_pass in self.predicted.items() if of_pass.fits}

    def line(self) -> dict[str, Any]:
        """Keys of the snapshot's line in the score file."""
        return {
            "strategy": self._chooser.current,
            **({"predicted_s": self.predicted_s} if self.predicted else {}),
            **({} if self.reason is None else {"reason": self.reason}),
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
            for compute_s in trial_seconds(trial, examples):
                self._measured(name, compute_s)
            trial.close()

    def _measured(self, name: str, compute_s: float) -> None:
        """Take in a pass, by the slowest rank's seconds of computing, which all ranks know."""
        assert self._setup is not None
        assert self._load is not None
        self._passes.add(name, compute_s, volume(name, self._setup, self._load).work)

    def _say(self, chosen: str, before: str, manifest: LaneManifest) -> None:
        assert self._setup is not None
        assert self._load is not None
        self.reason = reason_for(chosen, self.predicted, self._load)
        if self._ranks.rank == 0:
            log.info(
                "the strategy stays" if chosen == before else "the strategy changes",
                tau=manifest.tau, strategy=chosen, before=before, alpha_s=self._setup.alpha_s, beta_s=self._setup.beta_s,
                foreign_parts=self._load.foreign_parts, active=self._load.active / max(self._load.nodes, 1),
                reason=self.reason,
            )  # fmt: skip


def lane_of(config: TrainerConfig, ranks: int) -> str:
    """The configured lane; under ``auto`` that of the newest checkpoint, or else the best one of the store.

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
        newest = lane.manifests[len(lane.manifests) - 1]
        if (price := lane_cost(lane, newest, ranks, is_event=is_event)) is not None:
            costs[name] = price
    if not costs:
        raise ConfigMissingError(f"{config.store} has no lane with a snapshot and at least {ranks} parts")
    chosen, reason = cheapest(costs)
    log.info("the lane is chosen", lane=chosen, reason=reason)
    return chosen
