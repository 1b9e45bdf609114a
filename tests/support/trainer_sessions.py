"""Sessions on lanes, for tests of models and strategies."""

from typing import Any

from freshet_graph.schemas.trainer_config import Optimisation, TrainerConfig
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.tasks.interface import SnapshotExamples

SMALL_BATCHES = Optimisation(batch_size=16, learning_rate=0.01)


def small_params(model: str) -> dict[str, Any]:
    """Parameters that make a built-in model small."""
    if MODELS.find(model).kind == "event":  # type: ignore[attr-defined]
        own = {"graphmixer": {"hidden": 16}, "dygformer": {"hidden": 16, "channels": 8, "neighbours": 7}}
        return {"time_width": 8, **own.get(model, {"memory": 16})}
    own = {
        "dysat": {"heads": 2, "temporal_heads": 4, "residual": True},
        "gatlstm": {"heads": 2},
        "evolvegcn-h": {"residual": True},
    }
    return {"hidden": 8, "signature": 8, **own.get(model, {})}


def session_on(
    lane: LaneReader,
    strategy: str,
    model: str,
    ranks: Ranks | None = None,
    optimisation: Optimisation = SMALL_BATCHES,
    **more: Any,
) -> Session:
    """One rank's session on a lane; more are keys of the configuration."""
    values = {"lane": lane.header.lane, "window": 2, "model_params": small_params(model), **more}
    config = TrainerConfig.model_validate(
        {**values, "strategy": strategy, "model": model, "optimisation": optimisation}
    )
    return Session(config, lane, ranks or Ranks())


def examples_of(session: Session, sequence: int) -> Any:
    """Go to a snapshot of the lane: this rank's examples."""
    session.advance(session.lane.manifests[sequence])
    return session.task.examples(session.view, session.strategy)


def learn(session: Session, examples: SnapshotExamples, epoch: int = 0) -> StepReport:
    """One pass over a snapshot's examples."""
    return session.strategy.learn([examples], epoch)
