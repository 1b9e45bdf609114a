"""What a lane costs: an event of each kind of lane, and a step over a growing graph: python benchmarks/lanes.py.

*Step*: the live graph is R-MAT of so many pairs; each snapshot inserts and deletes 5,000 edges, so that the graph stays as
large. A step is ``LaneState.advance``: live graph, partitioner, quality, and what parts store anew. Beside it, in the
same run and in turns, what it takes to hand over the whole: merging sorted columns of pairs, the sorted adjacency
advanced by the change, and all pairs compared with those of before (a lane's work before it went by difference, without its
partitioner and quality).

*Window*: ``WindowView.advance`` over the same stream in a lane ``hash``, a window of 4 snapshots.

*Lane*: ``LaneWriter.catch_up`` over a finished log, files and fsync included.

Figures are CPU time (of the thread for steps, of the process for lanes), medians; compilation is left out.
"""

import argparse
import functools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas.config import Lane
from schemas.events import event_schema, log_event_schema
from schemas.store import LaneHeader
from stream.arrays.kinds import Int64
from stream.kernels.node_sets import distinct
from stream.partition.interface import algorithms
from stream.snapshots.pairs import pair_keys, split_keys
from stream.store.from_file import build_store
from stream.store.lane.diff import WholePairs, pair_changes
from stream.store.lane.reader import LaneReader
from stream.store.lane.state import LaneState
from stream.store.lane.writer import LaneWriter
from stream.store.window.view import WindowView
from stream.synthetic.interactions import rmat_edges

KINDS = ("hash", "random", "ldg", "load-aware", "distdy", "hdrf", "powergraph-greedy", "sep")
STEP_KINDS = ("hash", "ldg", "hdrf", "sep")
PARTS = 4
CHANGES = 10_000
STEPS, WARM = 16, 3


@functools.cache
def distinct_pairs(nodes: int, count: int) -> tuple[Int64, Int64]:
    """Directed pairs of R-MAT, each once, in a drawn order."""
    draws = np.random.default_rng(0)
    keys = np.empty(0, np.int64)
    while len(keys) < count:
        src, dst = rmat_edges(nodes, 2 * (count - len(keys)) + 1000, draws)
        keys = distinct(keys, pair_keys(src.astype(np.int64), dst.astype(np.int64)))
    return split_keys(draws.permutation(keys)[:count])


def snapshot(schema: pa.Schema, op: np.ndarray, src: Int64, dst: Int64) -> pa.Table:
    """Edge events as a table; a microsecond between two."""
    given = {
        "op": op,
        "src": src,
        "dst": dst,
        "src_node": src,
        "dst_node": dst,
        "t": np.arange(len(op)),
        "weight": np.ones(len(op), np.float32),
    }
    columns = [
        pa.array(given[f.name]).cast(f.type) if f.name in given else pa.nulls(len(op), f.type) for f in schema
    ]
    return pa.table(columns, schema=schema)


