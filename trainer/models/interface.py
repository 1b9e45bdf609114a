"""What models must offer, and the registry that finds them by name."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor, nn

from stream.nearest import did_you_mean
from stream.service.failure import Failure
from trainer.nn.csr_graph import CSRGraph
from trainer.parameters import check_parameters

Kind = Literal["snapshot", "event"]

STRUCTURE = 3
"""Width of the structural inputs: log(1 + degree), and log(1 + events as source, as destination) of the snapshot."""


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """What is known about n nodes, each in one snapshot of the window.

    Attributes:
        nodes: int64 (n,) dense ids, on the host whatever the device.
        features: float32 (n, F) node features.
        structure: float32 (n, STRUCTURE).
    """

    nodes: Tensor
    features: Tensor
    structure: Tensor


class Model(nn.Module):
    """What all models have.

    Attributes:
        name: Key in the registry and in configurations.
        kind: Which strategies can train it.
        width: Of embeddings.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    width: int


class SnapshotModel(Model, ABC):
    """Structural embeddings of each snapshot of the window, then one temporal embedding of each node.

    A strategy calls ``encode`` once, ``message_pass`` for layers 0, 1 … ``len(fanouts) − 1`` of every snapshot,
    ``combine`` over the snapshots, and ``score`` for pairs. So it alone decides which rank computes what.

    Attributes:
        fanouts: Neighbours sampled a node and layer, the layer nearest to the inputs first; None takes all.
        window: Snapshots that ``combine`` takes.
    """

    kind: ClassVar[Kind] = "snapshot"
    fanouts: tuple[int | None, ...]
    window: int

    @abstractmethod
    def encode(self, inputs: NodeInputs) -> Tensor:
        """Rows that the first layer takes: (n, d₀). Without learned parameters, so that no rank needs its gradient."""

    @abstractmethod
    def message_pass(self, layer: int, graph: CSRGraph, own: Tensor, x: Tensor) -> Tensor:
        """Rows of the next layer for the targets of ``graph``.

        Args:
            layer: From 0.
            graph: Targets × sources.
            own: (targets, d), the targets' rows of this layer.
            x: (sources, d).
        """

    @abstractmethod
    def combine(self, structural: Tensor) -> Tensor:
        """Temporal embeddings of nodes.

        Args:
            structural: (window, n, width), oldest snapshot first; zero rows where a node was not in a snapshot, or
                the window is not yet full.

        Returns:
            (n, width).
        """

    @abstractmethod
    def score(self, src: Tensor, dst: Tensor, encounters: Tensor) -> Tensor:
        """Logits that the events (u, v) happen.

        Args:
            src: (q, width), embeddings of u.
            dst: (q, width), embeddings of v.
            encounters: float32 (q, len(Encounter)), what was seen of u and v before; see ``trainer.data.history``.

        Returns:
            (q,).
        """


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model is built for: widths of node and edge features, and w snapshots."""

    features: int
    window: int
    seed: int = 0
    edge_features: int = 0


M = TypeVar("M", bound=type[Model])
_REGISTRY: dict[str, Callable[..., Model]] = {}


def register(model: M) -> M:
    """Class decorator: make a model known under its ``name``."""
    _REGISTRY[model.name] = model
    return model


def models() -> dict[str, Callable[..., Model]]:
    """All models by name."""
    from trainer.models import builtin  # noqa: F401  imported for its registrations

    return dict(_REGISTRY)


def create_model(name: str, shape: ModelShape, params: dict[str, Any]) -> Model:
    """Build a model with freshly drawn weights (torch's global generator).

    Raises:
        Failure: Unknown model or parameter, or a value out of range.
    """
    known = models()
    if name not in known:
        listed = ", ".join(sorted(known))
        raise Failure(f"unknown model {name!r}; expected one of {listed}{did_you_mean(name, known)}")
    check_parameters(known[name], params, f"model_params of {name}")
    try:
        return known[name](shape, **params)
    except (TypeError, ValueError) as error:
        raise Failure(f"model_params of {name}: {error}") from error
