"""Small streams with something to learn, for tests of the trainer."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader

SECOND = 1_000_000
FEATURES = 4


def meetings(
    *, seed: int = 0, snapshots: int = 6, a_snapshot: int = 60, nodes: int = 30, features: bool = True
) -> pa.Table:
    """Two communities that meet among themselves, a few strangers and deletes; one snapshot a second.

    Nodes below ``nodes`` / 2 have features around +1, the others around −1, from their first second on.
    """
    rng = np.random.default_rng(seed)
    half = nodes // 2
    rows: list[dict[str, object]] = []
    if features:
        for node in range(nodes):
            values = rng.normal(1.0 if node < half else -1.0, 0.3, FEATURES).tolist()
            rows.append({"op": 0, "src": node, "dst": None, "t": 0, "features": values})
    for tau in range(snapshots):
        for t in np.sort(rng.integers(tau * SECOND + 1, (tau + 1) * SECOND, a_snapshot)).tolist():
            src = int(rng.integers(nodes))
            same = (src // half) * half + int(rng.integers(half))
            dst = same if rng.random() < 0.9 else int(rng.integers(nodes))
            rows.append({"op": -1 if rng.random() < 0.05 else 1, "src": src, "dst": dst, "t": t})
    columns = {
        name: [row.get(name, 1.0 if name == "weight" else None) for row in rows]
        for name in event_schema("int").names
    }
    return pa.table(columns, schema=event_schema("int"))


def held_back(store: Path, lane: str, after: int) -> Callable[[], None]:
    """Have a lane's stream stand at so many snapshots, whoever is slow; what is returned lets it go on."""
    later = sorted((store / "lanes" / lane / "commits").glob("*.json"), key=lambda path: int(path.stem))[
        after:
    ]
    assert later
    for record in later:
        record.rename(record.with_suffix(".later"))

    def go_on() -> None:
        for record in later:
            record.with_suffix(".later").rename(record)

    return go_on


def make_lane(
    folder: Path,
    *,
    events: pa.Table | None = None,
    algorithm: str = "hash",
    parts: int = 2,
    interval_us: int = SECOND,
) -> LaneReader:
    """A store of ``events`` (default: ``meetings()``) in ``folder``, with one lane named like its algorithm."""
    table = meetings() if events is None else events
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    for name, content in _files_of_store(
        stream.getvalue().to_pybytes(), algorithm, parts, interval_us
    ).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return LaneReader(folder, algorithm)


@lru_cache(maxsize=64)
def _files_of_store(events: bytes, algorithm: str, parts: int, interval_us: int) -> dict[str, bytes]:
    """By name in the store; tests of a module mostly begin with the same one."""
    table = pa.ipc.open_stream(events).read_all()
    widths, edge_widths = (
        {
            len(row)
            for row, one in zip(table["features"].to_pylist(), table["op"].to_pylist(), strict=True)
            if row and bool(one) is edge
        }
        for edge in (False, True)
    )
    with TemporaryDirectory() as folder:
        build_store(
            table,
            folder,
            interval_us=interval_us,
            lanes=[Lane(name=algorithm, algorithm=algorithm, parts=parts)],
            node_features=max(widths, default=0),
            edge_features=max(edge_widths, default=0),
            segments=2,
            graph="meetings",
        )
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}
