"""The edge events of a sealed snapshot as NumPy columns, the continuous-time view of trainers."""

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import Op
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int8, Int32, Int64


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Edge events of one snapshot in log order, all arrays of shape (E,).

    The arrays are views of the file if the snapshot has no node events.

    Attributes:
        op: int8, 1 insert or −1 delete.
        src: int64 dense ids.
        dst: int64 dense ids.
        t: int64, microseconds, as produced.
        visible_t: int64, microseconds, max(t, start of the snapshot); never decreases.
        late: bool, t is before the snapshot's start.
        weight: float32.
        label: int32, 0 where ``has_label`` is False.
        has_label: bool.
        features: float32 (E, edge features), zeros for events without any; None if edges have no features.
    """

    op: Int8
    src: Int64
    dst: Int64
    t: Int64
    visible_t: Int64
    late: Bool
    weight: Float32
    label: Int32
    has_label: Bool
    features: Float32 | None = None

    def __len__(self) -> int:
        return len(self.op)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all columns, mapped ones included."""
        columns = [getattr(self, field.name) for field in fields(self)]
        return sum(column.nbytes for column in columns if column is not None)


def event_columns(events: pa.Table, tau: int, interval_us: int, edge_features: int) -> EventColumns:
    """Columns of the edge events of snapshot ``tau``.

    Args:
        events: The log's events of the snapshot, ``log_event_schema``.
        tau: Interval index.
        interval_us: Length of a snapshot, microseconds.
        edge_features: Width of an edge's feature vector.
    """
    op = np.asarray(_one_chunk(events, "op"))
    if (op == Op.NODE).any():
        events = events.filter(pc.not_equal(events.column("op"), int(Op.NODE)))
        op = np.asarray(_one_chunk(events, "op"))
    t = np.asarray(_one_chunk(events, "t"))
    start = tau * interval_us
    label = _one_chunk(events, "label")
    return EventColumns(
        op=op,
        src=np.asarray(_one_chunk(events, "src_node")),
        dst=np.asarray(_one_chunk(events, "dst_node")),
        t=t,
        visible_t=np.maximum(t, start),
        late=t < start,
        weight=np.asarray(_one_chunk(events, "weight")),
        label=np.asarray(label.fill_null(0)),
        has_label=np.asarray(label.is_valid().to_numpy(zero_copy_only=False)),
        features=_edge_features(_one_chunk(events, "features"), edge_features),
    )


def _edge_features(column: pa.Array, width: int) -> Float32 | None:
    if width == 0:
        return None
    vectors = np.zeros((len(column), width), np.float32)
    present = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    vectors[present] = np.asarray(column.flatten()).reshape(-1, width)
    return vectors


def _one_chunk(events: pa.Table, name: str) -> pa.Array:
    column = events.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
