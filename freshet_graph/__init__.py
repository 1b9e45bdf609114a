"""Freshet in your own program: what it may import by name, each loaded on first use.

The packages ``schemas``, ``stream`` and ``trainer`` of this repository are links in this folder, and so have one import path.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemas.errors import FreshetError
    from stream.kafka.producer import replay_file
    from stream.offline import partition_file
    from stream.store.opened import open_store
    from trainer.evaluation.evaluate import evaluate
    from trainer.exports.embeddings import load_embeddings
    from trainer.exports.predictor import Predictor

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
    "FreshetError": "schemas.errors",
    "Predictor": "trainer.exports.predictor",
    "evaluate": "trainer.evaluation.evaluate",
    "load_embeddings": "trainer.exports.embeddings",
    "open_store": "stream.store.opened",
    "partition_file": "stream.offline",
    "replay_file": "stream.kafka.producer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
