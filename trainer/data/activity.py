"""Counts of each node's events in one snapshot: inputs that even a graph without features has."""

import numpy as np
from numpy.typing import NDArray

from schemas.events import Op
from stream.store.log.event_columns import EventColumns


def activity_of(events: EventColumns, num_nodes: int) -> NDArray[np.float32]:
    """Log(1 + inserts as source, as destination) of every node, float32 (num_nodes, 2)."""
    inserts = events.op == int(Op.INSERT)
    counts = [np.bincount(ids[inserts], minlength=num_nodes) for ids in (events.src, events.dst)]
    return np.log1p(np.stack(counts, axis=1)).astype(np.float32)
