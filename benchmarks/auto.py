"""Predicted seconds of a pass beside measured ones, and what choosing by them costs: python benchmarks/auto.py [SET …].

A cell is a set, a model and a number of ranks P. Each strategy that ``strategy: auto`` may choose follows a real stream. A
pass is measured on the first snapshot with a full window, as a run does before it chooses, and a pass over the last one is
predicted, which is measured then. Seconds are those of the busiest rank's processor, and the link's: its collectives and bytes
are counted and take 100 µs each and 1 Gb/s. A measurement is the median of three passes after one that is not counted. Two
ranks are processes joined by gloo, more ranks are threads.

The error is |predicted / measured − 1|. *By one rank's passes* is the same with those of P = 1, if P = 1 is measured. Regret
is how much longer the chosen strategy takes than the fastest. Options: ``--models``, ``--ranks``, ``--events`` of a snapshot,
``--snapshots``.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
import torch

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.decode.files import read_events
from freshet_graph.trainer.continual.auto import load_of, setup_of
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import join_ranks
from freshet_graph.trainer.strategies.cost_model import Chooser, Load, Passes, Setup, cost, volume
from freshet_graph.trainer.validation import candidates

ALPHA_S, BETA_S = 1e-4, 8e-9
SETS = ["bitcoin_otc", "collegemsg", "email_eu"]
WINDOW, PARTS, EDGE_LIFE = 4, 16, 4
BEFORE = 4
"""Snapshots before the one that rates are measured on: the horizon is full then."""
TIMES = 3


@dataclass(frozen=True)
class Pass:
    """A pass on one rank: seconds of its processor, and of its part of the link; and what was known before."""

    compute_s: float
    link_s: float
    setup: Setup
    load: Load


def keys_of(model: str, strategy: str) -> dict[str, Any]:
    params = {"hidden": 32, "heads": 4, "temporal_heads": 4} if model == "dysat" else {"hidden": 32}
    return {"lane": "hash", "model": model, "model_params": params, "strategy": strategy, "window": WINDOW}


def passes(store: Path, model: str, strategy: str, ranks: Ranks, clock: Callable[[], float]) -> list[Pass]:
    """A pass over snapshot number ``BEFORE``, and one over the last."""
    session = harness.session_of(store, ranks, **keys_of(model, strategy))
    setup = replace(setup_of(session), alpha_s=ALPHA_S, beta_s=BETA_S)
    measured, manifests = [], list(session.lane.manifests)
    for manifest in manifests:
        examples = harness.examples_of(session, [manifest])
        if manifest.sequence not in (BEFORE, len(manifests) - 1):
            continue
        load, seconds = load_of(session, manifest), []
        for epoch in range(1 + TIMES):
            before, began = ranks.traffic.copy(), clock()
            session.strategy.learn([examples], epoch)
            seconds.append(clock() - began)
        traffic = ranks.traffic.since(before)
        link_s = ALPHA_S * sum(traffic.begun.values()) + BETA_S * sum(traffic.sent_bytes.values())
        measured.append(Pass(statistics.median(seconds[1:]), link_s, setup, load))
    session.close()
    return measured


def on_real_ranks(cells: list[tuple[Path, str, str]]) -> list[list[Pass]]:
    """One of several processes."""
    torch.set_num_threads(1)
    ranks = join_ranks(TrainerConfig(device="cpu", threads=1))
    try:
        return [passes(*cell, ranks, time.process_time) for cell in cells]
    finally:
        ranks.close()


def of_all_ranks(size: int, cells: list[tuple[Path, str, str]]) -> list[list[list[Pass]]]:
    """For each cell and snapshot the passes of all ranks."""
    from thread_ranks import side_by_side

    if size == 2:
        by_rank = harness.on_ranks(2, on_real_ranks, cells)
    else:

        def work(ranks: Ranks) -> list[list[Pass]]:
            return [passes(*cell, ranks, time.thread_time) for cell in cells]

        by_rank = [work(Ranks())] if size == 1 else side_by_side(size, work)
    return [list(zip(*(of_rank[number] for of_rank in by_rank), strict=True)) for number in range(len(cells))]


def busiest(of_ranks: Any) -> tuple[float, float]:
    """Seconds of the slowest processor, and of the busiest rank's link."""
    return max(one.compute_s for one in of_ranks), max(one.link_s for one in of_ranks)


def rows(stores: dict[str, Path], given: Any) -> Iterator[list[str]]:
    errors: list[float] = []
    by_one: list[float] = []
    regrets: list[float] = []
    known_of_one: dict[tuple[str, str], Passes] = {}
    for size, (name, store), model in itertools.product(given.ranks, stores.items(), given.models):
        names = candidates(TrainerConfig(**keys_of(model, "auto")), size)
        names = [each for each in names if size > 1 or each != "snapshot"]  # which is whole there
        measured = dict(zip(names, of_all_ranks(size, [(store, model, each) for each in names]), strict=True))
        known, cells, predicted, real = Passes(), [], {}, {}
        if size == 1:
            known_of_one[name, model] = known
        for each, (first, last) in measured.items():
            known.add(each, busiest(first)[0], volume(each, first[0].setup, first[0].load).work)
            setup, load, real[each] = last[0].setup, last[0].load, sum(busiest(last))
            predicted[each] = cost(each, setup, load, known)
            errors.append(abs(predicted[each].seconds / real[each] - 1))
            cells.append(f"`{each}` {predicted[each].seconds:.3f} / {real[each]:.3f} ({errors[-1]:.0%})")
            one = known_of_one.get((name, model), Passes())
            if size > 1 and one.knows(each):
                by_one.append(abs(cost(each, setup, load, one).seconds / real[each] - 1))
        chooser = Chooser(names)
        chooser.see(predicted)
        regrets.append(real[chooser.current] / min(real.values()) - 1)
        yield [name, f"`{model}`", str(size), "; ".join(cells), f"`{chooser.current}`", f"{regrets[-1]:.0%}"]
    theirs = f", by one rank's passes {statistics.median(by_one):.0%}" if by_one else ""
    yield [
        f"{len(regrets)} cells", "", "", f"median error {statistics.median(errors):.0%}{theirs}", "",
        f"mean {statistics.fmean(regrets):.1%}, most {max(regrets):.0%}",
    ]  # fmt: skip


def main() -> None:
    given = harness.options(
        __doc__, {"sets": SETS}, data=harness.DATA, models=["sage-linear", "dysat"], ranks=[1, 2, 4, 16], events=1000,
        snapshots=9,
    )  # fmt: skip
    torch.set_num_threads(1)
    with harness.scratch() as folder:
        stores = {}
        for name in harness.chosen(given.sets, SETS):
            events = read_events(harness.existing(given.data / f"{name}.parquet"))
            events = replace(
                events, events=events.events.sort_by("t").slice(0, given.events * given.snapshots)
            )
            evened, interval_us = harness.evened(events, given.events)
            lanes = harness.lanes("hash", parts=PARTS, edge_life=EDGE_LIFE)
            stores[name] = harness.built(folder / name, evened, interval_us, lanes)
        titles = "set | model | P | seconds of a pass, predicted / measured (error) | chosen | regret"
        harness.table(titles, rows(stores, given))


if __name__ == "__main__":
    main()
