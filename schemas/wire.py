"""JSON events as producers write them: the source of the exported JSON Schema.

These models are the text of ``freshet-stream schema``. The stream itself decodes whole polls in columns;
``freshet_graph.stream.decode.json_messages`` defines exactly what it accepts.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from freshet_graph.schemas.events import MAX_ID_BYTES

NodeId = Annotated[
    int | str,
    Field(
        description=f"Node id: an int64, or a string of at most {MAX_ID_BYTES} UTF-8 bytes; one kind per graph."
    ),
]
Time = Annotated[
    int | float | str,
    Field(
        description="Event time: a number of seconds or RFC 3339 text; with the topic's time_unit s, ms, us, ns or rfc3339."
    ),
]
Values = Annotated[list[float], Field(description="Finite float32 values.")]


class _WireModel(BaseModel):
    model_config = ConfigDict(extra="ignore", title="Freshet event")


class EdgeEvent(_WireModel):
    """One interaction: an edge appears (again) or is deleted."""

    src: NodeId
    dst: NodeId
    t: Time
    op: Literal["insert", "delete"] = Field("insert", description="insert also refreshes an existing edge.")
    weight: float = Field(1.0, description="Edge weight, finite; the latest insert wins.")
    features: Values | None = Field(None, description="Edge features, as wide as the graph's features.edge.")
    label: int | None = Field(None, description="A label of this event, int32.")
    event_id: str | int | None = Field(
        None, description="The producer's own id of the event, stored with it."
    )


class NodeEvent(_WireModel):
    """New features of one node: the full vector, or ``values`` from ``offset`` on."""

    node: NodeId
    t: Time
    features: Values | None = Field(
        None, description="The full vector, as wide as the graph's features.node."
    )
    offset: int | None = Field(None, ge=0, description="First position that values replace.")
    values: Values | None = Field(None, description="The new values from offset on.")
    label: int | None = Field(None, description="A label of the node at t, int32.")
    event_id: str | int | None = Field(
        None, description="The producer's own id of the event, stored with it."
    )


JsonEvent = TypeAdapter(EdgeEvent | NodeEvent)
"""Either kind of message; producers validate against ``JsonEvent.json_schema()``."""


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """The content of a column of an Arrow message."""

    description: str
    nullable: bool = True
    required: bool = False


ARROW_COLUMNS = {
    "op": ArrowColumn("1 insert, -1 delete, 0 node event; null or absent: 0 where dst is null, else 1."),
    "src": ArrowColumn("Source of an edge, or the node of a node event.", nullable=False, required=True),
    "dst": ArrowColumn("Destination; null for a node event.", required=True),
    "t": ArrowColumn(
        "Event time in the topic's time_unit, microseconds by default; or a timestamp column.",
        nullable=False,
        required=True,
    ),
    "weight": ArrowColumn("Finite; null or absent: 1."),
    "features": ArrowColumn("Of the edge, or of the node src in a node event; finite."),
    "feature_offset": ArrowColumn(
        "Node events: features replace the values from here on; null: all of them."
    ),
    "label": ArrowColumn("A label of this event."),
    "event_id": ArrowColumn("The producer's own id of the event; int64 is taken too."),
}
"""Meaning of the columns of ``freshet_graph.schemas.events.event_schema`` on the wire."""
