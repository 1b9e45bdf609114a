"""Hours of a stream in minutes: python benchmarks/continual.py [--part memory|overload] [--seconds 100] [--events 300000].

A synthetic stream whose nodes come and go: at any time a few thousand meet, each for a while, so that far more nodes are
seen than are alive. Snapshots lie in a store and become visible one by one, as a stream job would seal them.

``memory``: the daemon with a budget and without one, over the same snapshots, as fast as it goes: resident memory along
the way and its slope over the second half, what was forgotten, AP beside Recency's.
``overload``: snapshots become visible faster than they can be learned, under ``train-all`` and under ``subsample``: lag
along the way, the share that was learned, AP. Each figure is of a process of its own, with one thread, that ends after
``--seconds``.
"""

import argparse
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa

from schemas.events import US_PER_S

A_SNAPSHOT, ALIVE, ARRIVE = 2_000, 3_000, 1_200
"""Events of a snapshot, which is a second of event time; nodes alive; new nodes of a snapshot."""
BUDGET = {"nodes": 8_000, "events": 40_000}
SOONER = 3.0
"""overload: snapshots that become visible in the time that one takes to be learned."""


def passing_by(events: int, seed: int = 0) -> pa.Table:
    """Events between nodes that are alive: ids go up with time, and four of five events are with a node's own friends."""
    rng = np.random.default_rng(seed)
    t = (np.arange(events) * (US_PER_S / A_SNAPSHOT)).astype(np.int64) + 1
    oldest = (np.arange(events) * ARRIVE) // A_SNAPSHOT
    src = oldest + rng.integers(0, ALIVE, events)
    friend = 1 + rng.integers(0, 5, events) * 7
    stranger = rng.random(events) < 0.2
    dst = np.where(stranger, oldest + rng.integers(0, ALIVE, events), src + friend)
    return harness.event_table(src=src, dst=dst, t=t)


def apart(keys: dict[str, Any], **more: Any) -> Any:
    """What ``one`` returns in a process of its own."""
    return harness.child(__file__, "--one", json.dumps({"keys": keys, **more})).result


