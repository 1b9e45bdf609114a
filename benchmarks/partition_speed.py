"""Edge partitioners on one core, beside what the memory allows: python benchmarks/partition_speed.py [--edges N] [--large].

R-MAT of 20 M edges and about 1.1 M nodes, ids in order of first appearance as the log gives them. The ceiling reads two 8-byte
records and writes one for every edge, at the same ids in the same order, snapshot by snapshot in turns with the partitioner.
Figures are CPU time of the thread, medians of ``--runs``; compilation is left out. ``update`` is all that public methods
cost. Memory is kept as the stream job keeps it, and a first pass that is not counted has touched it.

``--large``: a graph that no cache holds. R-MAT, 200 M edges and about 72 M nodes: a few edges per node, as a dictionary that has
run for long sees them. Snapshots have 4 M edges. Ends are drawn in pieces and
kept as int32 beside the partitioner (1.6 GB). Bytes are those of the arrays that a partitioner keeps. ``--levels``: R-MAT draws
from 2^levels ids.

``--only`` names partitioners, ``--parts`` their numbers of parts.
"""

import itertools
import resource
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import harness
import numpy as np
from harness import seconds_of

from freshet_graph.stream.kernels import njit
from freshet_graph.stream.partition.interface import create
from freshet_graph.stream.service.memory import keep_memory
from freshet_graph.stream.snapshots.delta import Csr, SnapshotDelta, delta_of
from freshet_graph.stream.snapshots.prefetch import AHEAD, prefetch
from freshet_graph.stream.synthetic.interactions import A, B, C

SNAPSHOTS, DAY_S = 50, 86_400.0
PIECE = 1 << 22
NAMES = ("hdrf", "powergraph-greedy", "sep-two-pass", "sep")


@njit(nogil=True)
def ceiling(src, dst, records):
    """Two reads and a write for each edge."""
    total = np.uint64(0)
    for e in range(len(src)):
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


def edges_of(edges: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """R-MAT ends with dense ids by first appearance, int32 (E,) each."""
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


def deltas(src: np.ndarray, dst: np.ndarray, snapshots: int) -> Iterator[SnapshotDelta]:
    """Snapshots of equal size over a day, without their graphs, which edge partitioners do not look at."""
    step_us = max(int(DAY_S * 1e6) // len(src), 1)
    cuts, none = np.arange(snapshots + 1) * len(src) // snapshots, np.empty(0, np.int64)
    nodes = 0
    for tau in range(snapshots):
        rows = slice(cuts[tau], cuts[tau + 1])
        ends, count = [end[rows].astype(np.int64) for end in (src, dst)], rows.stop - rows.start
        nodes = max(nodes, *(int(end.max()) + 1 for end in ends))
        yield delta_of(
            tau=tau, num_nodes=nodes, op=np.ones(count, np.int8), src=ends[0], dst=ends[1],
            t=np.arange(rows.start, rows.stop) * step_us, weight=np.ones(count, np.float32),
            graph=Csr(np.zeros(nodes + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)), live=none,
            touched=none, feature_nodes=none, changed_segments=np.empty(0, np.int32),
        )  # fmt: skip


def partitioner(name: str, parts: int) -> Any:
    """A partitioner by the name it has in the tables; SEP weighs events with a time constant, as commands do."""
    return create(name, parts=parts, **({"time_constant": DAY_S / 10} if name.startswith("sep") else {}))


def run(name: str, src: np.ndarray, dst: np.ndarray, snapshots: int, parts: int) -> tuple[Any, float, float]:
    """A partitioner over a stream: itself, and CPU seconds of its public methods and of the ceiling on the same snapshots."""
    used, records = partitioner(name, parts), np.zeros(max(src.max(), dst.max()) + 1, np.uint64)
    own = top = 0.0
    if name == "sep-two-pass":
        for each in deltas(src, dst, snapshots):
            own += seconds_of(lambda d=each: used.foresee(d.src, d.dst, d.t, d.num_nodes), time.thread_time)
    for each in deltas(src, dst, snapshots):
        top += seconds_of(lambda d=each: ceiling(d.src, d.dst, records), time.thread_time)
        own += seconds_of(lambda d=each: used.update(d), time.thread_time)
    return used, own, top


def rates(given: Any, names: list[str]) -> Iterator[list[str]]:
    large = given.large
    edges = given.edges or (200_000_000 if large else 20_000_000)
    src, dst = edges_of(edges, given.levels or (30 if large else 21))
    nodes = int(max(src.max(), dst.max())) + 1
    print(f"{edges:,} edges, {nodes:,} nodes")
    if not large:
        run("hdrf", src, dst, 1, max(given.parts))  # in fresh pages
    for name, snapshots in itertools.product(names, (-(-edges // PIECE),) if large else (SNAPSHOTS, 1)):
        for parts in given.parts:
            turns = [run(name, src, dst, snapshots, parts) for _ in range(1 if large else given.runs)]
            own, top = (median(turn[clock] for turn in turns) for clock in (1, 2))
            kept = [x for x in vars(turns[0][0]).values() if isinstance(x, np.ndarray) and len(x) >= nodes]
            cells = f"{edges / top / 1e6:.0f}", f"{edges / own / 1e6:.1f}", f"{top / own:.1%}"
            yield [name, str(snapshots), str(parts), *cells, f"{sum(x.nbytes for x in kept) / nodes:.1f}"]
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


def main() -> None:
    given = harness.options(__doc__, edges=0, runs=3, only=[], parts=[4, 32], large=False, levels=0)
    keep_memory()
    names = harness.chosen(given.only, NAMES)
    warm = edges_of(5_000, 10)
    for name in names:  # compiles, or loads, the kernels
        for parts in given.parts:
            run(name, *warm, 3, parts)
    titles = "partitioner | snapshots | P | ceiling, M edges/s | update, M edges/s | of the ceiling"
    harness.table(f"{titles} | bytes per node", rates(given, names))


if __name__ == "__main__":
    main()
