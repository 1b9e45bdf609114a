"""The store beside the plainest way to do the same: python benchmarks/store.py [commit] [read] [open].

commit: one snapshot of edges and changed feature rows, committed to the log, beside writing its tables with pyarrow and an
fsync each. read: features of random nodes at any snapshot of a window, beside NumPy's gather from that snapshot's whole array, in
CPU time of the thread; also the first read after the window moved on.
open: a compacted store with ``--snapshots``, in a
process of its own, built in the folder ``--place``. Ways take turns; medians.
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from harness import event_table, seconds_of

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import LogHeader
from freshet_graph.stream.store.compact.store import compact
from freshet_graph.stream.store.files.records import canonical, seal_record
from freshet_graph.stream.store.lane.layout import lane_folder, manifest_name
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.window.features import FeatureVersions

EDGES, ROWS, FEATURES, NODES = 1_000_000, 100_000, 128, 500_000
SPAN, REPEATS = 1_000_000, 21
WARM_BYTES = 400_000_000
"""Memory that is touched and given back before a commit is timed: more than either way needs. Pages that a virtual machine's host
took back cost several times as much when they are first touched, whichever way does it."""


def opened(store: Path) -> list[float]:
    """Seconds to open the log, the lane with its log, and the log for writing."""
    seconds, found = [], []
    for work in (
        LogReader,
        partial(LaneReader, lane="lane"),
        lambda path: LogWriter.open(path, found[0].header).close(),
    ):
        began = time.perf_counter()
        found.append(work(store))
        seconds.append(time.perf_counter() - began)
    harness.require(len(found[0].snapshots) == len(found[1].manifests) > 0, "the lane is not whole")
    return seconds


def edge_events(rng: np.random.Generator, count: int, nodes: int, start: int) -> pa.Table:
    src, dst = rng.integers(0, nodes, count), rng.integers(0, nodes, count)
    return event_table(src=src, dst=dst, t=start + np.sort(rng.integers(0, SPAN, count)))


def node_events(rng: np.random.Generator, nodes: np.ndarray, start: int) -> pa.Table:
    count = len(nodes)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * FEATURES)
    values = pa.array(rng.standard_normal(count * FEATURES).astype(np.float32))
    features = pa.ListArray.from_arrays(offsets, values)
    return event_table(op=np.zeros(count, np.int8), src=nodes, t=np.full(count, start), features=features)


def wall_and_cpu(body: Callable[[], object]) -> tuple[float, float]:
    at_hand = np.ones(WARM_BYTES, np.uint8)
    del at_hand
    began = time.process_time()
    return seconds_of(body), time.process_time() - began


def write_plainly(folder: Path, tables: list[pa.Table]) -> None:
    folder.mkdir()
    for number, table in enumerate(tables):
        path = folder / f"{number}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def in_memory(table: pa.Table) -> pa.Table:
    """The same table in memory: reading the mapped file isn't what is timed."""
    everything = pa.array(np.arange(len(table)))
    columns = [pa.concat_arrays(column.chunks).take(everything) for column in table.columns]
    return pa.table(columns, schema=table.schema)


