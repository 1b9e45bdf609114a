"""What a small change costs a vertex partitioner, against a pass over the whole graph: python benchmarks/partition_delta.py.

A graph of Table 2 of DistDy (500,000 nodes, 2.5 M pairs), then snapshots whose changed pairs have 1 % of the nodes as
ends: half of the pairs go, half come. Per partitioner the median CPU time of an update, that of a whole pass on the
same graph, and the quality after the last snapshot beside that of the whole passes.

A whole pass is the first update of a fresh partitioner that is given the graph as new. Quality is the cut, of load-aware
the heaviest part's load over the mean; beside it that of whole passes: of distdy of a second partitioner on the same
stream whose every first sweep takes all nodes, of the others of the fresh one.
"""

import argparse
import dataclasses
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.events import log_event_schema
from stream.partition.interface import OnlinePartitioner, create
from stream.snapshots.delta import Int64, SnapshotDelta, delta_of
from stream.snapshots.graph import LiveGraph

PARTS = 4
DERIVED = ("num_live", "num_pairs", "entered", "left", "added", "removed", "view")
PARTITIONERS: dict[str, tuple[str, dict[str, Any]]] = {
    "distdy, stay": ("distdy", {"reward": "stay"}),
    "distdy, paper": ("distdy", {}),
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
        keys = np.unique(self._keys(2 * pairs))
        self.keys = self.draws.permutation(keys)[:pairs]

    def _keys(self, count: int) -> Int64:
        ends = self.draws.integers(0, self.nodes, (2, count))
        if self.hot:
            ends = np.where(self.draws.random((2, count)) < 0.5, ends // 10, ends)
        low, high = ends.min(axis=0), ends.max(axis=0)
        keys: Int64 = (low * self.nodes + high)[low != high]
        return keys

    def table(self, op: int | Int64, keys: Int64) -> pa.Table:
        return events(op, keys // self.nodes, keys % self.nodes)

    def change(self, share: float) -> pa.Table:
        """Events of pairs that have ``share`` of the nodes as ends; half of the pairs go, half come."""
        count = round(share * self.nodes / 4)
        at = self.draws.choice(len(self.keys), count, replace=False)
        gone = self.keys[at]
        come = np.setdiff1d(self._keys(4 * count), self.keys)
        come = self.draws.permutation(come)[:count]
        self.keys[at] = come
        return self.table(np.repeat([-1, 1], count), np.concatenate([gone, come]))


def all_new(delta: SnapshotDelta) -> SnapshotDelta:
    """The same graph to a partitioner that has seen nothing of it."""
    given = {
        field.name: getattr(delta, field.name)
        for field in dataclasses.fields(delta)
        if field.name not in DERIVED
    }
    return delta_of(graph=delta.graph, live=delta.live, **{**given, "touched": delta.live})


def timed(partitioner: OnlinePartitioner, delta: SnapshotDelta) -> float:
    start = time.thread_time()
    partitioner.update(delta)
    return time.thread_time() - start


def quality(partitioner: OnlinePartitioner) -> float:
    if partitioner.name == "load-aware":
        load = partitioner._part_load  # type: ignore[attr-defined]
        return float(load.max() / load.mean())
    return partitioner.quality().cut_final


def measure(
    name: str, params: dict[str, Any], nodes: int, pairs: int, snapshots: int, share: float, *, hot: bool
) -> tuple[float, float, float, float]:
    """Seconds of an update and of a whole pass, medians; quality by updates and by whole passes, at the end."""
    graph, changing = LiveGraph(), Changing(nodes, pairs, hot=hot, seed=1)
    always = name == "distdy"
    small, whole = create(name, params, parts=PARTS), create(name, params, parts=PARTS)
    if always:
        whole = create(name, {**params, "sweep_all": 0.0}, parts=PARTS)
    delta = graph.apply(0, changing.table(1, changing.keys))
    timed(small, delta)
    timed(whole, delta)
    of_small, of_whole = [], []
    for tau in range(1, snapshots + 1):
        delta = graph.apply(tau, changing.change(share))
        of_small.append(timed(small, delta))
        if always:
            whole.update(delta)
        if tau > snapshots - 3:
            fresh = create(name, params, parts=PARTS)
            of_whole.append(timed(fresh, all_new(delta)))
            whole = whole if always else fresh
    return (
        statistics.median(of_small),
        statistics.median(of_whole),
        quality(small),
        quality(whole),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("partitioners", nargs="*", default=list(PARTITIONERS))
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--pairs", type=int, default=2_500_000)
    parser.add_argument("--snapshots", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.01, help="nodes at the ends of changed pairs")
    args = parser.parse_args()
    print("| partitioner | graph | update, ms | whole pass, ms | share % | quality | of whole passes |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for label in args.partitioners:
        name, params = PARTITIONERS[label]
        measure(name, params, 200, 600, 3, 0.1, hot=False)  # compiles the kernels
        for hot in (False, True):
            small, whole, reached, of_whole = measure(
                name, params, args.nodes, args.pairs, args.snapshots, args.share, hot=hot
            )
            print(
                f"| {label} | {'hot' if hot else 'uniform'} | {1e3 * small:.3g} | {1e3 * whole:.3g} "
                f"| {100 * small / whole:.2g} | {reached:.4f} | {of_whole:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
