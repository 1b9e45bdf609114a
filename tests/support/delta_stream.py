"""Snapshots' differences with everything in them."""

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.events import log_event_schema
from freshet_graph.stream.snapshots.graph import LiveGraph


def snapshot(events):
    """(op, src, dst) rows, dst −1 a node event that describes src anew; t counts up."""
    op, src, dst = (list(column) for column in zip(*events, strict=True)) if events else ([], [], [])
    n = len(events)
    return pa.table(
        {
            "op": op,
            "src": src,
            "dst": [None if d < 0 else d for d in dst],
            "t": [1_000_000 * i for i in range(n)],
            "weight": [1.0] * n,
            "features": [[float(i), 1.0, 0.0, 0.0] if o == 0 else None for i, o in enumerate(op)],
            "feature_offset": [None] * n,
            "label": [None] * n,
            "event_id": [None] * n,
            "src_node": src,
            "dst_node": dst,
        },
        schema=log_event_schema("int"),
    )


def stream(seed=0, snapshots=12):
    """Deltas with everything in them: growth, communities, deletes, returns, self-loops, an empty snapshot."""
    draws = np.random.default_rng(seed)
    graph = LiveGraph(node_features=4, segments=2, edge_life=5)
    live, num_nodes, deltas = [], 0, []
    for tau in range(snapshots):
        events = []
        if tau != 4:
            for _ in range(60):
                if draws.random() < 0.25 and num_nodes > 10:
                    events.append((0, int(draws.integers(num_nodes)), -1))
                elif draws.random() < 0.3 and live:
                    events.append((-1, *live.pop(int(draws.integers(len(live))))))
                else:
                    src = int(draws.integers(num_nodes + 1))
                    num_nodes = max(num_nodes, src + 1)
                    dst = min(int(draws.integers(num_nodes + 1) // 3 * 3 + src % 3), num_nodes)
                    num_nodes = max(num_nodes, dst + 1)
                    events.append((1, src, dst))
                    live.append((src, dst))
        deltas.append(graph.apply(tau, snapshot(events)).detached())
    return deltas
