"""Schedules of snapshot groups beside brute force, the published algorithm and the bound: python benchmarks/scheduling.py.

Five tables, each by its name (``--only exact,published,speed,scale,locality``), one thread:

- *exact*: 300 drawn instances of up to ten groups and three GPUs beside the best of all schedules;
- *published*: 144 drawn instances beside DyGNeX-G (``paper``) and the lower bound;
- *speed*: 10,000 groups; ``paper`` with 300 groups, ``ilp`` with 100. Seconds of the processor, best of five;
- *scale*: 10,000 groups on up to 1,024 GPUs, linear and log-normal times; ``--figure FILE.png`` draws the linear ones, and
  leaves their figures beside it as FILE.csv;
- *locality*: snapshots moved to GPUs with and without regard to neighbouring groups, windows of 4.

DyGNeX-G takes 20 s for *scale* on 512 GPUs and longer on fewer, so it is left out unless ``--paper`` is given.
"""

import csv
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
from plain_schedules import best_epoch

from freshet_graph.trainer.strategies.dygnex.scheduling.greedy import greedy
from freshet_graph.trainer.strategies.dygnex.scheduling.ilp import ilp
from freshet_graph.trainer.strategies.dygnex.scheduling.paper import paper
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import Problem, SearchLimits, lower_bound_s
from freshet_graph.trainer.strategies.dygnex.scheduling.simulation import draw, simulate
from freshet_graph.trainer.strategies.dygnex.scheduling.solve import solve
from freshet_graph.trainer.strategies.dygnex.scheduling.workloads import made_up_times

KINDS = ("linear", "lognormal", "uniform")
ALPHAS = (0.0, 0.1, 0.5)
"""As shares of a mean group."""
COLUMNS = ("algorithm", "gpus", "efficiency", "imbalance")
"""Of the figure's data."""
GPUS = [4, 8, 16, 32, 64, 128, 256, 512, 1024]


def times_of(kind: str, groups: int, seed: int) -> np.ndarray:
    if kind == "uniform":
        return np.random.default_rng(seed).uniform(0.1, 1.0, groups)
    return made_up_times(kind, groups, seed)


def exact(given: Any) -> Iterator[list[str]]:
    above, seconds = [], []
    for seed in range(given.instances):
        rng = np.random.default_rng(seed)
        times = times_of(KINDS[seed % 3], int(rng.integers(1, 11)), seed)
        alpha = ALPHAS[int(rng.integers(3))] * float(times.mean())
        problem = Problem(times, int(rng.integers(1, 4)), 2, alpha)
        best = best_epoch(times.tolist(), problem.gpus, 2, alpha)
        above.append(greedy(problem).epoch_s / best - 1)
        began = time.perf_counter()
        solved = ilp(problem, SearchLimits())[0].epoch_s
        seconds.append(time.perf_counter() - began)
        harness.require(solved <= best * (1 + 1e-7), f"ilp is above brute force in instance {seed}")
    yield [str(len(above)), "all", f"{max(seconds):.1f}", f"{np.mean(above):.3%}", f"{max(above):.2%}"]


def published(given: Any) -> Iterator[list[str]]:
    cells = itertools.product((30, 60, 100, 200), (2, 4, 8, 16), KINDS, ALPHAS)
    gains, gaps = [], []
    for seed, (groups, gpus, kind, alpha) in enumerate(cells):
        times = times_of(kind, groups, seed)
        problem = Problem(times, gpus, 2, alpha * float(times.mean()))
        ours = greedy(problem).epoch_s
        gains.append(1 - ours / paper(problem).epoch_s)
        if groups >= max(100, 8 * gpus):
            gaps.append(ours / lower_bound_s(problem) - 1)
    shares = (f"{share:.2%}" for share in (np.mean(gains), max(gains), min(gains), np.mean(gaps), max(gaps)))
    yield [str(len(gains)), *shares, str(len(gaps))]


