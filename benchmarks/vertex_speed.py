"""CPU seconds of ``vertex`` on one rank, this tree beside another: python benchmarks/vertex_speed.py --beside FOLDER.

FOLDER is a checkout of another commit. Both learn the first 70 % of collegemsg, snapshots of two days, in turns; each is a
process of its own, whose first pass over all of them is left out. The last line is the ratio of the medians.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from schemas.config import Lane
from schemas.events import US_PER_S
from schemas.trainer_config import TrainerConfig
from stream.decode.files import read_events
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.ranks import Ranks
from trainer.session.session import Session

TREE = Path(__file__).resolve().parents[1]
DATA = TREE.parent / "shared" / "data" / "collegemsg.parquet"
SHARE, DAYS, LANE = 0.7, 2, "hash"


def config(model: str) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "lane": LANE, "strategy": "vertex", "window": 4, "model": model, "model_params": {"hidden": 64},
            "optimisation": {"batch_size": 200},
        }
    )  # fmt: skip


def built(store: Path) -> Path:
    """The store, by the code of the tree that reads it."""
    lanes = [Lane(name=LANE, algorithm=LANE, parts=4)]
    build_store(read_events(DATA), store, interval_us=DAYS * 86_400 * US_PER_S, lanes=lanes)
    return store


def learned(store: Path, model: str, passes: int) -> list[tuple[float, float]]:
    """CPU seconds of ``learn``, and of all that a pass does, pass by pass."""
    lane = LaneReader(store, LANE)
    session, found = Session(config(model), lane, Ranks()), []
    for epoch in range(passes + 1):
        session.rewind()
        began, learning, steps, loss, events = time.process_time(), 0.0, 0, 0.0, 0
        for manifest in lane.manifests[: round(SHARE * len(lane.manifests))]:
            session.advance(manifest)
            examples = session.task.examples(session.view, session.strategy, epoch=epoch)
            since = time.process_time()
            report = session.strategy.learn([examples], epoch)
            learning += time.process_time() - since
            steps += report.steps
            loss, events = loss + (report.loss or 0.0) * report.events, events + report.events
        found.append((learning, time.process_time() - began))
        print(f"{steps} steps, loss {loss / events:.4f}", file=sys.stderr)
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=Path, required=True, help="a checkout of another commit")
    parser.add_argument("--model", default="sage-linear")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.child:
        with tempfile.TemporaryDirectory() as made:
            for learning, everything in learned(built(Path(made) / "store"), given.model, given.passes):
                print(learning, everything)
        return
    found: dict[Path, list[list[float]]] = {TREE: [], given.beside.resolve(): []}
    for _ in range(given.rounds):
        for tree, rows in found.items():
            out = subprocess.run(
                [sys.executable, __file__, "--beside", ".", "--child", "--model", given.model,
                 "--passes", str(given.passes)],
                env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            rows += [[float(each) for each in line.split()] for line in out.stdout.splitlines()]
            print(f"{tree}: learn {rows[-1][0]:.2f} s, a whole pass {rows[-1][1]:.2f} s of the processor")
    ours, theirs = ([statistics.median(each) for each in zip(*rows, strict=True)] for rows in found.values())
    print(f"medians: learn {theirs[0] / ours[0]:.2f} times as fast, a whole pass {theirs[1] / ours[1]:.2f}")


if __name__ == "__main__":
    main()
