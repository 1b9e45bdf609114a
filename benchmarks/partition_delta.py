"""What a small change costs a vertex partitioner, against a pass over the whole graph: python benchmarks/partition_delta.py.

A random graph (500,000 nodes, 2.5 M pairs), then snapshots whose changed pairs have 1 % of the nodes as ends: half of
the pairs go, half come. All partitioners see the same stream.

*Update* is the median CPU time of a snapshot after the first, METIS's process included. *Whole pass* is that of the
first update of a fresh partitioner that is given the last snapshot's graph as new. Quality is the cut after the last
snapshot, of load-aware the heaviest part's load over the mean; beside it that of the whole pass, and of distdy that of a
second partitioner on the same stream whose every snapshot sweeps all nodes. Moved is the mean share of nodes a snapshot.
"""

import argparse
import dataclasses
import statistics
from typing import Any

import numpy as np
import pyarrow as pa
from vertex_quality import cpu_s

from schemas.events import log_event_schema
from stream.arrays.kinds import Int64
from stream.kernels.node_sets import distinct
from stream.partition.interface import OnlinePartitioner, create
from stream.snapshots.delta import SnapshotDelta
from stream.snapshots.graph import LiveGraph

PARTS = 4
PARTITIONERS: dict[str, tuple[str, dict[str, Any]]] = {
    "distdy, paper": ("distdy", {"reward": "paper"}),
    "distdy, stay": ("distdy", {"reward": "stay"}),
    "load-aware": ("load-aware", {}),
    "byte-lp": ("byte-lp", {}),
    "ldg": ("ldg", {}),
}


def events(op: int | Int64, src: Int64, dst: Int64) -> pa.Table:
    """Edge events as a sealed snapshot has them."""
    n = len(src)
    columns: dict[str, Any] = {
        "op": np.broadcast_to(np.asarray(op, np.int8), n),
        "src": src,
        "dst": dst,
        "t": np.arange(n),
        "weight": np.ones(n, np.float32),
        "src_node": src,
        "dst_node": dst,
    }
    schema = log_event_schema("int")
    return pa.Table.from_arrays(
        [
            pa.array(columns[f.name]).cast(f.type) if f.name in columns else pa.nulls(n, f.type)
            for f in schema
        ],
        schema=schema,
    )


class Changing:
    """A random graph, uniform or with a tenth of the nodes at half of all ends, that changes by a share of its nodes."""

    def __init__(self, nodes: int, pairs: int, *, hot: bool, seed: int) -> None:
        self.nodes, self.hot, self.draws = nodes, hot, np.random.default_rng(seed)
        self.keys = np.sort(self.draws.permutation(distinct(self._keys(2 * pairs)))[:pairs])

    def _keys(self, count: int) -> Int64:
        ends = self.draws.integers(0, self.nodes, (2, count))
        if self.hot:
            ends = np.where(self.draws.random((2, count)) < 0.5, ends // 10, ends)
        low, high = ends.min(axis=0), ends.max(axis=0)
        keys: Int64 = (low * self.nodes + high)[low != high]
        return keys

    def table(self, op: int | Int64, keys: Int64) -> pa.Table:
        return events(op, keys // self.nodes, keys % self.nodes)

    def first(self) -> pa.Table:
        """The graph, in a drawn order."""
        return self.table(1, self.draws.permutation(self.keys))

    def change(self, share: float) -> pa.Table:
        """Events of pairs that have ``share`` of the nodes as ends; half of the pairs go, half come."""
        count = round(share * self.nodes / 4)
        drawn = distinct(self._keys(4 * count))
        at = np.minimum(np.searchsorted(self.keys, drawn), len(self.keys) - 1)
        come = np.sort(self.draws.permutation(drawn[self.keys[at] != drawn])[:count])
        at = self.draws.choice(len(self.keys), count, replace=False)
        gone, kept = self.keys[at], np.delete(self.keys, at)
        self.keys = np.insert(kept, np.searchsorted(kept, come), come)
        return self.table(np.repeat([-1, 1], [count, len(come)]), np.concatenate([gone, come]))


def all_new(delta: SnapshotDelta) -> SnapshotDelta:
    """The same graph to a partitioner that has seen nothing of it."""
    graph, none = delta.graph, np.empty(0, np.int64)
    row = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    once = row < graph.indices
    pairs = np.stack([row[once], graph.indices[once].astype(np.int64)], axis=1)
    new = {"added": pairs, "removed": none.reshape(0, 2), "entered": delta.live, "left": none}
    return dataclasses.replace(delta, touched=delta.live, **new)


def timed(partitioner: OnlinePartitioner, delta: SnapshotDelta) -> float:
    start = cpu_s()
    partitioner.update(delta)
    return cpu_s() - start


def reached(partitioner: OnlinePartitioner) -> float:
    if partitioner.name == "load-aware":
        load = partitioner.part_load  # type: ignore[attr-defined]
        return float(load.max() / load.mean())
    return partitioner.quality().cut_final


def rows_of(
    labels: list[str], nodes: int, pairs: int, snapshots: int, share: float, *, hot: bool
) -> list[str]:
    """A row of the table for each partitioner."""
    graph, changing = LiveGraph(), Changing(nodes, pairs, hot=hot, seed=1)
    kinds = [PARTITIONERS[label] for label in labels]
    small = [create(name, params, parts=PARTS) for name, params in kinds]
    whole = [
        create(name, {**params, "sweep_all": 0.0}, parts=PARTS) if name == "distdy" else None
        for name, params in kinds
    ]
    took: list[list[float]] = []
    for tau in range(snapshots + 1):
        delta = graph.apply(tau, changing.change(share) if tau else changing.first())
        took.append([timed(partitioner, delta) for partitioner in small])
        for partitioner in filter(None, whole):
            partitioner.update(delta)
    given = all_new(delta)
    rows = []
    for i, (label, (name, params)) in enumerate(zip(labels, kinds, strict=True)):
        fresh, update = create(name, params, parts=PARTS), statistics.median(row[i] for row in took[1:])
        once = timed(fresh, given)
        always = whole[i]
        cells = [
            label,
            "hot" if hot else "uniform",
            f"{1e3 * update:.3g}",
            f"{1e3 * once:.3g}",
            f"{100 * update / once:.2g}",
            f"{reached(small[i]):.4f}",
            f"{reached(fresh):.4f}",
            f"{reached(always):.4f}" if always else "",
            f"{100 * small[i].quality().moved_share:.2g}",
            f"{100 * always.quality().moved_share:.2g}" if always else "",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("partitioners", nargs="*", default=list(PARTITIONERS), help=", ".join(PARTITIONERS))
    parser.add_argument("--graphs", nargs="*", choices=["uniform", "hot"], default=["uniform", "hot"])
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--pairs", type=int, default=2_500_000)
    parser.add_argument("--snapshots", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.01, help="nodes at the ends of changed pairs")
    args = parser.parse_args()
    rows_of(args.partitioners, 200, 600, 3, 0.1, hot=False)  # compiles the kernels
    print(
        "| partitioner | graph | update, ms | whole pass, ms | share % | quality | of a whole pass | of sweeps over all "
        "| moved % | by sweeps over all |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    sizes = args.nodes, args.pairs, args.snapshots, args.share
    for graph in args.graphs:
        for row in rows_of(args.partitioners, *sizes, hot=graph == "hot"):
            print(row, flush=True)


if __name__ == "__main__":
    main()
