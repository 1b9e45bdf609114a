"""Events with everything that a memory model reads."""

import numpy as np

from freshet_graph.stream.store.log.event_columns import EventColumns

NODES, FEATURES = 7, 2


def happenings(count: int, seed: int = 0) -> EventColumns:
    """Few nodes, repeats, self-loops and many equal times; weights, labels and features."""
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.choice([0, 0, 1, 7, 90_000, 5_000_000], count) * 1_000_000).astype(np.int64)
    return EventColumns(
        op=np.ones(count, np.int8),
        src=rng.integers(0, NODES, count),
        dst=rng.integers(0, NODES, count),
        t=t,
        visible_t=t,
        late=np.zeros(count, np.bool_),
        weight=rng.normal(0, 5, count).astype(np.float32),
        label=rng.integers(-2, 3, count).astype(np.int32),
        has_label=rng.random(count) < 0.5,
        features=rng.normal(0, 1, (count, FEATURES)).astype(np.float32),
    )
