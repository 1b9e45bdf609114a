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
Σ λ. It needs `pip install mtkahypar`; its column is empty without.
"""

import argparse
import datetime
import functools
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.events import US_PER_S, Op
from stream.decode.files import read_events
from stream.partition.interface import create
from stream.partition.vertex.foreign_rows import foreign_parts
from stream.snapshots.delta import SnapshotDelta
from stream.snapshots.graph import LiveGraph
from stream.snapshots.sealing import densify, slice_events

try:
    import mtkahypar
except ImportError:
    mtkahypar = None

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
DAY_US = 86_400 * US_PER_S
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


def online(name: str, parts: int, stream: Stream) -> Owners:
    """Owners by one of the project's partitioners, as the stream job runs it."""
    partitioner: Any = create(name, parts=parts)
    if hasattr(partitioner, "foresee"):
        is_insert = stream.events["op"].to_numpy() == int(Op.INSERT)
        partitioner.foresee(
            *(stream.events[column].to_numpy()[is_insert] for column in ("src_node", "dst_node", "t")),
            stream.nodes,
        )

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


def rows_of(name: str, stream: Stream, given: argparse.Namespace) -> Iterator[list[str]]:
    """Cells of the table, a row for each number of parts."""
    size = size_of(stream)
    partitions = {(each, parts): online(each, parts, stream) for parts in given.parts for each in ONLINE}
    if mtkahypar:
        best = hypergraph(nets(stream), stream.nodes, given.parts, given.seed)
        for parts, owner in zip(given.parts, best, strict=True):
            partitions[HYPERGRAPH, parts] = lambda _, owner=owner: owner
    found = counted(stream, partitions)
    for parts in given.parts:
        of = {each: count for (each, at), count in found.items() if at == parts}
        floats = given.width * given.layers  # a row of each layer
        cells = {each: _millions(floats * count.foreign) for each, count in of.items()}
        cells["distdy"] += f" (+ {_millions(floats * of['distdy'].moved)})"
        every, active = (size.sent(parts, given.layers, all_rows=each) for each in (True, False))
        least = min(of, key=lambda each: of[each].sent)
        yield [
            f"{name} ({size.snapshots:,} × {size.nodes:,}, {size.active / size.snapshots / size.nodes:.1%})",
            str(parts),
            *(_millions(given.width * rows) for rows in (every, active)),
            *(cells.get(each, "–") for each in (*ONLINE, HYPERGRAPH)),
            f"{of['hash'].foreign / size.active:.2f}",
            f"{of[least].sent / size.active:.2f}",
            f"{(2 - 1 / given.layers) * (parts - 1) / parts:.2f}",
            "snapshot" if active < given.layers * of[least].sent else least,
        ]


def _millions(floats: float) -> str:
    return f"{floats / 1e6:.3g}"


def processor() -> str:
    """The model of this machine's processor, where it tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", default=list(SETS), help="; ".join(SETS))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--parts", type=int, nargs="+", default=[4, 16, 64], help="P")
    parser.add_argument("--layers", type=int, default=2, help="L")
    parser.add_argument("--width", type=int, default=6, help="d, floats a row")
    parser.add_argument("--seed", type=int, default=0, help="of Mt-KaHyPar")
    given = parser.parse_args()
    if unknown := set(given.sets) - set(SETS):
        parser.error(f"unknown set {unknown.pop()!r}; expected some of {'; '.join(SETS)}")
    if mtkahypar is None:
        print("mtkahypar is not installed, so its column is empty: pip install mtkahypar\n")
    print(f"`python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}`".replace(" `", "`"))
    print(
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {processor()}, Python {platform.python_version()}"
    )
    print(f"Millions of floats, forwards, {given.layers} layer(s) of width {given.width}\n")
    print(
        "| set (T × N, active) | P | all rows | active rows | hash | METIS | DistDy (+ moved) | hypergraph "
        "| mean λ, hash | least | crossover | sends least |"
    )
    print("|" + "---|" * 12, flush=True)
    for name in given.sets:
        stream = stream_of(given.data, name)
        for row in rows_of(name, stream, given) if stream else ():
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
