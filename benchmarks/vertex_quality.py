"""Vertex partitioners side by side: what they cut, move, send and cost: python benchmarks/vertex_quality.py [stream …].

Real streams are skipped if their files are missing; uni500k and ex500k run only when named. Nodes of the real
streams, which have no features, get a vector of 32 values when they first appear.

Bytes are those of a training window (docs/results/vertex-partitioners.md): vectors fetched across parts
in one epoch on its w snapshots (DistDy eq. 1, B = N), and what the lane stores of the snapshot that enters it,
counted by the lane itself. Time is CPU time of the partitioner a snapshot after the first, METIS's process included.

Rows are Σ_t Σ_v λ_t(v): what ranks send where each row goes to a part once, however many neighbours it has there, as
trainers fetch inputs (docs/results/vertex-training.md). Once MB is their vectors and what the lane stores, over
all snapshots; moved are nodes, over all snapshots. The row hypergraph minimises Σ λ over the whole file with Mt-KaHyPar, and
needs `pip install mtkahypar`. ``--curve`` has other rows: what cuts and moves are had for the price of a move.
"""

import dataclasses
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import snapshot_volume
from harness import DAY_US, event_table

from freshet_graph.schemas.events import US_PER_S, Op
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.partition.interface import PartitionError
from freshet_graph.stream.partition.vertex import metis
from freshet_graph.stream.partition.vertex.distdy import REFERENCE_BYTES
from freshet_graph.stream.partition.vertex.foreign_rows import foreign_parts
from freshet_graph.stream.snapshots.sealing import densify, slice_events
from freshet_graph.stream.store.lane.state import LaneState
from freshet_graph.stream.synthetic import PAPER_GRAPHS, paper_snapshots
from freshet_graph.stream.synthetic.event_writer import write_events
from freshet_graph.stream.synthetic.interactions import rmat_edges
from freshet_graph.stream.synthetic.table2 import INTERVAL_S, PaperGraph

PARTS, WINDOW, SEGMENTS, WIDTH, VALUE_BYTES = 4, 4, 4, 32, 4
PLAIN = ("hash", "random", "load-aware", "ldg", "greedy-store", "metis", "metis-layer")
ALGORITHMS: list[tuple[str, str, dict[str, Any]]] = [
    *((name, name, {}) for name in PLAIN),
    ("distdy, stay", "distdy", {"reward": "stay"}),
    ("distdy, paper", "distdy", {"preset": "paper"}),
    ("byte-lp", "byte-lp", {}),
    ("byte-lp, sweeps only", "byte-lp", {"refresh": None}),
    ("byte-lp, one heated sweep", "byte-lp", {"refresh": None, "steps": 1}),
    ("byte-lp, few moves", "byte-lp", {"refresh": None, "steps": 0, "move_cost": 8.0}),
    ("byte-lp, fewer moves", "byte-lp", {"refresh": None, "steps": 0, "move_cost": 12.0}),
    ("byte-lp, fewest moves", "byte-lp", {"refresh": None, "steps": 0, "move_cost": 24.0}),
    ("anchor-metis", "anchor-metis", {}),
    ("kl", "kl", {}),
    ("hypergraph", "metis", {}),
]

EVEN = 1.05
"""Nodes a part over the mean, for all rows of the curve: what ``byte-lp`` keeps to."""
CURVE: list[tuple[str, str, dict[str, Any]]] = [
    ("hash", "hash", {}),
    ("metis-layer, keep_names", "metis-layer", {"keep_names": True}),
    *(
        (f"distdy, move_cost {cost:g}", "distdy", {"move_cost": cost, "max_imbalance": EVEN})
        for cost in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
    ),
    *(
        (f"byte-lp, move_cost {cost:g}", "byte-lp", {"refresh": None, "move_cost": cost})
        for cost in (0.0, 0.3, 1.0, 4.0, 8.0, 24.0)
    ),
]
"""What cuts and moves are had for the price of a move: ``--curve``."""


@dataclasses.dataclass(frozen=True)
class Stream(snapshot_volume.Stream):
    """Snapshots whose nodes have vectors; ``featureless``: they get one when they first appear."""

    width: int = WIDTH
    featureless: bool = True

    def snapshots(self) -> Iterator[tuple[int, pa.Table]]:
        seen = 0
        for tau, events in slice_events(self.events, **self.cut):
            snapshot = events
            if self.featureless:
                snapshot, seen = _described(events, seen)
            yield tau, snapshot


