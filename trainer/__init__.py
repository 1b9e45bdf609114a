"""The training service: follows a store's lane and keeps a temporal graph model trained on it.

Other programs use ``Predictor``, ``evaluate`` and ``load_embeddings``; each is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

from freshet_graph.stream.lazily import loaded

if TYPE_CHECKING:
    from freshet_graph.trainer.evaluation.evaluate import evaluate
    from freshet_graph.trainer.exports.embeddings import load_embeddings
    from freshet_graph.trainer.exports.predictor import Predictor

__all__ = ["Predictor", "evaluate", "load_embeddings"]

_HOMES = {
    "Predictor": "freshet_graph.trainer.exports.predictor",
    "evaluate": "freshet_graph.trainer.evaluation.evaluate",
    "load_embeddings": "freshet_graph.trainer.exports.embeddings",
}


def __getattr__(name: str) -> Any:
    return loaded(__name__, name, _HOMES)
