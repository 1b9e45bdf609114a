"""What a lane costs: an event of each kind of lane, and a step over a growing graph: python benchmarks/lanes.py.

*Step*: the live graph is R-MAT of so many ``--pairs``; each snapshot inserts and deletes 5,000 edges, so that the graph stays as
large. A step is ``LaneState.advance``: live graph, partitioner, quality, and what parts store again.

*Window*: ``WindowView.advance`` over the same stream in a lane ``hash``, a window of 4 snapshots.

*Lane*: ``LaneWriter.catch_up`` over a finished log of ``--events`` (0: left out), files and fsync included.

Figures are CPU time (of the thread for steps, of the process for lanes), medians; compilation is left out.
"""

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from harness import seconds_of

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import log_event_schema
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.partition.interface import algorithms
from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.state import LaneState
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.window.view import WindowView
from freshet_graph.stream.synthetic.interactions import rmat_edges

KINDS = ["hash", "random", "ldg", "load-aware", "distdy", "hdrf", "powergraph-greedy", "sep"]
STEP_KINDS = ["hash", "ldg", "hdrf", "sep"]
PARTS, CHANGES, STEPS, WARM, ROUNDS = 4, 10_000, 16, 3, 3
HALF = CHANGES // 2


@functools.cache
def changing(pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Directed pairs of R-MAT for all steps, each once, in a drawn order."""
    nodes, count = max(1 << int(np.log2(pairs / 8)), 1024), pairs + HALF * STEPS
    draws, keys = np.random.default_rng(0), np.empty(0, np.int64)
    while len(keys) < count:
        ends = (end.astype(np.int64) for end in rmat_edges(nodes, 2 * (count - len(keys)) + 1000, draws))
        keys = distinct(keys, pair_keys(*ends))
    return split_keys(draws.permutation(keys)[:count])


def change(k: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the pairs of a step, and its operations: 5,000 come, 5,000 go."""
    places = np.concatenate([np.arange(HALF) + pairs + k * HALF, np.arange(HALF) + k * HALF])
    return places, np.repeat(np.array([1, -1], np.int8), HALF)


def sealed(op: np.ndarray, src: np.ndarray, dst: np.ndarray) -> pa.Table:
    """Edge events as a sealed snapshot has them."""
    ends = {"src": src, "dst": dst, "src_node": src, "dst_node": dst}
    return harness.event_table(log_event_schema("int"), op=op, t=np.arange(len(op)), **ends)


def steps(kind: str, pairs: int) -> float:
    """Median seconds of a step of the lane."""
    src, dst = changing(pairs)
    state = LaneState(LaneHeader(
        lane="bench", algorithm=kind, kind=algorithms()[kind].kind, parts=PARTS, window=4, edge_life=None, seed=0,
        base_every=64, params={}, graph="bench", interval_us=1, node_features=0, edge_features=0, segments=1,
    ))  # fmt: skip
    first = state.advance(0, sealed(np.ones(pairs, np.int8), src[:pairs], dst[:pairs]))
    harness.require(first.delta.graph is not None, "the lane has no graph")
    took = []
    for k in range(STEPS):
        places, op = change(k, pairs)
        events = sealed(op, src[places], dst[places])
        began = time.thread_time()
        state.advance(k + 1, events)
        state.partitioner.quality()
        took.append(time.thread_time() - began)
    return median(took[WARM:])


def window(pairs: int) -> float:
    """Median seconds in which a trainer's window of 4 advances by a snapshot of the same stream."""
    (src, dst), span = changing(pairs), max(pairs, CHANGES)
    places, op, t = [np.arange(pairs)], [np.ones(pairs, np.int8)], [np.arange(pairs)]
    for k in range(STEPS):
        for column, values in zip(
            (places, op, t), (*change(k, pairs), (k + 1) * span + np.arange(CHANGES)), strict=True
        ):
            column.append(values)
    rows = np.concatenate(places)
    events = harness.event_table(op=np.concatenate(op), src=src[rows], dst=dst[rows], t=np.concatenate(t))
    with harness.scratch(".") as folder:
        store = harness.built(folder / "store", events, span, harness.lanes("hash", parts=PARTS))
        view = WindowView(LaneReader(store, "hash"), 4)
        took = [seconds_of(lambda m=each: view.advance(m), time.thread_time) for each in view.lane.manifests]
    return median(took[4:])


def catching_up(store: Path, kinds: list[str], events: int) -> Iterator[list[str]]:
    """Rows: CPU time of catching up with a log, by kind."""
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(ROUNDS + 1):
        for kind in kinds:
            with LaneWriter(store, Lane(name=f"{kind}-{turn}", algorithm=kind, parts=PARTS)) as writer:
                seconds = seconds_of(writer.catch_up, time.process_time)
            harness.require(len(LaneReader(store, f"{kind}-{turn}").manifests) > 0, f"{kind} sealed nothing")
            took[kind] += [seconds] if turn else []  # the first one compiles
    for kind, cpu_s in harness.medians(took).items():
        yield [kind, f"{events / cpu_s / 1e6:.2f}", f"{1e6 * cpu_s / events:.2f}"]


def growing(given: Any) -> Iterator[list[str]]:
    for pairs in map(int, given.pairs):
        cells = (f"{1e3 * steps(kind, pairs):.1f}" for kind in given.step_kinds)
        yield [f"{pairs:,}", *cells, f"{1e3 * window(pairs):.1f}"]


def main() -> None:
    given = harness.options(
        __doc__, pairs=[1e4, 1e5, 1e6, 3e6], step_kinds=STEP_KINDS, kinds=KINDS, events=1e6
    )
    for kind in given.step_kinds:  # compiles
        steps(kind, 20_000)
    print(f"step of {CHANGES:,} events, ms")
    harness.table(f"live pairs | {' | '.join(given.step_kinds)} | window of 4: advance", growing(given))
    if events := int(given.events):
        print(f"\nlane over a log of {events:,} inserts, snapshots of {CHANGES:,}, a core")
        src, dst = rmat_edges(1 << 17, events, np.random.default_rng(1))
        table = harness.event_table(src=src, dst=dst, t=np.arange(events))
        with harness.scratch(".") as folder:
            store = harness.built(folder / "store", table, CHANGES, [])
            harness.table("lane | M events/s | µs per event", catching_up(store, given.kinds, events))


if __name__ == "__main__":
    main()
