"""Models of several like layers: their common options, checks and order of stages."""

from collections.abc import Sequence

from torch import nn

from trainer.models.interface import ModelShape, SnapshotModel
from trainer.models.stages import Stage

DEEPEST = 16
"""Largest number of layers of a model."""


class LayeredModel(SnapshotModel):
    """A row of equal layers, each of one stage or more.

    A subclass has keyword arguments for its own options and passes the others on as ``**common``.

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings.
        layers: Their number.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or the last value of a node's target.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 64,
        layers: int = 2,
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        super().__init__(shape, hidden, signature)
        if not 1 <= layers <= DEEPEST:
            raise ValueError(f"layers must be at least 1 and at most {DEEPEST}, found {layers}")
        self.layers = nn.ModuleList(
            stage for number in range(layers) for stage in self.layer(hidden if number else self.inputs)
        )
        self.decoder = shape.head(hidden, hidden, encounters=encounters)

    def layer(self, inputs: int) -> Sequence[Stage]:
        """The stages of one layer, which takes rows of width ``inputs`` and returns rows of the model's ``width``."""
        raise NotImplementedError


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
        ValueError: The list is empty, or a fan-out is below 1.
    """
    if not fanouts or any(fanout is not None and fanout < 1 for fanout in fanouts):
        raise ValueError(f"fanouts must name at least one hop of at least 1 each, found {list(fanouts)}")
