"""Costs of a timeline: python benchmarks/timeline.py [--data DIR] [--only WORD] [--live 30000 3000000].

First, how long the next snapshot takes at few and many live pairs, with 5,000 changes each: on the host, and on the device
(here the CPU) until its graph is there. Then bytes to the device, over whole streams, as one factor less than int32
coordinates with values (12 bytes an entry) and than int64 ones with values (20): by every way of telling a snapshot.
A snapshot is the sum of the raw events of the last intervals (edge life), as733's its live graph.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from schemas.trainer_config import Smoothing
from trainer.timeline.device import DeviceTimeline
from trainer.timeline.graph import TimelineGraph
from trainer.timeline.timeline import Timeline
from trainer.timeline.transfer import MODES, Transfer

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
CHANGES = 5_000


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


def table_of(events: Any) -> pa.Table:
    return pa.table(
        {"op": events.op, "src_node": events.src, "dst_node": events.dst, "t": np.zeros(len(events.op), np.int64),
         "weight": events.weight}
    )  # fmt: skip


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


class Follower:
    """A timeline without a store that goes along events; its newest snapshots can be asked for."""

    def __init__(self, smoothing: Smoothing, length: int = 2) -> None:
        self.host = TimelineGraph(length, smoothing, None, self._pairs)
        self.timeline = Timeline(CPU, "auto")
        self._view: Any = SimpleNamespace(timeline=self.host)
        self._number = 0

    def advance(self, tau: int, events: Any) -> None:
        """Take in a snapshot."""
        if self._number:
            self.host.advance(self._number, tau, 1 << 30, lambda: table_of(events), events)
        else:
            self.host.begin(0, 1 << 30, [(tau, table_of(events))], events, tau)
        self._number += 1

    def place(self) -> None:
        """Give slots to its nodes."""
        self.timeline.take_in(self._view)

    def _pairs(self, tau: int) -> Any:
        assert tau == self.host.taus[-1]
        live = self.host._graph.pairs()
        return live.src, live.dst, live.weight


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
            graph = device.at(tau)
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


def large(live: int, snapshots: int) -> Iterator[tuple[int, Any]]:
    """Many live pairs, then 5,000 changes a snapshot, half of them deletes of the oldest."""
    rng, half = np.random.default_rng(0), CHANGES // 2
    nodes = max(live // 10, 1_000)
    keys = np.unique(rng.integers(0, nodes * nodes, 2 * (live + half * snapshots)))
    keys = rng.permutation(keys)[: live + half * snapshots]
    src, dst = keys // nodes, keys % nodes
    yield 0, columns(np.ones(live, np.int8), src[:live], dst[:live])
    for tau in range(1, snapshots):
        new, old = live + (tau - 1) * half + np.arange(half), (tau - 1) * half + np.arange(half)
        rows = np.concatenate([new, old])
        yield tau, columns(np.repeat(np.array([1, -1], np.int8), half), src[rows], dst[rows])


def advances(live: int, snapshots: int) -> list[str]:
    """Median milliseconds of a snapshot: the host's, slots, and the device's graph."""
    follower, spent = Follower(Smoothing()), []
    device = DeviceTimeline(follower.host, follower.timeline.nodes, Transfer(CPU), "auto")
    for tau, events in large(live, snapshots):
        times = [time.perf_counter()]
        for step in (partial(follower.advance, tau, events), follower.place, partial(device.at, tau)):
            step()
            times.append(time.perf_counter())
        spent.append(np.diff(times) * 1000)
    medians = [statistics.median(column) for column in zip(*spent[5:], strict=True)]
    return [f"{live:,}", *(f"{each:.2f}" for each in medians)]


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

    def settled() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    for tau, events in _sliding(a_snapshot, nodes, 2 * length):
        follower.advance(tau, events)
        follower.place()
        for mode, each in moved.items():
            sent_before, began = each.transfer.bytes.total(), settled()
            graph = each.at(tau)
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


def table(titles: str, rows: list[list[str]]) -> None:
    print(
        f"\n| {titles} |", "|" + "---|" * len(rows[0]), *(f"| {' | '.join(row)} |" for row in rows), sep="\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of real graphs")
    parser.add_argument("--only", default="", help="sets whose name has this word")
    parser.add_argument("--live", type=int, nargs="*", default=[30_000, 3_000_000])
    parser.add_argument("--snapshots", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.live:
        rows = [advances(live, given.snapshots) for live in (min(given.live), *given.live)][
            1:
        ]  # compiled first
        table("live pairs | host, ms | slots, ms | device, ms", rows)
    rows = []
    for name in SETS:
        if given.only not in name or not (given.data / f"{SETS[name][0]}.parquet").exists():
            continue
        for length in (None,) if name == LIVE else (10, 4):
            smoothing = Smoothing() if length is None else Smoothing(kind="edge-life", length=length)
            found = list(sent(snapshots_of(given.data, name), smoothing))
            rows.append([name, "–" if length is None else str(length), *factors(found)])
    if rows:
        titles = "set | length | `whole` | `esdg`, of COO32 / COO64 | `derived` | `counts` | `auto`"
        table(f"{titles} | `auto`, of COO64 | `auto`, of CSR32", rows)


if __name__ == "__main__":
    main()
