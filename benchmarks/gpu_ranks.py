"""One, two, four and eight ranks with a core each: python benchmarks/gpu_ranks.py [--ranks 1 2 4 8] [--small].

Every strategy that trains on several ranks learns made-up snapshots; the last one is timed, after the others have compiled what
is compiled. Ranks are processes joined by gloo on this machine, and each is bound to one core; runs that fit beside each
other run at once. Events are those of all ranks together. ``--small``: a few events, to see whether the script works.
"""

import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import torch
from gpu_common import event_store, graph_store

from freshet_graph.trainer.ranks import Ranks

STRATEGIES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("vertex", "sage-linear", "hash", "events", {}),
    ("pac", "tgn-history", "sep", "events", {}),
    ("snapshot", "cdgcn", "hash", "graph", {"window": 4}),
    ("group", "wdgcn", "hash", "graph", {"horizon": 16, "strategy_params": {"groups_per_step": 8}}),
    ("hybrid", "sage-linear", "hash", "graph", {"strategy_params": {"snapshots": [0.5], "vertices": [0.25], "steps": 8}}),
]  # fmt: skip
"""Strategy, model, lane, store and more keys."""
MOST_S = 120.0
"""Of one run."""


def as_rank(store: Path, keys: dict[str, Any], cores: list[int]) -> dict[str, float]:
    """Learn in this process; what the last snapshot took."""
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"])]})
    ranks = Ranks.from_environment("cpu")
    torch.set_num_threads(1)
    batch = 200 // ranks.size if keys["strategy"] == "vertex" else 200
    session = harness.session_of(store, ranks, **{"window": 2, **keys}, optimisation={"batch_size": batch})
    for number in range(len(session.lane.manifests)):
        examples = harness.examples_of(session, [session.lane.manifests[number]])
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
    session.close()
    ranks.close()
    return took


def measured(folder: Path, sizes: list[int]) -> Iterator[list[str]]:
    """Rows of all strategies."""
    cores = sorted(os.sched_getaffinity(0))
    for strategy, model, lane, store, more in STRATEGIES:
        keys, found = {"strategy": strategy, "model": model, "lane": lane, **more}, {}
        for together in side_by_side(sizes, len(cores)):
            free, runs = iter(cores), []
            for size in together:
                own = [next(free) for _ in range(size)]
                runs.append((size, harness.start_ranks(size, as_rank, folder / store, keys, own)))
            for size, started in runs:
                try:
                    found[size] = harness.answers(started, MOST_S)[0]
                except (TimeoutError, EOFError):
                    traceback.print_exc()
                    found[size] = None
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


def side_by_side(sizes: list[int], cores: int) -> list[list[int]]:
    """Numbers of ranks in groups that have a core for each rank; those that never have one are left out."""
    groups: list[list[int]] = []
    for size in sorted((size for size in sizes if size <= cores), reverse=True):
        if groups and sum(groups[-1]) + size <= cores:
            groups[-1].append(size)
        else:
            groups.append([size])
    return groups


def main() -> None:
    given = harness.options(__doc__, quiet=True, ranks=[1, 2, 4, 8], small=False)
    print(f"cores {sorted(os.sched_getaffinity(0))}", flush=True)
    with harness.scratch() as folder:
        event_store(folder / "events", 900 if given.small else 60_000, parts=8)
        graph_store(folder / "graph", *((500, 200) if given.small else (20_000, 30_000)), 17, parts=8)
        titles = (
            "strategy, model | ranks | events/s | of one rank's | s | s waited | MiB sent | steps | left out"
        )
        harness.table(titles, measured(folder, given.ranks), keep_going=True)


if __name__ == "__main__":
    main()
