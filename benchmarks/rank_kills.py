"""kill -9 of one rank, again and again, under torchrun: python benchmarks/rank_kills.py [--kills 20] [--strategy pac].

``freshet-trainer run`` with the strategy ``pac`` on a ``sep`` lane of invented meetings, or with ``snapshot``, ``group`` or
``hybrid`` on a ``hash`` lane, started by torchrun. Whenever a snapshot more has been scored, one rank drawn by chance is
killed after a random part of a second; torchrun starts all of them again. A kill is *recovered* if another snapshot was
scored afterwards within two minutes. Then the run goes on to its end, and every figure of its scores is compared with those
of a run that nobody disturbed. Exit code 1 if a kill is not recovered, or a figure differs.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import yaml

from schemas.config import Lane
from schemas.events import US_PER_S, event_schema
from stream.store.from_file import build_store

PATIENCE_S = 120.0
A_SNAPSHOT, NODES, PARTS = 600, 200, 6
FIGURES = (
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
)

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--strategy", choices=list(KEYS), default="pac")
    parser.add_argument("--model", help="default: tgn-history; under snapshot cdgcn, under group wdgcn")
    parser.add_argument("--snapshots", type=int, help="default: 3 per kill, and 10")
    given = parser.parse_args()
    snapshots = given.snapshots or 3 * given.kills + 10
    with tempfile.TemporaryDirectory(prefix="freshet-kills-") as name:
        folder = Path(name)
        params = {"hubs": 0.1} if given.strategy == "pac" else {}
        lane = Lane(
            name=KEYS[given.strategy]["lane"],
            algorithm=KEYS[given.strategy]["lane"],
            parts=PARTS,
            params=params,
        )
        build_store(meetings(snapshots, given.seed), folder / "store", interval_us=US_PER_S, lanes=[lane])
        with trainer(folder, "straight", given) as process:
            ends(process, folder / "straight")
        with trainer(folder, "killed", given) as process:
            recovered = kill_again_and_again(process, folder / "killed", given)
            ends(process, folder / "killed")
        same = figures(folder / "killed") == figures(folder / "straight")
        scored = len(figures(folder / "killed"))
    print(
        f"{recovered} of {given.kills} kills recovered with {given.ranks} ranks; {scored} of {snapshots} snapshots scored; "
        f"figures {'equal to' if same else 'DIFFERENT from'} those of an undisturbed run"
    )
    return 0 if recovered == given.kills and same and scored == snapshots else 1


def kill_again_and_again(process: subprocess.Popen[bytes], folder: Path, given: argparse.Namespace) -> int:
    """Kills that were followed by another scored snapshot."""
    draws, recovered = random.Random(given.seed), 0
    for number in range(given.kills):
        already = scored(folder)
        if not wait_for(process, folder, already + 1):
            break
        time.sleep(draws.uniform(0, 0.5))
        victims = ranks_of(process)
        victim = draws.choice(victims) if victims else None
        before = scored(folder)
        began = time.monotonic()
        if victim is not None:
            victim.kill()
        again = wait_for(process, folder, before + 2)  # a line may have been under way
        recovered += again and victim is not None
        print(
            f"kill {number + 1}: after {before} snapshots, "
            f"{f'next scored {time.monotonic() - began:.1f} s later' if again else 'no more scored'}",
            file=sys.stderr,
            flush=True,
        )
    return recovered


def wait_for(process: subprocess.Popen[bytes], folder: Path, lines: int) -> bool:
    """Whether so many snapshots are scored in time."""
    deadline = time.monotonic() + PATIENCE_S
    while scored(folder) < lines:
        if time.monotonic() > deadline or process.poll() is not None:
            return False
        time.sleep(0.02)
    return True


def ends(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for an end, which must be a good one, as long as snapshots are scored."""
    while wait_for(process, folder, scored(folder) + 1):
        pass
    if process.poll() != 0:
        print((folder / "log").read_text(encoding="utf-8")[-2000:], file=sys.stderr)
        sys.exit("torchrun scored nothing any more" if process.poll() is None else "torchrun ended badly")


@contextmanager
def trainer(folder: Path, name: str, given: argparse.Namespace) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon under torchrun, which ends when there is nothing more to learn; gone afterwards in any case."""
    (folder / name).mkdir()
    config = folder / name / "trainer.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "store": str(folder / "store"),
                "strategy": given.strategy,
                **KEYS[given.strategy],
                **({"model": given.model} if given.model else {}),
                "checkpoint": str(folder / name / "checkpoints"),
                "metrics": {"port": 0},
            }
        ),
        encoding="utf-8",
    )
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}",
        f"--max-restarts={given.kills + 5}", "--monitor-interval=0.2", f"--log-dir={folder / name / 'ranks'}",
        "-m", "trainer.cli",
        "run", "--config", str(config), "--until-idle", "2", "--json",
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.DEVNULL,
        stderr=(folder / name / "log").open("wb"),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            for rank in ranks_of(process):
                rank.kill()
            process.kill()
            process.wait()


def ranks_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Processes that torchrun started and that run."""
    children = psutil.Process(process.pid).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


def scored(folder: Path) -> int:
    """Snapshots with a whole line of scores."""
    path = folder / "checkpoints" / "scores.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def figures(folder: Path) -> list[tuple[Any, ...]]:
    """What must not depend on kills."""
    lines = (folder / "checkpoints" / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    return [tuple(json.loads(line).get(key) for key in FIGURES) for line in lines]


def meetings(snapshots: int, seed: int) -> pa.Table:
    """Communities that meet among themselves, some popular strangers: canonical events, one snapshot a second."""
    draws = np.random.default_rng(seed)
    size = snapshots * A_SNAPSHOT
    src = draws.integers(0, NODES, size)
    near = src // 20 * 20 + draws.integers(0, 20, size)
    dst = np.where(draws.random(size) < 0.8, near, draws.zipf(1.5, size) % NODES)
    t = np.sort(draws.integers(0, snapshots * US_PER_S, size))
    schema = event_schema("int")
    columns = {
        "op": np.ones(size, np.int8), "src": src, "dst": dst, "t": t, "weight": np.ones(size),
    }  # fmt: skip
    return pa.table(
        [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else pa.nulls(size, field.type)
            for field in schema
        ],
        schema=schema,
    )


if __name__ == "__main__":
    sys.exit(main())
