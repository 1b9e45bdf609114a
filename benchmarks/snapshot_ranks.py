"""An epoch on two ranks by ``snapshot`` and ``vertex``, beside one rank: python benchmarks/snapshot_ranks.py [--data DIR].

A real stream is followed through a horizon of snapshots, the last of which is then learned again and again from those
before. An epoch is all that ``learn`` does. Ranks are processes joined by gloo, with one thread each. All ways take turns,
epoch by epoch, ``whole`` and one rank's ``snapshot`` on the first rank while the others wait: so what else the machine does
is shared. Medians of seconds on the wall; in brackets the seconds of the first rank's processor, and what it waited in
collectives.

With --blocks another table: one rank by ``snapshot`` in a given number of blocks, and what ``auto`` chooses with a budget
of a part of what one block needs, beside the fastest of the numbers that fit. Medians of seconds of the processor.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timeline import table

from schemas.config import Lane
from schemas.trainer_config import Optimisation, TrainerConfig
from stream.decode.files import read_events
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.ranks import Ranks
from trainer.session.session import Session

DATA = Path("../shared/data")  # a folder of real graphs: docs/performance.md
DAY_US = 86_400_000_000
SETS = {"sx, weekly": ("sx_mathoverflow", 7 * DAY_US), "collegemsg, daily": ("collegemsg", DAY_US)}
EDGE_LIFE = 10
MODELS = {
    "cdgcn": {},
    "tgcn": {},
    "tmgcn": {},
    "evolvegcn-o": {},
    "sage-linear": {"hidden": 64, "fanouts": [None, None]},
}
WINDOW = 4
"""Of models in the table of blocks: what a block takes over is of so many snapshots."""
NUMBERS = [1, 2, 3, 4, 6, 8, 16]
BUDGETS = [1, 0.5, 0.3, 0.15]
"""Of what one block needs."""
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "`whole`, one rank": ("whole", {}),
    "`snapshot`, one rank": ("snapshot", {"blocks": 1}),
    "`snapshot`": ("snapshot", {"blocks": 1}),
    "without overlap": ("snapshot", {"blocks": 1, "overlap": False}),
    "all rows": ("snapshot", {"blocks": 1, "rows": "all"}),
    "mesh 1 × 2": ("snapshot", {"blocks": 1, "mesh": [1, 2]}),
    "`vertex`": ("vertex", {}),
}


def follow(
    store: Path,
    model: str,
    strategy: str,
    params: dict[str, Any],
    ranks: Ranks,
    horizon: int,
    window: int | None = None,
) -> tuple[Session, Any]:
    """A session, and the examples of the lane's newest snapshot."""
    lane = LaneReader(store, "hash")
    config = TrainerConfig(
        lane="hash", model=model, model_params=MODELS.get(model, {}), strategy=strategy, strategy_params=params,
        window=window or horizon, horizon=horizon if window else None, optimisation=Optimisation(batch_size=1 << 20),
    )  # fmt: skip
    session = Session(config, lane, ranks)
    for manifest in list(lane.manifests)[-horizon - 1 :]:
        session.advance(manifest)
    return session, session.task.examples(session.view, session.strategy)


def epoch_of(*following: Any) -> Callable[[int], Any]:
    """One pass over the newest snapshot, by its number; arguments as of ``follow``."""
    session, examples = follow(*following)
    return lambda epoch: session.strategy.learn([examples], epoch)


def ways_of(
    store: Path, model: str, ranks: Ranks, horizon: int, chosen: list[str]
) -> dict[str, Callable[[int], Any]]:
    """By name; on other ranks than the first those of one rank do nothing."""
    found: dict[str, Callable[[int], Any]] = {}
    for name in chosen:
        strategy, params = WAYS[name]
        if name.endswith("one rank"):
            alone = Ranks(device="cpu")
            found[name] = (
                epoch_of(store, model, strategy, params, alone, horizon)
                if not ranks.rank
                else lambda epoch: None
            )
        elif strategy != "vertex" or model == "sage-linear":
            found[name] = epoch_of(store, model, strategy, params, ranks, horizon)
    return found


