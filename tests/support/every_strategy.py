"""Every strategy and the model that tests train by it."""

from pathlib import Path
from typing import Any

from trainer_sessions import session_on
from trainer_streams import make_lane

from freshet_graph.trainer.models.interface import (
    MODELS,
)
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.interface import STRATEGIES

KINDS = {name: getattr(found, "kind", "") for name, found in sorted(MODELS.all().items())}

EVENT_MODELS = [name for name, kind in KINDS.items() if kind == "event"]

TRAINED = {
    "vertex": "sage-linear", "whole": "sage-linear", "snapshot": "sage-linear",
    "group": "sage-linear", "hybrid": "sage-linear",
    "sequential": "tgn-history", "pac": "tgn-history",
}  # fmt: skip

NAMES = sorted(STRATEGIES.all())


def session_in(folder: Path, strategy: str, model: str, **more: object) -> Session:
    """A strategy with one rank on a small lane."""
    # a pass of whole is a step over all events, where others take one per 16
    params: dict[str, Any] = {"steps": 4} if strategy in ("whole", "snapshot") else {}
    if strategy == "hybrid":  # batches that have every event
        params = {"snapshots": [1.0], "vertices": [1.0], "newest_share": 1.0}
    return session_on(make_lane(folder, **more), strategy, model, strategy_params=params)