class Whole:
    """Pairs in sorted columns, compared as a whole each snapshot."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        pairs = state.graph.pairs()
        self._keys, self._weight = pair_keys(pairs.src, pairs.dst), pairs.weight
        self._stored = WholePairs.by_owner(self._keys, self._weight, self._home())

    def _home(self) -> np.ndarray:
        home = self._state.partitioner.home()
        return np.where(home < 0, 0, home)  # edge lanes: any part serves, the work is the same

    def step(self, delta, added: Int64, removed: Int64) -> None:
        """A snapshot that adds and removes pairs of these keys."""
        _ = delta.graph
        at = np.searchsorted(self._keys, removed)
        keys, weight = np.delete(self._keys, at), np.delete(self._weight, at)
        added = np.sort(added)
        at = np.searchsorted(keys, added)
        self._keys, self._weight = np.insert(keys, at, added), np.insert(weight, at, np.float32(1))
        before, self._stored = self._stored, WholePairs.by_owner(self._keys, self._weight, self._home())
        pair_changes(before, self._stored, PARTS)


def steps(kind: str, pairs: int) -> tuple[float, float]:
    """Median seconds of a step of the lane, and of handing over the whole."""
    half = CHANGES // 2
    src, dst = distinct_pairs(max(1 << int(np.log2(pairs / 8)), 1024), pairs + half * STEPS)
    header = LaneHeader(
        lane="bench", algorithm=kind, kind=algorithms()[kind].kind, parts=PARTS, window=4, edge_life=None, seed=0,
        base_every=64, params={}, graph="bench", interval_us=1, node_features=0, edge_features=0, segments=1,
    )  # fmt: skip
    state, schema = LaneState(header), log_event_schema("int")
    state.advance(0, snapshot(schema, np.ones(pairs, np.int8), src[:pairs], dst[:pairs])).delta.graph  # noqa: B018
    whole, took = Whole(state), []
    for k in range(STEPS):
        old, new = slice(k * half, (k + 1) * half), slice(pairs + k * half, pairs + (k + 1) * half)
        op = np.repeat(np.array([1, -1], np.int8), half)
        ends = [np.concatenate([end[new], end[old]]) for end in (src, dst)]
        events = snapshot(schema, op, *ends)
        times = [time.thread_time()]
        step = state.advance(k + 1, events)
        state.partitioner.quality()
        times.append(time.thread_time())
        whole.step(step.delta, *(pair_keys(src[part], dst[part]) for part in (new, old)))
        times.append(time.thread_time())
        took.append(np.diff(times))
    lane, handed = (statistics.median(column) for column in np.array(took[WARM:]).T.tolist())
    return lane, handed


def window(pairs: int) -> float:
    """Median seconds in which a trainer's window of 4 goes on by a snapshot of the same stream."""
    half, span = CHANGES // 2, max(pairs, CHANGES)
    src, dst = distinct_pairs(max(1 << int(np.log2(pairs / 8)), 1024), pairs + half * STEPS)
    rows, op, t = [np.arange(pairs)], [np.ones(pairs, np.int8)], [np.arange(pairs)]
    for k in range(STEPS):
        rows.append(np.concatenate([np.arange(half) + pairs + k * half, np.arange(half) + k * half]))
        op.append(np.repeat(np.array([1, -1], np.int8), half))
        t.append((k + 1) * span + np.arange(CHANGES))
    chosen, took = np.concatenate(rows), []
    table = snapshot(event_schema("int"), np.concatenate(op), src[chosen], dst[chosen])
    at = table.schema.get_field_index("t")
    table = table.set_column(at, table.schema.field(at), pa.array(np.concatenate(t)))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        lane = Lane(name="hash", algorithm="hash", parts=PARTS)
        store = build_store(table, Path(folder) / "store", interval_us=span, lanes=[lane])
        view = WindowView(LaneReader(store, "hash"), 4)
        for manifest in view.lane.manifests:
            start = time.thread_time()
            view.advance(manifest)
            took.append(time.thread_time() - start)
    return statistics.median(took[4:])


def lanes(kinds: list[str], events: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of catching up with a log, by kind and round."""
    src, dst = rmat_edges(1 << 17, events, np.random.default_rng(1))
    table = snapshot(
        event_schema("int"), np.ones(events, np.int8), src.astype(np.int64), dst.astype(np.int64)
    )
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = build_store(table, Path(folder) / "store", interval_us=CHANGES)
        for turn in range(rounds + 1):
            for kind in kinds:
                with LaneWriter(store, Lane(name=f"{kind}-{turn}", algorithm=kind, parts=PARTS)) as writer:
                    start = time.process_time()
                    writer.catch_up()
                    if turn:  # the first one compiles
                        took[kind].append(time.process_time() - start)
    return took


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=float, nargs="*", default=[1e4, 1e5, 1e6, 3e6])
    parser.add_argument("--step-kinds", nargs="*", default=list(STEP_KINDS))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--events", type=float, default=1e6)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for kind in arguments.step_kinds:
        steps(kind, 20_000)
    print(f"step of {CHANGES:,} events, ms: lane / handing over the whole / times")
    print("live pairs  " + "".join(f"{kind:>22}" for kind in arguments.step_kinds) + "  window of 4: advance")
    for pairs in map(int, arguments.pairs):
        cells = []
        for kind in arguments.step_kinds:
            lane, handed = steps(kind, pairs)
            cells.append(f"{1e3 * lane:8.1f} /{1e3 * handed:6.0f} /{handed / lane:4.0f}")
        print(f"{pairs:10,}  " + "".join(f"{cell:>22}" for cell in cells), end="", flush=True)
        print(f"{1e3 * window(pairs):22.1f}", flush=True)
    if arguments.events:
        events = int(arguments.events)
        print(f"lane over a log of {events:,} inserts, snapshots of {CHANGES:,}, a core")
        print("lane                 M events/s   us an event")
        for kind, took in lanes(arguments.kinds, events, arguments.rounds).items():
            cpu = statistics.median(took)
            print(f"{kind:20} {events / cpu / 1e6:10.2f} {1e6 * cpu / events:13.2f}")


if __name__ == "__main__":
    main()
