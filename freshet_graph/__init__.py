"""Freshet in your own program: what it may import by name, each loaded on first use.

The packages ``schemas``, ``stream`` and ``trainer`` of this repository are links in this folder, and so have one import path.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freshet_graph.schemas.errors import FreshetError
    from freshet_graph.stream.kafka.producer import replay_file
    from freshet_graph.stream.offline import partition_file
    from freshet_graph.stream.store.opened import open_store
    from freshet_graph.trainer.evaluation.evaluate import evaluate
    from freshet_graph.trainer.exports.embeddings import load_embeddings
    from freshet_graph.trainer.exports.predictor import Predictor

__all__ = [
    "FreshetError",
    "Predictor",
    "evaluate",
    "load_embeddings",
    "open_store",
    "partition_file",
    "replay_file",
]

_HOMES = {
    "FreshetError": "freshet_graph.schemas.errors",
    "Predictor": "freshet_graph.trainer.exports.predictor",
    "evaluate": "freshet_graph.trainer.evaluation.evaluate",
    "load_embeddings": "freshet_graph.trainer.exports.embeddings",
    "open_store": "freshet_graph.stream.store.opened",
    "partition_file": "freshet_graph.stream.offline",
    "replay_file": "freshet_graph.stream.kafka.producer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
