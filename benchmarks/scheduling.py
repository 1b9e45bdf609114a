"""Schedules of snapshot groups beside brute force, the published algorithm and the bound: python benchmarks/scheduling.py.

Five tables, each by its name (``--only exact,published,speed,scale,locality``), one thread:

- *exact*: 300 drawn instances of up to ten groups and three GPUs beside the best of all schedules;
- *published*: 144 drawn instances beside DyGNeX-G (``paper``) and the lower bound;
- *speed*: 10,000 groups; ``paper`` with 300 groups, ``ilp`` with 100. Seconds of the processor, best of five;
- *scale*: 10,000 groups on up to 1,024 GPUs, linear and log-normal times; ``--figure FILE.png`` draws the linear ones, and
  leaves their figures beside it as FILE.csv;
- *locality*: snapshots moved to GPUs with and without regard to neighbouring groups, windows of 4.

DyGNeX-G takes an hour or so for each point of *scale*, so it is left out unless ``--paper`` is given.
"""

import argparse
import csv
import itertools
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from trainer.strategies.dygnex.scheduling.greedy import greedy
from trainer.strategies.dygnex.scheduling.ilp import ilp
from trainer.strategies.dygnex.scheduling.paper import paper
from trainer.strategies.dygnex.scheduling.schedule import Problem, SearchLimits, lower_bound_s
from trainer.strategies.dygnex.scheduling.simulation import draw, simulate
from trainer.strategies.dygnex.scheduling.solve import solve
from trainer.strategies.dygnex.scheduling.workloads import made_up_times

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from plain_schedules import best_epoch

KINDS = ("linear", "lognormal", "uniform")
ALPHAS = (0.0, 0.1, 0.5)
"""As shares of a mean group."""
COLUMNS = ("algorithm", "gpus", "efficiency", "imbalance")
"""Of the figure's data."""


def times_of(kind: str, groups: int, seed: int) -> np.ndarray:
    if kind == "uniform":
        return np.random.default_rng(seed).uniform(0.1, 1.0, groups)
    return made_up_times(kind, groups, seed)


def exact(instances: int) -> None:
    above, equal, seconds = [], 0, []
    for seed in range(instances):
        rng = np.random.default_rng(seed)
        times = times_of(KINDS[seed % 3], int(rng.integers(1, 11)), seed)
        alpha = ALPHAS[int(rng.integers(3))] * float(times.mean())
        problem = Problem(times, int(rng.integers(1, 4)), 2, alpha)
        best = best_epoch(times.tolist(), problem.gpus, 2, alpha)
        above.append(greedy(problem).epoch_s / best - 1)
        began = time.perf_counter()
        equal += ilp(problem, SearchLimits())[0].epoch_s <= best * (1 + 1e-7)
        seconds.append(time.perf_counter() - began)
    print(f"{instances} instances, n ≤ 10, G ≤ 3, L = 2, α = 0, .1 or .5 of a mean group")
    print(f"  ilp equals brute force in {equal}; {max(seconds):.1f} s at most")
    print(f"  greedy is {np.mean(above):.3%} above it on average, {max(above):.2%} at worst", flush=True)


def published() -> None:
    cells = itertools.product((30, 60, 100, 200), (2, 4, 8, 16), KINDS, (0.0, 0.1, 0.5))
    gains, gaps = [], []
    for seed, (groups, gpus, kind, alpha) in enumerate(cells):
        times = times_of(kind, groups, seed)
        problem = Problem(times, gpus, 2, alpha * float(times.mean()))
        ours = greedy(problem).epoch_s
        gains.append(1 - ours / paper(problem).epoch_s)
        if groups >= max(100, 8 * gpus):
            gaps.append(ours / lower_bound_s(problem) - 1)
    print(f"{len(gains)} instances, n = 30 … 200, G = 2 … 16")
    print(
        f"  greedy is {np.mean(gains):.2%} better than paper on average, {max(gains):.1%} at best,", end=" "
    )
    print(f"{min(gains):.3%} in its worst case")
    print(
        f"  gap where n ≥ 8 G and n ≥ 100 ({len(gaps)}): {np.mean(gaps):.2%} mean, {max(gaps):.2%} at most",
        flush=True,
    )


