"""Edge partitioners on one core, beside what the memory allows: python benchmarks/partition_speed.py [--edges N].

R-MAT of 20 M edges and about 1.1 M nodes, ids in order of first appearance as the log gives them. The ceiling reads
two 8-byte records and writes one for every edge, at the same ids in the same order, in the same run, in turns with
the partitioners; a loop that fetches lines ahead as the kernels do, and the plain loop at the same ids in a random
order of nodes, are printed beside it. Figures are CPU time of the thread, medians; compilation is left out.
``update`` is all that the partitioner's public methods cost, ``kernel`` the part of it spent in compiled loops over
edges: those that assign and, of PowerGraph and SEP, count. Memory is kept as the stream job keeps it, and a first pass
that is not counted has touched it; what that pass took in fresh pages is printed.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stream.kernels import njit
from stream.partition.edge import hdrf, sep
from stream.partition.interface import OnlinePartitioner, create
from stream.service.memory import keep_memory
from stream.snapshots.delta import Csr, SnapshotDelta, delta_of
from stream.snapshots.prefetch import AHEAD, prefetch
from stream.synthetic.interactions import rmat_edges

SNAPSHOTS = 50
PARTS = (4, 32)
DAY_S = 86_400.0


@njit(nogil=True)
def ceiling(src, dst, records):
    """Two reads and a write an edge."""
    total = np.uint64(0)
    for e in range(len(src)):
        total += records[dst[e]]
        records[src[e]] += np.uint64(1)
    return total


@njit(nogil=True)
def ceiling_ahead(src, dst, records):
    """The same, lines fetched as early as the kernels do."""
    total = np.uint64(0)
    last = len(src) - 1
    for e in range(len(src)):
        ahead = min(e + AHEAD, last)
        prefetch(records, src[ahead])
        prefetch(records, dst[ahead])
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
    """Snapshots of equal size over a day, without their graphs, which edge partitioners do not look at.

    Args:
        src: int64 (E,) or int32, of which a snapshot's are widened while it is used.
        dst: Likewise.
        snapshots: How many.
    """
    none = np.empty(0, np.int64)
    step_us = max(int(DAY_S * 1e6) // len(src), 1)
    cuts = np.arange(snapshots + 1) * len(src) // snapshots
    seen = 0
    for tau in range(snapshots):
        rows = slice(cuts[tau], cuts[tau + 1])
        size = rows.stop - rows.start
        ends = src[rows].astype(np.int64, copy=False), dst[rows].astype(np.int64, copy=False)
        seen = max(seen, int(ends[0].max()) + 1, int(ends[1].max()) + 1)
        yield delta_of(
            tau=tau,
            num_nodes=seen,
            op=np.ones(size, np.int8),
            src=ends[0],
            dst=ends[1],
            t=np.arange(rows.start, rows.stop) * step_us,
            weight=np.empty(0, np.float32),
            graph=Csr(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)),
            live=none,
            touched=none,
            feature_nodes=none,
            changed_segments=np.empty(0, np.int32),
        )


class Clock:
    """CPU seconds of this thread in whole calls, and in the kernels that they call."""

    def __init__(self) -> None:
        self.whole = self.kernel = 0.0

    def watch(self, module: Any, *names: str) -> None:
        """Count what a module spends in these functions."""
        for name in names:
            setattr(module, name, self._watched(getattr(module, name)))

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.thread_time()
            result = function(*arguments)
            self.kernel += time.thread_time() - start
            return result

        return call

    def time(self, call: Callable[[], object]) -> None:
        """Add a call."""
        start = time.thread_time()
        call()
        self.whole += time.thread_time() - start

    def take(self) -> tuple[float, float]:
        """Seconds of calls and of kernels since the last time."""
        taken = self.whole, self.kernel
        self.whole = self.kernel = 0.0
        return taken


def partitioner(name: str, parts: int) -> OnlinePartitioner:
    """A partitioner by the name it has in the tables; SEP weighs events with a time constant, as commands do."""
    if name.startswith("sep"):
        return create(name, parts=parts, time_constant=DAY_S / 10)
    return create(name, parts=parts)


def run(clock: Clock, name: str, src: np.ndarray, dst: np.ndarray, snapshots: int, parts: int) -> None:
    """One partitioner over the stream: its public methods are timed."""
    used = partitioner(name, parts)
    if name == "sep-two-pass":
        whole = next(deltas(src, dst, 1))
        clock.time(lambda: used.foresee(whole.src, whole.dst, whole.t, whole.num_nodes))  # type: ignore[attr-defined]
    for delta in deltas(src, dst, snapshots):
        clock.time(lambda d=delta: used.update(d))


def main() -> None:
    """Print medians and shares of the ceiling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--nodes", type=int, default=1 << 21, help="range that R-MAT draws from")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of the table's first column")
    arguments = parser.parse_args()
    keep_memory()
    clock = Clock()
    clock.watch(hdrf, "assign_records", "count_edges")
    clock.watch(sep, "assign_marked", "add_centrality")
    works = [
        ("hdrf", 1),
        ("hdrf", SNAPSHOTS),
        ("powergraph-greedy", 1),
        ("powergraph-greedy", SNAPSHOTS),
        ("sep-two-pass", 1),
        ("sep-two-pass", SNAPSHOTS),
        ("sep", SNAPSHOTS),
    ]
    works = [work for work in works if not arguments.only or work[0] in arguments.only]

    warm = edges_by_first_appearance(1 << 10, 5_000)
    begin = time.perf_counter()
    for parts in PARTS:
        for name, _ in works:
            run(clock, name, *warm, 3, parts)
    print(f"first use of every kernel, compiled or from the cache: {time.perf_counter() - begin:.1f} s")
    for loop in (ceiling, ceiling_ahead):
        loop(*warm, np.zeros(1 << 10, np.uint64))
    clock.take()

    src, dst = edges_by_first_appearance(arguments.nodes, arguments.edges)
    nodes = int(max(src.max(), dst.max())) + 1
    print(f"{len(src):,} edges, {nodes:,} nodes")
    run(clock, "hdrf", src, dst, 1, PARTS[0])
    fresh = clock.take()[0]
    print(f"hdrf, one snapshot, {PARTS[0]} parts, in fresh pages: {len(src) / fresh / 1e6:.0f} M edges/s")
    run(clock, "hdrf", src, dst, 1, PARTS[1])
    clock.take()
    anew = np.random.default_rng(1).permutation(nodes)
    ceilings: dict[str, list[float]] = {}
    seconds: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for _ in range(arguments.runs):
        for parts in PARTS:
            for title, loop, ends in (
                ("two reads and a write", ceiling, (src, dst)),
                ("the same, fetched ahead", ceiling_ahead, (src, dst)),
                ("plain, nodes in random order", ceiling, (anew[src], anew[dst])),
            ):
                records = np.zeros(nodes, np.uint64)
                clock.time(lambda c=loop, e=ends, r=records: c(*e, r))
                ceilings.setdefault(title, []).append(clock.take()[0])
            for name, snapshots in works:
                run(clock, name, src, dst, snapshots, parts)
                seconds.setdefault((name, snapshots, parts), []).append(clock.take())
    for title, took in ceilings.items():
        rates = [len(src) / s / 1e6 for s in took]
        print(
            f"ceiling, {title}: {statistics.median(rates):.0f} M edges/s ({min(rates):.0f} to {max(rates):.0f})"
        )
    top = statistics.median(ceilings["two reads and a write"])
    print("what               snapshots    P    update, M edges/s  of the ceiling    kernel  of the ceiling")
    for (name, snapshots, parts), took in sorted(seconds.items()):
        whole, kernel = (statistics.median(column) for column in zip(*took, strict=True))
        inner = f"{len(src) / kernel / 1e6:10.1f}{top / kernel:16.0%}" if kernel else ""
        print(
            f"{name:18} {snapshots:9} {parts:4} {len(src) / whole / 1e6:20.1f}{top / whole:16.0%}{inner}",
            flush=True,
        )


if __name__ == "__main__":
    main()
