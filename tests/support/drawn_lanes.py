"""Lanes of drawn streams."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from trainer_streams import FEATURES, SECOND, make_lane

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.store.lane.reader import LaneReader

PARTS = 4

nodes = st.integers(0, 9)

events = st.tuples(st.sampled_from([1, 1, 1, 1, -1, 0]), nodes, nodes)

streams = st.lists(st.lists(events, min_size=1, max_size=12), min_size=2, max_size=5)

TWO_NODES = [[(1, 0, 1), (1, 1, 0)], [(-1, 0, 1), (1, 0, 0)], [(1, 0, 1), (1, 0, 1), (0, 1, 0)]]
"""Most ranks have nothing: a pair goes and comes again, and a node meets itself."""

TURNOVER = [
    [(1, first + at, first + at + 1) for at in range(3)] + ([(-1, first - 3, first - 2)] if first else [])
    for first in (0, 3, 6)
]
"""New nodes in every snapshot, old ones never again."""


def lane_of(folder: str, stream: list[list[tuple[int, int, int]]], algorithm: str) -> LaneReader:
    """A snapshot a second; node events carry features that follow from their place."""
    rows: list[dict[str, Any]] = []
    for tau, drawn in enumerate(stream):
        for at, (op, src, dst) in enumerate(drawn):
            features = np.random.default_rng([tau, at]).normal(size=FEATURES).tolist() if op == 0 else None
            rows.append(
                {
                    "op": op,
                    "src": src,
                    "dst": None if op == 0 else dst,
                    "t": tau * SECOND + 1 + at,
                    "features": features,
                }
            )
    rows.append({"op": 0, "src": 0, "t": 0, "features": [0.5] * FEATURES})
    columns = {
        name: [row.get(name, 1.0 if name == "weight" else None) for row in rows]
        for name in event_schema("int").names
    }
    return make_lane(
        Path(folder), events=pa.table(columns, schema=event_schema("int")), algorithm=algorithm, parts=PARTS
    )
