"""Edge partitioners on one core, beside what the memory allows: python benchmarks/partition_speed.py [--edges N].

R-MAT of 20 M edges and about 1.1 M nodes, ids in order of first appearance as the log gives them. The ceiling reads
two 8-byte records and writes one for every edge, at the same ids in the same order, in the same run, in turns with
the partitioners. Figures are CPU time of the thread, medians; compilation is left out. ``kernel`` is the assignment
loop alone on one batch of all edges, ``update`` everything that a snapshot costs but the live graph.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from numba import njit

from stream.partition.copying_kernels import assign_records, count_edges
from stream.partition.interface import create
from stream.partition.two_pass_kernels import assign_records as assign_sep
from stream.partition.two_pass_kernels import pack_records
from stream.snapshots.delta import Csr, SnapshotDelta
from stream.synthetic.rmat import rmat_edges

SNAPSHOTS = 50


@njit(nogil=True)
def ceiling(src, dst, records):
    """Two reads and a write an edge."""
    total = np.uint64(0)
    for e in range(len(src)):
        total += records[dst[e]]
        records[src[e]] += np.uint64(1)
    return total


def edges_by_first_appearance(nodes: int, edges: int) -> tuple[np.ndarray, np.ndarray]:
    """R-MAT ends with dense ids."""
    src, dst = rmat_edges(nodes, edges, np.random.default_rng(0))
    both = np.stack([src, dst], 1).ravel()
    first = np.full(nodes, len(both))
    first[both[::-1]] = np.arange(len(both) - 1, -1, -1)
    seen = np.flatnonzero(first < len(both))
    rank = np.empty(nodes, np.int64)
    rank[seen[np.argsort(first[seen])]] = np.arange(len(seen))
    return rank[src], rank[dst]


def deltas(src: np.ndarray, dst: np.ndarray, snapshots: int) -> Iterator[SnapshotDelta]:
    """Snapshots without their graphs, which edge partitioners do not look at."""
    none = np.empty(0, np.int64)
    op, t = np.ones(len(src), np.int8), np.arange(len(src)) * 1_000
    cuts = np.arange(snapshots + 1) * len(src) // snapshots
    seen = 0
    for tau in range(snapshots):
        rows = slice(cuts[tau], cuts[tau + 1])
        seen = max(seen, int(src[rows].max()) + 1, int(dst[rows].max()) + 1)
        graph = Csr(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        yield SnapshotDelta(
            tau=tau,
            num_nodes=seen,
            op=op[rows],
            src=src[rows],
            dst=dst[rows],
            t=t[rows],
            weight=np.empty(0, np.float32),
            graph=graph,
            live=none,
            touched=none,
            feature_nodes=none,
            changed_segments=np.empty(0, np.int32),
        )


def cpu_s(call: Callable[[], object]) -> float:
    """CPU seconds of this thread."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def kernels(src: np.ndarray, dst: np.ndarray, nodes: int, parts: int) -> Iterator[tuple[str, float]]:
    """Names and seconds of the assignment loops."""
    op = np.ones(len(src), np.int8)
    for name, greedy in (("hdrf", False), ("powergraph-greedy", True)):
        records, home, sizes = np.zeros(nodes, np.uint64), np.full(nodes, -1, np.int32), np.zeros(parts, int)
        if greedy:
            count_edges(op, src, dst, records)
        state = (records, home, sizes, greedy, 1.0, 0, 0)
        yield f"{name} kernel", cpu_s(lambda s=state: assign_records(op, src, dst, *s))
    centrality = np.bincount(np.concatenate([src, dst]), minlength=nodes).astype(float)
    hub = np.zeros(nodes, bool)
    hub[np.argsort(-centrality)[: nodes // 20]] = True
    records = pack_records(np.zeros((nodes, 1), np.uint64), hub, centrality)
    home, sizes = np.full(nodes, -1, np.int32), np.zeros(parts, int)
    yield "sep two-pass kernel", cpu_s(lambda: assign_sep(op, src, dst, records, home, sizes, 1.0, 0, 0))


def updates(src: np.ndarray, dst: np.ndarray, nodes: int, parts: int) -> Iterator[tuple[str, float]]:
    """Names and seconds of whole partitioners over snapshots; two-pass has one."""
    for name in ("hdrf", "powergraph-greedy", "sep"):
        partitioner = create(name, parts=parts)
        yield (
            f"{name} update, {SNAPSHOTS} snapshots",
            sum(cpu_s(lambda d=d, p=partitioner: p.update(d)) for d in deltas(src, dst, SNAPSHOTS)),
        )
    paper = create("sep", parts=parts)
    start = time.thread_time()
    paper.foresee(src, dst, np.arange(len(src)), nodes)
    for d in deltas(src, dst, 1):
        paper.update(d)
    yield "sep two-pass, both passes", time.thread_time() - start


def main() -> None:
    """Print medians and shares of the ceiling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--nodes", type=int, default=1 << 21, help="range that R-MAT draws from")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    warm = edges_by_first_appearance(1 << 10, 5_000)
    start = time.perf_counter()
    for parts in (4, 32):
        for part in (kernels, updates):
            list(part(*warm, int(max(map(np.max, warm))) + 1, parts))
    print(f"first use of every kernel, compiled or from the cache: {time.perf_counter() - start:.1f} s")
    ceiling(*warm, np.zeros(1 << 10, np.uint64))
    src, dst = edges_by_first_appearance(arguments.nodes, arguments.edges)
    nodes = int(max(src.max(), dst.max())) + 1
    print(f"{len(src):,} edges, {nodes:,} nodes")
    top: list[float] = []
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(arguments.runs):
        for parts in (4, 32):
            records = np.zeros(nodes, np.uint64)
            top.append(cpu_s(lambda r=records: ceiling(src, dst, r)))
            for part in (kernels, updates):
                for name, took in part(src, dst, nodes, parts):
                    seconds.setdefault((name, parts), []).append(took)
    best = statistics.median(top)
    print(f"ceiling: {len(src) / best / 1e6:.0f} M edges/s")
    print("what                                   P   M edges/s  of the ceiling")
    for (name, parts), took in sorted(seconds.items(), key=lambda item: item[0]):
        median = statistics.median(took)
        print(f"{name:36} {parts:4} {len(src) / median / 1e6:10.1f} {best / median:14.0%}")


if __name__ == "__main__":
    main()
