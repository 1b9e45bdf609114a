"""Costs of a timeline: python benchmarks/timeline.py [--data DIR] [--only WORD] [--view].

Bytes to the device, over whole streams, as one factor less than int32 coordinates with values (12 bytes an entry) and than int64
ones with values (20): by every way of telling a snapshot. A snapshot is the sum of the raw events of the last intervals (edge
life), as733's its live graph.

With ``--view`` nothing of this: a view of a lane with 600,000 events, memory and processor time. A view follows all snapshots,
and another one begins at the newest.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import Smoothing
from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.window.pairs import PairWindow
from freshet_graph.stream.synthetic.interactions import rmat_edges
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.timeline.device import DeviceTimeline
from freshet_graph.trainer.timeline.graph import TimelineGraph, TimelineView
from freshet_graph.trainer.timeline.timeline import Timeline
from freshet_graph.trainer.timeline.transfer import MODES, Transfer

CPU = torch.device("cpu")
DAY_S = 86_400
SETS: dict[str, tuple[str, float | None, int | None]] = {
    "sx, weekly": ("sx_mathoverflow", 7 * DAY_S, None),
    "slashdot, 60 slices": ("slashdot_reply", None, 60),
    "amlsim_20k, daily": ("amlsim_20k", DAY_S, None),
    "email_eu, daily": ("email_eu", DAY_S, None),
    "icews14, daily": ("icews14", DAY_S, None),
    "digg, hourly": ("digg_reply", 3600, None),
    "collegemsg, daily": ("collegemsg", DAY_S, None),
    "uslegis, by congress": ("uslegis", 1, None),
    "as733, daily, live": ("as733_deltas", DAY_S, None),
}
"""Of each set: the file, seconds of an interval, or how many slices of equal numbers of events."""
LIVE = "as733, daily, live"
HORIZON, SNAPSHOTS = 8, 60


@dataclass(frozen=True)
class Sent:
    """Bytes of one snapshot: ``coo32`` and ``coo64`` with values, ``csr32`` with values, and by mode."""

    coo32: int
    coo64: int
    csr32: int
    modes: dict[str, int]


def columns(op: np.ndarray, src: np.ndarray, dst: np.ndarray) -> Any:
    """Events as a timeline reads them."""
    return SimpleNamespace(op=op, src=src, dst=dst, weight=np.ones(len(op), np.float32))


def snapshots_of(data: Path, name: str) -> Iterator[tuple[int, Any]]:
    """(τ, events over dense ids) of a set."""
    stem, interval, slices = SETS[name]
    table = pq.read_table(data / f"{stem}.parquet")
    t, src, dst = (table[column].to_numpy() for column in ("t", "src", "dst"))
    op = table["op"].to_numpy() if "op" in table.column_names else np.ones(len(t), np.int8)
    order = np.argsort(t, kind="stable")
    t, src, dst, op = t[order], src[order], dst[order], op[order]
    _, ids = np.unique(np.concatenate([src, dst]), return_inverse=True)
    src, dst = ids[: len(src)], ids[len(src) :]
    tau = (t // interval).astype(np.int64) if interval else np.arange(len(t)) * (slices or 1) // len(t)
    borders = np.flatnonzero(np.diff(tau)) + 1
    for rows in np.split(np.arange(len(t)), borders):
        yield int(tau[rows[0]]), columns(op[rows].astype(np.int8), src[rows], dst[rows])


class StoredPairs:
    """What a timeline reads of a window, for events that are net changes: every insert is of a new pair."""

    def __init__(self, length: int) -> None:
        self._pairs, self._length = PairWindow(), length
        self._number: dict[int, int] = {}

    def advance(self, tau: int, events: Any) -> None:
        number = self._number[tau] = len(self._number)
        self._pairs.append(number, events.op, pair_keys(events.src, events.dst), events.weight)
        self._pairs.fold(number - self._length + 1)

    def pairs(self, tau: int) -> Any:
        keys, weight = self._pairs.as_of(self._number[tau])
        return *split_keys(keys), weight

    def changes(self, tau: int) -> Any:
        return self._pairs.changes(self._number[tau])

    def holds(self, keys: np.ndarray, tau: int) -> np.ndarray:
        return self._pairs.holds(self._number[tau], keys)


class Follower:
    """A timeline without a store that goes along events; its newest snapshots can be asked for."""

    def __init__(self, smoothing: Smoothing, length: int = 2) -> None:
        self._window: Any = StoredPairs(length)
        self.host = TimelineGraph(length, smoothing, self._window)
        self.timeline = Timeline(CPU, "auto")
        self._view: Any = SimpleNamespace(timeline=self.host)
        self._number = 0

    def advance(self, tau: int, events: Any) -> None:
        """Take in a snapshot."""
        if not self.host.smooths:
            self._window.advance(tau, events)
        (self.host.advance if self._number else self.host.begin)(self._number, tau, 1 << 22, events)
        self._number += 1

    def place(self) -> None:
        """Give slots to its nodes."""
        self.timeline.take_in(self._view)


def sent(snapshots: Iterator[tuple[int, Any]], smoothing: Smoothing) -> Iterator[Sent]:
    """Bytes of every snapshot, when each is asked for as it comes."""
    follower = Follower(smoothing)
    devices = {
        mode: DeviceTimeline(follower.host, follower.timeline.nodes, Transfer(CPU), mode) for mode in MODES
    }
    before = dict.fromkeys(MODES, 0)
    for tau, events in snapshots:
        follower.advance(tau, events)
        follower.place()
        modes = {}
        for mode, device in devices.items():
            graph = device.graph_of(tau)
            total = device.transfer.bytes.total()
            modes[mode], before[mode] = total - before[mode], total
        entries, rows = len(graph.sources), len(follower.timeline.nodes)
        yield Sent(12 * entries, 20 * entries, 8 * entries + 4 * (rows + 1), modes)


def factors(found: list[Sent]) -> list[str]:
    """Cells of a row: by how much less than coordinates."""
    coo32, coo64 = sum(each.coo32 for each in found), sum(each.coo64 for each in found)
    totals = {mode: sum(each.modes[mode] for each in found) for mode in MODES}
    return [
        f"{coo32 / totals['whole']:.1f}",
        f"{coo32 / totals['esdg']:.2f} / {coo64 / totals['esdg']:.2f}",
        *(f"{coo32 / totals[mode]:.1f}" for mode in ("derived", "counts", "auto")),
        f"{coo64 / totals['auto']:.1f}",
        f"{sum(each.csr32 for each in found) / totals['auto']:.1f}",
    ]


def _sliding(a_snapshot: int, nodes: int, snapshots: int) -> Iterator[tuple[int, Any]]:
    rng = np.random.default_rng(0)
    for tau in range(snapshots):
        ends = rng.integers(0, nodes, (2, a_snapshot))
        yield tau, columns(np.ones(a_snapshot, np.int8), *ends)


def transfers(device: torch.device, *, small: bool, length: int = 10) -> Iterator[list[str]]:
    """A snapshot of so many intervals, of which the oldest goes and another comes.

    Rows: milliseconds until the host is free, and until the graph is on the device; MB sent, and milliseconds of a copy of
    as many bytes from page-locked memory; times faster than int64 coordinates. Our times have all that the host does;
    coordinates lie in page-locked memory before the clock starts.
    """
    a_snapshot, nodes = 500 if small else 2_000_000 // length, 100 if small else 200_000
    follower = Follower(Smoothing(kind="edge-life", length=length))
    moved = {
        mode: DeviceTimeline(follower.host, follower.timeline.nodes, Transfer(device), mode) for mode in MODES
    }
    spent: dict[str, list[tuple[float, float, int]]] = {}

    settled = partial(harness.settled, device)
    for tau, events in _sliding(a_snapshot, nodes, 2 * length):
        follower.advance(tau, events)
        follower.place()
        for mode, each in moved.items():
            sent_before, began = each.transfer.bytes.total(), settled()
            graph = each.graph_of(tau)
            free = time.perf_counter()
            spent.setdefault(f"`{mode}`", []).append(
                (free - began, settled() - began, each.transfer.bytes.total() - sent_before)
            )
        for name, dtype in (("int64 COO", torch.int64), ("int32 COO", torch.int32)):
            host = [torch.stack([graph.targets, graph.sources]).to(dtype).cpu(), graph.values.cpu()]
            host = [each.pin_memory() if device.type == "cuda" else each for each in host]
            began = settled()
            rows, values = (each.to(device, non_blocking=True) for each in host)
            borders = torch.arange(graph.num_targets + 1, device=device, dtype=dtype)
            torch.searchsorted(rows[0], borders, out_int32=dtype is torch.int32), values
            free = time.perf_counter()
            spent.setdefault(name, []).append(
                (free - began, settled() - began, sum(each.nbytes for each in host))
            )
    medians = {name: np.median(found[length:], axis=0) for name, found in spent.items()}
    for name, (host_s, there_s, size) in medians.items():
        flat = torch.empty(int(size), dtype=torch.uint8)
        flat = flat.pin_memory() if device.type == "cuda" else flat
        copied_s = []
        for _ in range(5):
            began = settled()
            flat.to(device, non_blocking=True, copy=True)
            copied_s.append(settled() - began)
        shown = [f"{1000 * host_s:.2f}", f"{1000 * there_s:.2f}", f"{size / 1e6:.2f}"]
        faster = f"{medians['int64 COO'][1] / there_s:.2f}"
        yield [name, *shown, f"{1000 * statistics.median(copied_s):.2f}", faster]


def stream_of(events: int) -> pa.Table:
    """R-MAT pairs of three weights in 60 snapshots; one event in ten deletes an earlier pair."""
    rng = np.random.default_rng(0)
    src, dst = (ends.astype(np.int64) for ends in rmat_edges(1 << 17, events, rng))
    deletes = np.flatnonzero(rng.random(events) < 0.1)[1:]
    earlier = rng.integers(0, deletes)
    src[deletes], dst[deletes] = src[earlier], dst[earlier]
    op = np.ones(events, np.int8)
    op[deletes] = -1
    t, weight = np.arange(events) * SNAPSHOTS // events, rng.choice(np.float32([1, 0.5, 2]), events)
    return harness.event_table(op=op, src=src, dst=dst, t=t, weight=weight)


def views(events: int) -> Iterator[list[str]]:
    """Rows of a lane without and with edge life: MiB, processor seconds of all advances, and of one that begins at the newest."""
    lanes = [Lane(name=f"life-{life}", algorithm="hash", parts=4, edge_life=life) for life in (None, 20)]
    with harness.scratch(".") as folder:
        store = harness.built(folder / "store", stream_of(events), 1, lanes)
        for each in lanes:
            lane = LaneReader(store, each.name)
            for _ in range(2):  # compiled first
                view, began = TimelineView(lane, HORIZON, Smoothing(), NodeNames()), time.process_time()
                for manifest in lane.manifests:
                    view.advance(manifest)
                advances_s, began = time.process_time() - began, time.process_time()
                TimelineView(lane, HORIZON, Smoothing(), NodeNames()).advance(manifest)
                begins_s = time.process_time() - began
            pairs = len(view.pairs(manifest.tau)[0])
            harness.require(pairs > 0, "no pair lives")
            sizes = f"{pairs:,}", f"{view.memory_bytes / 2**20:.1f}"
            yield [str(each.edge_life or "–"), *sizes, f"{advances_s:.2f}", f"{begins_s:.3f}"]


def of_sets(data: Path, only: str) -> Iterator[list[str]]:
    """Rows of all sets whose name has a word and whose file is there."""
    for name, (stem, *_) in SETS.items():
        if only in name and (data / f"{stem}.parquet").exists():
            for length in (None,) if name == LIVE else (10, 4):
                smoothing = Smoothing() if length is None else Smoothing(kind="edge-life", length=length)
                yield [name, str(length or "–"), *factors(list(sent(snapshots_of(data, name), smoothing)))]


def main() -> None:
    given = harness.options(__doc__, data=harness.DATA, only="", view=False, events=600_000)
    torch.set_num_threads(1)
    if given.view:
        titles = "edge life | live pairs | view, MiB | advances, CPU s | begin at the newest, CPU s"
        harness.table(titles, views(given.events))
        return
    titles = "set | length | `whole` | `esdg`, of COO32 / COO64 | `derived` | `counts` | `auto`"
    harness.table(f"{titles} | `auto`, of COO64 | `auto`, of CSR32", of_sets(given.data, given.only))


if __name__ == "__main__":
    main()