def _described(snapshot: pa.Table, seen: int) -> tuple[pa.Table, int]:
    """The snapshot, then a node event with a vector for every node that it is the first to name."""
    ids = np.concatenate([snapshot["src_node"].to_numpy(), snapshot["dst_node"].to_numpy()])
    nodes = np.arange(seen, max(seen, int(ids.max(initial=-1)) + 1))
    n, none = len(nodes), np.full(len(nodes), -1)
    offsets, values = (
        pa.array(np.arange(n + 1, dtype=np.int32) * WIDTH),
        pa.array(np.ones(n * WIDTH, np.float32)),
    )
    described = event_table(
        snapshot.schema, op=np.full(n, int(Op.NODE), np.int8), src=nodes, t=np.full(n, snapshot["t"][-1].as_py()),
        src_node=nodes, dst_node=none, row=none, features=pa.ListArray.from_arrays(offsets, values),
    )  # fmt: skip
    return pa.concat_tables([snapshot, described]), seen + n


def real(name: str, edge_life: int | None = None, **cut: int) -> Callable[[], Stream | None]:
    def load() -> Stream | None:
        file = harness.DATA / f"{name}.parquet"
        if not file.exists():
            print(f"{file} is missing: {name} is left out", file=sys.stderr)
            return None
        events, ids = densify(read_events(file).events)
        return Stream(events, len(ids), edge_life, cut)

    return load


def paper(name: str, snapshots: int, shrink: int = 1) -> Callable[[], Stream]:
    graph = PAPER_GRAPHS[name]
    sizes = {"nodes": graph.nodes // shrink, "edges": graph.edges // shrink, "snapshots": snapshots}
    return lambda: generated(dataclasses.replace(graph, **sizes))


def rmat(edges: int, **cut: int) -> Callable[[], Stream]:
    """R-MAT over 2^18 ids, an event per microsecond."""

    def load() -> Stream:
        src, dst = rmat_edges(1 << 18, edges, np.random.default_rng(0))
        events, ids = densify(event_table(src=src, dst=dst, t=np.arange(edges)))
        return Stream(events, len(ids), None, cut)

    return load


def generated(graph: PaperGraph) -> Stream:
    with harness.scratch() as folder:
        write_events(folder / "events.parquet", paper_snapshots(graph), interval_s=INTERVAL_S)
        read = read_events(folder / "events.parquet")
    cut = {"interval_us": INTERVAL_S * US_PER_S}
    events, ids = densify(read.events)
    return Stream(events, len(ids), None, cut, read.node_features, featureless=False)


STREAMS: dict[str, tuple[str, Callable[[], Stream | None]]] = {
    "as733": ("as733, daily", real("as733_deltas", interval_us=DAY_US)),
    "sx": ("sx_mathoverflow, weekly, edges live 4 weeks", real("sx_mathoverflow", 4, interval_us=7 * DAY_US)),
    "slashdot": ("slashdot, 60 slices, edges live 4", real("slashdot_reply", 4, num_slices=60)),
    "wiki50": ("jodie_wikipedia, 50 slices", real("jodie_wikipedia", num_slices=50)),
    "email50": ("email_eu, 50 slices", real("email_eu", num_slices=50)),
    "sx50": ("sx_mathoverflow, 50 slices", real("sx_mathoverflow", num_slices=50)),
    "slashdot50": ("slashdot, 50 slices", real("slashdot_reply", num_slices=50)),
    "rmat": ("R-MAT, 2 M events, 10 slices", rmat(2_000_000, num_slices=10)),
    "uni50k": ("Uni50K: a tenth of Uni500K, 20 snapshots", paper("uni500k", 20, shrink=10)),
    "uni500k": ("Uni500K, 5 snapshots", paper("uni500k", 5)),
    "ex50k": ("Ex50K: a tenth of Ex500K, 20 snapshots", paper("ex500k", 20, shrink=10)),
    "ex500k": ("Ex500K, 5 snapshots", paper("ex500k", 5)),
}
BY_DEFAULT = ["as733", "sx", "slashdot", "uni50k"]


def cpu_s() -> float:
    """CPU seconds of this thread and of METIS's process."""
    child = metis._PROCESS._child
    used = int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) / 1e9 if child else 0.0
    return time.thread_time() + used


