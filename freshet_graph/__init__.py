"""Freshet in your own program: what it may import by name, each loaded on first use.

The packages ``schemas``, ``stream`` and ``trainer`` of the repository are links in this folder, so they have one import path.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freshet_graph.schemas.errors import FreshetError
    from freshet_graph.stream.kafka.producer import replay_file
    from freshet_graph.stream.offline import partition
    from freshet_graph.stream.store.opened import open_store
    from freshet_graph.trainer.evaluation.evaluate import evaluate
    from freshet_graph.trainer.exports.embeddings import load_embeddings, load_scores
    from freshet_graph.trainer.exports.predictor import Predictor

__all__ = [
    "FreshetError",
    "Predictor",
    "evaluate",
    "load_embeddings",
    "load_scores",
    "open_store",
    "partition",
    "replay_file",
]

_HOMES = {
    "FreshetError": "schemas.errors",
    "Predictor": "trainer.exports.predictor",
    "evaluate": "trainer.evaluation.evaluate",
    "load_embeddings": "trainer.exports.embeddings",
    "load_scores": "trainer.exports.embeddings",
    "open_store": "stream.store.opened",
    "partition": "stream.offline",
    "replay_file": "stream.kafka.producer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from freshet_graph.stream.optional import missing_extra

        extra = _HOMES[name].partition(".")[0]
        raise missing_extra(f"{__name__}.{name}", error, extra) from error
