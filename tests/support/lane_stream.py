"""Streams for tests of lanes: random, small, with all that a lane has to get right."""

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.window.view import WindowView

SECOND = 1_000_000
FEATURES = 6
SEGMENTS = 3


@functools.cache
def random_events(*, seed: int = 0, snapshots: int = 8, a_snapshot: int = 60, nodes: int = 40) -> pa.Table:
    """Inserts, repeats, deletes and node events, one snapshot a second; nodes leave and come back."""
    rng = np.random.default_rng(seed)
    rows = []
    for tau in range(snapshots):
        for t in np.sort(rng.integers(tau * SECOND, (tau + 1) * SECOND, a_snapshot)).tolist():
            src, dst = (int(v) for v in rng.integers(nodes * (tau // 3 % 2 + 1) // 2, size=2))
            kind = rng.random()
            row = {"op": 1, "src": src, "dst": dst, "t": t, "weight": 1.0, "features": None}
            if kind < 0.25:
                row["op"] = -1
            elif kind < 0.35:
                row |= {"op": 0, "dst": None, "features": rng.integers(-2, 3, FEATURES).tolist()}
            elif kind < 0.45:
                row |= {
                    "op": 0,
                    "dst": None,
                    "features": rng.integers(-2, 3, 2).tolist(),
                    "feature_offset": 3,
                }
            elif kind < 0.5:
                row["weight"] = 0.5
            rows.append(row)
    columns = {name: [row.get(name) for row in rows] for name in event_schema("int").names}
    return pa.table(columns, schema=event_schema("int"))


def lane(algorithm: str, **more: object) -> Lane:
    """A lane named like its algorithm, with a base every third snapshot."""
    return Lane.model_validate(
        {"name": algorithm, "algorithm": algorithm, "parts": 3, "base_every": 3, **more}
    )


def make_store(folder: Path, *lanes: Lane, events: pa.Table | None = None) -> Path:
    """A store of ``random_events``, with lanes up to date."""
    return build_store(
        random_events() if events is None else events,
        folder,
        interval_us=SECOND,
        lanes=lanes,
        node_features=FEATURES,
        segments=SEGMENTS,
    )


def lane_files(store: Path, name: str) -> dict[str, bytes]:
    """The Arrow files of a lane by path."""
    root = store / "lanes" / name
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.arrow"))}


def manifests(store: Path, name: str) -> list[LaneManifest]:
    """All manifests of a lane."""
    return LaneReader(store, name).manifests


def live_nodes(view: WindowView, tau: int) -> Int64:
    """Ends of the pairs of a view at τ, ascending; in vertex lanes those that its parts own."""
    src, dst, _ = view.pairs(tau)
    live = np.unique(np.concatenate([src, dst]))
    return live[np.isin(view.owner(tau)[live], view.parts)] if view.lane.header.kind == "vertex" else live
