"""Hours of a stream in minutes: python benchmarks/continual.py [--part memory|overload] [--seconds 100] [--events 300000].

A synthetic stream whose nodes come and go: at any time a few thousand meet, each for a while, so that far more nodes are
seen than are alive. Snapshots lie in a store and become visible one by one, as a stream job would seal them.

``memory``: the daemon with a budget and without one, over the same snapshots, as fast as it goes: resident memory along
the way and its slope over the second half, what was forgotten, AP beside Recency's.
``overload``: snapshots become visible faster than they can be learned, under ``train-all`` and under ``subsample``: lag
along the way, the share that was learned, AP. Each figure is of a process of its own, with one thread.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from schemas.config import Lane
from schemas.events import US_PER_S, event_schema
from schemas.trainer_config import TrainerConfig
from stream.store.from_file import build_store

A_SNAPSHOT = 2_000
"""Events; one snapshot a second of event time."""
ALIVE = 3_000
ARRIVE = 1_200
"""New nodes a snapshot."""
BUDGET = {"nodes": 8_000, "events": 40_000}
SOONER = 3.0
"""overload: snapshots that become visible in the time that one takes to be learned."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["memory", "overload"], action="append")
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--seconds", type=float, default=100.0, help="each run ends after so long")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(json.loads(given.one))))
        return 0
    with tempfile.TemporaryDirectory(prefix="freshet-continual-") as name:
        store = Path(name) / "store"
        lane = Lane(name="hash", algorithm="hash", parts=1)
        build_store(passing_by(given.events), store, interval_us=US_PER_S, lanes=[lane])
        for part in given.part or ["memory", "overload"]:
            {"memory": memory, "overload": overload}[part](Path(name), store, given.seconds)
    return 0


