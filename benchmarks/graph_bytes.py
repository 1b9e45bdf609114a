"""Graph bytes of each rank of ``vertex`` with ``fetch: halo``: python benchmarks/graph_bytes.py sx [--layers 1 --ranks 1 2 4].

A store of the real graph with the default of lanes, edges that live until they are deleted. The ranks, a thread each, begin
some snapshots before the last ones, which they predict and learn once. A cell has the most MiB that a rank held after a
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
from stream.decode.event_file import read_events
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.ranks import Ranks
from trainer.session.session import Session

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
GRAPHS = {"sx": ("sx_mathoverflow.parquet", 7 * 86_400), "digg": ("digg_reply.parquet", 6 * 3_600)}
"""Files, and the length of a snapshot in seconds."""
BEFORE = 5
"""Snapshots that fill the window, of 4 and the predicted one."""
DRAWING = threading.Lock()
"""Threads share torch's generator."""


def measured(folder: Path, name: str, given: argparse.Namespace, ranks: Ranks) -> tuple[float, float]:
    """The most MiB of a rank, and the median of its seconds per snapshot."""
    lane = LaneReader(folder, name)
    settings: dict[str, Any] = {
        "lane": name, "strategy": "vertex", "strategy_params": {"fetch": "halo"}, "window": 4, "model": "sage-linear",
        "model_params": {"hidden": 64, "fanouts": [10] * given.layers}, "optimisation": {"batch_size": 200},
    }  # fmt: skip
    with DRAWING:
        session = Session(TrainerConfig.model_validate(settings), lane, ranks)
    seconds, most = [], 0
    for at, manifest in enumerate(lane.manifests[-given.snapshots - BEFORE :]):
        began = time.thread_time()
        session.advance(manifest)
        if at < BEFORE:
            continue
        lesson = session.task.lesson(session.view, session.strategy)
        session.task.judge(session.strategy, session.model, session.floor, lesson, ranks)
        session.strategy.learn([lesson], 0)
        seconds.append(time.thread_time() - began)
        most = max(most, session.graph_bytes)
    return most / 2**20, float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", choices=sorted(GRAPHS))
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
