"""An epoch on two ranks by ``snapshot`` and ``vertex``, beside one rank: python benchmarks/snapshot_ranks.py [--data DIR].

A real stream is followed through a horizon of snapshots, the last of which is then learned again and again from those
before. An epoch is all that ``learn`` does. Ranks are processes joined by gloo, with one thread each. All ways take turns,
epoch by epoch, ``whole`` and one rank's ``snapshot`` on the first rank while the others wait: so what else the machine does
is shared. Medians of seconds on the wall; in brackets the seconds of the first rank's processor, and what it waited in
collectives.

With --blocks another table: one rank by ``snapshot`` in a given number of blocks, and what ``auto`` chooses with a budget
of a part of what one block needs, beside the fastest of the numbers that fit. Medians of seconds of the processor.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
import torch
from harness import DAY_US

from trainer.ranks import Ranks

SETS = {"sx, weekly": ("sx_mathoverflow", 7 * DAY_US), "collegemsg, daily": ("collegemsg", DAY_US)}
EDGE_LIFE = 10
MODELS = ["cdgcn", "tgcn", "tmgcn", "evolvegcn-o", "sage-linear"]
PARAMS: dict[str, dict[str, Any]] = {"sage-linear": {"hidden": 64, "fanouts": [None, None]}}
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
    store: Path, model: str, strategy: str, params: Any, ranks: Ranks, snapshots: int, **more: Any
) -> Any:
    """A session, and the training examples of the lane's newest snapshot."""
    keys = {
        "lane": "hash",
        "model": model,
        "model_params": PARAMS.get(model, {}),
        "strategy": strategy,
        "window": snapshots,
    }
    optimisation = {"batch_size": 1 << 20}
    session = harness.session_of(
        store, ranks, **keys | more, strategy_params=params, optimisation=optimisation
    )
    return session, harness.examples_of(session, list(session.lane.manifests)[-snapshots - 1 :])


def epoch_of(name: str, store: Path, model: str, ranks: Ranks, horizon: int) -> Callable[[int], Any] | None:
    """A pass over the newest snapshot; on other ranks than the first those of one rank do nothing. None: no such pass."""
    strategy, params = WAYS[name]
    alone = name.endswith("one rank")
    if strategy == "vertex" and model != "sage-linear":
        return None
    if alone and ranks.rank:
        return lambda epoch: None
    session, examples = follow(
        store, model, strategy, params, Ranks(device="cpu") if alone else ranks, horizon
    )
    return lambda epoch: session.strategy.learn([examples], epoch)


def epochs(given: Any) -> None:
    """Print the rows of a table, on the first rank."""
    ranks, rows = Ranks.from_environment("cpu"), []
    for model in given.models:
        ways = {name: epoch_of(name, given.store, model, ranks, given.horizon) for name in given.ways}
        took: dict[str, list[list[float]]] = {name: [] for name, learn in ways.items() if learn}
        for epoch in range(given.repeat + 1):  # the first compiles and sends the horizon
            for name, found in took.items():
                ranks.total([0.0])
                began = time.perf_counter(), time.process_time(), ranks.traffic.wait_s
                ways[name](epoch)  # type: ignore[misc]
                now = time.perf_counter(), time.process_time(), ranks.traffic.wait_s
                found.append([after - before for before, after in zip(began, now, strict=True)])
        row = [f"`{model}`"]
        for name in given.ways:
            columns = zip(*took.get(name, [])[1:], strict=True)
            cells = [f"{median(column):.2f}" for column in columns]
            shape = "–" if not cells else "{} ({})" if name.endswith("one rank") else "{} ({}; {})"
            row.append(shape.format(*cells))
        rows.append(row)
    if not ranks.rank:
        harness.table("an epoch, s (processor; waiting) | " + " | ".join(given.ways), rows)
    ranks.close()


def blocks(given: Any) -> Iterator[list[str]]:
    """Rows: seconds of an epoch by number of blocks, and how far ``auto`` is from the fastest that fits, by its budget."""
    for model in given.models:
        horizon = given.horizon
        session, examples = follow(
            given.store, model, "snapshot", {"blocks": "auto"}, Ranks(), horizon, window=WINDOW, horizon=horizon
        )  # fmt: skip
        strategy: Any = session.strategy
        strategy.learn([examples], 0)  # measures
        measured = strategy.budget.measured[horizon]
        need = {n: -(-horizon // n) * measured.saved + (n - 1) * measured.carried for n in NUMBERS}

        def learn(number: int, strategy: Any = strategy, examples: Any = examples) -> None:
            strategy.number_of_blocks = number
            strategy.learn([examples], 0)

        ways = {str(number): lambda n=number: learn(n) for number in NUMBERS}
        seconds = harness.medians(harness.in_turns(ways, given.repeat))
        strategy.number_of_blocks, cells = "auto", []
        for share in BUDGETS:
            budget = strategy.budget.bytes = int(share * need[1])
            if min(need.values()) > budget:
                cells.append("–")
                continue
            layout = strategy.timeline.before_newest(examples.part(np.arange(1))[0].ends[0][:0])
            chosen = len(strategy.blocks(session.model, layout, last=True).ranges)
            fastest = min(seconds[str(number)] for number in NUMBERS if need[number] <= budget)
            nearest = min(NUMBERS, key=lambda number: abs(number - chosen))
            cells.append(f"{chosen}: {seconds[str(nearest)] / fastest:.2f}")
        yield [f"`{model}`", *(f"{each:.3f}" for each in seconds.values()), *cells]


def main() -> None:
    given = harness.options(
        __doc__, data=harness.DATA, set={"choices": list(SETS), "default": "sx, weekly"}, models=MODELS, horizon=16,
        ways=list(WAYS), repeat=7, ranks=2, blocks=False, store={"type": Path, "help": "made before, as for ranks"},
    )  # fmt: skip
    torch.set_num_threads(1)
    if harness.is_rank():
        epochs(given)
        return
    harness.begin()
    with harness.scratch() as folder:
        stem, interval_us = SETS[given.set]
        lanes = harness.lanes("hash", parts=given.ranks, edge_life=EDGE_LIFE)
        given.store = harness.built(
            folder / "store", harness.existing(given.data / f"{stem}.parquet"), interval_us, lanes
        )
        if given.blocks:
            titles = [*map(str, NUMBERS), *(f"auto, {share:g} of the memory" for share in BUDGETS)]
            harness.table("an epoch in blocks, s | " + " | ".join(titles), blocks(given))
        else:
            harness.on_ranks(given.ranks, __file__, *sys.argv[1:], "--store", given.store)


if __name__ == "__main__":
    main()
