"""Time to a loss by kinds of batches: python benchmarks/hybrid_loss.py [--set sx] [--task …] [--model tgcn] [--seeds 0 1].

Every way begins with the same weights and learns the same horizon of 16 snapshots in the middle of a stream for as long. Weights
are kept after every pass of eight steps and evaluated afterwards, which costs no time, by their loss on the snapshot after the
horizon, of which nothing is learned. A way is there with the loss that is at most 5 % above the best that snapshot batches
came to. Node regression begins at a baseline, age-aware persistence, so there it is nine tenths of the way from it to
the best of snapshot batches. A second, farther target is the same of sizes by chance.

Ways that choose sizes go on until they have chosen ``--choices`` times, and the network must have learned by then. They judge
steps by processor time, as the table does.

One rank: seconds of the processor, of the thread that trains, so that what else the machine does is left out; in brackets
those of the whole process, threads that make batches included.
"""

import copy
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import harness
import numpy as np
import torch
from hybrid import SETS, followed, store_of

from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.dynahb import hybrid
from freshet_graph.trainer.strategies.dynahb.adjusters import ADJUSTERS, DqnAdjuster, Fixed

SIZES = {"snapshots": [0.1, 0.2, 0.3], "vertices": [0.01, 0.05, 0.1]}
FIXED = [(0.1, 0.01), (0.1, 0.05), (0.1, 0.1), (0.2, 0.05), (0.3, 0.01), (0.3, 0.1)]
"""The short sizes, the middle one and the outer ones; of the adjuster ``fixed`` the third."""
FULL, BASE, CHANCE = "full batch", "snapshot batches, 20 %", "sizes by chance"
LEARNED = "sizes by `dqn`"
POINTS = 20
"""Weights of a way that are evaluated, at most."""
LAST = 3
"""A final loss is the median of so many."""


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


WAYS: dict[str, dict[str, Any]] = {
    FULL: {"snapshots": [1.0], "vertices": [1.0]},
    BASE: {"snapshots": [0.2], "vertices": [1.0]},
    "vertex batches, 5 %": {"snapshots": [1.0], "vertices": [0.05]},
    "fixed, misses whole": {"snapshots": [0.1], "vertices": [0.1], "snapshot_mib": 1e6},
    **{f"fixed {100 * s:g} % × {100 * v:g} %": {"snapshots": [s], "vertices": [v]} for s, v in FIXED},
    CHANCE: {**SIZES, "adjuster": "chance"},
    LEARNED: {**SIZES, "adjuster": "dqn"},
}
"""Strategy parameters by name."""


def curve(
    store: Path, params: dict[str, Any], seed: int, budget_s: float, least: int, **setting: Any
) -> tuple[list[Point], dict[str, float]]:
    """Points of a way, and the baselines there.

    Args:
        store: Of the stream.
        params: Of the strategy.
        seed: Of weights and draws.
        budget_s: Seconds of training.
        least: Choices of a way that chooses sizes.
        setting: Of ``followed``.
    """
    by_chance = params.get("adjuster") == "chance"
    params = {**params, "adjuster": "fixed"} if by_chance else params
    with patch.dict(ADJUSTERS, {"fixed": Chance} if by_chance else {}):
        session, book, newest = followed(store, Ranks(), seed=seed, steps=8, **params, **setting)
    strategy, passes, epoch = session.strategy, [], 0
    harness.require(isinstance(strategy.adjuster, Chance) == by_chance, "sizes are not chosen by chance")
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
    began = time.thread_time(), time.process_time()
    passes.append((0.0, 0.0, copy.deepcopy(session.model.state_dict())))
    enough = False
    while not enough:
        strategy.learn(book.with_newest(newest), epoch)
        seconds, others = time.thread_time() - began[0], time.process_time() - began[1]
        passes.append((seconds, others, copy.deepcopy(session.model.state_dict())))
        enough = seconds >= budget_s and (not strategy.adjuster.adapts or len(choices) >= least)
        epoch += 1
    if isinstance(strategy.adjuster, DqnAdjuster):
        learns = strategy.adjuster.network.steps
        harness.require(learns > 0, "the network has not learned")
        last = Counter(choices[-100:]).most_common(2)
        sizes = [(f"{100 * s:g} % × {100 * v:g} %") for s in SIZES["snapshots"] for v in SIZES["vertices"]]
        print(
            f"{len(choices)} choices, {learns} gradient steps of the network; most of the last 100:",
            ", ".join(f"{sizes[size]} {count}" for size, count in last),
            flush=True,
        )
    manifests = list(session.lane.manifests)
    examples = harness.examples_of(
        session, [manifests[[each.tau for each in manifests].index(newest.tau) + 1]]
    )
    queries, truth = examples.part(np.arange(len(examples)))
    points, baselines = [], {}
    if len(passes) > POINTS:
        passes = [passes[at] for at in np.unique(np.geomspace(1, len(passes), POINTS).astype(int) - 1)]
    for seconds, others, weights in passes:
        session.model.load_state_dict(weights)
        (answers,) = strategy.answer(session.model, [queries])
        loss = session.task.loss(torch.from_numpy(answers), torch.from_numpy(truth), "mean")
        points.append(Point(seconds, others, float(loss)))
    if setting["task"] == "node-regression":
        known = {"persistence": 0, "age_persistence": 1}
        baselines = {name: float(((queries.known[:, at] - truth) ** 2).mean()) for name, at in known.items()}
    strategy.close()
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


def compare(store: Path, given: Any) -> None:
    """Learn by every way, and print the table."""
    ways = {name: WAYS[name] for name in ([BASE, *given.ways] if given.ways else WAYS)}
    found: dict[tuple[int, str], list[Point]] = {}
    for seed in given.seeds:
        for name, params in ways.items():
            budget = given.full_budget if name == FULL else given.budget
            setting = {"task": given.task, "model": given.model}
            points, baselines = curve(store, params, seed, budget, given.choices, **setting)
            found[seed, name] = points
            few = points[:: max(1, len(points) // 6)]
            print(seed, name, *(f"{each.seconds:.2f}:{each.loss:.4f}" for each in few), flush=True)
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
        seeds=[0], ways=[], budget=2.5, full_budget=2.5, choices=300,
    )  # fmt: skip
    torch.set_num_threads(1)
    hybrid.clock = time.thread_time
    with harness.scratch() as folder:
        compare(store_of(given.set, given.data, folder), given)


if __name__ == "__main__":
    main()