def commit(given: Any) -> Iterator[list[str]]:
    """Each way is first by turns: a snapshot's tables are known once it is written, so the first writes the one before."""
    rng, sizes, copies = np.random.default_rng(0), [], list[pa.Table]()
    took: dict[str, list[tuple[float, float]]] = {"log": [], "pyarrow": []}
    with harness.scratch(".") as root:
        header = LogHeader(graph="g", interval_us=SPAN, ids="int", node_features=FEATURES)
        log = LogWriter.open(root / "store", header)
        for tau in range(REPEATS + 1):
            described = node_events(rng, rng.choice(NODES, ROWS, replace=False), tau * SPAN)
            table = pa.concat_tables([described, edge_events(rng, EDGES, NODES, tau * SPAN)])
            path = root / f"plain-{tau}"
            if tau % 2:
                took["pyarrow"].append(wall_and_cpu(partial(write_plainly, path, copies)))
            took["log"].append(wall_and_cpu(partial(log.commit, seal=[(tau, table)])))
            reader = LogReader(root / "store")
            sealed = reader.snapshots[-1]
            copies = [in_memory(each) for each in (reader.events(tau), reader.nodes(tau))]
            harness.require(len(copies[0]) == len(table), "a commit lost events")
            if not tau % 2:
                took["pyarrow"].append(wall_and_cpu(partial(write_plainly, path, copies)))
            sizes.append(sealed.events.bytes + sealed.nodes.bytes)
        log.close()
    print(f"commit of {EDGES:,} edges and {ROWS:,} vectors of {FEATURES}: {median(sizes) / 1e6:.0f} MB")
    for clock, name in enumerate(("wall", "CPU")):
        mine, plain = ([seconds[clock] for seconds in found] for found in took.values())
        ratios = [a / b for a, b in zip(mine, plain, strict=True)][1:]
        own, other = median(mine[1:]), median(plain[1:])
        first = f"{mine[0]:.3f} / {plain[0]:.3f}"  # which also loads compiled functions
        yield [name, f"{own:.3f}", f"{other:.3f}", f"{own / other:.2f}", harness.spread(ratios), first]


def read(given: Any) -> Iterator[list[str]]:
    """Rows by nodes, window, segments, changed segments; 30 % of the nodes change in a snapshot."""
    for nodes, *sizes in (
        (300_000, 4, 4, 4), (100_000, 12, 4, 4), (100_000, 12, 4, 1), (100_000, 12, 32, 32), (100_000, 12, 32, 2),
    ):  # fmt: skip
        for binary in (False, True):
            yield from read_window(nodes, *sizes, binary=binary)
    yield from read_window(100_000, 12, 4, 4, binary=False, leaving=2_000, coming=3_000)


