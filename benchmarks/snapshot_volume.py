"""Floats that a snapshot partition and vertex partitions send, counted: python benchmarks/snapshot_volume.py.

Nothing is trained and no ranks run. A is the sum over snapshots of the nodes with an edge in them (active rows), λ_t(v)
the number of foreign parts with a neighbour of v in snapshot t. Forwards, an L-layer model of width d sends over P ranks

    snapshot partition, all rows      (2 L − 1) · d · T · N · (P − 1)/P
    snapshot partition, active rows   (2 L − 1) · d · A · (P − 1)/P
    vertex partition                  L · d · Σ_t Σ_v λ_t(v)

for a snapshot partition sends rows there and back in each layer but the last, which it does not send back. The share
(P − 1)/P is exact where every rank has as many of a snapshot's rows as any other. Backwards, gradients take the same way.

Edges live so many intervals (smoothing by edge life); as733 has deletes instead. All vertex partitioners see all of it:
METIS the union of all snapshots, DistDy one snapshot after the other, so its owners change: a row of each layer comes on
top for each node that moved, its state. The last columns are rows
a layer, of moves as well, over A, and what sends least of all, active rows among them: a snapshot partition does where
the least mean is above (2 − 1/L) · (P − 1)/P.

The hypergraph has a net for each node and snapshot, the node with its neighbours, so that Mt-KaHyPar's metric km1 is
Σ λ. It needs `pip install mtkahypar`; its column is empty without. Options: ``--parts`` P, ``--layers`` L, ``--width`` d,
``--seed`` of Mt-KaHyPar.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from harness import DAY_US
from numpy.typing import NDArray

from freshet_graph.schemas.events import Op
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.partition.interface import create
from freshet_graph.stream.partition.vertex.foreign_rows import foreign_parts
from freshet_graph.stream.snapshots.delta import SnapshotDelta
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.sealing import densify, slice_events

try:
    import mtkahypar
except ImportError:
    mtkahypar = None

SETS: dict[str, tuple[str, int | None, dict[str, int]]] = {
    "sx, weekly, raw": ("sx_mathoverflow", 1, {"interval_us": 7 * DAY_US}),
    "sx, weekly": ("sx_mathoverflow", 10, {"interval_us": 7 * DAY_US}),
    "slashdot, 60 slices": ("slashdot_reply", 10, {"num_slices": 60}),
    "email_eu, daily": ("email_eu", 10, {"interval_us": DAY_US}),
    "amlsim_20k, daily": ("amlsim_20k", 10, {"interval_us": DAY_US}),
    "as733, every fourth day": ("as733_deltas", None, {"interval_us": 4 * DAY_US}),
}
"""Of each set: the file, intervals that an edge lives (None: until deleted), and how it is cut."""
ONLINE = ("hash", "metis", "distdy")
HYPERGRAPH = "hypergraph"
IMBALANCE = 0.03
"""Of Mt-KaHyPar: METIS's own."""

Owners = Callable[[SnapshotDelta], NDArray[np.int32]]
"""The owner of every node in a snapshot, asked once a snapshot in order."""


@dataclass(frozen=True)
class Stream:
    """Snapshots of a file."""

    events: pa.Table
    nodes: int
    edge_life: int | None
    cut: dict[str, int]

    def deltas(self) -> Iterator[SnapshotDelta]:
        graph = LiveGraph(edge_life=self.edge_life)
        for tau, events in slice_events(self.events, **self.cut):
            yield graph.apply(tau, events)


@dataclass(frozen=True)
class Size:
    """What a snapshot partition's volume depends on."""

    snapshots: int
    nodes: int
    active: int

    def sent(self, parts: int, layers: int, *, all_rows: bool) -> float:
        """Rows sent forwards."""
        rows = self.snapshots * self.nodes if all_rows else self.active
        return (2 * layers - 1) * rows * (parts - 1) / parts


@dataclass
class Counted:
    """A vertex partition: Σ λ, and how often a node had another owner than when it was last seen."""

    foreign: int = 0
    moved: int = 0

    @property
    def sent(self) -> int:
        """Rows of one layer: those of neighbours, and states that follow their nodes."""
        return self.foreign + self.moved


def stream_of(data: Path, name: str) -> Stream | None:
    stem, edge_life, cut = SETS[name]
    file = data / f"{stem}.parquet"
    if not file.exists():
        print(f"{file} is missing: {name} is left out", file=sys.stderr)
        return None
    ordered, ids = densify(read_events(file).events)
    return Stream(ordered, len(ids), edge_life, cut)


def size_of(stream: Stream) -> Size:
    snapshots = active = 0
    for delta in stream.deltas():
        snapshots += 1
        active += int((delta.rows.end > delta.rows.start).sum())
    return Size(snapshots, stream.nodes, active)


def foresee(partitioner: Any, stream: Stream) -> None:
    """Show the whole stream to a partitioner that asks for it."""
    if hasattr(partitioner, "foresee"):
        is_insert = stream.events["op"].to_numpy() == int(Op.INSERT)
        columns = (stream.events[name].to_numpy()[is_insert] for name in ("src_node", "dst_node", "t"))
        partitioner.foresee(*columns, stream.nodes)


