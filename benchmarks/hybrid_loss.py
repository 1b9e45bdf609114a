"""Time to a loss by kinds of batches: python benchmarks/hybrid_loss.py [--set sx] [--task …] [--model tgcn] [--seeds 0 1].

Every way begins with the same weights and learns the same horizon of 16 snapshots in the middle of a stream for as long. Weights
are kept after every pass of eight steps and evaluated afterwards, which costs no time, by their loss on the snapshot after the
horizon, of which nothing is learned. A way is there with the loss that is at most 5 % above the best that snapshot batches
came to. Node regression begins at a baseline, age-aware persistence, so there it is nine tenths of the way from it to
the best of snapshot batches. A second, farther target is the same of sizes by chance.

Ways that choose sizes go on until they have chosen ``--choices`` times, and the network must have learned by then. They judge
steps by processor time, as the table does. ``dqn`` judges by the training loss, as in the paper. A variant judges by the loss
of questions of the newest snapshot that are held out of training, which it pays for.

One rank: seconds of the processor, of the thread that trains, so that what else the machine does is left out; in brackets
those of the whole process, threads that make batches included.
With --ranks 2: processes joined by gloo, with ways that differ in one thing; seconds on the wall, in brackets those of the
first rank's processor.
"""

import copy
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import harness
import numpy as np
import torch
from hybrid import SETS, followed, store_of

from trainer.ranks import Ranks
from trainer.strategies.dynahb import hybrid
from trainer.strategies.dynahb.adjusters import ADJUSTERS, DqnAdjuster, Fixed, Outcome
from trainer.tasks.interface import SnapshotExamples

SIZES = {"snapshots": [0.1, 0.2, 0.3], "vertices": [0.01, 0.05, 0.1]}
FIXED = [(0.1, 0.01), (0.1, 0.05), (0.1, 0.1), (0.2, 0.05), (0.3, 0.01), (0.3, 0.1)]
"""The short sizes, the middle one and the outer ones; of the adjuster ``fixed`` the third."""
FULL, BASE, CHANCE = "full batch", "snapshot batches, 20 %", "sizes by chance"
LEARNED, HELD_OUT = "sizes by `dqn`", "sizes by `dqn`, held-out loss"
HELD_OUT_SHARE, MOST_HELD_OUT = 10, 512
"""One of so many questions of the newest snapshot is held out, and never more than so many."""
POINTS = 20
"""Weights of a way that are evaluated, at most."""
LAST = 3
"""A final loss is the median of so many."""

Ways = dict[str, dict[str, Any]]


class Point(NamedTuple):
    """Seconds of training so far, by two clocks, and the loss then."""

    seconds: float
    others: float
    loss: float


class Chance(Fixed):
    """After every step any size, each equally likely: the baseline of the paper's table 10."""

    adapts: ClassVar[bool] = True
    epsilon = 1.0

    def __init__(self, sizes: list[tuple[float, float]], seed: int) -> None:
        self._sizes, self._draws = len(sizes), np.random.default_rng([seed, 1])

    def choose(self) -> int:
        return int(self._draws.integers(self._sizes))


class HeldOutDqn(DqnAdjuster):
    """Judges a step by the loss of held-out questions after it.

    Attributes:
        held_out_loss: Their mean loss now.
    """

    held_out_loss: Callable[[], float]

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome._replace(loss=self.held_out_loss()))


OWN = {"chance": ("fixed", Chance), "dqn-held-out": ("dqn", HeldOutDqn)}
"""Adjusters of this benchmark, each in place of one that the strategy has."""


