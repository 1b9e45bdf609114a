"""Models of several like layers: their common options and order of stages."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import nn

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.interface import (
    ModelShape,
    ResidualOptions,
    SnapshotModel,
    SnapshotModelOptions,
)
from freshet_graph.trainer.models.stages import Stage


class LayeredOptions(SnapshotModelOptions):
    """Options of models of equal layers."""

    layers: int = Field(2, ge=1, le=16, description="Number of layers.")


class ConvolvedOptions(LayeredOptions, ResidualOptions):
    """Options of such models with a convolution in each layer that keeps no own row apart."""


class LayeredModel(SnapshotModel):
    """A row of equal layers, each of one stage or more.

    Args:
        shape: Widths and window.
        options: Its ``Options``; a subclass sets what ``layer`` needs of them first.
    """

    Options: ClassVar[type[Section]] = LayeredOptions

    def __init__(self, shape: ModelShape, options: LayeredOptions) -> None:
        super().__init__(shape, options)
        self.layers = nn.ModuleList(
            stage
            for number in range(options.layers)
            for stage in self.layer(self.width if number else self.inputs)
        )
        self.decoder = shape.head(self.width, self.width, encounters=options.encounters)

    def layer(self, inputs: int) -> Sequence[Stage]:
        """The stages of one layer, which takes rows of width ``inputs`` and returns rows of the model's ``width``."""
        raise NotImplementedError
