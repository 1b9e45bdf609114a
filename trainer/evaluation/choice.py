"""``strategy: auto`` and ``lane: auto`` of an evaluation: both are chosen once, before all repetitions, by the training part.

A strategy of each family learns one snapshot of the middle of the training part a few times, in a session that is dropped.
Passes over all training snapshots are predicted from that. Of strategies that cost about the same the first is taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import structlog

from freshet_graph.schemas.store import LaneManifest
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.evaluation.split import Split
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import with_strategy
from freshet_graph.trainer.session.measurement import cheapest, lane_cost, load_of, setup_of, trial_seconds
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
from freshet_graph.trainer.validation import candidates

LANES = {"snapshot": ("byte-lp", "distdy", "hash"), "event": ("sep", "byte-lp")}
"""Algorithms that ``lane: auto`` compares: fast ones without unbounded copies."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategy of an evaluation.

    Attributes:
        config: With the strategy.
        predicted: Costs of a pass over a training snapshot, the mean, by strategy; empty if none could be learned.
        reason: Why, in a sentence.
    """

    config: TrainerConfig
    predicted: Mapping[str, Cost]
    reason: str

    @property
    def shown(self) -> dict[str, Any]:
        """Keys of the result."""
        seconds = {name: of_pass.seconds for name, of_pass in self.predicted.items() if of_pass.fits}
        return {"predicted_s": seconds, "reason": self.reason}


def lanes_of(config: TrainerConfig, parts: int) -> Sequence[str]:
    """The algorithms whose lanes are made; with one part all lanes are the same."""
    if config.lane != AUTO:
        return [config.lane]
    return LANES[MODELS.find(config.model).kind][: 1 if parts == 1 else None]


def best_lane(config: TrainerConfig, lanes: Sequence[LaneReader], split: Split, ranks: int) -> str:
    """The lane that costs least at the end of the training part."""
    is_event = MODELS.find(config.model).kind == "event"
    costs = {}
    for lane in lanes:
        newest = (training_snapshots(lane, split) or list(lane.manifests))[-1]
        if (price := lane_cost(lane, newest, ranks, is_event=is_event)) is not None:
            costs[lane.header.lane] = price
    chosen, reason = cheapest(costs)
    log.info("the lane is chosen", lane=chosen, reason=reason)
    return chosen


def training_snapshots(lane: LaneReader, split: Split) -> list[LaneManifest]:
    """The snapshots that end within the training part."""
    ends = np.array([manifest.tau + 1 for manifest in lane.manifests]) * lane.header.interval_us - 1
    return list(lane.manifests[: int(np.count_nonzero(split.train(ends)))])


def choose(
    config: TrainerConfig,
    lane: LaneReader,
    ranks: Ranks,
    split: Split,
    session_of: Callable[[TrainerConfig], Session],
) -> Choice:
    """Choose the strategy; a collective.

    Args:
        config: With ``strategy: auto``.
        lane: Of the evaluation's store.
        ranks: All ranks.
        split: By time; only the training part is looked at.
        session_of: Makes a session for a configuration, as a repetition has it.

    Raises:
        Failure: No strategy can train the model.
    """
    names = candidates(config, ranks.size, lane.header)
    snapshots = training_snapshots(lane, split)
    passes = Passes()
    setup: Setup | None = None
    loads: list[Load] = []
    for name in {FAMILIES[name]: name for name in reversed(names)}.values():
        session = session_of(with_strategy(config, name))  # seeds its draws, as those of the repetitions do
        if setup is None:
            setup = setup_of(session)
            loads = [load for one in snapshots if (load := load_of(session, one)) is not None]
        for work, seconds in _measured(session, snapshots, setup, split):
            passes.add(name, seconds, work)
        session.close()
    predicted: dict[str, Cost] = {}
    if setup is not None and all(passes.knows(name) for name in names):
        for name in names:
            of_snapshots = [cost(name, setup, load, passes) for load in loads]
            predicted[name] = Cost(
                fmean(one.compute_s for one in of_snapshots),
                fmean(one.link_s for one in of_snapshots),
                all(one.fits for one in of_snapshots),
            )
    chooser = Chooser(names)
    if predicted:
        chooser.see(predicted)
    chosen = names[ranks.from_first(names.index(chooser.current))]  # free memory may differ from rank to rank
    reason = (
        reason_for(chosen, predicted, loads[len(loads) // 2])
        if predicted
        else f"{chosen} is the first that can train the model, and no training snapshot could be learned to measure others"
    )
    if ranks.rank == 0:
        log.info("the strategy is chosen", strategy=chosen, reason=reason)
    return Choice(with_strategy(config, chosen), predicted, reason)


def _measured(
    session: Session, snapshots: Sequence[LaneManifest], setup: Setup, split: Split
) -> list[tuple[float, float]]:
    """Work and seconds of passes over the first snapshot from the middle on, or else from the beginning, that can be learned."""
    for first in (len(snapshots) // 2, 0):
        session.rewind()
        for number, manifest in enumerate(snapshots):
            if number < first:
                session.pass_over(manifest)
                continue
            session.advance(manifest)
            examples = session.task.examples(session.view, session.strategy, epoch=0)
            load = load_of(session, manifest)
            train = split.train(examples.times)
            if load is None or not train.any():
                continue
            if seconds := trial_seconds(session, examples.of_events(train)):
                work = volume(session.config.strategy, setup, load).work
                return [(work, one) for one in seconds]
    return []
