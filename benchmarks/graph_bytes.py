"""Graph bytes of ranks that compute alone: python benchmarks/graph_bytes.py sx [--strategy vertex --layers 1 --ranks 1 2 4].

``vertex`` with ``fetch: halo``, or ``hybrid`` with a horizon of 16 snapshots, on a store of the real graph, whose edges live
until they are deleted. The ranks, a thread each, begin some snapshots before the last ones, which they predict and learn once
(``hybrid``: in 16 steps). A cell has the most MiB that a rank held after a
snapshot, and the seconds of the processor in the median snapshot, rank by rank.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from thread_ranks import side_by_side

from schemas.config import Lane
from schemas.trainer_config import TrainerConfig
from stream.decode.files import read_events
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.ranks import Ranks
from trainer.session.session import Session
from trainer.session.snapshot_trainer import ExampleWindow

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
GRAPHS = {"sx": ("sx_mathoverflow.parquet", 7 * 86_400), "digg": ("digg_reply.parquet", 6 * 3_600)}
"""Files, and the length of a snapshot in seconds."""
SETTINGS: dict[str, dict[str, Any]] = {
    "vertex": {"strategy_params": {"fetch": "halo"}, "model": "sage-linear"},
    "hybrid": {"horizon": 16, "model": "tgcn"},
}
BEFORE = {"vertex": 5, "hybrid": 17}
"""Snapshots that fill the window of 4, or the horizon, and the predicted one."""
DRAWING = threading.Lock()
"""Threads share torch's generator."""


def measured(folder: Path, name: str, given: argparse.Namespace, ranks: Ranks) -> tuple[float, float]:
    """The most MiB of a rank, and the median of its seconds per snapshot."""
    lane = LaneReader(folder, name)
    layers = {"fanouts": [10] * given.layers} if given.strategy == "vertex" else {"layers": given.layers}
    settings: dict[str, Any] = {
        "lane": name, "strategy": given.strategy, "window": 4, "model_params": {"hidden": 64, **layers},
        "optimisation": {"batch_size": 200}, **SETTINGS[given.strategy],
    }  # fmt: skip
    with DRAWING:
        session = Session(TrainerConfig.model_validate(settings), lane, ranks)
    seconds, most, before = [], 0, BEFORE[given.strategy]
    book = ExampleWindow(session.task, session.strategy.needs.example_sets)
    for at, manifest in enumerate(lane.manifests[-given.snapshots - before :]):
        began = time.thread_time()
        session.advance(manifest)
        examples = session.task.examples(session.view, session.strategy)
        book.open(examples)
        if at < before:
            continue
        session.task.evaluate(session.strategy, session.model, session.untrained, examples, ranks)
        session.strategy.learn(book.with_newest(examples), 0)
        seconds.append(time.thread_time() - began)
        most = max(most, session.graph_bytes)
    return most / 2**20, float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", choices=sorted(GRAPHS))
    parser.add_argument("--strategy", choices=sorted(SETTINGS), default="vertex")
    parser.add_argument("--lanes", nargs="+", default=["hash", "distdy"])
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--snapshots", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    file, interval_s = GRAPHS[given.graph]
    with tempfile.TemporaryDirectory() as made:
        lanes = [
            Lane(name=f"{algorithm}-{count}", algorithm=algorithm, parts=count)
            for algorithm in given.lanes
            for count in given.ranks
        ]
        build_store(
            read_events(DATA / file), Path(made) / "store", interval_us=interval_s * 10**6, lanes=lanes
        )
        print("| lane | ranks | MiB of each | s of each |\n|---|---|---|---|")
        for lane in lanes:
            found = side_by_side(
                lane.parts, lambda ranks, name=lane.name: measured(Path(made) / "store", name, given, ranks)
            )
            mib, seconds = zip(*found, strict=True)
            cells = (", ".join(f"{each:.2f}" for each in column) for column in (mib, seconds))
            print(f"| {lane.algorithm} | {lane.parts} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