def epochs(store: Path, horizon: int, repeat: int, models: list[str], chosen: list[str]) -> None:
    """Print the rows of a table, on the first rank."""
    ranks, rows = Ranks.from_environment("cpu"), []
    for model in models:
        ways = ways_of(store, model, ranks, horizon, chosen)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        worked: dict[str, list[float]] = {name: [] for name in ways}
        waited: dict[str, list[float]] = {name: [] for name in ways}
        for epoch in range(repeat + 1):  # the first compiles and sends the horizon
            for name, learn in ways.items():
                ranks.total([0.0])
                began, before, worked_before = time.perf_counter(), ranks.traffic.wait_s, time.process_time()
                learn(epoch)
                taken[name].append(time.perf_counter() - began)
                worked[name].append(time.process_time() - worked_before)
                waited[name].append(ranks.traffic.wait_s - before)
        row = [f"`{model}`"]
        for name in chosen:
            if name not in ways:
                row.append("–")
                continue
            told = [f"{statistics.median(each[name][1:]):.2f}" for each in (taken, worked, waited)]
            row.append(f"{told[0]} ({told[1]})" if name.endswith("one rank") else "{} ({}; {})".format(*told))
        rows.append(row)
    if not ranks.rank:
        table("an epoch, s (processor; waiting) | " + " | ".join(chosen), rows)
    ranks.close()


def blocks(store: Path, horizon: int, repeat: int, models: list[str]) -> None:
    """Print seconds of an epoch by number of blocks, and how far ``auto`` is from the fastest that fits, by its budget."""
    rows = []
    for model in models:
        session, examples = follow(store, model, "snapshot", {"blocks": "auto"}, Ranks(), horizon, WINDOW)
        strategy: Any = session.strategy
        strategy.learn([examples], 0)  # measures
        measured = strategy.budget.measured[horizon]
        need = {
            number: -(-horizon // number) * measured.saved + (number - 1) * measured.carried
            for number in NUMBERS
        }
        taken: dict[int, list[float]] = {number: [] for number in NUMBERS}
        for epoch in range(repeat + 1):
            for number in NUMBERS:
                strategy.number_of_blocks = number
                began = time.process_time()
                strategy.learn([examples], epoch)
                taken[number].append(time.process_time() - began)
        seconds = {number: statistics.median(each[1:]) for number, each in taken.items()}
        strategy.number_of_blocks, told = "auto", []
        for share in BUDGETS:
            budget = strategy.budget.bytes = int(share * need[1])
            if min(need.values()) > budget:
                told.append("–")
                continue
            horizon_of = strategy.timeline.before_newest(examples.part(np.arange(1))[0].ends[0][:0])
            chosen = len(strategy.blocks(session.model, horizon_of, last=True).ranges)
            fastest = min(seconds[number] for number in NUMBERS if need[number] <= budget)
            told.append(f"{chosen}: {seconds[min(NUMBERS, key=lambda n: abs(n - chosen))] / fastest:.2f}")
        rows.append([f"`{model}`", *(f"{seconds[number]:.3f}" for number in NUMBERS), *told])
    titles = [*map(str, NUMBERS), *(f"auto, {share:g} of the memory" for share in BUDGETS)]
    table("an epoch in blocks, s | " + " | ".join(titles), rows)


def start(arguments: list[str], size: int, script: str = __file__) -> None:
    """A script on so many ranks."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    started = []
    for rank in range(size):
        where = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
        }
        environment = {**os.environ, **where, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen([sys.executable, script, *arguments], env=environment))
    codes = [each.wait() for each in started]
    if any(codes):
        raise SystemExit(max(codes))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--set", default="sx, weekly", choices=list(SETS))
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--horizon", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--store", type=Path, help="made before, as by this script for its ranks")
    given = parser.parse_args()
    if given.store is not None:
        torch.set_num_threads(1)
        if given.blocks:
            blocks(given.store, given.horizon, given.repeat, given.models)
        else:
            epochs(given.store, given.horizon, given.repeat, given.models, given.ways)
        return
    with tempfile.TemporaryDirectory(prefix="freshet-ranks-") as folder:
        stem, interval_us = SETS[given.set]
        lanes = [Lane(name="hash", algorithm="hash", parts=given.ranks, edge_life=EDGE_LIFE)]
        store = Path(folder) / "store"
        build_store(
            read_events(given.data / f"{stem}.parquet").events, store, interval_us=interval_us, lanes=lanes
        )
        start([*sys.argv[1:], "--store", str(store)], 1 if given.blocks else given.ranks)


if __name__ == "__main__":
    main()
