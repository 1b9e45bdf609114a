"""``jodie``, ``dyrep``, ``tgn``, ``tige`` and ``tgn-history``: the memory architecture's presets."""

from inspect import Parameter, Signature
from typing import Any, ClassVar

from trainer.models.interface import MODELS, ModelShape
from trainer.models.memory.model import MemoryModel

COMMON: dict[str, Any] = {
    "memory": 100,
    "time_width": 100,
    "time": "cosine",
    "aggregator": "last",
    "moment": "event",
    "roles": False,
    "history": False,
    "walks": False,
}
SAMPLED: dict[str, Any] = {"neighbours": 10, "how": "recent"}
ATTENTION: dict[str, Any] = {"layers": 1, "heads": 2, "dropout": 0.1, "merge": "mlp"}


class Preset(MemoryModel):
    """A memory model of which some parameters are fixed, and others have defaults that a configuration may change.

    Attributes:
        fixed: The parameters that define the model.
        open: Its own parameters with their defaults, which make its signature.
    """

    fixed: ClassVar[dict[str, Any]]
    open: ClassVar[dict[str, Any]]

    def __init__(self, shape: ModelShape, **params: Any) -> None:
        super().__init__(shape, **{**self.fixed, **self.open, **params})

    def __init_subclass__(cls) -> None:
        """Publish the own parameters in the signature."""
        own = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=type(value))
            for name, value in cls.open.items()
        ]
        cls.__signature__ = Signature([Parameter("shape", Parameter.POSITIONAL_OR_KEYWORD), *own])  # type: ignore[attr-defined]  # what inspect reads


@MODELS.register
class Jodie(Preset):
    """JODIE (Kumar et al. 2019): a recurrent cell per node, embeddings projected in time."""

    name: ClassVar[str] = "jodie"
    fixed: ClassVar[dict[str, Any]] = {
        "message": "memory", "own": False, "updater": "rnn", "embedding": "projection", "neighbours": 1,
        "how": "recent", "layers": 1, "heads": 1, "dropout": 0.0, "merge": "mlp",
    }  # fmt: skip
    open: ClassVar[dict[str, Any]] = COMMON


@MODELS.register
class DyRep(Preset):
    """DyRep (Trivedi et al. 2019): messages carry the other end and its neighbourhood into a recurrent cell."""

    name: ClassVar[str] = "dyrep"
    fixed: ClassVar[dict[str, Any]] = {
        "message": "neighbourhood", "own": False, "updater": "rnn", "embedding": "identity", "layers": 1,
        "heads": 1, "dropout": 0.0, "merge": "mlp",
    }  # fmt: skip
    # The paper's Δt is linear. Cosines of seconds look like noise to a plain cell, which has no gate to keep it out.
    open: ClassVar[dict[str, Any]] = {**COMMON, **SAMPLED, "time": "log"}


@MODELS.register
class Tgn(Preset):
    """TGN (Rossi et al. 2020): a gated cell per node, embeddings by attention over recent neighbours."""

    name: ClassVar[str] = "tgn"
    fixed: ClassVar[dict[str, Any]] = {
        "message": "memory", "own": True, "updater": "gru", "embedding": "attention",
    }  # fmt: skip
    open: ClassVar[dict[str, Any]] = {**COMMON, **SAMPLED, **ATTENTION}


@MODELS.register
class Tige(Preset):
    """TIGE (Zhang et al. 2023): two memories; embeddings just before events make the messages."""

    name: ClassVar[str] = "tige"
    fixed: ClassVar[dict[str, Any]] = {**Tgn.fixed, "message": "embedding"}
    open: ClassVar[dict[str, Any]] = Tgn.open


@MODELS.register
class TgnHistory(Preset):
    """TGN with the pair's history, temporal walks, roles and log-spaced time: the recommended event model."""

    name: ClassVar[str] = "tgn-history"
    fixed: ClassVar[dict[str, Any]] = Tgn.fixed
    open: ClassVar[dict[str, Any]] = {
        **Tgn.open, "time_width": 24, "time": "log", "moment": "batch", "roles": True, "history": True, "walks": True,
    }  # fmt: skip
