"""The store beside the plainest way to do the same: python benchmarks/store.py [commit] [read] [advance] [open].

commit: one snapshot of edges and changed feature rows, committed to the log, beside writing its tables with pyarrow and an
fsync each. read: features of random nodes at any snapshot of a window, beside NumPy's gather from that snapshot's whole array, in
CPU time of the thread; also the first read after the window moved on.
advance: moving a window on by the same change on graphs of growing size. open: a compacted store with many snapshots, in a
process of its own. Interleaved, medians.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from schemas.config import Lane
from schemas.events import event_schema, log_event_schema
from schemas.store import LaneManifest, LogHeader
from stream.store.compact.store import compact
from stream.store.files.records import canonical, seal_record
from stream.store.from_file import build_store
from stream.store.lane.layout import lane_folder, manifest_name
from stream.store.lane.reader import LaneReader
from stream.store.lane.writer import LaneWriter
from stream.store.log.reader import LogReader
from stream.store.log.writer import LogWriter
from stream.store.window.features import FeatureVersions
from stream.store.window.view import WindowView

EDGES, ROWS, FEATURES, NODES = 1_000_000, 100_000, 128, 500_000
REPEATS = 21
WARM_BYTES = 400_000_000
"""Memory that is touched and given back before a commit is timed: more than either needs."""
OPENED = """
import json, sys, time
from stream.store.lane.reader import LaneReader
from stream.store.log.reader import LogReader
from stream.store.log.writer import LogWriter
store = sys.argv[1]
begun = time.perf_counter(); log = LogReader(store); log_s = time.perf_counter() - begun
begun = time.perf_counter(); lane = LaneReader(store, "lane"); lane_s = time.perf_counter() - begun
begun = time.perf_counter(); LogWriter.open(store, log.header).close(); writer_s = time.perf_counter() - begun
assert len(log.snapshots) == len(lane.manifests)
print(json.dumps([log_s, lane_s, writer_s]))
"""


def edge_events(rng: np.random.Generator, count: int, nodes: int, start: int, span: int) -> pa.Table:
    return _table(
        {
            "op": np.ones(count, np.int8),
            "src": rng.integers(0, nodes, count),
            "dst": rng.integers(0, nodes, count),
            "t": start + np.sort(rng.integers(0, span, count)),
            "weight": np.ones(count, np.float32),
        },
        count,
    )


def node_events(rng: np.random.Generator, nodes: np.ndarray, start: int) -> pa.Table:
    count = len(nodes)
    values = pa.array(rng.standard_normal(count * FEATURES).astype(np.float32))
    columns = {
        "op": np.zeros(count, np.int8),
        "src": nodes,
        "t": np.full(count, start),
        "weight": np.ones(count, np.float32),
        "features": pa.ListArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32) * FEATURES), values
        ),
    }
    return _table(columns, count)


def _table(columns: dict[str, object], count: int) -> pa.Table:
    schema = event_schema("int")
    arrays = [
        pa.array(columns[f.name]).cast(f.type) if f.name in columns else pa.nulls(count, f.type)
        for f in schema
    ]
    return pa.table(arrays, schema=schema)


def timed(
    body: Callable[..., object],
    *args: object,
    clock: Callable[[], float] = time.perf_counter,
    **named: object,
) -> float:
    begun = clock()
    body(*args, **named)
    return clock() - begun


def gather(whole: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return whole[ids]


def bench_commit() -> None:
    """Each is first by turns, and both begin with memory that the system has at hand: pages that a virtual machine's host took
    back cost several times as much when they are first touched, whoever does it."""
    rng = np.random.default_rng(0)
    span = 1_000_000
    ours: list[tuple[float, float]] = []
    plain: list[tuple[float, float]] = []
    sizes: list[int] = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        root = Path(folder)
        header = LogHeader(graph="g", interval_us=span, ids="int", node_features=FEATURES)
        log = LogWriter.open(root / "store", header)
        copies: list[pa.Table] = []
        for tau in range(REPEATS + 1):
            start = tau * span
            described = node_events(rng, rng.choice(NODES, ROWS, replace=False), start)
            table = pa.concat_tables([described, edge_events(rng, EDGES, NODES, start, span)])
            first = (
                tau % 2 == 1
            )  # a snapshot's tables are known once it is written: the first by turns writes the one before
            if first:
                plain.append(_wall_and_cpu(_write_plainly, root / f"plain-{tau}", copies))
            ours.append(_wall_and_cpu(log.commit, seal=[(tau, table)]))
            reader = LogReader(root / "store")
            sealed = reader.snapshots[-1]
            written = [reader.events(tau), reader.nodes(tau)]
            copies = [_copy(table) for table in written]
            if not first:
                plain.append(_wall_and_cpu(_write_plainly, root / f"plain-{tau}", copies))
            sizes.append(sealed.events.bytes + sealed.nodes.bytes)
        log.close()
    assert written[0].schema == log_event_schema("int")
    print(f"commit of {EDGES:,} edges and {ROWS:,} vectors of {FEATURES}: {median(sizes) / 1e6:.0f} MB")
    for name, clock in (("wall", 0), ("CPU", 1)):
        mine, beside = [seconds[clock] for seconds in ours], [seconds[clock] for seconds in plain]
        ratios = [a / b for a, b in zip(mine, beside, strict=True)][1:]
        print(
            f"  {name}: log {median(mine[1:]):.3f} s, pyarrow and fsync {median(beside[1:]):.3f} s, ratio of medians "
            f"{median(mine[1:]) / median(beside[1:]):.2f}; of {len(ratios)} pairs least {min(ratios):.2f}, median "
            f"{median(ratios):.2f}, most {max(ratios):.2f}; the process's first, which also loads compiled functions, "
            f"{mine[0]:.3f} s beside {beside[0]:.3f} s"
        )


def _wall_and_cpu(body: Callable[..., object], *args: object, **named: object) -> tuple[float, float]:
    at_hand = np.ones(WARM_BYTES, np.uint8)
    del at_hand
    cpu = time.process_time()
    wall = timed(body, *args, **named)
    return wall, time.process_time() - cpu


def _copy(table: pa.Table) -> pa.Table:
    """The same table in memory: reading the mapped file isn't what is timed."""
    everything = pa.array(np.arange(len(table)))
    columns = [pa.concat_arrays(column.chunks).take(everything) for column in table.columns]
    return pa.table(columns, schema=table.schema)