def one(task: dict[str, Any]) -> dict[str, Any]:
    """Follow the store with a configuration; what it cost and gave.

    Args:
        task: ``keys`` of the configuration; ``most`` snapshots; ``every_s``: one becomes visible so often, the first
            four at once; ``seconds``: end after so long.
    """
    import logging

    import psutil
    import structlog

    from schemas.trainer_config import TrainerConfig
    from stream.store.lane.reader import LaneReader
    from trainer.continual.daemon import Trainer
    from trainer.continual.drift import weighted_mean
    from trainer.continual.follower import Follower
    from trainer.continual.journal import ScoreFile
    from trainer.metrics import TrainerMetrics
    from trainer.ranks import Ranks

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    fixed = {"lane": "hash", "model": "tgn-history", "strategy": "sequential"}
    optimisation = {"epochs": 1, "batch_size": 200}
    config = TrainerConfig.model_validate({**fixed, "optimisation": optimisation, **task["keys"]})
    records = sorted(Path(str(config.store)).glob("lanes/hash/commits/*.json"), key=lambda p: int(p.stem))
    ended, hidden = threading.Event(), records[4:] if "every_s" in task else []
    for record in hidden:
        record.rename(record.with_suffix(".hidden"))
    lane = LaneReader(str(config.store), config.lane)
    trainer = Trainer(config, lane, Ranks(), TrainerMetrics(config, 0))
    process, rss, lag, began = psutil.Process(), [], [], time.perf_counter()
    deadline = began + task.get("seconds", 1e9)

    def show() -> None:
        for record in hidden:
            if ended.wait(task["every_s"]):
                return
            record.with_suffix(".hidden").rename(record)

    shower = threading.Thread(target=show)
    shower.start()
    follower = Follower(
        Ranks(), until_idle_s=5, stop=lambda: time.perf_counter() > deadline, waiting=lambda *_: None
    )
    while trainer.sequence + 1 < task.get("most", len(records)):
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
    for left in Path(str(config.store)).glob("lanes/hash/commits/*.hidden"):
        left.rename(left.with_suffix(".json"))
    lines, arrived = ScoreFile(config.checkpoint).lines(), (trainer.sequence + 1) * A_SNAPSHOT
    half = lines[len(lines) // 2 :]
    return {
        "seen": lane.manifests[trainer.sequence].num_nodes,
        "remembered": len(trainer.session.names),
        "evicted": sum(line["evicted"] for line in lines),
        "rss_mib": rss,
        "lag": lag,
        "events_per_s": arrived / seconds,
        "trained": sum(line["trained"] for line in lines) / arrived,
        "predicted": sum(line["scored"] for line in lines) / arrived,
        **{key: weighted_mean(half, key, "scored") for key in ("ap", "recency_ap")},
    }


def memory(folder: Path, store: Path, seconds: float) -> None:
    """Print how resident memory develops with and without a budget; the two run side by side."""
    budgets = {"none": {}, f"{BUDGET['nodes']:,} nodes, {BUDGET['events']:,} events": BUDGET}

    def run(label: str) -> list[str]:
        keys = {"store": str(store), "checkpoint": str(folder / label), "budget": budgets[label]}
        found = apart(keys, seconds=seconds)
        rss, count = np.array(found["rss_mib"]), len(found["rss_mib"])
        half = count // 2
        slope = np.polyfit(np.arange(count - half) * A_SNAPSHOT / 1e5, rss[half:], 1)[0]
        shares = ", ".join(f"{rss[max(0, count * q // 100 - 1)]:.0f}" for q in (10, 25, 50, 75, 100))
        counts = [f"{found[name]:,}" for name in ("seen", "remembered", "evicted")]
        return [
            label,
            str(count),
            *counts,
            shares,
            f"{slope:+.1f}",
            f"{found['ap']:.3f}",
            f"{found['recency_ap']:.3f}",
        ]

    titles = "budget | snapshots | nodes seen | remembered | forgotten | RSS MiB at 10, 25, 50, 75, 100 %"
    with ThreadPoolExecutor() as pool:
        rows = pool.map(run, budgets)
        harness.table(
            f"{titles} | slope of the second half, MiB per 100,000 events | AP, second half | Recency", rows
        )


def overload(folder: Path, store: Path, seconds: float) -> None:
    """Print how lag develops under two policies."""
    alone = apart({"store": str(store), "checkpoint": str(folder / "pace"), "budget": BUDGET}, most=12)
    every_s = A_SNAPSHOT / alone["events_per_s"] / SOONER
    print(f"learning a snapshot of {A_SNAPSHOT:,} events takes {every_s * SOONER:.2f} s, one becomes visible every "
          f"{every_s:.2f} s")  # fmt: skip

    def run(policy: str) -> list[str]:
        keys = {"store": str(store), "checkpoint": str(folder / policy), "budget": BUDGET, "overload": policy}
        found = apart(keys, every_s=every_s, seconds=seconds)
        lag = found["lag"]
        quarters = ", ".join(str(lag[max(0, len(lag) * q // 4 - 1)]) for q in (1, 2, 3, 4))
        shares = [f"{found[name]:.0%}" for name in ("trained", "predicted")]
        aps = [f"{found[name]:.3f}" for name in ("ap", "recency_ap")]
        return [policy, quarters, str(max(lag[len(lag) // 2 :])), *shares, *aps]

    titles = "overload | lag at 25, 50, 75, 100 % | largest in the second half | learned | predicted | AP | Recency"
    harness.table(titles, map(run, ("train-all", "subsample")))


def main() -> None:
    parts = {"memory": memory, "overload": overload}
    part = {"choices": list(parts), "action": "append"}
    one_ = {"type": json.loads, "help": argparse.SUPPRESS}
    given = harness.options(__doc__, part=part, events=300_000, seconds=100.0, one=one_)
    if given.one:
        print(json.dumps(one(given.one)))
        return
    harness.begin()
    with harness.scratch() as folder:
        store = harness.built(
            folder / "store", passing_by(given.events), US_PER_S, harness.lanes("hash", parts=1)
        )
        for name in given.part or parts:
            parts[name](folder, store, given.seconds)


if __name__ == "__main__":
    main()
