"""Passes of ``vertex`` by partitioner and network: python benchmarks/vertex_epochs.py [stream …] [--fetch halo].

Four ranks, a thread each, learn the last snapshot of a lane. What each computes between two collectives is measured as CPU
time of its thread, and what it sends is counted, so a pass takes on a network: the sum over collectives of the slowest rank's
computing, the latency, and the most bytes that a rank sends over the bandwidth. Nothing overlaps. *Sealed* is what a rank does
when the snapshot is sealed, *first* the first pass over it, *later* a second one. *Share* is a later pass over the larger one
of computing and sending, summed apart.

The model has DistDy's settings (section 5.1): by default two layers, fan-outs 5 and 10, width 128, a window of 4, and batches
of 1,024.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from thread_ranks import FakeLink, Meeting, ThreadRanks, side_by_side

from schemas.config import Lane
from schemas.events import US_PER_S
from schemas.trainer_config import TrainerConfig
from stream.decode.files import EventFile, read_events
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from stream.synthetic import PAPER_GRAPHS, paper_snapshots
from stream.synthetic.event_writer import write_events
from stream.synthetic.table2 import INTERVAL_S
from trainer.session.session import Session

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RANKS, SHRINK = 4, 50
NETWORKS = {"1 Gb/s": FakeLink(1e-4, 1e9 / 8), "50 Gb/s": FakeLink(1e-5, 50e9 / 8)}
LANES: list[tuple[str, dict[str, Any]]] = [
    ("hash", {}),
    ("metis", {}),
    ("metis-layer", {}),
    ("distdy", {}),
    ("byte-lp", {}),
    ("anchor-metis", {}),
]


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


def learned(folder: Path, name: str, given: argparse.Namespace, ranks: ThreadRanks) -> list[list[Collective]]:
    """What a rank did when the newest snapshot was sealed, in a first pass over it and in a second one."""
    lane, trace = LaneReader(folder, name), Trace(ranks)
    config = TrainerConfig.model_validate(
        {
            "lane": name, "strategy": "vertex", "strategy_params": {"fetch": given.fetch}, "window": given.window,
            "model": given.model, "model_params": {"hidden": 128, "fanouts": given.fanouts},
            "optimisation": {"batch_size": 1_024},
        }
    )  # fmt: skip
    session = Session(config, lane, ranks)
    for manifest in lane.manifests[:]:
        trace.cut()
        session.advance(manifest)
    parts = [trace.cut()]
    examples = session.task.examples(session.view, session.strategy)
    for epoch in range(2):
        trace.cut()
        session.strategy.learn([examples], epoch)
        parts.append(trace.cut())
    return parts


def events_of(stream: str, folder: Path, window: int) -> EventFile | None:
    if stream in ("uni10k", "ex10k"):
        graph = PAPER_GRAPHS[stream.replace("10k", "500k")]
        sizes = {"nodes": graph.nodes // SHRINK, "edges": graph.edges // SHRINK, "snapshots": window + 2}
        write_events(
            folder / "events.parquet", paper_snapshots(replace(graph, **sizes)), interval_s=INTERVAL_S
        )
        return read_events(folder / "events.parquet")
    file = DATA / f"{stream}.parquet"
    return read_events(file) if file.exists() else None


def table(stream: str, given: argparse.Namespace) -> None:
    print(
        f"\n{stream}, {given.model} {given.fanouts}, w = {given.window}, fetch: {given.fetch}; {RANKS} ranks\n"
    )
    print(
        "| lane | MB sealed | first | later |"
        + "".join(f" s at {name}: sealed | first | later | share |" for name in NETWORKS)
    )
    print("|---" * (4 + 4 * len(NETWORKS)) + "|", flush=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        file = events_of(stream, folder, given.window)
        if file is None:
            print(f"{stream}: the folder of real graphs has no such file", file=sys.stderr)
            return
        interval_us = INTERVAL_S * US_PER_S if stream.endswith("10k") else span_us(file) // 40
        lanes = [
            Lane(name=name, algorithm=name, parts=RANKS, params=params, window=given.window)
            for name, params in LANES
            if not given.only or name in given.only
        ]
        build_store(file, folder / "store", interval_us=interval_us, lanes=lanes)
        for lane in lanes:
            found = side_by_side(
                RANKS, lambda ranks, name=lane.name: learned(folder / "store", name, given, ranks)
            )
            passes = [list(each) for each in zip(*found, strict=True)]
            sent = [sum(each.sent_bytes for rank in ranks for each in rank) / 1e6 for ranks in passes]
            cells = [f"{each:.2f}" for each in sent]
            for network in NETWORKS.values():
                times = [seconds(ranks, network) for ranks in passes]
                cells += [f"{computed + sending:.2f}" for computed, sending in times]
                cells.append(f"{sum(times[-1]) / max(times[-1]):.3f}")
            print(f"| {lane.name} | {' | '.join(cells)} |", flush=True)


def span_us(file: EventFile) -> int:
    ends = pa.compute.min_max(file.events["t"])
    return int(ends["max"].as_py() - ends["min"].as_py())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "streams", nargs="*", default=["uni10k", "ex10k"], help="uni10k, ex10k, or one of the real graphs"
    )
    parser.add_argument("--fetch", choices=["halo", "owner"], default="halo")
    parser.add_argument("--only", nargs="*", default=[], help="lanes, such as distdy")
    parser.add_argument("--model", choices=["sage-linear", "dysat"], default="sage-linear")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--window", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for stream in given.streams:
        table(stream, given)


if __name__ == "__main__":
    main()