def _write_plainly(folder: Path, tables: list[pa.Table]) -> None:
    folder.mkdir()
    for number, table in enumerate(tables):
        path = folder / f"{number}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def bench_read() -> None:
    settings = (
        (300_000, 4, 4, 4),
        (100_000, 12, 4, 4),
        (100_000, 12, 4, 1),
        (100_000, 12, 32, 32),
        (100_000, 12, 32, 2),
    )
    for nodes, window, segments, changed_segments in settings:
        for binary in (False, True):
            _read_window(nodes, window, segments, changed_segments, binary=binary)
    _read_window(100_000, 12, 4, 4, binary=False, leaving=2_000, coming=3_000)


def _read_window(
    nodes: int,
    window: int,
    segments: int,
    changed_segments: int,
    *,
    binary: bool,
    ids: int = 10_000,
    leaving: int = 0,
    coming: int = 0,
) -> None:
    """30 % of the nodes change in a snapshot, each in some of its segments; so many leave, and so many others come."""

    def draw(*shape: int) -> np.ndarray:
        values = rng.integers(0, 2, shape) if binary else rng.standard_normal(shape)
        return values.astype(np.float32)

    rng = np.random.default_rng(0)
    versions = FeatureVersions(FEATURES, segments)
    everything = np.arange(nodes, dtype=np.int64)
    whole = [np.zeros((nodes + window * coming, FEATURES), np.float32)]
    whole[0][:nodes] = draw(nodes, FEATURES)
    first: list[float] = []
    beside: list[float] = []
    _write(versions, 0, everything, whole[0][:nodes], len(whole[0]), undo=False)
    for sequence in range(1, window):
        changed = np.sort(rng.choice(nodes, nodes * 3 // 10, replace=False))
        after = whole[-1].copy()
        drawn = draw(len(changed), segments, FEATURES // segments)
        kept = np.argsort(rng.random((len(changed), segments)), axis=1) >= changed_segments
        drawn[kept] = after[changed].reshape(drawn.shape)[kept]
        after[changed] = drawn.reshape(len(changed), FEATURES)
        if leaving:
            gone = np.setdiff1d(rng.choice(nodes, leaving, replace=False), changed)
            after[gone] = 0
            versions.clear(sequence, gone, undo=True)
            new = nodes + sequence * coming + np.arange(coming)
            after[new] = draw(coming, FEATURES)
            changed = np.concatenate([changed, new])
        _write(versions, sequence, changed, after[changed], len(after), undo=True)
        whole.append(after)
        first.append(timed(versions.read, rng.integers(0, nodes, ids), 0, clock=time.thread_time))
        beside.append(timed(gather, whole[0], rng.integers(0, nodes, ids), clock=time.thread_time))
    print(
        f"features of {ids:,} of {nodes:,} nodes at random, F = {FEATURES}, 30 % changed a snapshot, "
        f"{changed_segments} of {segments} segments each, {'binary' if binary else 'real'} values"
        + (f", {leaving:,} leave and {coming:,} come" if leaving else "")
    )
    worst = 1000.0
    for sequence in range(window - 1, -1, -1):
        ours, plain = [], []
        for _ in range(60):
            chosen = rng.integers(0, nodes, ids)
            ours.append(timed(versions.read, chosen, sequence, clock=time.thread_time))
            chosen = rng.integers(0, nodes, ids)
            plain.append(timed(gather, whole[sequence], chosen, clock=time.thread_time))
        chosen = rng.integers(0, nodes, ids)
        assert np.array_equal(versions.read(chosen, sequence), whole[sequence][chosen])
        worst = min(worst, 100 * median(plain) / median(ours))
        print(
            f"  {window - 1 - sequence} snapshots back: {1e3 * median(ours):.2f} ms, NumPy {1e3 * median(plain):.2f} ms: "
            f"{100 * median(plain) / median(ours):.0f} % of its speed"
        )
    late = slice(-5, None)  # from the last five sizes of the window
    print(
        f"  worst {worst:.0f} %; the first at the oldest after a change {1e3 * median(first[late]):.2f} ms, NumPy then "
        f"{1e3 * median(beside[late]):.2f} ms; held {versions.memory_bytes / 1e6:.0f} MB, all snapshots whole "
        f"{window * whole[0].nbytes / 1e6:.0f} MB",
        flush=True,
    )


def _write(
    versions: FeatureVersions, sequence: int, nodes: np.ndarray, rows: np.ndarray, count: int, *, undo: bool
) -> None:
    segments = versions.segments
    values = rows.reshape(len(nodes) * segments, versions.width)
    segment = np.tile(np.arange(segments, dtype=np.int32), len(nodes))
    versions.write(sequence, np.repeat(nodes, segments), segment, values, count, undo=undo)


def bench_advance(changes: int = 20_000, snapshots: int = 12, window: int = 4) -> None:
    print(f"advancing a window of {window} by {changes:,} edges and {changes // 10:,} vectors", flush=True)
    for edges in (250_000, 500_000, 1_000_000, 2_000_000):
        rng = np.random.default_rng(0)
        nodes, span = edges // 5, 1_000_000
        tables = [node_events(rng, np.arange(nodes), 0), edge_events(rng, edges, nodes, 0, span)]
        for tau in range(1, snapshots):
            described = rng.choice(nodes, changes // 10, replace=False)
            tables += [
                node_events(rng, described, tau * span),
                edge_events(rng, changes, nodes, tau * span, span),
            ]
        with tempfile.TemporaryDirectory(dir=".") as folder:
            lane = Lane(name="lane", algorithm="hash", parts=4)
            build_store(
                pa.concat_tables(tables), folder, interval_us=span, lanes=[lane], node_features=FEATURES
            )
            reader = LaneReader(folder, "lane")
            view = WindowView(reader, window)
            wall, cpu = [], []
            for manifest in reader.manifests:
                begun = time.process_time()
                wall.append(timed(view.advance, manifest))
                cpu.append(time.process_time() - begun)
        taken = [1e3 * median(seconds[window:]) for seconds in (wall, cpu)]
        print("  |E| = {:>9,}: {:.1f} ms, of CPU {:.1f} ms".format(edges, *taken))


def bench_open(snapshots: int, place: str) -> None:
    """A commit a snapshot, written without waiting for the disk; the lane's manifests are its first one again and again."""
    span, rng = 1_000_000, np.random.default_rng(0)
    whole = os.fsync
    os.fsync = lambda descriptor: None
    print(f"opening a store of {snapshots:,} snapshots, each its own commit")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        begun = time.perf_counter()
        with LogWriter.open(folder, LogHeader(graph="g", interval_us=span, ids="int")) as log:
            for tau in range(snapshots):
                log.commit(seal=[(tau, edge_events(rng, 3, 100_000, tau * span, span))])
        lane = Lane(name="lane", algorithm="hash", parts=4)
        with LaneWriter(folder, lane) as writer:
            done = iter([False])
            writer.catch_up(stop=lambda: next(done, True))
        _repeat_manifest(Path(folder), snapshots)
        os.fsync = whole
        print(f"  built in {time.perf_counter() - begun:.0f} s")
        _show_opened("no index", folder)
        print(f"  index written in {timed(compact, folder, always=True):.1f} s")
        for _ in range(3):
            _show_opened("indexed", folder)


def _repeat_manifest(store: Path, snapshots: int) -> None:
    reader, root = LaneReader(store, "lane"), lane_folder(store, "lane")
    manifest: LaneManifest = reader.manifests[0]
    for sealed in LogReader(store).snapshots[1:]:
        manifest = seal_record(
            manifest.model_copy(
                update={
                    "tau": sealed.tau,
                    "sequence": manifest.sequence + 1,
                    "previous": manifest.checksum,
                    "log_events_checksum": sealed.events.checksum,
                    "num_nodes": sealed.num_nodes,
                    "state": None,
                }
            )
        )
        (root / manifest_name(sealed.tau)).write_bytes(canonical(manifest.model_dump(mode="json")))


def _show_opened(name: str, store: str) -> None:
    done = subprocess.run([sys.executable, "-c", OPENED, store], capture_output=True, text=True, check=True)
    seconds: list[float] = json.loads(done.stdout)
    print(
        "  " + name + ": log {:.2f} s, lane with its log {:.2f} s, log for writing {:.2f} s".format(*seconds)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["commit", "read", "advance", "open"])
    parser.add_argument("--snapshots", type=int, default=100_000, help="Of the store that is opened.")
    parser.add_argument("--place", default=".", help="Folder to build that store in.")
    options = parser.parse_args()
    for what in options.what or ("commit", "read", "advance", "open"):
        {"commit": bench_commit, "read": bench_read, "advance": bench_advance}.get(
            what, lambda: bench_open(options.snapshots, options.place)
        )()