def hold_out(session: Any, newest: SnapshotExamples, seed: int) -> Callable[[], float]:
    """Hold out questions of the newest snapshot; returns their mean loss, after the window before that snapshot."""
    strategy, own = session.strategy, session.strategy.local_items
    items, draw = own(newest), np.random.default_rng([seed, 4])
    held = np.sort(draw.choice(items, min(len(items) // HELD_OUT_SHARE, MOST_HELD_OUT), replace=False))
    strategy.local_items = lambda examples: (
        np.setdiff1d(own(examples), held) if examples is newest else own(examples)
    )
    taus = strategy.maker.taus[:-1][-session.model.window :]
    batch = strategy.maker.batch(taus, [(len(taus) - 1, *newest.part(held))])

    def held_out_loss() -> float:
        session.model.eval()
        with torch.no_grad():
            loss = float(strategy.loss(batch)) / batch.queries
        session.model.train()
        return loss

    return held_out_loss


def ways_of_one() -> Ways:
    """Strategy parameters by name."""
    found: Ways = {
        FULL: {"snapshots": [1.0], "vertices": [1.0]},
        BASE: {"snapshots": [0.2], "vertices": [1.0]},
        "vertex batches, 5 %": {"snapshots": [1.0], "vertices": [0.05]},
    }
    for s, v in FIXED:
        found[f"fixed {100 * s:g} % × {100 * v:g} %"] = {"snapshots": [s], "vertices": [v]}
    adjusters = {CHANCE: "chance", LEARNED: "dqn", HELD_OUT: "dqn-held-out"}
    return found | {name: {**SIZES, "adjuster": adjuster} for name, adjuster in adjusters.items()}


def ways_of_ranks() -> Ways:
    """The same on several ranks; each but the first differs from ``delayed`` in one thing."""
    delayed = {**SIZES, "average": "delayed"}
    return {
        BASE: {"snapshots": [0.2], "vertices": [1.0], "average": "every_steps", "every_steps": 1},
        "`delayed`": delayed,
        "`every_steps`": {**delayed, "average": "every_steps"},
        "`every_s`": {**delayed, "average": "every_s", "every_s": 0.1},
        "an average after every step": {**delayed, "average": "every_steps", "every_steps": 1},
        "lane `hash`": {**delayed, "lane": "hash"},
        LEARNED: {**delayed, "adjuster": "dqn"},
        CHANCE: {**delayed, "adjuster": "chance"},
        "no reservoir": {**delayed, "reservoir_mib": 0.001},
    }


def curve(
    store: Path, ranks: Ranks, params: dict[str, Any], seed: int, budget_s: float, least: int, **setting: Any
) -> tuple[list[Point], dict[str, float]]:
    """Points of a way, and the baselines there; on other ranks than the first none.

    Args:
        store: Of the stream.
        ranks: All ranks.
        params: Of the strategy.
        seed: Of weights and draws.
        budget_s: Seconds of training.
        least: Choices of a way that chooses sizes.
        setting: Of ``followed``.
    """
    name, own = OWN.get(params.get("adjuster", ""), ("", None))
    params = {**params, "adjuster": name} if own else params
    with patch.dict(ADJUSTERS, {name: own} if own else {}):
        session, book, newest = followed(store, ranks, seed=seed, steps=8, **params, **setting)
    harness.require(own is None or isinstance(session.strategy.adjuster, own), f"{own} does not choose")
    strategy, passes, epoch = session.strategy, [], 0
    if isinstance(strategy.adjuster, HeldOutDqn):
        strategy.adjuster.held_out_loss = hold_out(session, newest, seed)
    begun = copy.deepcopy(strategy.state())
    strategy.learn(book.with_newest(newest), 1 << 20)  # compiles; what it learns is forgotten
    strategy.restore(begun)
    session.model.load_state_dict(session.untrained.state_dict())
    strategy.learner.rate.optimiser.state.clear()
    strategy.rewind()
    choices, choose = list[int](), strategy.adjuster.choose

    def counted() -> int:
        choices.append(choose())
        return choices[-1]

    strategy.adjuster.choose = counted
    clock = time.perf_counter if ranks.size > 1 else time.thread_time
    began = clock(), time.process_time()
    passes.append((0.0, 0.0, copy.deepcopy(session.model.state_dict())))
    enough = False
    while not enough:
        strategy.learn(book.with_newest(newest), epoch)
        seconds, others = clock() - began[0], time.process_time() - began[1]
        passes.append((seconds, others, copy.deepcopy(session.model.state_dict())))
        chosen_enough = not strategy.adjuster.adapts or len(choices) >= least
        enough, epoch = ranks.any(seconds >= budget_s and chosen_enough)[0], epoch + 1
    if isinstance(strategy.adjuster, DqnAdjuster):
        learns = strategy.adjuster.network.steps
        harness.require(learns > 0, "the network has not learned")
        last = Counter(choices[-100:]).most_common(2)
        sizes = [(f"{100 * s:g} % × {100 * v:g} %") for s in SIZES["snapshots"] for v in SIZES["vertices"]]
        if not ranks.rank:
            print(
                f"{len(choices)} choices, {learns} gradient steps of the network; most of the last 100:",
                ", ".join(f"{sizes[size]} {count}" for size, count in last),
                flush=True,
            )
    manifests = list(session.lane.manifests)
    examples = harness.examples_of(
        session, [manifests[[each.tau for each in manifests].index(newest.tau) + 1]]
    )
    points, baselines = [], {}
    if not ranks.rank:
        queries, truth = examples.part(np.arange(len(examples)))
        if len(passes) > POINTS:
            passes = [passes[at] for at in np.unique(np.geomspace(1, len(passes), POINTS).astype(int) - 1)]
        for seconds, others, weights in passes:
            session.model.load_state_dict(weights)
            (answers,) = strategy.answer(session.model, [queries])
            loss = session.task.loss(torch.from_numpy(answers), torch.from_numpy(truth), "mean")
            points.append(Point(seconds, others, float(loss)))
        if setting["task"] == "node-regression":
            known = {"persistence": 0, "age_persistence": 1}
            baselines = {
                name: float(((queries.known[:, at] - truth) ** 2).mean()) for name, at in known.items()
            }
    strategy.close()
    ranks.total([0.0])
    return points, baselines


def reached(points: list[Point], loss: float) -> tuple[float, float]:
    """Seconds by both clocks."""
    return next(((each.seconds, each.others) for each in points if each.loss <= loss), (float("inf"),) * 2)


def median_s(times: list[tuple[float, float]]) -> str:
    middle, others = (statistics.median(each) for each in zip(*times, strict=True))
    if not np.isfinite(middle):
        return "not reached" + (f" ({sum(np.isfinite(s) for s, _ in times)} of {len(times)} did)")
    missed = sum(not np.isfinite(s) for s, _ in times)
    return f"{middle:.2f} ({others:.2f})" + (f", {missed} of {len(times)} did not" if missed else "")


def compare(store: Path, given: Any, ranks: Ranks) -> None:
    """Print the table, on the first rank."""
    ways = ways_of_one() if ranks.size == 1 else ways_of_ranks()
    ways = {name: ways[name] for name in ([BASE, *given.ways] if given.ways else ways)}
    found: dict[tuple[int, str], list[Point]] = {}
    for seed in given.seeds:
        for name, params in ways.items():
            budget = given.full_budget if name == FULL else given.budget
            setting = {"task": given.task, "model": given.model}
            points, baselines = curve(store, ranks, params, seed, budget, given.choices, **setting)
            found[seed, name] = points
            if not ranks.rank:
                few = points[:: max(1, len(points) // 6)]
                print(seed, name, *(f"{each.seconds:.2f}:{each.loss:.4f}" for each in few), flush=True)
    if not ranks.rank:
        report(found, baselines, given)


def report(found: dict[tuple[int, str], list[Point]], baselines: dict[str, float], given: Any) -> None:
    """Print the table of all seeds."""
    seeds, names = given.seeds, dict.fromkeys(name for _, name in found)
    curves = {name: [found[seed, name] for seed in seeds] for name in names}
    baseline = baselines.get("age_persistence")

    def target_of(points: list[Point]) -> float:
        best = min(each.loss for each in points)
        return 1.05 * best if baseline is None else baseline - 0.9 * max(baseline - best, 0.01 * baseline)

    targets = [[target_of(points) for points in curves[name]] for name in (BASE, CHANCE) if name in curves]
    rows = []
    for name, of_seeds in curves.items():
        cells = [name]
        for losses in targets:
            times = [reached(points, loss) for points, loss in zip(of_seeds, losses, strict=True)]
            cells += [median_s(times), " ".join(f"{seconds:.2f}" for seconds, _ in times)]
        best = statistics.median(min(each.loss for each in points) for points in of_seeds)
        final = statistics.median(
            statistics.median(each.loss for each in points[-LAST:]) for points in of_seeds
        )
        rows.append([*cells, f"{best:.5f}", f"{final:.5f}"])
    print(
        f"\n{given.set}, {given.task}, `{given.model}`, {len(seeds)} seeds; baselines:", baselines or "none"
    )
    for about, losses in zip(("snapshot batches", "chance"), targets, strict=False):
        print(f"loss to reach, of {about}:", " ".join(f"{loss:.5f}" for loss in losses))
    also = " | s to that of chance | by seed" if CHANCE in curves else ""
    harness.table(
        f"batches | s to the loss of snapshot batches | by seed{also} | best loss | final loss", rows
    )


def main() -> None:
    tasks = {"default": "link-prediction", "choices": ["link-prediction", "node-regression"]}
    given = harness.options(
        __doc__, data=harness.DATA, set={"default": "sx", "choices": ["slashdot", *SETS]}, task=tasks, model="tgcn",
        seeds=[0], ways=[], budget=2.5, full_budget=2.5, choices=300, ranks=1,
        store={"type": Path, "help": "made before, as for ranks"},
    )  # fmt: skip
    torch.set_num_threads(1)
    hybrid.clock = time.thread_time
    if harness.is_rank():
        compare(given.store, given, Ranks.from_environment("cpu"))
        return
    harness.begin()
    with harness.scratch() as folder:
        store = store_of(given.set, given.data, folder)
        if given.ranks == 1:
            compare(store, given, Ranks())
        else:
            harness.on_ranks(given.ranks, __file__, *sys.argv[1:], "--store", store)


if __name__ == "__main__":
    main()
