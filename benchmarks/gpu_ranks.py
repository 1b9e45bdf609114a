"""One, two, four and eight ranks with a core each: python benchmarks/gpu_ranks.py.

Every strategy that trains on several ranks learns made-up snapshots; the last one is timed, after the others have compiled what
is compiled. Ranks are processes joined by gloo on this machine, and each is bound to one core; runs that fit beside each
other run at once. Events are those of all ranks together.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gpu_common import interactions, print_rows
from snapshot_epochs import store_of

from schemas.config import Lane

STRATEGIES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("vertex", "sage-linear", "hash", "events", {}),
    ("pac", "tgn-history", "sep", "events", {}),
    ("snapshot", "cdgcn", "hash", "graph", {"window": 4}),
    ("group", "wdgcn", "hash", "graph", {"horizon": 16, "strategy_params": {"groups_per_step": 8}}),
    ("hybrid", "sage-linear", "hash", "graph", {"strategy_params": {"snapshots": [0.5], "vertices": [0.25], "steps": 8}}),
]  # fmt: skip
"""Strategy, model, lane, store and more keys."""
TITLES = "strategy, model | ranks | events/s | of one rank's | s | s waited | MiB sent | steps | left out"
MOST_S = 120.0
"""Of one run."""


def as_rank(spec: dict[str, Any]) -> None:
    """Learn in this process; rank 0 writes what it took."""
    import torch

    from schemas.trainer_config import Optimisation, TrainerConfig
    from stream.store.lane.reader import LaneReader
    from trainer.ranks import Ranks
    from trainer.session.session import Session

    os.sched_setaffinity(0, {spec["cores"][int(os.environ["RANK"])]})
    ranks = Ranks.from_environment("cpu")
    torch.set_num_threads(1)
    reader = LaneReader(spec["store"], spec["lane"])
    batch = 200 // spec["ranks"] if spec["strategy"] == "vertex" else 200
    keys = {"lane": spec["lane"], "model": spec["model"], "strategy": spec["strategy"], "window": 2, **spec["keys"]}  # fmt: skip
    session = Session(TrainerConfig(**keys, optimisation=Optimisation(batch_size=batch)), reader, ranks)
    for number in range(len(reader.manifests)):
        session.advance(reader.manifests[number])
        examples = session.task.examples(session.view, session.strategy)
        ranks.total([0.0])  # all begin at once
        began, waited = time.perf_counter(), ranks.traffic.wait_s
        sent = sum(ranks.traffic.sent_bytes.values())
        report = session.strategy.learn([examples], 0)
        ranks.total([0.0])
        took = {
            "seconds": time.perf_counter() - began,
            "waited_s": ranks.traffic.wait_s - waited,
            "sent": sum(ranks.traffic.sent_bytes.values()) - sent,
            "events": report.events,
            "discarded": report.discarded,
            "steps": report.steps,
        }
    if not ranks.rank:
        Path(spec["out"]).write_text(json.dumps(took))
    session.close()
    ranks.close()


def started(spec: dict[str, Any]) -> list[subprocess.Popen[bytes]]:
    """The ranks of a run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = str(spec["ranks"])
    shared = {
        **os.environ, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, __file__, "--rank-of", json.dumps(spec)]
    return [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(spec["ranks"])
    ]


def measured(folder: Path, sizes: list[int]) -> Iterator[list[str]]:
    """Rows of all strategies."""
    cores = sorted(os.sched_getaffinity(0))
    for strategy, model, lane, store, keys in STRATEGIES:
        found: dict[int, dict[str, float] | None] = {}
        for together in _side_by_side(sizes, len(cores)):
            free, runs = iter(cores), []
            for size in together:
                out = folder / f"{strategy}-{size}.json"
                spec = {
                    "strategy": strategy, "model": model, "lane": lane, "keys": keys, "ranks": size, "out": str(out),
                    "store": str(folder / store), "cores": [next(free) for _ in range(size)],
                }  # fmt: skip
                runs.append((size, out, started(spec)))
            for size, out, processes in runs:
                found[size] = json.loads(out.read_text()) if _ended(processes) else None
        one = found.get(1)
        for size, took in sorted(found.items()):
            if took is None:
                print(f"WRONG: {strategy} {model} on {size} ranks failed", flush=True)
                continue
            rate = took["events"] / took["seconds"]
            yield [
                f"`{strategy}`, `{model}`", str(size), f"{rate:,.0f}",
                f"{rate / (one['events'] / one['seconds']):.2f}" if one else "–",
                f"{took['seconds']:.2f}", f"{took['waited_s']:.2f}", f"{took['sent'] / 2**20:.1f}",
                f"{took['steps']:.0f}", f"{took['discarded']:.0f}",
            ]  # fmt: skip


def _side_by_side(sizes: list[int], cores: int) -> list[list[int]]:
    """Numbers of ranks in groups that have a core for each rank; those that never have one are left out."""
    groups: list[list[int]] = []
    for size in sorted((size for size in sizes if size <= cores), reverse=True):
        if groups and sum(groups[-1]) + size <= cores:
            groups[-1].append(size)
        else:
            groups.append([size])
    return groups


def _ended(processes: list[subprocess.Popen[bytes]]) -> bool:
    """Whether all ended well."""
    try:
        return not sum(abs(each.wait(MOST_S)) for each in processes)
    except subprocess.TimeoutExpired:
        for each in processes:
            each.kill()
        return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--small", action="store_true", help="a few events: whether the script works")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        as_rank(json.loads(given.rank_of))
        return
    print(f"cores {sorted(os.sched_getaffinity(0))}", flush=True)
    with tempfile.TemporaryDirectory(prefix="freshet-ranks-") as name:
        folder = Path(name)
        src, dst, t, _ = interactions(900 if given.small else 60_000)
        lanes = [Lane(name=each, algorithm=each, parts=8) for each in ("hash", "sep")]
        store_of(folder / "events", src, dst, t * 1_000_000, interval_us=3_600_000_000, lanes=lanes)
        nodes, events = (500, 3_400) if given.small else (20_000, 510_000)
        rng = np.random.default_rng(0)
        src, dst = rng.integers(0, nodes, events), (nodes * rng.random(events) ** 2).astype(np.int64)
        lane = Lane(name="hash", algorithm="hash", parts=8, edge_life=2)
        times = np.sort(rng.integers(0, 17_000_000, events))
        store_of(folder / "graph", src, dst, times, interval_us=1_000_000, lanes=[lane])
        print_rows(TITLES, measured(folder, given.ranks))


if __name__ == "__main__":
    main()
