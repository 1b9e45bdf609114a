"""Events, polls and configurations for tests of the log: small, explicit, nothing hidden."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import REJECT_SCHEMA, IdKind, event_schema
from freshet_graph.stream.decode.labels import taken_schema
from freshet_graph.stream.microbatch import MicroBatch, Quiet

SECOND = 1_000_000

JUST_NOW = Quiet(0, 0)

Message = tuple[int, Sequence[dict[str, Any]] | None]
"""Offset, and the events of the message; None: a message that the decoder refused."""


def event(src: Any, dst: Any, t: int, **more: Any) -> dict[str, Any]:
    """One canonical event, t in microseconds."""
    return {
        "op": 1 if dst is not None else 0,
        "src": src,
        "dst": dst,
        "t": t,
        "weight": 1.0,
        "features": None,
        "feature_offset": None,
        "label": None,
        "event_id": None,
        **more,
    }


def event_columns(columns: Mapping[str, Any], ids: IdKind = "int") -> pa.Table:
    """Canonical events by their columns: weights are 1, and what is not given is null."""
    rows = len(columns["t"])
    given = {"weight": np.ones(rows, np.float32), **columns}

    def column(field: pa.Field) -> pa.Array | pa.ChunkedArray:
        value = given.get(field.name, [None] * rows)
        if isinstance(value, list | tuple):
            return pa.array(value, field.type)
        return (value if isinstance(value, pa.ChunkedArray) else pa.array(value)).cast(field.type)

    return pa.table([column(field) for field in event_schema(ids)], schema=event_schema(ids))


def refusal(offset: int, reason: str = "not_json", topic: str = "a") -> pa.Table:
    """A refused message of partition 0."""
    row = {
        "topic": topic, "partition": 0, "offset": offset, "row": None, "reason": reason, "sentence": "no", "raw": b"{",
    }  # fmt: skip
    return pa.Table.from_pylist([row], schema=REJECT_SCHEMA)


def poll(
    topic: str,
    partition: int,
    messages: Iterable[Message],
    *,
    first: int,
    end: int,
    high_watermark: int | None = None,
    ids: IdKind = "int",
    tombstones: int = 0,
    quiet: Quiet | None = JUST_NOW,
    reason: str = "not_json",
) -> MicroBatch:
    """A decoded poll of one topic partition; brokers have just answered unless ``quiet`` says otherwise."""
    rows, rejects = [], []
    for offset, events in messages:
        if events is None:
            rejects.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": offset,
                    "row": None,
                    "reason": reason,
                    "sentence": "it is not JSON",
                    "raw": b"{",
                }
            )
        else:
            rows.extend({**e, "offset": offset} for e in events)
    schema = event_schema(ids).append(pa.field("offset", pa.int64(), nullable=False))
    return MicroBatch(
        topic=topic,
        partition=partition,
        first_offset=first,
        end_offset=end,
        high_watermark=end if high_watermark is None else high_watermark,
        events=pa.RecordBatch.from_pylist(rows, schema=schema),
        rejects=pa.RecordBatch.from_pylist(rejects, schema=REJECT_SCHEMA),
        tombstones=tombstones,
        quiet=None if high_watermark is not None and high_watermark > end else quiet,
    )


def label_poll(
    topic: str, partition: int, labels: Iterable[tuple[int, str, int]], *, first: int, end: int
) -> MicroBatch:
    """A decoded poll of a label topic: offset, id of the event, and t in microseconds of each label."""
    rows = [
        {"event_id": of, "label": 1, "t": t_us, "priority": 0, "offset": offset}
        for offset, of, t_us in labels
        if offset >= first
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=taken_schema("int"))
    return replace(poll(topic, partition, [], first=first, end=end), labels=batch)


def stream_config(store: str, *, ids: IdKind = "int", **snapshots: Any) -> StreamConfig:
    """A configuration with intervals of one second unless told otherwise."""
    return StreamConfig(
        graph="test",
        store=store,
        kafka={"bootstrap": "nowhere:9092", "topics": [{"name": "a"}]},  # type: ignore[arg-type]
        snapshots={"interval_s": 1.0, **snapshots},  # type: ignore[arg-type]
        ids=ids,
    )


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
