"""``sep`` against ``sep-two-pass``: discards on arrival at the same share of shared nodes.

    python benchmarks/partition_quality.py [--rmat-edges 2000000]

Two-pass looks at the whole file first, once with a time constant of a tenth of the span, once with a half-life of
the whole span. Online, the need cover sees 50 snapshots one by one; its ``hubs`` is the share of nodes that
two-pass really shares, so neither has more copies. A ratio below 0.001 counts as 0.001 in the means.
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stream.arrays.kinds import Int64
from stream.decode.files import read_events
from stream.partition.interface import create
from stream.snapshots.delta import Csr, SnapshotDelta, delta_of
from stream.snapshots.sealing import densify, slice_events
from stream.synthetic.interactions import rmat_edges

DATA = Path(__file__).resolve().parents[1] / "../shared/data"  # a folder of real graphs: docs/performance.md
GRAPHS = ("jodie_wikipedia", "email_eu", "sx_mathoverflow", "slashdot_reply")
SNAPSHOTS = 50
FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class Stream:
    """A graph's snapshots: all that edge partitioners look at."""

    name: str
    nodes: int
    span_s: float
    deltas: list[SnapshotDelta]

    def inserts(self) -> tuple[Int64, Int64, Int64]:
        """Ends and times of all inserts."""
        rows = [(d.src[d.op > 0], d.dst[d.op > 0], d.t[d.op > 0]) for d in self.deltas]
        src, dst, t = (np.concatenate(column) for column in zip(*rows, strict=True))
        return src, dst, t


def streams(rmat_edges_: int) -> Iterator[Stream]:
    """Real graphs that are there, then R-MAT."""
    for name in GRAPHS:
        file = DATA / f"{name}.parquet"
        if not file.exists():
            print(f"{file} is missing: left out")
            continue
        ordered, ids = densify(read_events(file).events)
        deltas, seen = [], 0
        for tau, rows in slice_events(ordered, num_slices=SNAPSHOTS):
            op, src, dst, t = (np.array(rows[c].to_numpy()) for c in ("op", "src_node", "dst_node", "t"))
            edge = op != 0
            seen = max(seen, int(max(src.max(), dst.max())) + 1)
            deltas.append(delta(tau, seen, op[edge], src[edge], dst[edge], t[edge]))
        span_s = (ordered["t"][-1].as_py() - ordered["t"][0].as_py()) / 1e6
        yield Stream(name, len(ids), span_s, deltas)
    src, dst = rmat_edges(1 << 18, rmat_edges_, np.random.default_rng(0))
    both = np.stack([src, dst], 1).ravel()
    unique, first, inverse = np.unique(both, return_index=True, return_inverse=True)
    rank = np.empty(len(unique), np.int64)
    rank[np.argsort(first)] = np.arange(len(unique))
    ends = rank[inverse].reshape(-1, 2)
    cuts = np.arange(SNAPSHOTS + 1) * rmat_edges_ // SNAPSHOTS
    deltas = []
    for tau, (a, b) in enumerate(itertools.pairwise(cuts.tolist())):
        seen = int(ends[:b].max()) + 1
        t = np.arange(a, b, dtype=np.int64) * 1_000_000
        deltas.append(delta(tau, seen, np.ones(b - a), ends[a:b, 0].copy(), ends[a:b, 1].copy(), t))
    yield Stream("R-MAT", len(unique), float(rmat_edges_), deltas)


def delta(tau: int, nodes: int, op: np.ndarray, src: Int64, dst: Int64, t: Int64) -> SnapshotDelta:
    """A snapshot without its graph, which edge partitioners do not look at."""
    none = np.empty(0, np.int64)
    return delta_of(
        tau=tau,
        num_nodes=nodes,
        op=op.astype(np.int8),
        src=src,
        dst=dst,
        t=t,
        weight=np.ones(len(op), np.float32),
        graph=Csr(np.zeros(nodes + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)),
        live=none,
        touched=none,
        feature_nodes=none,
        changed_segments=np.empty(0, np.int32),
    )


def two_pass(stream: Stream, parts: int, hubs: float, time_constant: float) -> tuple[float, float, float]:
    """Discards, share of shared nodes and edge balance of SPEED's two passes."""
    partitioner = create("sep-two-pass", parts=parts, hubs=hubs, time_constant=time_constant)
    partitioner.foresee(*stream.inserts(), stream.nodes)
    for d in stream.deltas:
        partitioner.update(d)
    quality = partitioner.quality()
    return quality.cut, quality.shared_share, quality.edge_balance


def online(stream: Stream, parts: int, hubs: float) -> tuple[float, float, float]:
    """Discards on arrival, edge balance and moved nodes a snapshot of the need cover; its bounds are checked."""
    partitioner = create("sep", parts=parts, hubs=hubs, time_constant=stream.span_s / 10)
    for d in stream.deltas:
        partitioner.update(d)
        quality = partitioner.quality()
        assert quality.shared_share <= hubs, "the budget is broken"
        assert quality.replication_factor <= hubs * parts + 1 - hubs + 1e-9, "the bound on RF is broken"
    return quality.cut, quality.edge_balance, quality.moved_share


def main() -> None:
    """Print the table and the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rmat-edges", type=int, default=2_000_000)
    arguments = parser.parse_args()
    print(
        "discards on arrival in %, at the share of shared nodes of two-pass; ratios to two-pass / long half-life"
    )
    print("graph             P   k %  shared %  two-pass  online   ratio  / long  balance two-pass  online")
    short, long, unbalanced = [], [], 0
    for stream in streams(arguments.rmat_edges):
        for parts in (4, 32):
            for hubs in (0.01, 0.05, 0.1):
                cut, shared, balance = two_pass(stream, parts, hubs, stream.span_s / 10)
                long_cut, long_shared, _ = two_pass(stream, parts, hubs, stream.span_s / math.log(2))
                found, found_balance, _ = online(stream, parts, shared)
                against_long = online(stream, parts, long_shared)[0]
                short.append(max(found / cut, FLOOR))
                long.append(max(against_long / long_cut, FLOOR))
                unbalanced += balance <= 1.1 < found_balance
                print(
                    f"{stream.name:16} {parts:3} {hubs:5.0%} {shared:9.2%} {cut:9.2%} {found:7.2%} "
                    f"{short[-1]:7.3f} {long[-1]:7.3f} {balance:17.2f} {found_balance:7.2f}",
                    flush=True,
                )
    for name, ratios in (("a tenth of the span", short), ("a half-life of the span", long)):
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"against two-pass with {name}: geometric mean {mean:.3f}, worst {max(ratios):.3f}")
    print(f"balance above 1.1 where two-pass keeps it: {unbalanced} times")


if __name__ == "__main__":
    main()
