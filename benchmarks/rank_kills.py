"""kill -9 of one rank, again and again, under torchrun: python benchmarks/rank_kills.py [--kills 20] [--strategy pac].

``freshet-trainer run`` with the strategy ``pac`` on a ``sep`` lane of invented meetings, or with ``snapshot``, ``group`` or
``hybrid`` on a ``hash`` lane, started by torchrun. Whenever a snapshot more has been scored, one rank drawn by chance is
killed after a random part of a second; torchrun starts all of them again. Asserted: after each kill another snapshot was scored
within two minutes, and every figure of the scores equals that of an undisturbed run.
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from harness import require, scored

from schemas.config import Lane
from schemas.events import US_PER_S

KILL_PATIENCE_S = 120.0
A_SNAPSHOT, NODES, PARTS = 600, 200, 6
FIGURES = [
    "sequence",
    "tau",
    "ap",
    "auc",
    "mrr",
    "loss",
    "recency_ap",
    "random_ap",
    "steps",
    "trained",
    "discarded",
]
"""Keys of a line of scores that must not depend on kills."""
KEYS: dict[str, dict[str, Any]] = {
    "pac": {"lane": "sep", "model": "tgn-history", "strategy_params": {"shuffle_every": 4}},
    "snapshot": {"lane": "hash", "model": "cdgcn", "strategy_params": {"blocks": 2}, "window": 6},
    "group": {"lane": "hash", "model": "wdgcn", "window": 3, "horizon": 8},
    "hybrid": {
        "lane": "hash",
        "model": "tgcn",
        "window": 3,
        "horizon": 8,
        "strategy_params": {"average": "delayed"},
    },
}


def meetings(snapshots: int, seed: int) -> pa.Table:
    """Communities that meet among themselves, some popular strangers: canonical events, one snapshot per second."""
    draws, size = np.random.default_rng(seed), snapshots * A_SNAPSHOT
    src = draws.integers(0, NODES, size)
    near = src // 20 * 20 + draws.integers(0, 20, size)
    dst = np.where(draws.random(size) < 0.8, near, draws.zipf(1.5, size) % NODES)
    return harness.event_table(src=src, dst=dst, t=np.sort(draws.integers(0, snapshots * US_PER_S, size)))


@contextmanager
def trainer(folder: Path, name: str, given: Any) -> Iterator[Any]:
    """The daemon under torchrun, which ends when there is nothing more to learn; gone afterwards in any case."""
    keys = {
        "store": str(folder / "store"),
        "strategy": given.strategy,
        **KEYS[given.strategy],
        "metrics": {"port": 0},
    }
    torchrun = [
        "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}", "--monitor-interval=0.2",
        f"--max-restarts={given.kills + 5}", f"--log-dir={folder / name / 'ranks'}",
    ]  # fmt: skip
    checkpoint = {"checkpoint": str(folder / name / "checkpoints")}
    process = harness.service(
        folder / name, "trainer", keys | checkpoint, "--until-idle", "2", "--json", run=torchrun
    )
    try:
        yield process
    finally:
        harness.kill(process)


def wait_for(process: Any, folder: Path, lines: int) -> bool:
    """Whether so many snapshots are scored in time."""
    deadline = time.monotonic() + KILL_PATIENCE_S
    while scored(folder / "checkpoints") < lines:
        if time.monotonic() > deadline or process.poll() is not None:
            return False
        time.sleep(0.02)
    return True


def to_the_end(process: Any, folder: Path) -> list[tuple[Any, ...]]:
    """Wait for an end, which must be a good one, as long as snapshots are scored; the figures of every snapshot."""
    while wait_for(process, folder, scored(folder / "checkpoints") + 1):
        pass
    require(process.poll() == 0, f"torchrun ended badly:\n{(folder / 'trainer.log').read_text()[-2000:]}")
    lines = (folder / "checkpoints" / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    return [tuple(json.loads(line).get(key) for key in FIGURES) for line in lines]


def kill_again_and_again(process: Any, folder: Path, given: Any) -> int:
    """Kills that were followed by another scored snapshot."""
    draws, recovered = random.Random(given.seed), 0
    for number in range(given.kills):
        if not wait_for(process, folder, scored(folder / "checkpoints") + 1):
            break
        time.sleep(draws.uniform(0, 0.5))
        victims, before = harness.children_of(process, recursive=False), scored(folder / "checkpoints")
        began = time.monotonic()
        if victims:
            draws.choice(victims).kill()
        again = wait_for(process, folder, before + 2)  # a line may have been under way
        recovered += again and bool(victims)
        outcome = f"next scored {time.monotonic() - began:.1f} s later" if again else "no more scored"
        print(f"kill {number + 1}: after {before} snapshots, {outcome}", file=sys.stderr, flush=True)
    return recovered


def main() -> None:
    strategy = {"choices": list(KEYS), "default": "pac"}
    given = harness.options(__doc__, kills=20, ranks=2, seed=7, strategy=strategy)
    harness.begin()
    snapshots, name = 3 * given.kills + 10, KEYS[given.strategy]["lane"]
    with harness.scratch() as folder:
        lane = Lane(name=name, algorithm=name, parts=PARTS, params={"hubs": 0.1} if name == "sep" else {})
        harness.built(folder / "store", meetings(snapshots, given.seed), US_PER_S, [lane])
        with trainer(folder, "straight", given) as process:
            expected = to_the_end(process, folder / "straight")
        with trainer(folder, "killed", given) as process:
            recovered = kill_again_and_again(process, folder / "killed", given)
            found = to_the_end(process, folder / "killed")
    same = found == expected
    print(
        f"{recovered} of {given.kills} kills recovered with {given.ranks} ranks; {len(found)} of {snapshots} snapshots scored; "
        f"figures {'equal to' if same else 'DIFFERENT from'} those of an undisturbed run"
    )
    require(recovered == given.kills and same and len(found) == snapshots, "a kill changed the run")


if __name__ == "__main__":
    main()
