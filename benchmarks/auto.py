"""Predicted seconds of a pass beside measured ones, and what choosing by them costs: python benchmarks/auto.py [SET …].

A cell is a set, a model and a number of ranks P. Each strategy that ``strategy: auto`` may choose follows a real stream. A
pass is measured on the first snapshot with a full window, as a run does before it chooses, and a pass over the last one is
predicted, which is measured then. Seconds are those of the processor and of a link that takes 100 µs for a collective and
1 Gb/s. A measurement is the median of passes after one that is not counted: of three, as in a run, and of five for the pass
that was predicted. Up to two ranks are processes joined by gloo, whose collectives and bytes are counted. More ranks are
threads that work by turns over a simulated link: its clock counts each rank's processor, waits for the slowest rank in every
collective, and adds the link's seconds.

The error is |predicted / measured − 1|. *By one rank's passes* is the same with those of P = 1, if P = 1 is measured. Regret
is how much longer the chosen strategy takes than the fastest. Options: ``--models``, ``--ranks``, ``--events`` of a snapshot,
``--snapshots``.
"""

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import harness
import torch

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.decode.files import read_events
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.measurement import TRIALS, load_of, setup_of
from freshet_graph.trainer.session.session import join_ranks
from freshet_graph.trainer.strategies.cost_model import Chooser, Load, Passes, Setup, cost, volume
from freshet_graph.trainer.validation import candidates

ALPHA_S, BETA_S = 1e-4, 8e-9
SETS = ["bitcoin_otc", "collegemsg", "email_eu"]
WINDOW, PARTS, EDGE_LIFE = 4, 64, 4
BEFORE = 4
"""Snapshots before the one that rates are measured on: the horizon is full then."""
TIMES = 5


@dataclass(frozen=True)
class Pass:
    """A pass on one rank: seconds of its processor, and all seconds; and what was known before."""

    compute_s: float
    seconds: float
    setup: Setup
    load: Load


def keys_of(model: str, strategy: str) -> dict[str, Any]:
    params = {"hidden": 32, "heads": 4, "temporal_heads": 4} if model == "dysat" else {"hidden": 32}
    return {"lane": "hash", "model": model, "model_params": params, "strategy": strategy, "window": WINDOW}


def counted(ranks: Ranks, one_pass: Callable[[], object]) -> tuple[float, float]:
    """Seconds of this process's processor, and these with those of the collectives and bytes that are counted."""
    before, began = ranks.traffic.copy(), time.process_time()
    one_pass()
    compute_s, traffic = time.process_time() - began, ranks.traffic.since(before)
    link_s = ALPHA_S * sum(traffic.begun.values()) + BETA_S * sum(traffic.sent_bytes.values())
    return compute_s, compute_s + link_s


def simulated(ranks: Any, one_pass: Callable[[], object]) -> tuple[float, float]:
    """Seconds of computing, and all seconds, by the clock of the simulated link."""
    ranks.any(False)  # all begin at once
    before, began_s = ranks.traffic.copy(), ranks.now_s
    one_pass()
    seconds = ranks.now_s - began_s
    return seconds - ranks.traffic.since(before).wait_s, seconds


def passes(store: Path, model: str, strategy: str, ranks: Ranks, measured_pass: Any) -> list[Pass]:
    """A pass over snapshot number ``BEFORE``, and one over the last."""
    session = harness.session_of(store, ranks, **keys_of(model, strategy))
    setup = replace(setup_of(session), alpha_s=ALPHA_S, beta_s=BETA_S)
    measured, manifests = [], list(session.lane.manifests)
    for manifest in manifests:
        examples = harness.examples_of(session, [manifest])
        if manifest.sequence not in (BEFORE, len(manifests) - 1):
            continue
        load, times = load_of(session, manifest), TRIALS if manifest.sequence == BEFORE else TIMES
        of_pass = [
            measured_pass(ranks, partial(session.strategy.learn, [examples], epoch))
            for epoch in range(1 + times)
        ][1:]
        compute_s, seconds = (statistics.median(one) for one in zip(*of_pass, strict=True))
        measured.append(Pass(compute_s, seconds, setup, load))
    session.close()
    return measured


def on_real_ranks(cells: list[tuple[Path, str, str]]) -> list[list[Pass]]:
    """One of several processes."""
    torch.set_num_threads(1)
    ranks = join_ranks(TrainerConfig(device="cpu", threads=1))
    try:
        return [passes(*cell, ranks, counted) for cell in cells]
    finally:
        ranks.close()


def of_all_ranks(size: int, cells: list[tuple[Path, str, str]]) -> list[list[list[Pass]]]:
    """For each cell and snapshot the passes of all ranks."""
    from thread_ranks import FakeLink, side_by_side

    if size <= 2:
        by_rank = harness.on_ranks(size, on_real_ranks, cells)
    else:
        by_rank = side_by_side(
            size,
            lambda ranks: [passes(*cell, ranks, simulated) for cell in cells],
            FakeLink(ALPHA_S, 1 / BETA_S),
            worked_s=time.thread_time,
            turn=threading.Lock(),
        )
    return [list(zip(*(of_rank[number] for of_rank in by_rank), strict=True)) for number in range(len(cells))]


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
            compute_s = max(one.compute_s for one in first)
            known.add(each, compute_s, volume(each, first[0].setup, first[0].load).work)
            setup, load = last[0].setup, last[0].load
            real[each] = max(one.seconds for one in last)
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
        f"mean {statistics.fmean(regrets):.1%}, most {max(regrets):.0%}, above 10 % in {sum(one > 0.1 for one in regrets)}",
    ]  # fmt: skip


def main() -> None:
    given = harness.options(
        __doc__, {"sets": SETS}, data=harness.DATA, models=["sage-linear", "dysat"], ranks=[1, 2, 4, 16, 64], events=1000,
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
