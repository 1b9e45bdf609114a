"""Models of several like layers: their common options, checks and order of stages."""

from collections.abc import Callable, Sequence

from torch import nn

from trainer.models.interface import ModelShape, SnapshotModel
from trainer.models.stages import Stage

DEEPEST = 16
"""Most layers that a model may have."""


class LayeredModel(SnapshotModel):
    """A row of equal layers, each of one stage or more.

    Args:
        shape: Widths and window.
        layer: Makes the stages of a layer from the width of its inputs; their rows are ``hidden`` wide.
        hidden: Width of all embeddings.
        layers: Their number.
        signature: Width of the nodes' random signatures.
        encounters: Whether the head also sees what is known without the graph.
    """

    def __init__(
        self,
        shape: ModelShape,
        layer: Callable[[int], Sequence[Stage]],
        *,
        hidden: int,
        layers: int,
        signature: int,
        encounters: bool,
    ) -> None:
        super().__init__(shape, hidden, signature)
        if not 1 <= layers <= DEEPEST:
            raise ValueError(f"layers must be at least 1 and at most {DEEPEST}, found {layers}")
        self.layers = nn.ModuleList(
            stage for number in range(layers) for stage in layer(hidden if number else self.inputs)
        )
        self.decoder = shape.head(hidden, hidden, encounters=encounters)


def one_of(option: str, value: str, *choices: str) -> str:
    """The value, if it is among an option's choices.

    Raises:
        ValueError: It is not.
    """
    if value not in choices:
        raise ValueError(f"{option} must be {' or '.join(choices)}, found {value!r}")
    return value


def require_fanouts(fanouts: Sequence[int | None]) -> None:
    """Check the fan-outs of a model.

    Raises:
        ValueError: There is none, or one is below 1.
    """
    if not fanouts or any(fanout is not None and fanout < 1 for fanout in fanouts):
        raise ValueError(f"fanouts must name at least one hop of at least 1 each, found {list(fanouts)}")
