"""Snapshots whose events follow from their number, and what must be live after them: for stores that others are at work on."""

import numpy as np
import pyarrow as pa
from log_events import event_columns

from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.schemas.store import LogHeader

SECOND, NODES, EVENTS = 1_000_000, 60, 40
HEADER = LogHeader(graph="g", interval_us=SECOND, ids="int", node_features=4, segments=2)


def events(k: int) -> pa.Table:
    """Snapshot k: inserts, deletes and vectors that follow from k; new nodes come all the time."""
    rng = np.random.default_rng(k)
    op = rng.choice(np.array([1, 1, 1, -1, 0], np.int8), EVENTS)
    node = op == 0
    features = [rng.integers(0, 3, 4).astype(np.float32).tolist() if one else None for one in node]
    return event_columns(
        {
            "op": op,
            "src": k + rng.integers(0, NODES, EVENTS),
            "dst": pa.array(k + rng.integers(0, NODES, EVENTS), mask=node),
            "t": np.sort(rng.integers(k * SECOND, (k + 1) * SECOND, EVENTS)),
            "features": features,
        }
    )


def refused(k: int) -> pa.Table:
    """The refused message of offset k."""
    row = {"topic": "t", "partition": 0, "offset": k, "reason": "malformed", "sentence": "", "raw": b""}
    return pa.Table.from_pylist([dict.fromkeys(REJECT_SCHEMA.names) | row], schema=REJECT_SCHEMA)


class Truth:
    """Live pairs after a snapshot, by external ids, worked out from the events alone."""

    def __init__(self, edge_life: int | None) -> None:
        self._life, self._next, self._last = edge_life, 0, dict[tuple[int, int], int]()

    def after(self, k: int) -> set[tuple[int, int]]:
        if k + 1 < self._next:  # before what is known: from the beginning
            self._next, self._last = 0, {}
        for number in range(self._next, k + 1):
            table = events(number)
            for op, src, dst in zip(*(table[name].to_pylist() for name in ("op", "src", "dst")), strict=True):
                if op == 1:
                    self._last[src, dst] = number
                elif op == -1:
                    self._last.pop((src, dst), None)
        self._next = max(self._next, k + 1)
        oldest = -1 if self._life is None else k - self._life
        return {pair for pair, number in self._last.items() if number > oldest}