def speed(given: Any) -> Iterator[list[str]]:
    for algorithm in (greedy, paper):  # compiles
        algorithm(Problem(times_of("uniform", 30, 0), 4))
    for algorithm, groups, gpus in [*((greedy, 10_000, gpus) for gpus in GPUS[::2]), (paper, 300, 4)]:
        problems = [Problem(times_of(kind, groups, 0), gpus) for kind in KINDS]
        best = (
            min(harness.seconds_of(lambda p=each, a=algorithm: a(p), time.process_time) for _ in range(5))
            for each in problems
        )
        yield [algorithm.__name__, f"{groups:,}", str(gpus), *(f"{1e3 * seconds:.1f}" for seconds in best)]
    solved = [solve(Problem(times_of(kind, 100, 0), 4), "ilp") for kind in KINDS]
    yield [
        "ilp, on the wall (gap)",
        "100",
        "4",
        *(f"{1e3 * each.solve_s:.0f} ({each.gap:.2%})" for each in solved),
    ]


def scale(given: Any) -> Iterator[list[str]]:
    algorithms = ["greedy", *(["paper"] if given.paper else []), "psg-sorted", "psg"]
    for kind in ("linear", "lognormal"):
        points = simulate(made_up_times(kind, 10_000, 0), GPUS, algorithms, 0.0, SearchLimits())
        for algorithm in algorithms:
            own = [point for point in points if point["algorithm"] == algorithm]
            solve_ms = 1e3 * median(point["solve_s"] for point in own)
            cells = (f"{100 * p['efficiency']:.2f} ({p['imbalance']:.2f})" for p in own)
            yield [kind, algorithm, *cells, f"{solve_ms:.0f}"]
        if given.figure and kind == "linear":
            with given.figure.with_suffix(".csv").open("w", newline="") as file:
                csv.writer(file).writerows(
                    [COLUMNS, *([point[column] for column in COLUMNS] for point in points)]
                )
            draw_from(given.figure.with_suffix(".csv"), given.figure)


def draw_from(data: Path, picture: Path) -> None:
    """Draw the linear times of *scale* from their CSV."""
    with data.open(newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = {"algorithm": str, "gpus": int, "efficiency": float, "imbalance": float}
    points = [{column: kind(row[column]) for column, kind in kinds.items()} for row in rows]
    draw(points, "10,000 snapshot groups, linear times", picture)


def locality(given: Any) -> Iterator[list[str]]:
    for kind, gpus in itertools.product(KINDS, (2, 4, 8)):
        shares, longer, seconds = [], [], []
        for seed in range(20):
            problem = Problem(times_of(kind, 64, seed), gpus)
            solved = solve(problem, "greedy", window=4)
            shares.append(solved.moves[0] / solved.moves[1])
            longer.append(solved.schedule.epoch_s / greedy(problem).epoch_s - 1)
            seconds.append(solved.solve_s)
        worst = f"{max(shares):.2f}", f"{max(longer):+.2%}"
        yield [kind, str(gpus), f"{median(shares):.2f}", *worst, f"{median(seconds):.2f}"]


GAPS = "gap where n ≥ 8 G and n ≥ 100, mean | most | of them"
TABLES = {
    "exact": (exact, "instances | ilp equals brute force | its s, at most | greedy above, mean | worst"),
    "published": (published, f"instances | greedy shorter than paper, mean | best | worst | {GAPS}"),
    "speed": (speed, f"algorithm | groups | GPUs | {' | '.join(f'ms, {kind}' for kind in KINDS)}"),
    "scale": (
        scale,
        f"10,000 groups | efficiency % (imbalance) on GPUs: | {' | '.join(map(str, GPUS))} | solve, ms",
    ),
    "locality": (
        locality,
        "64 groups | GPUs | moves of those without regard: median | worst | epoch, at most | s",
    ),
}


def main() -> None:
    given = harness.options(__doc__, only=",".join(TABLES), instances=300, paper=False, figure={"type": Path})
    harness.tables(TABLES, given.only.split(","), given)


if __name__ == "__main__":
    main()
