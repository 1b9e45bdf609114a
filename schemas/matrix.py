"""A matrix of evaluations: every model on every data set, lane, number of ranks and seed."""

from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from freshet_graph.schemas.config import Name, Service
from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.schemas.section import Section


class MatrixData(FileOptions):
    """A data set."""

    file: str = Field(description="With columns src, dst, t (seconds or RFC 3339).")
    negatives: str | None = Field(
        None, description="Judge by the negatives of this file, which is made if it is missing."
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Trainer keys for it, such as interval_s."
    )


class MatrixModel(Section):
    """A model with its parameters, under a name of its own."""

    name: Name = Field(description="In the results.")
    config: dict[str, Any] = Field(
        default_factory=dict, description="Trainer keys, such as {model: tgn, strategy: sequential}."
    )


class MatrixLane(Section):
    """Partition of the file."""

    lane: Name = Field(description="The algorithm.")
    config: dict[str, Any] = Field(default_factory=dict, description="Trainer keys, such as lane_params.")


class Matrix(Service):
    """The cells of ``freshet-trainer evaluate --matrix``: one for each data set × model × lane × ranks × seed."""

    model_config = SettingsConfigDict(env_prefix="FRESHET_MATRIX_", env_nested_delimiter=None)

    data: list[MatrixData] = Field(min_length=1, description="Data sets.")
    models: list[MatrixModel] = Field(min_length=1, description="Models.")
    lanes: list[MatrixLane] = Field(
        default_factory=lambda: [MatrixLane(lane="hash")], min_length=1, description="Lanes."
    )
    ranks: list[int] = Field(default_factory=lambda: [1], min_length=1, description="Numbers of ranks.")
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1, description="Seeds.")
    split: str = Field("0.7,0.15,0.15", description="Shares of training, validation and test by time.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Trainer keys of all cells; those of data, model and lane override them.",
    )

    @field_validator("models")
    @classmethod
    def _distinct(cls, models: list[MatrixModel]) -> list[MatrixModel]:
        names = [model.name for model in models]
        if len(set(names)) < len(names):
            raise ValueError(f"models must have distinct names, found {names}")
        return models

    @field_validator("ranks", "seeds")
    @classmethod
    def _counted(cls, numbers: list[int]) -> list[int]:
        if min(numbers) < 0 or len(set(numbers)) < len(numbers):
            raise ValueError(f"numbers must be distinct and not negative, found {numbers}")
        return numbers
