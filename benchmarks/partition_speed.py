"""Edge partitioners on one core, beside what the memory allows: python benchmarks/partition_speed.py [--edges N] [--large].

R-MAT of 20 M edges and about 1.1 M nodes, ids in order of first appearance as the log gives them. The ceiling reads
two 8-byte records and writes one for every edge, at the same ids in the same order, in the same run, in turns with
the partitioners; a loop that fetches lines ahead as the kernels do, and the plain loop at the same ids in a random
order of nodes, are printed beside it. Figures are CPU time of the thread, medians of ``--runs``; compilation is left out.
``update`` is all that the partitioner's public methods cost, ``kernel`` the part of it spent in compiled loops over
edges: those that assign and, of PowerGraph and SEP, count. Memory is kept as the stream job keeps it, and a first pass
that is not counted has touched it; what that pass took in fresh pages is printed.

``--large``: a graph that no cache holds. R-MAT, 200 M edges and about 72 M nodes: a few edges per node, as a dictionary that has
run for long sees them. Ends are drawn in pieces, numbered by first appearance and kept as int32 beside the partitioner (1.6 GB);
snapshots of 4 M edges go through ``update``, each in turns with the ceiling's loop over the same edges in a table for all nodes.
Bytes are those of the arrays that a partitioner keeps. ``--levels``: R-MAT draws from 2^levels ids.

``--only`` names partitioners, ``--parts`` their numbers of parts.
"""

import resource
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import harness
import numpy as np

from stream.kernels import njit
from stream.partition.edge import hdrf, sep
from stream.partition.interface import create
from stream.service.memory import keep_memory
from stream.snapshots.delta import Csr, SnapshotDelta, delta_of
from stream.snapshots.prefetch import AHEAD, prefetch
from stream.synthetic.interactions import A, B, C, rmat_edges

SNAPSHOTS, DAY_S = 50, 86_400.0
PIECE = 1 << 22
WORKS = [(name, n) for name in ("hdrf", "powergraph-greedy", "sep-two-pass", "sep") for n in (1, SNAPSHOTS)]
WORKS.remove(("sep", 1))
LARGE = ("hdrf", "sep-two-pass", "sep")
Ends = tuple[np.ndarray, np.ndarray]


@njit(nogil=True)
def ceiling(src, dst, records):
    """Two reads and a write for each edge."""
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


@njit(nogil=True)
def draw(draws, levels, ends):
    """R-MAT ends, a quadrant for each level, without the labels that a renumbering would undo."""
    a, ab, abc = int(A * 65_536), int((A + B) * 65_536), int((A + B + C) * 65_536)
    for e in range(len(draws)):
        row = column = 0
        for level in range(levels):
            part = int((draws[e, level >> 2] >> np.uint64(16 * (level & 3))) & np.uint64(0xFFFF))
            row = 2 * row + (part >= ab)
            column = 2 * column + ((a <= part < ab) | (part >= abc))
        ends[e, 0], ends[e, 1] = row, column


@njit(nogil=True)
def number(ends, rank, known):
    """Put dense ids of first appearance in place of the ends; nodes known afterwards."""
    flat = ends.reshape(-1)
    last = len(flat) - 1
    for i in range(len(flat)):
        prefetch(rank, flat[min(i + AHEAD, last)])
        if rank[flat[i]] < 0:
            rank[flat[i]] = known
            known += 1
        flat[i] = rank[flat[i]]
    return known


