"""What a small change costs a vertex partitioner, against a pass over the whole graph: python benchmarks/partition_delta.py.

A random graph (500,000 nodes, 2.5 M pairs), uniform or with a tenth of the nodes at half of all ends (hot), then snapshots whose
changed pairs have 1 % of the nodes as ends: half of the pairs go, half come. All partitioners see the same stream.

*Update* is the median CPU time of a snapshot after the first, METIS's process included. *Whole pass* is that of the
first update of a fresh partitioner that is given the last snapshot's graph as new. Quality is the cut after the last
snapshot, of load-aware the heaviest part's load over the mean; beside it that of the whole pass, and of distdy that of a
second partitioner on the same stream whose every snapshot sweeps all nodes. Moved is the mean share of nodes per snapshot.
"""

import dataclasses
from collections.abc import Iterator
from statistics import median
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from harness import seconds_of
from vertex_quality import cpu_s

from schemas.events import log_event_schema
from stream.kernels.node_sets import distinct
from stream.partition.interface import create
from stream.snapshots.delta import SnapshotDelta
from stream.snapshots.graph import LiveGraph

PARTS, SHARE = 4, 0.01
PARTITIONERS: dict[str, tuple[str, dict[str, Any]]] = {
    "distdy, paper": ("distdy", {"reward": "paper"}),
    "distdy, stay": ("distdy", {"reward": "stay"}),
    **{name: (name, {}) for name in ("load-aware", "byte-lp", "ldg")},
}


class Changing:
    """A random graph that changes by a share of its nodes; pairs are keys, low end times nodes plus high end."""

    def __init__(self, nodes: int, pairs: int, *, hot: bool, seed: int) -> None:
        self.nodes, self.hot, self.draws = nodes, hot, np.random.default_rng(seed)
        self.keys = np.sort(self.draws.permutation(distinct(self._keys(2 * pairs)))[:pairs])

    def _keys(self, count: int) -> np.ndarray:
        ends = self.draws.integers(0, self.nodes, (2, count))
        if self.hot:
            ends = np.where(self.draws.random((2, count)) < 0.5, ends // 10, ends)
        low, high = ends.min(axis=0), ends.max(axis=0)
        keys: np.ndarray = (low * self.nodes + high)[low != high]
        return keys

    def events(self, keys: np.ndarray, **more: Any) -> pa.Table:
        """Edge events as a sealed snapshot has them."""
        src, dst = keys // self.nodes, keys % self.nodes
        ends = {"src": src, "dst": dst, "src_node": src, "dst_node": dst}
        return harness.event_table(log_event_schema("int"), t=np.arange(len(keys)), **ends, **more)

    def first(self) -> pa.Table:
        """The graph, in a drawn order."""
        return self.events(self.draws.permutation(self.keys))

    def change(self, share: float) -> pa.Table:
        """Events of pairs that have ``share`` of the nodes as ends; half of the pairs go, half come."""
        count = round(share * self.nodes / 4)
        drawn = distinct(self._keys(4 * count))
        places = np.minimum(np.searchsorted(self.keys, drawn), len(self.keys) - 1)
        come = np.sort(self.draws.permutation(drawn[self.keys[places] != drawn])[:count])
        places = self.draws.choice(len(self.keys), count, replace=False)
        gone, rest = self.keys[places], np.delete(self.keys, places)
        self.keys = np.insert(rest, np.searchsorted(rest, come), come)
        op = np.repeat(np.array([-1, 1], np.int8), [count, len(come)])
        return self.events(np.concatenate([gone, come]), op=op)


def all_new(delta: SnapshotDelta) -> SnapshotDelta:
    """The same graph to a partitioner that has seen nothing of it."""
    graph, none = delta.graph, np.empty(0, np.int64)
    row = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    once = row < graph.indices
    pairs = np.stack([row[once], graph.indices[once].astype(np.int64)], axis=1)
    new = {"added": pairs, "removed": none.reshape(0, 2), "entered": delta.live, "left": none}
    return dataclasses.replace(delta, touched=delta.live, **new)


def reached(partitioner: Any) -> float:
    if partitioner.name == "load-aware":
        return float(partitioner.part_load.max() / partitioner.part_load.mean())
    return float(partitioner.quality().cut_final)


def rows_of(
    labels: list[str], nodes: int, pairs: int, snapshots: int, share: float, *, hot: bool
) -> Iterator[list[str]]:
    """A row of the table for each partitioner."""
    graph, changing = LiveGraph(), Changing(nodes, pairs, hot=hot, seed=1)
    kinds = [PARTITIONERS[label] for label in labels]
    small = [create(name, params, parts=PARTS) for name, params in kinds]
    sweeping = [
        create(name, {**params, "sweep_all": 0.0}, parts=PARTS) if name == "distdy" else None
        for name, params in kinds
    ]
    took: list[list[float]] = []
    for tau in range(snapshots + 1):
        delta = graph.apply(tau, changing.change(share) if tau else changing.first())
        took.append([seconds_of(lambda d=delta, p=each: p.update(d), cpu_s) for each in small])
        for partitioner in filter(None, sweeping):
            partitioner.update(delta)
    for label, (name, params), own, always, seconds in zip(
        labels, kinds, small, sweeping, zip(*took[1:], strict=True), strict=True
    ):
        fresh, update_s, new = create(name, params, parts=PARTS), median(seconds), all_new(delta)
        whole_s = seconds_of(lambda d=new, p=fresh: p.update(d), cpu_s)
        yield [
            label, "hot" if hot else "uniform", f"{1e3 * update_s:.3g}", f"{1e3 * whole_s:.3g}",
            f"{100 * update_s / whole_s:.2g}", f"{reached(own):.4f}", f"{reached(fresh):.4f}",
            f"{reached(always):.4f}" if always else "", f"{100 * own.quality().moved_share:.2g}",
            f"{100 * always.quality().moved_share:.2g}" if always else "",
        ]  # fmt: skip


def main() -> None:
    given = harness.options(
        __doc__, {"partitioners": list(PARTITIONERS)}, nodes=500_000, pairs=2_500_000, snapshots=20
    )
    harness.begin()
    labels = harness.chosen(given.partitioners, PARTITIONERS)
    list(rows_of(labels, 200, 600, 3, 0.1, hot=False))  # compiles the kernels
    sizes = given.nodes, given.pairs, given.snapshots, SHARE
    titles = "partitioner | graph | update, ms | whole pass, ms | share % | quality | of a whole pass | of sweeps over all"
    rows = (row for hot in (False, True) for row in rows_of(labels, *sizes, hot=hot))
    harness.table(f"{titles} | moved % | by sweeps over all", rows)


if __name__ == "__main__":
    main()