def speed() -> None:
    greedy(Problem(times_of("uniform", 30, 0), 4))
    paper(Problem(times_of("uniform", 30, 0), 4))
    print("algorithm, groups, GPUs: ms of the processor by times of " + ", ".join(KINDS))
    for gpus in (4, 16, 64, 256, 1024):
        print(
            f"  greedy 10,000 {gpus:5}", *(f"{cpu_ms('greedy', 10_000, gpus, kind):8.1f}" for kind in KINDS)
        )
    print("  paper     300     4", *(f"{cpu_ms('paper', 300, 4, kind):8.1f}" for kind in KINDS))
    for kind in KINDS:
        solved = solve(Problem(times_of(kind, 100, 0), 4), "ilp")
        print(
            f"  ilp 100 groups, 4 GPUs, {kind}: {solved.solve_s:.2f} s on the wall to a gap of {solved.gap:.2%}",
            flush=True,
        )


def cpu_ms(algorithm: str, groups: int, gpus: int, kind: str) -> float:
    problem, found = Problem(times_of(kind, groups, 0), gpus), []
    for _ in range(5):
        began = time.process_time()
        greedy(problem) if algorithm == "greedy" else paper(problem)
        found.append(1e3 * (time.process_time() - began))
    return min(found)


def scale(algorithms: list[str], figure: Path | None) -> None:
    gpus = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    for kind in ("linear", "lognormal"):
        points = simulate(made_up_times(kind, 10_000, 0), gpus, algorithms, 0.0, SearchLimits())
        print(f"10,000 groups, {kind}: efficiency % (imbalance) by GPUs")
        print(f"  {'':10}", *(f"{count:>13}" for count in gpus))
        for algorithm in algorithms:
            own = [point for point in points if point["algorithm"] == algorithm]
            cells = (f"{100 * p['efficiency']:6.2f} ({p['imbalance']:.2f})" for p in own)
            print(f"  {algorithm:10}", *(f"{cell:>13}" for cell in cells), flush=True)
        if figure is not None and kind == "linear":
            with figure.with_suffix(".csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(COLUMNS)
                rows.writerows([point[column] for column in COLUMNS] for point in points)
            draw_from(figure.with_suffix(".csv"), figure)
    print(f"  median solve: {1e3 * statistics.median(p['solve_s'] for p in points):.0f} ms on the wall")


def draw_from(data: Path, picture: Path) -> None:
    """Draw the linear times of *scale* from their CSV."""
    with data.open(newline="") as file:
        points = [
            {
                "algorithm": row["algorithm"],
                "gpus": int(row["gpus"]),
                "efficiency": float(row["efficiency"]),
                "imbalance": float(row["imbalance"]),
            }
            for row in csv.DictReader(file)
        ]
    draw(points, "10,000 snapshot groups, linear times", picture)


def locality() -> None:
    print("64 groups of 4 snapshots, 20 drawn instances: moves with regard to neighbours over moves without")
    for kind in KINDS:
        for gpus in (2, 4, 8):
            shares, longer, seconds = [], [], []
            for seed in range(20):
                times = times_of(kind, 64, seed)
                before = greedy(Problem(times, gpus))
                solved = solve(Problem(times, gpus), "greedy", window=4)
                shares.append(solved.moves[0] / solved.moves[1])
                longer.append(solved.schedule.epoch_s / before.epoch_s - 1)
                seconds.append(solved.solve_s)
            print(
                f"  {kind:10} {gpus} GPUs: median {statistics.median(shares):.2f}, worst {max(shares):.2f}, epoch at most "
                f"{max(longer):+.2%}, {statistics.median(seconds):.2f} s",
                flush=True,
            )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--only", default="exact,published,speed,scale,locality")
    arguments.add_argument("--instances", type=int, default=300)
    arguments.add_argument("--paper", action="store_true")
    arguments.add_argument("--figure", type=Path)
    chosen = arguments.parse_args()
    algorithms = ["greedy", *(["paper"] if chosen.paper else []), "psg-sorted", "psg"]
    tables = {
        "exact": lambda: exact(chosen.instances),
        "published": published,
        "speed": speed,
        "scale": lambda: scale(algorithms, chosen.figure),
        "locality": locality,
    }
    for name in chosen.only.split(","):
        tables[name]()


if __name__ == "__main__":
    main()