def large_edges(edges: int, levels: int) -> Ends:
    """Dense ends, int32 (E,) each."""
    rng = np.random.default_rng(0)
    rank = np.full(1 << levels, -1, np.int32)
    src, dst = np.empty(edges, np.int32), np.empty(edges, np.int32)
    known = 0
    for first in range(0, edges, PIECE):
        size = min(PIECE, edges - first)
        ends = np.empty((size, 2), np.int64)
        draw(rng.integers(0, 2**64, (size, -(-levels // 4)), np.uint64), levels, ends)
        known = number(ends, rank, known)
        src[first : first + size], dst[first : first + size] = ends[:, 0], ends[:, 1]
    return src, dst


def by_first_appearance(nodes: int, edges: int) -> Ends:
    """R-MAT ends with dense ids, int64 (E,) each."""
    ends = np.stack(rmat_edges(nodes, edges, np.random.default_rng(0)), 1).astype(np.int64)
    number(ends, np.full(nodes, -1, np.int64), 0)
    return ends[:, 0].copy(), ends[:, 1].copy()


def delta(
    tau: int, nodes: int, op: np.ndarray, src: np.ndarray, dst: np.ndarray, t: np.ndarray
) -> SnapshotDelta:
    """A snapshot without its graph, which edge partitioners do not look at."""
    none = np.empty(0, np.int64)
    return delta_of(
        tau=tau, num_nodes=nodes, op=op.astype(np.int8), src=src, dst=dst, t=t, weight=np.ones(len(op), np.float32),
        graph=Csr(np.zeros(nodes + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)), live=none,
        touched=none, feature_nodes=none, changed_segments=np.empty(0, np.int32),
    )  # fmt: skip


def deltas(src: np.ndarray, dst: np.ndarray, snapshots: int) -> Iterator[SnapshotDelta]:
    """Snapshots of equal size over a day; ends of int32 are widened while a snapshot is used."""
    step_us = max(int(DAY_S * 1e6) // len(src), 1)
    cuts = np.arange(snapshots + 1) * len(src) // snapshots
    seen = 0
    for tau in range(snapshots):
        rows = slice(cuts[tau], cuts[tau + 1])
        ends = [end[rows].astype(np.int64, copy=False) for end in (src, dst)]
        seen = max(seen, *(int(end.max()) + 1 for end in ends))
        times = np.arange(rows.start, rows.stop) * step_us
        yield delta(tau, seen, np.ones(len(times)), *ends, times)


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
            began = time.thread_time()
            result = function(*arguments)
            self.kernel += time.thread_time() - began
            return result

        return call

    def time(self, call: Callable[[], object]) -> None:
        """Add a call."""
        self.whole += harness.seconds_of(call, time.thread_time)

    def take(self) -> tuple[float, float]:
        """Seconds of calls and of kernels since the last time."""
        taken = self.whole, self.kernel
        self.whole = self.kernel = 0.0
        return taken


def partitioner(name: str, parts: int) -> Any:
    """A partitioner by the name it has in the tables; SEP weighs events with a time constant, as commands do."""
    return create(name, parts=parts, **({"time_constant": DAY_S / 10} if name.startswith("sep") else {}))


def run(
    clock: Clock, name: str, src: np.ndarray, dst: np.ndarray, snapshots: int, parts: int, beside: Any = None
) -> Any:
    """One partitioner over the stream: its public methods are timed. ``beside`` is called with each snapshot in turns."""
    used = partitioner(name, parts)
    if name == "sep-two-pass":
        for each in deltas(src, dst, snapshots if beside else 1):
            clock.time(lambda d=each: used.foresee(d.src, d.dst, d.t, d.num_nodes))
    for each in deltas(src, dst, snapshots):
        if beside:
            beside(each)
        clock.time(lambda d=each: used.update(d))
    return used


def rates(clock: Clock, given: Any, works: list[tuple[str, int]]) -> Iterator[list[str]]:
    src, dst = by_first_appearance(given.nodes, given.edges or 20_000_000)
    edges, nodes = len(src), int(max(src.max(), dst.max())) + 1
    run(clock, "hdrf", src, dst, 1, given.parts[0])
    fresh = clock.take()[0]
    print(f"{edges:,} edges, {nodes:,} nodes; hdrf, one snapshot, {given.parts[0]} parts, in fresh pages: "
          f"{edges / fresh / 1e6:.0f} M edges/s")  # fmt: skip
    run(clock, "hdrf", src, dst, 1, given.parts[-1])
    clock.take()
    other = np.random.default_rng(1).permutation(nodes)
    loops = {
        "two reads and a write": (ceiling, src, dst),
        "the same, fetched ahead": (ceiling_ahead, src, dst),
        "plain, nodes in random order": (ceiling, other[src], other[dst]),
    }
    ceilings: dict[str, list[float]] = {}
    seconds: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for _ in range(given.runs):
        for parts in given.parts:
            for title, (loop, *ends) in loops.items():
                records = np.zeros(nodes, np.uint64)
                clock.time(lambda c=loop, e=ends, r=records: c(*e, r))
                ceilings.setdefault(title, []).append(clock.take()[0])
            for name, snapshots in works:
                run(clock, name, src, dst, snapshots, parts)
                seconds.setdefault((name, snapshots, parts), []).append(clock.take())
    for title, took in ceilings.items():
        print(f"ceiling, {title}: {harness.spread([edges / s / 1e6 for s in took], 0)} M edges/s")
    top = median(ceilings["two reads and a write"])
    for (name, snapshots, parts), runs in sorted(seconds.items()):
        whole, kernel = (median(column) for column in zip(*runs, strict=True))
        inner = [f"{edges / kernel / 1e6:.1f}", f"{top / kernel:.0%}"] if kernel else ["", ""]
        yield [name, str(snapshots), str(parts), f"{edges / whole / 1e6:.1f}", f"{top / whole:.0%}", *inner]


def large_rates(given: Any, names: list[str]) -> Iterator[list[str]]:
    src, dst = large_edges(given.edges or 200_000_000, given.levels)
    edges, nodes = len(src), int(max(src.max(), dst.max())) + 1
    print(f"{edges:,} edges, {nodes:,} nodes")
    for name in names:
        for parts in given.parts:
            clock, top, records = Clock(), Clock(), np.zeros(nodes, np.uint64)
            beside = lambda d, r=records, t=top: t.time(lambda: ceiling(d.src, d.dst, r))  # noqa: E731
            used = run(clock, name, src, dst, -(-edges // PIECE), parts, beside)
            kept = [x for x in vars(used).values() if isinstance(x, np.ndarray) and len(x) >= nodes]
            rate, share = edges / clock.whole / 1e6, top.whole / clock.whole
            bytes_ = sum(x.nbytes for x in kept) / nodes
            yield [
                name,
                str(parts),
                f"{edges / top.whole / 1e6:.0f}",
                f"{rate:.1f}",
                f"{share:.1%}",
                f"{bytes_:.1f}",
            ]
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


def main() -> None:
    given = harness.options(
        __doc__, edges=0, nodes=1 << 21, runs=3, only=[], parts=[4, 32], large=False, levels=30
    )
    harness.begin()
    keep_memory()
    names = harness.chosen(given.only, LARGE if given.large else dict(WORKS))
    works = [work for work in WORKS if work[0] in names]
    clock = Clock()
    if not given.large:
        clock.watch(hdrf, "assign_records", "count_edges")
        clock.watch(sep, "assign_marked", "add_centrality")
    warm = by_first_appearance(1 << 10, 5_000)
    for name in names:  # compiles, or loads, the kernels
        for parts in given.parts:
            run(clock, name, *warm, 3, parts)
    for loop in (ceiling, ceiling_ahead):
        loop(*warm, np.zeros(1 << 10, np.uint64))
    clock.take()
    if given.large:
        titles = "partitioner | P | ceiling, M edges/s | update, M edges/s | of the ceiling | bytes per node"
        harness.table(titles, large_rates(given, names))
    else:
        titles = "partitioner | snapshots | P | update, M edges/s | of the ceiling | kernel | of the ceiling"
        harness.table(titles, rates(clock, given, works))


if __name__ == "__main__":
    main()