def measure(
    stream: Stream, algorithm: str, params: dict[str, Any], parts: int, whole: Any = None
) -> list[str]:
    """Cells of one row; ``whole`` is the owners of all nodes, if they are known beforehand."""
    state = LaneState(LaneHeader(
        lane="bench", algorithm=algorithm, kind="vertex", parts=parts, window=WINDOW, edge_life=stream.edge_life,
        params=params, graph="bench", interval_us=1, node_features=stream.width, edge_features=0, segments=SEGMENTS,
    ))  # fmt: skip
    partitioner: Any = state.partitioner
    update, seconds, rows = partitioner.update, list[float](), list[int]()

    def noted(delta: Any) -> Any:
        began = cpu_s()
        assignment = update(delta)
        seconds.append(cpu_s() - began)
        rows.append(int(foreign_parts(delta.rows, partitioner.home(), parts)))
        return assignment

    partitioner.update = noted
    if whole is not None:
        partitioner._whole = whole
    else:
        snapshot_volume.foresee(partitioner, stream)
    vector_bytes = REFERENCE_BYTES + VALUE_BYTES * stream.width
    fetched: deque[float] = deque(maxlen=WINDOW)
    fetches, stores, moved, known = [], [], 0, np.empty(0, np.int32)
    for tau, snapshot in stream.snapshots():
        step = state.advance(tau, snapshot)
        totals = partitioner.totals
        fetched.append(vector_bytes * (totals.weight - totals.inside))
        fetches.append(sum(fetched))
        stores.append(sum(part.bytes for part in step.parts))
        now = partitioner.home().copy()
        before = np.full(len(now), -1, np.int32)
        before[: len(known)] = known
        moved += int(((now >= 0) & (before >= 0) & (now != before)).sum())
        known = np.where(now >= 0, now, before)  # a node that comes back is known
    quality = partitioner.quality()
    fetch, store = statistics.fmean(fetches) / 1e6, statistics.fmean(stores) / 1e6
    median, mean = (1e3 * each(seconds[1:]) for each in (statistics.median, statistics.fmean))
    once = (vector_bytes * sum(rows) + sum(stores)) / 1e6
    return [
        f"{100 * quality.cut:.1f}", f"{100 * quality.moved_share:.1f}", f"{quality.node_balance:.2f}",
        f"{quality.edge_balance:.2f}", *(f"{each:.3g}" for each in (fetch, store, fetch + store)), f"{median:.2g}",
        f"{mean:.2g}", f"{sum(rows) / 1e3:.4g}", f"{moved / 1e3:.3g}", f"{sum(stores) / 1e6:.3g}", f"{once:.4g}",
    ]  # fmt: skip


def by_hypergraph(stream: Stream, parts: int) -> Any:
    """Owners of all nodes by Mt-KaHyPar."""
    if snapshot_volume.mtkahypar is None:
        raise PartitionError("mtkahypar is not installed")
    (owner,) = snapshot_volume.hypergraph(snapshot_volume.nets(stream), stream.nodes, [parts], 0)
    return owner


def rows_of(stream: Stream, rows: list[Any], parts: int) -> Iterator[list[str]]:
    """Every row of the table that takes the stream."""
    for name, algorithm, params in rows:
        try:
            whole = by_hypergraph(stream, parts) if name == "hypergraph" else None
            yield [name, *measure(stream, algorithm, params, parts, whole)]
        except PartitionError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)


def main() -> None:
    given = harness.options(__doc__, {"streams": []}, parts=PARTS, only=[], curve=False)
    rows = [row for row in (CURVE if given.curve else ALGORITHMS) if not given.only or row[0] in given.only]
    small = dataclasses.replace(PAPER_GRAPHS["10k-sparse"], nodes=300, edges=900)
    for name, algorithm, params in rows:  # compiles the kernels
        if name != "hypergraph":
            measure(generated(small), algorithm, params, given.parts)
    titles = (
        "cut % | moved % | nodes | edges | fetch MB | store MB | both MB | CPU ms, median | mean | 1,000 rows"
    )
    for key in harness.chosen(given.streams or BY_DEFAULT, STREAMS):
        title, load = STREAMS[key]
        if stream := load():
            print(f"\n{title}; K = {given.parts}, w = {WINDOW}")
            harness.table(
                f"algorithm | {titles} | 1,000 moved | stored MB | once MB",
                rows_of(stream, rows, given.parts),
            )


if __name__ == "__main__":
    main()
