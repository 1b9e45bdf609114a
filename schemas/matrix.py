"""A matrix of evaluations: every model on every data set, lane, number of ranks and seed."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from freshet_graph.schemas.config import Name, Service
from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.schemas.section import Section


class MatrixData(FileOptions):
    """A data set."""

    file: str = Field(description="With columns src, dst, t (seconds or RFC 3339).")
    name: Name | None = Field(
        None, description="In the results, such as of one file with other flags. null: the file."
    )
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
    name: Name | None = Field(None, description="In the results. null: the algorithm.")
    config: dict[str, Any] = Field(default_factory=dict, description="Trainer keys, such as lane_params.")


def _distinct_numbers(numbers: list[int]) -> list[int]:
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ValueError(f"numbers must be distinct and not negative, found {numbers}")
    return numbers


Numbers = Annotated[list[int], Field(min_length=1), AfterValidator(_distinct_numbers)]


class MatrixMore(Section):
    """Further cells. A list that is null is that of the matrix."""

    data: list[MatrixData] | None = Field(None, min_length=1, description="Data sets.")
    models: list[MatrixModel] | None = Field(None, min_length=1, description="Models.")
    lanes: list[MatrixLane] | None = Field(None, min_length=1, description="Lanes.")
    ranks: Numbers | None = Field(None, description="Numbers of ranks.")
    seeds: Numbers | None = Field(None, description="Seeds.")


class Matrix(Service):
    """The cells of ``freshet-trainer evaluate --matrix``: one for each data set × model × lane × ranks × seed."""

    model_config = SettingsConfigDict(env_prefix="FRESHET_MATRIX_", env_nested_delimiter=None)

    data: list[MatrixData] = Field(min_length=1, description="Data sets.")
    models: list[MatrixModel] = Field(min_length=1, description="Models.")
    lanes: list[MatrixLane] = Field(
        default_factory=lambda: [MatrixLane(lane="hash")], min_length=1, description="Lanes."
    )
    ranks: Numbers = Field(default_factory=lambda: [1], description="Numbers of ranks.")
    seeds: Numbers = Field(default_factory=lambda: [0], description="Seeds.")
    more: list[MatrixMore] = Field(
        default_factory=list,
        description="Further cells, such as one seed on four ranks: {ranks: [4], seeds: [0]}.",
    )
    split: str = Field("0.7,0.15,0.15", description="Shares of training, validation and test by time.")
    masked_nodes: float = Field(
        0.0, ge=0, le=0.9, description="Share of the nodes that are hidden from training, drawn by the seed."
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Trainer keys of all cells; those of data, model and lane override them.",
    )

    @property
    def blocks(self) -> "list[Matrix | MatrixMore]":
        """The matrix and its further cells."""
        return [self, *self.more]

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        meanings: dict[tuple[str, str], Section] = {}
        for block in self.blocks:
            _require_distinct("models", block.models or [])
            _require_distinct("lanes", block.lanes or [])
            named = (
                *(("data", one.name or one.file, one) for one in block.data or []),
                *(("model", model.name, model) for model in block.models or []),
                *(("lane", lane.name or lane.lane, lane) for lane in block.lanes or []),
            )
            for kind, name, one in named:
                if meanings.setdefault((kind, name), one) != one:
                    raise ValueError(f"{kind} {name} has two meanings. Give one of them another name")
        return self


def _require_distinct(of: str, entries: Sequence[MatrixModel | MatrixLane]) -> None:
    names = [entry.name or getattr(entry, "lane", None) for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError(f"{of} must have distinct names, found {names}")