def memory(folder: Path, store: Path, seconds: float) -> None:
    """Print how resident memory goes with and without a budget; the two run side by side."""
    print("| budget | snapshots | nodes seen | remembered | forgotten | RSS MiB at 10, 25, 50, 75, 100 % | slope of the second "
          "half, MiB per 100,000 events | AP, second half | Recency |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    budgets = {"none": {}, f"{BUDGET['nodes']:,} nodes, {BUDGET['events']:,} events": BUDGET}
    with ThreadPoolExecutor() as pool:
        runs = pool.map(
            lambda label: apart(
                {"store": str(store), "checkpoint": str(folder / label), "budget": budgets[label]},
                seconds=seconds,
            ),
            budgets,
        )
    for label, run in zip(budgets, runs, strict=True):
        rss = np.array(run["rss_mib"])
        half = len(rss) // 2
        slope = np.polyfit(np.arange(len(rss) - half) * A_SNAPSHOT / 1e5, rss[half:], 1)[0]
        shares = ", ".join(f"{rss[max(0, len(rss) * q // 100 - 1)]:.0f}" for q in (10, 25, 50, 75, 100))
        print(f"| {label} | {len(rss)} | {run['seen']:,} | {run['remembered']:,} | {run['evicted']:,} | {shares} | "
              f"{slope:+.1f} | {run['ap']:.3f} | {run['recency_ap']:.3f} |", flush=True)  # fmt: skip


def overload(folder: Path, store: Path, seconds: float) -> None:
    """Print how lag goes under two policies."""
    alone = apart({"store": str(store), "checkpoint": str(folder / "pace"), "budget": BUDGET}, most=12)
    a_snapshot_s = A_SNAPSHOT / alone["events_per_s"]
    print(f"learning a snapshot of {A_SNAPSHOT:,} events takes {a_snapshot_s:.2f} s, one becomes visible every "
          f"{a_snapshot_s / SOONER:.2f} s")  # fmt: skip
    print(
        "| overload | lag at 25, 50, 75, 100 % | largest in the second half | learned | predicted | AP | Recency |"
    )
    print("|---|---|---|---|---|---|---|")
    for policy in ("train-all", "subsample"):
        keys = {"store": str(store), "checkpoint": str(folder / policy), "budget": BUDGET, "overload": policy}
        run = apart(keys, every_s=a_snapshot_s / SOONER, seconds=seconds)
        lag = run["lag"]
        quarters = ", ".join(str(lag[max(0, len(lag) * q // 4 - 1)]) for q in (1, 2, 3, 4))
        print(f"| {policy} | {quarters} | {max(lag[len(lag) // 2 :])} | {run['trained']:.0%} | {run['predicted']:.0%} | "
              f"{run['ap']:.3f} | {run['recency_ap']:.3f} |", flush=True)  # fmt: skip


def apart(keys: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What ``one`` returns in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps({"keys": keys, **more})]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def one(task: dict[str, Any]) -> dict[str, Any]:
    """Follow the store with a configuration; what it cost and gave.

    Args:
        task: ``keys`` of the configuration; ``most`` snapshots; ``every_s``: one becomes visible so often, the first
            four at once; ``seconds``: end after so long.
    """
    import logging

    import structlog

    from stream.store.lane.reader import LaneReader
    from trainer.continual.daemon import Trainer
    from trainer.continual.follower import Follower
    from trainer.continual.journal import ScoreFile, weighted_mean
    from trainer.metrics import TrainerMetrics
    from trainer.ranks import Ranks

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    optimisation = {"epochs": 1, "batch_size": 200}
    config = TrainerConfig.model_validate(
        {"lane": "hash", "model": "tgn-history", "strategy": "sequential", "optimisation": optimisation}
        | task["keys"]
    )
    records = sorted(Path(task["keys"]["store"]).glob("lanes/hash/commits/*.json"), key=lambda p: int(p.stem))
    shown = task.get("every_s")
    ended, hidden = threading.Event(), records[4:] if shown else []
    for record in hidden:
        record.rename(record.with_suffix(".hidden"))
    lane = LaneReader(str(config.store), config.lane)
    metrics = TrainerMetrics(config, 0)
    trainer = Trainer(config, lane, Ranks(), metrics)
    process, rss, lag, began = psutil.Process(), [], [], time.perf_counter()
    deadline = began + task.get("seconds", 1e9)

    def show() -> None:
        for record in hidden:
            if ended.wait(shown):
                return
            record.with_suffix(".hidden").rename(record)

    shower = threading.Thread(target=show)
    shower.start()
    most = task.get("most", len(records))
    follower = Follower(
        Ranks(), until_idle_s=5, stop=lambda: time.perf_counter() > deadline, waiting=lambda _: None
    )
    while trainer.sequence + 1 < most:
        manifest = follower.next(lane, trainer.sequence, trainer.load)
        if manifest is None:
            break
        trainer.step(manifest)
        rss.append(process.memory_info().rss / 2**20)
        lane.refresh()
        lag.append(len(lane.manifests) - 1 - trainer.sequence)
    seconds = time.perf_counter() - began
    ended.set()
    shower.join()
    for record in hidden:
        if (left := record.with_suffix(".hidden")).exists():
            left.rename(record)
    lines = ScoreFile(config.checkpoint).lines()
    half = lines[len(lines) // 2 :]
    arrived = (trainer.sequence + 1) * A_SNAPSHOT
    return {
        "seen": lane.manifests[trainer.sequence].num_nodes,
        "remembered": len(trainer.session.names),
        "evicted": sum(line["evicted"] for line in lines),
        "rss_mib": rss,
        "lag": lag,
        "events_per_s": arrived / seconds,
        "trained": sum(line["trained"] for line in lines) / arrived,
        "predicted": sum(line["scored"] for line in lines) / arrived,
        "ap": weighted_mean(half, "ap", "scored"),
        "recency_ap": weighted_mean(half, "recency_ap", "scored"),
    }


def passing_by(events: int, seed: int = 0) -> pa.Table:
    """Events between nodes that are alive: ids go up with time, and four of five events are with a node's own friends."""
    rng = np.random.default_rng(seed)
    t = (np.arange(events) * (US_PER_S / A_SNAPSHOT)).astype(np.int64) + 1
    oldest = (np.arange(events) * ARRIVE) // A_SNAPSHOT
    src = oldest + rng.integers(0, ALIVE, events)
    friend = 1 + rng.integers(0, 5, events) * 7
    stranger = rng.random(events) < 0.2
    dst = np.where(stranger, oldest + rng.integers(0, ALIVE, events), src + friend)
    columns = {"op": np.ones(events, np.int8), "src": src, "dst": dst, "t": t, "weight": np.ones(events)}
    schema = event_schema("int")
    empty = [None] * events
    return pa.table({name: columns.get(name, empty) for name in schema.names}, schema=schema)


if __name__ == "__main__":
    sys.exit(main())