def online(name: str, parts: int, stream: Stream) -> Owners:
    """Owners by one of the project's partitioners, as the stream job runs it."""
    partitioner: Any = create(name, parts=parts)
    foresee(partitioner, stream)

    def owners(delta: SnapshotDelta) -> NDArray[np.int32]:
        partitioner.update(delta)
        return partitioner.home()

    return owners


def nets(stream: Stream) -> Counter[bytes]:
    """A net for each node with an edge in a snapshot: its int32 ids in order, and in how many snapshots it is the same."""
    found: Counter[bytes] = Counter()
    for delta in stream.deltas():
        graph = delta.graph
        for v in np.flatnonzero(np.diff(graph.indptr)):
            row = graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
            found[np.sort(np.append(row, v)).astype(np.int32).tobytes()] += 1
    return found


def hypergraph(
    found: Counter[bytes], nodes: int, parts: Sequence[int], seed: int
) -> Iterator[NDArray[np.int32]]:
    """Mt-KaHyPar's owners by Σ λ at each number of parts, for good."""
    library = _library()
    mtkahypar.set_seed(seed)
    context = library.context_from_preset(mtkahypar.PresetType.DEFAULT)
    pins = [np.frombuffer(net, np.int32).tolist() for net in found]
    graph = library.create_hypergraph(context, nodes, len(pins), pins, [1] * nodes, list(found.values()))
    for each in parts:
        context.set_partitioning_parameters(each, IMBALANCE, mtkahypar.Objective.KM1)
        yield np.array(graph.partition(context).get_partition(), np.int32)


@functools.cache
def _library() -> Any:
    return mtkahypar.initialize(1)  # once a process


def counted(stream: Stream, partitions: Mapping[tuple[str, int], Owners]) -> dict[tuple[str, int], Counted]:
    """What vertex partitions send, by name and P, in one pass over the snapshots."""
    found = {key: Counted() for key in partitions}
    known = {key: np.full(stream.nodes, -1, np.int32) for key in partitions}
    for delta in stream.deltas():
        for (name, parts), owners in partitions.items():
            owner = owners(delta)[: delta.num_nodes]
            before, total = known[name, parts][: len(owner)], found[name, parts]
            total.foreign += int(foreign_parts(delta.rows, owner, parts))
            total.moved += int(((owner >= 0) & (before >= 0) & (owner != before)).sum())
            before[owner >= 0] = owner[owner >= 0]
    return found


def rows_of(name: str, stream: Stream, given: Any) -> Iterator[list[str]]:
    """Cells of the table, a row for each number of parts."""
    size = size_of(stream)
    partitions = {(each, parts): online(each, parts, stream) for parts in given.parts for each in ONLINE}
    if mtkahypar:
        best = hypergraph(nets(stream), stream.nodes, given.parts, given.seed)
        for parts, owner in zip(given.parts, best, strict=True):
            partitions[HYPERGRAPH, parts] = lambda _, owner=owner: owner
    found = counted(stream, partitions)
    for parts in given.parts:
        own = {each: count for (each, number), count in found.items() if number == parts}
        floats = given.width * given.layers  # a row of each layer
        cells = {each: _millions(floats * count.foreign) for each, count in own.items()}
        cells["distdy"] += f" (+ {_millions(floats * own['distdy'].moved)})"
        every, active = (size.sent(parts, given.layers, all_rows=each) for each in (True, False))
        least = min(own, key=lambda each: own[each].sent)
        yield [
            f"{name} ({size.snapshots:,} × {size.nodes:,}, {size.active / size.snapshots / size.nodes:.1%})",
            str(parts),
            *(_millions(given.width * rows) for rows in (every, active)),
            *(cells.get(each, "–") for each in (*ONLINE, HYPERGRAPH)),
            f"{own['hash'].foreign / size.active:.2f}",
            f"{own[least].sent / size.active:.2f}",
            f"{(2 - 1 / given.layers) * (parts - 1) / parts:.2f}",
            "snapshot" if active < given.layers * own[least].sent else least,
        ]


def _millions(floats: float) -> str:
    return f"{floats / 1e6:.3g}"


def main() -> None:
    given = harness.options(
        __doc__, {"sets": list(SETS)}, data=harness.DATA, parts=[4, 16, 64], layers=2, width=6, seed=0
    )
    if mtkahypar is None:
        print("mtkahypar is not installed, so its column is empty: pip install mtkahypar")
    print(f"Millions of floats, forwards, {given.layers} layer(s) of width {given.width}")
    streams = ((name, stream_of(given.data, name)) for name in harness.chosen(given.sets, SETS))
    rows = (row for name, stream in streams if stream for row in rows_of(name, stream, given))
    titles = "set (T × N, active) | P | all rows | active rows | hash | METIS | DistDy (+ moved) | hypergraph"
    harness.table(f"{titles} | mean λ, hash | least | crossover | sends least", rows)


if __name__ == "__main__":
    main()