def read_window(
    nodes: int, window: int, segments: int, changing: int, *, binary: bool, leaving: int = 0, coming: int = 0
) -> Iterator[list[str]]:
    """Some of a node's segments change; so many nodes leave, and so many others come."""
    rng, versions, ids = np.random.default_rng(0), FeatureVersions(FEATURES, segments), 10_000

    def draw(*shape: int) -> np.ndarray:
        values = rng.integers(0, 2, shape) if binary else rng.standard_normal(shape)
        return values.astype(np.float32)

    def write(sequence: int, changed: np.ndarray, rows: np.ndarray, *, undo: bool) -> None:
        values = rows.reshape(len(changed) * segments, versions.width)
        segment = np.tile(np.arange(segments, dtype=np.int32), len(changed))
        versions.write(sequence, np.repeat(changed, segments), segment, values, len(whole[0]), undo=undo)

    def gathered(sequence: int) -> list[float]:
        """CPU seconds to read random nodes, here and by NumPy."""
        chosen, others = rng.integers(0, nodes, (2, ids))
        mine = seconds_of(lambda: versions.read(chosen, sequence), time.thread_time)
        return [mine, seconds_of(lambda: whole[sequence][others], time.thread_time)]

    whole, first = [np.zeros((nodes + window * coming, FEATURES), np.float32)], []
    whole[0][:nodes] = draw(nodes, FEATURES)
    write(0, np.arange(nodes, dtype=np.int64), whole[0][:nodes], undo=False)
    for sequence in range(1, window):
        changed = np.sort(rng.choice(nodes, nodes * 3 // 10, replace=False))
        after = whole[-1].copy()
        drawn = draw(len(changed), segments, FEATURES // segments)
        kept = np.argsort(rng.random((len(changed), segments)), axis=1) >= changing
        drawn[kept] = after[changed].reshape(drawn.shape)[kept]
        after[changed] = drawn.reshape(len(changed), FEATURES)
        if leaving:
            gone = np.setdiff1d(rng.choice(nodes, leaving, replace=False), changed)
            after[gone] = 0
            versions.clear(sequence, gone, undo=True)
            new = nodes + sequence * coming + np.arange(coming)
            after[new] = draw(coming, FEATURES)
            changed = np.concatenate([changed, new])
        write(sequence, changed, after[changed], undo=True)
        whole.append(after)
        first.append(gathered(0))
    found = []
    for sequence in range(window - 1, -1, -1):
        columns = zip(*(gathered(sequence) for _ in range(60)), strict=True)
        found.append([median(column) for column in columns])
        chosen = rng.integers(0, nodes, ids)
        same = np.array_equal(versions.read(chosen, sequence), whole[sequence][chosen])
        harness.require(same, "a read differs from the whole array")
    late = (
        1e3 * median(column) for column in zip(*first[-5:], strict=True)
    )  # from the last five sizes of the window
    worst = min(plain / ours for ours, plain in found)
    ranges = (f"{1e3 * min(column):.2f} to {1e3 * max(column):.2f}" for column in zip(*found, strict=True))
    yield [
        f"{nodes:,}" + (f", {leaving:,} leave and {coming:,} come" if leaving else ""), str(window),
        f"{changing} of {segments}", "binary" if binary else "real", *ranges, f"{worst:.0%}",
        " / ".join(f"{each:.2f}" for each in late), f"{versions.memory_bytes / 1e6:.0f}",
        f"{window * whole[0].nbytes / 1e6:.0f}",
    ]  # fmt: skip


def open_(given: Any) -> Iterator[list[str]]:
    """A commit for each snapshot, written without waiting for the disk; the lane's manifests are its first one repeated."""
    whole, rng = os.fsync, np.random.default_rng(0)
    os.fsync = lambda descriptor: None
    with harness.scratch(given.place) as folder:
        with LogWriter.open(folder, LogHeader(graph="g", interval_us=SPAN, ids="int")) as log:
            for tau in range(given.snapshots):
                log.commit(seal=[(tau, edge_events(rng, 3, 100_000, tau * SPAN))])
        with LaneWriter(folder, Lane(name="lane", algorithm="hash", parts=4)) as writer:
            done = iter([False])
            writer.catch_up(stop=lambda: next(done, True))
        repeat_manifest(folder)
        os.fsync = whole
        for name in ("no index", "indexed", "indexed", "indexed"):
            yield [name, *(f"{each:.2f}" for each in harness.apart(opened, folder))]
            if name == "no index":
                print(f"index written in {seconds_of(lambda: compact(folder, always=True)):.1f} s")


def repeat_manifest(store: Path) -> None:
    manifest: Any = LaneReader(store, "lane").manifests[0]
    for sealed in LogReader(store).snapshots[1:]:
        update = {
            "tau": sealed.tau, "sequence": manifest.sequence + 1, "previous": manifest.checksum, "state": None,
            "log_events_checksum": sealed.events.checksum, "num_nodes": sealed.num_nodes,
        }  # fmt: skip
        manifest = seal_record(manifest.model_copy(update=update))
        record = canonical(manifest.model_dump(mode="json"))
        (lane_folder(store, "lane") / manifest_name(sealed.tau)).write_bytes(record)


PARTS: dict[str, tuple[Callable[..., Iterator[list[str]]], str]] = {
    "commit": (
        commit,
        "clock | log, s | pyarrow and fsync, s | ratio | ratios of pairs | the process's first, s",
    ),
    "read": (
        read,
        "nodes | window | segments that change | values | ms | NumPy, ms | worst, of its speed | first after, ms | MB held"
        " | all snapshots whole, MB",
    ),
    "open": (open_, "store | log, s | lane with its log, s | log for writing, s"),
}


def main() -> None:
    given = harness.options(__doc__, {"parts": []}, snapshots=100_000, place=Path())
    harness.tables(PARTS, given.parts, given)


if __name__ == "__main__":
    main()
