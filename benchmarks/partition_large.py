"""Edge partitioners on a graph that no cache holds: python benchmarks/partition_large.py [--edges N] [--levels N].

R-MAT, 200 M edges and about 72 M nodes: a few edges a node, as a dictionary that has run for long sees them. Ends are
drawn in pieces with a fixed seed, numbered by first appearance and kept as int32 beside the partitioner (1.6 GB);
snapshots of 4 M edges go through ``update``, each in turns with the ceiling's loop over the same edges in a table for
all nodes. CPU time of the thread, memory kept as the stream job keeps it; compilation is left out. Bytes are those of
the arrays that a partitioner keeps.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np
from partition_speed import PARTS, Clock, ceiling, deltas, edges_by_first_appearance, partitioner

from stream.kernels import njit
from stream.service.memory import keep_memory
from stream.snapshots.prefetch import AHEAD, prefetch
from stream.synthetic.interactions import A, B, C

PIECE = 1 << 22
NAMES = ("hdrf", "sep-two-pass", "sep")


@njit(nogil=True)
def draw(draws, levels, ends):
    """R-MAT ends, a quadrant a level, without the labels that a renumbering would undo."""
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


def stream(edges: int, levels: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Dense ends, int32 (E,) each, and the number of nodes."""
    rng = np.random.default_rng(0)
    rank = np.full(1 << levels, -1, np.int32)
    src, dst = np.empty(edges, np.int32), np.empty(edges, np.int32)
    known = 0
    for begin in range(0, edges, PIECE):
        size = min(PIECE, edges - begin)
        ends = np.empty((size, 2), np.int64)
        draw(rng.integers(0, 2**64, (size, -(-levels // 4)), np.uint64), levels, ends)
        known = number(ends, rank, known)
        src[begin : begin + size], dst[begin : begin + size] = ends[:, 0], ends[:, 1]
    return src, dst, known


def kept_bytes(used: object, nodes: int) -> float:
    """Bytes a node in the arrays that have a row for each."""
    return sum(x.nbytes for x in vars(used).values() if isinstance(x, np.ndarray) and len(x) >= nodes) / nodes


def measure(
    name: str, parts: int, src: np.ndarray, dst: np.ndarray, nodes: int
) -> tuple[float, float, float]:
    """Seconds of the ceiling's loop and of the partitioner, and the bytes a node that it keeps."""
    snapshots = -(-len(src) // PIECE)
    clock, top = Clock(), Clock()
    records, used = np.zeros(nodes, np.uint64), partitioner(name, parts)
    if name == "sep-two-pass":
        for delta in deltas(src, dst, snapshots):
            clock.time(lambda d=delta: used.foresee(d.src, d.dst, d.t, d.num_nodes))  # type: ignore[attr-defined]
    for delta in deltas(src, dst, snapshots):
        top.time(lambda d=delta: ceiling(d.src, d.dst, records))
        clock.time(lambda d=delta: used.update(d))
    return top.whole, clock.whole, kept_bytes(used, nodes)


def main() -> None:
    """Print a row for each partitioner and number of parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=200_000_000)
    parser.add_argument("--levels", type=int, default=30, help="R-MAT draws from 2^levels ids")
    parser.add_argument(
        "--ends", type=Path, help="a .npy file: drawn ends are kept there, and taken from there the next time"
    )
    parser.add_argument("--only", nargs="*", default=NAMES, help="names of the table's first column")
    parser.add_argument("--parts", nargs="*", type=int, default=PARTS)
    arguments = parser.parse_args()
    keep_memory()
    warm = edges_by_first_appearance(1 << 10, 5_000)
    for name in arguments.only:
        for parts in arguments.parts:
            used = partitioner(name, parts)
            if name == "sep-two-pass":
                used.foresee(*warm, np.arange(5_000), 1 << 10)  # type: ignore[attr-defined]
            for delta in deltas(*warm, 3):
                used.update(delta)
    ceiling(*warm, np.zeros(1 << 10, np.uint64))

    begin = time.perf_counter()
    if arguments.ends and arguments.ends.exists():
        src, dst = np.load(arguments.ends)
        nodes = int(max(src.max(), dst.max())) + 1
    else:
        src, dst, nodes = stream(arguments.edges, arguments.levels)
    if arguments.ends and not arguments.ends.exists():
        np.save(arguments.ends, np.stack([src, dst]))
    print(f"{len(src):,} edges, {nodes:,} nodes, drawn in {time.perf_counter() - begin:.0f} s", flush=True)
    print("what               P    ceiling, M edges/s    update, M edges/s  of the ceiling  bytes a node")
    for name in arguments.only:
        for parts in arguments.parts:
            best, whole, kept = measure(name, parts, src, dst, nodes)
            print(
                f"{name:16} {parts:4} {len(src) / best / 1e6:17.0f} {len(src) / whole / 1e6:20.1f}"
                f"{best / whole:16.1%}{kept:14.1f}",
                flush=True,
            )
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
