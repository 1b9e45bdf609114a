"""The interface of models, and the registry that finds them by name."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from freshet_graph.schemas.section import Section
from freshet_graph.stream.registry import Registry
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.data.neighbours import MAX_WIDTH, signatures
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.link_decoder import LinkDecoder
from freshet_graph.trainer.models.stages import GraphStage, Residual, Stage
from freshet_graph.trainer.nn.graph import CSRGraph

Kind = Literal["snapshot", "event"]

STRUCTURE = 3
"""Width of the structural inputs: log(1 + degree), and log(1 + events as source, as destination) of the snapshot."""


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """The inputs of n nodes, each in one snapshot of the window.

    Attributes:
        nodes: int64 (n,) dense ids, always on the host.
        features: float32 (n, F) node features.
        structure: float32 (n, STRUCTURE).
    """

    nodes: Tensor
    features: Tensor
    structure: Tensor


class Head(Protocol):
    """Makes the module that turns embeddings into a task's answers, such as ``LinkDecoder``."""

    def __call__(self, width: int, hidden: int, *, encounters: bool) -> nn.Module:
        """A module over embeddings of a width, with a perceptron ``hidden`` wide.

        ``encounters``: whether it also sees what is known without the graph.
        """
        ...


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The setting of a model: widths of node and edge features, w snapshots, and the maker of its head."""

    features: int
    window: int
    seed: int = 0
    edge_features: int = 0
    head: Head = LinkDecoder


class Model(nn.Module):
    """A model of any kind, made by ``(shape, options)``.

    Attributes:
        name: Key in the registry and in configurations.
        kind: Which strategies can train it.
        Options: Its own parameters, a section with defaults, descriptions and bounds.
        width: Of embeddings.
        decoder: The head: from embeddings to the task's answers; made by ``ModelShape.head``.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    Options: ClassVar[type[Section]]
    width: int
    decoder: nn.Module


Hidden = Annotated[int, Field(ge=1, le=4096, description="Width of all embeddings.")]


class SnapshotModelOptions(Section):
    """Options of all snapshot models."""

    hidden: Hidden = 64
    signature: int = Field(
        32,
        ge=0,
        le=MAX_WIDTH,
        description="Width of the nodes' random signatures, which are inputs; 0: none.",
    )
    encounters: bool = Field(
        True,
        description="Whether the head also sees what is known without the graph: how long ago and how often two nodes met, or "
        "the last value of a node's target.",
    )


class ResidualOptions(SnapshotModelOptions):
    """Options of models whose convolutions blend a node's own row with those of its neighbours."""

    residual: bool = Field(
        False,
        description="Whether convolutions add a linear map of the node's own row, as GAT's authors do on proteins; models as "
        "published do not.",
    )


class SnapshotModel(Model):
    """A row of stages over the last snapshots of the graph; strategies run them by ``unroll``.

    Inputs are features ⊕ signature ⊕ structure, so that graphs without node features have inputs too.

    Args:
        shape: Widths and window.
        options: Its ``Options``.

    Attributes:
        layers: Its stages, unless it has others besides.
        window: Snapshots that an embedding looks back over.
        inputs: Width of the rows that the first stage takes.
    """

    kind: ClassVar[Kind] = "snapshot"
    Options: ClassVar[type[Section]] = SnapshotModelOptions
    layers: nn.ModuleList
    window: int

    def __init__(self, shape: ModelShape, options: SnapshotModelOptions) -> None:
        super().__init__()
        self.window = shape.window
        self.width = options.hidden
        self.inputs = shape.features + options.signature + STRUCTURE
        self._signature, self._seed = options.signature, shape.seed
        self._residual = isinstance(options, ResidualOptions) and options.residual

    @property
    def stages(self) -> list[Stage]:
        """The stages in order; the last one's rows are embeddings."""
        return [cast(Stage, layer) for layer in self.layers]

    def convolution(self, stage: GraphStage, inputs: int, outputs: int) -> GraphStage:
        """A convolution of these widths as the option ``residual`` wants it."""
        return Residual(stage, inputs, outputs) if self._residual else stage

    def operators(self, graphs: list[CSRGraph]) -> list[CSRGraph]:
        """The graphs of graph stages, from the adjacencies of consecutive snapshots; usually those themselves."""
        return graphs

    def encode(self, inputs: NodeInputs) -> Tensor:
        """Rows (n, inputs) for the first stage. They have no learned parameters, so no rank needs their gradient."""
        drawn = signatures(inputs.nodes.numpy(), self._signature, self._seed)
        signature = to_device(drawn, inputs.features.device)
        return torch.cat([inputs.features, signature, inputs.structure], dim=1)


def _require_model(candidate: Any) -> None:
    """Check that an entry point leads to a model's class."""
    if not (isinstance(candidate, type) and issubclass(candidate, Model)):
        raise TypeError(f"{candidate!r} is not a subclass of freshet_graph.trainer.models.interface.Model")


MODELS: Registry[Any] = Registry(
    "model",
    "model_params",
    "freshet.models",
    (
        "freshet_graph.trainer.models.sage_linear",
        "freshet_graph.trainer.models.tmgcn",
        "freshet_graph.trainer.models.gcn_lstm",
        "freshet_graph.trainer.models.evolvegcn",
        "freshet_graph.trainer.models.tgcn",
        "freshet_graph.trainer.models.gatlstm",
        "freshet_graph.trainer.models.dysat",
        "freshet_graph.trainer.models.dcrnn",
        "freshet_graph.trainer.models.tgn",
        "freshet_graph.trainer.models.graphmixer",
        "freshet_graph.trainer.models.dygformer",
    ),
    error=Failure,
    check=_require_model,
)


def create_model(name: str, shape: ModelShape, params: dict[str, Any]) -> Model:
    """Build a model with freshly drawn weights (torch's global generator).

    Raises:
        Failure: Unknown model or parameter, or a value out of range.
    """
    options = MODELS.options(name, params)
    try:
        made: Model = MODELS.find(name)(shape, options)
    except ValueError as error:
        raise Failure(f"model_params of {name}: {error}") from error
    except RuntimeError as error:
        if "allocate" not in str(error):  # on the host torch has no class for it
            raise
        raise Failure(f"model {name} does not fit into memory. Lower its model_params, or window") from error
    for stage in getattr(made, "stages", []):
        if not isinstance(stage, Stage):
            raise Failure(f"model {name} has a {type(stage).__name__} among its stages, which is not a Stage")
    return made
