"""Passes of ``vertex`` by partitioner and network: python benchmarks/vertex_epochs.py [stream …] [--fetch halo].

Four ranks, a thread each, learn the last snapshot of a lane. What each computes between two collectives is measured as CPU
time of its thread, and what it sends is counted, so a pass takes on a network: the sum over collectives of the slowest rank's
computing, the latency, and the most bytes that a rank sends over the bandwidth. Nothing overlaps. *Sealed* is what a rank does
when the snapshot is sealed, *first* the first pass over it, *later* a second one. *Share* is a later pass over the larger one
of computing and sending, summed apart.

A stream is uni10k, ex10k, or one of the real graphs. The model has DistDy's settings (section 5.1): by default two layers,
``--fanouts`` 5 and 10, width 128, a ``--window`` of 4, and batches of 1,024. ``--only`` names lanes.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
import pyarrow as pa
import torch
from thread_ranks import FakeLink, Meeting, ThreadRanks, side_by_side

from schemas.events import US_PER_S
from stream.decode.files import EventFile, read_events
from stream.synthetic import PAPER_GRAPHS, paper_snapshots
from stream.synthetic.event_writer import write_events
from stream.synthetic.table2 import INTERVAL_S

RANKS, SHRINK = 4, 50
NETWORKS = {"1 Gb/s": FakeLink(1e-4, 1e9 / 8), "50 Gb/s": FakeLink(1e-5, 50e9 / 8)}
LANES = ("hash", "metis", "metis-layer", "distdy", "byte-lp", "anchor-metis")


@dataclass(frozen=True)
class Collective:
    """What one rank did until it began a collective, and what it sent in it."""

    computed_s: float
    sent_bytes: int


class Trace:
    """Collectives of one rank."""

    def __init__(self, ranks: ThreadRanks) -> None:
        self.collectives: list[Collective] = []
        self._since = time.thread_time()
        link, meeting = ranks.thread_link, ranks.thread_link._meeting
        bring, take = meeting.bring, meeting.take
        own = self

        class Watched(Meeting):
            def __init__(self) -> None:
                self.size, self.network = meeting.size, None

            def bring(self, rank: int, what: str, value: Any, sent_bytes: int, now_s: float) -> int:
                own.collectives.append(Collective(time.thread_time() - own._since, sent_bytes))
                own._since = time.thread_time()
                return bring(rank, what, value, sent_bytes, now_s)

            def take(self, number: int) -> Any:
                return take(number)

        link._meeting = Watched()

    def cut(self) -> list[Collective]:
        """The collectives since the last call; what was computed since the last of them is one that sends nothing."""
        found = [*self.collectives, Collective(time.thread_time() - self._since, 0)]
        self.collectives, self._since = [], time.thread_time()
        return found


def seconds(of_ranks: list[list[Collective]], network: FakeLink) -> tuple[float, float]:
    """Computing and sending of a pass."""
    together = list(zip(*of_ranks, strict=True))
    computed = sum(max(each.computed_s for each in ranks) for ranks in together)
    sent = sum(network.seconds(max(each.sent_bytes for each in ranks)) for ranks in together[:-1])
    return computed, sent


def learned(store: Path, name: str, given: Any, ranks: ThreadRanks) -> list[list[Collective]]:
    """What a rank did when the newest snapshot was sealed, in a first pass over it and in a second one."""
    trace = Trace(ranks)
    session = harness.session_of(
        store, ranks, lane=name, strategy="vertex", strategy_params={"fetch": given.fetch}, window=given.window,
        model=given.model, model_params={"hidden": 128, "fanouts": given.fanouts}, optimisation={"batch_size": 1_024},
    )  # fmt: skip
    for manifest in session.lane.manifests[:]:
        trace.cut()
        session.advance(manifest)
    parts = [trace.cut()]
    examples = session.task.examples(session.view, session.strategy)
    for epoch in range(2):
        trace.cut()
        report = session.strategy.learn([examples], epoch)
        parts.append(trace.cut())
    harness.require(report.steps > 0, f"rank {ranks.rank} made no step")
    return parts


def events_of(stream: str, folder: Path, given: Any) -> tuple[EventFile, int]:
    """Events of a stream, and the microseconds of a snapshot."""
    if stream not in ("uni10k", "ex10k"):
        read = read_events(harness.existing(given.data / f"{stream}.parquet"))
        ends = pa.compute.min_max(read.events["t"])
        return read, int(ends["max"].as_py() - ends["min"].as_py()) // 40
    graph = PAPER_GRAPHS[stream.replace("10k", "500k")]
    sizes = {"nodes": graph.nodes // SHRINK, "edges": graph.edges // SHRINK, "snapshots": given.window + 2}
    file = folder / "events.parquet"
    write_events(file, paper_snapshots(replace(graph, **sizes)), interval_s=INTERVAL_S)
    return read_events(file), INTERVAL_S * US_PER_S


def rows(stream: str, given: Any) -> Iterator[list[str]]:
    with harness.scratch() as folder:
        source, interval_us = events_of(stream, folder, given)
        lanes = harness.lanes(*harness.chosen(given.only, LANES), parts=RANKS, window=given.window)
        store = harness.built(folder / "store", source, interval_us, lanes)
        for lane in lanes:
            found = side_by_side(RANKS, lambda ranks, name=lane.name: learned(store, name, given, ranks))
            passes = [list(each) for each in zip(*found, strict=True)]
            sent = [sum(each.sent_bytes for rank in ranks for each in rank) / 1e6 for ranks in passes]
            cells = [f"{each:.2f}" for each in sent]
            for network in NETWORKS.values():
                times = [seconds(ranks, network) for ranks in passes]
                cells += [f"{computed + sending:.2f}" for computed, sending in times]
                cells.append(f"{sum(times[-1]) / max(times[-1]):.3f}")
            yield [lane.name, *cells]


def main() -> None:
    given = harness.options(
        __doc__, {"streams": ["uni10k", "ex10k"]}, data=harness.DATA, only=[], window=4,
        fetch={"choices": ["halo", "owner"], "default": "halo"}, fanouts=[5, 10],
        model={"choices": ["sage-linear", "dysat"], "default": "sage-linear"},
    )  # fmt: skip
    torch.set_num_threads(1)
    harness.begin()
    networks = "".join(f" | s at {name}: sealed | first | later | share" for name in NETWORKS)
    for stream in given.streams:
        print(
            f"\n{stream}, {given.model} {given.fanouts}, w = {given.window}, fetch: {given.fetch}; {RANKS} ranks"
        )
        harness.table(f"lane | MB sealed | first | later{networks}", rows(stream, given))


if __name__ == "__main__":
    main()
