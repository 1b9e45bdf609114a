"""Trainers on a small lane that export embeddings and scores."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import small_trainers

from freshet_graph.schemas.trainer_config import Optimisation, TrainerConfig
from freshet_graph.stream.store.exports import ExportReader

BOTH = {"embeddings": True, "scores": True}

ONCE = Optimisation(epochs=1, batch_size=16, learning_rate=0.01)

EVENT_MODEL = {**small_trainers.EVENT_MODEL, "optimisation": ONCE}

KINDS = pytest.mark.parametrize("kind", [{}, EVENT_MODEL], ids=["snapshot-model", "event-model"])


def config_for(folder: Path, **more: object) -> TrainerConfig:
    return small_trainers.config_for(folder, **{"optimisation": ONCE, "exports": BOTH, **more})


def exports(config: TrainerConfig) -> ExportReader:
    return ExportReader(config.store, config.exports.name or config.lane)


def moved(events: pa.Table) -> pa.Table:
    """The same events of nodes whose ids begin at 1000, each with an event id of its own."""
    for column in ("src", "dst"):
        at = events.schema.get_field_index(column)
        events = events.set_column(at, events.schema.field(at), pc.add(events[column], 1000))
    at = events.schema.get_field_index("event_id")
    names = pa.array([f"e{row}" for row in range(len(events))])
    return events.set_column(at, events.schema.field(at), names)
