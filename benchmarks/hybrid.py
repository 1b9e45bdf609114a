"""Hybrid batches on real streams: python benchmarks/hybrid.py PART [--data DIR] [--set NAME] [--seeds 0 1] [--budget 4].

- balance: edges that batches of each of two ranks aggregate, over 200 batches, beside targets drawn uniformly: the mean over
  batches of (largest rank / mean rank), and the same of all batches together. On a ``load-aware`` lane and on a ``hash`` one.
- generator: edges a second that one thread makes into batches, and the share of training's time that it waited for them.
- memory: bytes that a step keeps for its backward pass, of a batch of 20 % × 5 % and of a full batch.
- loss: seconds until the loss on the snapshot after the horizon, of which nothing is learned, is within 5 % of the best that
  snapshot batches come to in the time that all ways have. Every way begins with the same weights and learns the same horizon
  for as many seconds; weights are judged afterwards, which costs no time. One rank, one thread that trains and one that makes
  batches; seconds are those of the processor in the first, so what else the machine does is left out, and waiting for
  batches, which ``generator`` tells.
"""

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from node_streams import STREAMS, slashdot
from timeline import table

from schemas.config import Lane
from schemas.trainer_config import Optimisation, Target, TrainerConfig
from stream.decode.event_file import read_events
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.ranks import Ranks
from trainer.session.lesson_book import LessonBook
from trainer.session.session import Session
from trainer.strategies.snapshots.reservoir import Recipe
from trainer.strategies.snapshots.saved_bytes import SavedBytes

DATA = Path("../shared/data")
HORIZON, WINDOW, BATCHES = 16, 4, 200
WEEK_US = 7 * 86_400_000_000
SNAPSHOTS, VERTICES = [0.1, 0.2, 0.3], [0.01, 0.05, 0.1]
FIXED = [(0.1, 0.01), (0.1, 0.1), (0.2, 0.05), (0.3, 0.01), (0.3, 0.1)]
"""The middle size and the outer ones; of the adjuster ``fixed`` the second."""
BASE = "snapshot batches, 20 %"


class Uniform:
    """Targets drawn without regard to load."""

    def __init__(self, size: int) -> None:
        self._size = size

    def draw(self, count: int, generator: np.random.Generator) -> Any:
        return np.sort(generator.choice(self._size, min(count, self._size), replace=False))


def store_of(name: str, data: Path, folder: Path) -> Path:
    """A store of a set with a lane by load and one by hash, of two parts."""
    store = folder / "store"
    if name == "sx":
        source, interval_us, life = data / "sx_mathoverflow.parquet", WEEK_US, 10
    else:
        source, interval_us, life = folder / "slashdot.parquet", int(84_444_600 / 200 * 1e6), 30
        import pyarrow.parquet as pq

        pq.write_table(slashdot(data / STREAMS["slashdot"].source), source)
    lanes = [Lane(name=each, algorithm=each, parts=2, edge_life=life) for each in ("load-aware", "hash")]
    build_store(read_events(source).events, store, interval_us=interval_us, lanes=lanes)
    return store


def followed(
    store: Path, ranks: Ranks, *, lane: str = "load-aware", task: str = "node-regression", model: str = "tgcn",
    strategy: str = "hybrid", seed: int = 0, beyond: int = 1, **params: Any,
) -> tuple[Session, LessonBook, Any]:  # fmt: skip
    """A session at a horizon that is not at the stream's end, its lessons, and the newest one."""
    reader = LaneReader(store, lane)
    config = TrainerConfig(
        lane=lane, model=model, model_params={"hidden": 32}, strategy=strategy, strategy_params=params, seed=seed,
        window=WINDOW, horizon=HORIZON, task=task, optimisation=Optimisation(),
        target=Target(next="in_degree") if task == "node-regression" else None,
    )  # fmt: skip
    session = Session(config, reader, ranks)
    book = LessonBook(session.task, session.strategy.needs.lessons)
    first = max(0, len(reader.manifests) // 2 - HORIZON - 1)
    for manifest in list(reader.manifests)[first : first + HORIZON + 1]:
        session.advance(manifest)
        newest = session.task.lesson(session.view, session.strategy)
        book.open(newest)
    return session, book, newest


def batches_of(session: Session, book: LessonBook, newest: Any, length: int, *, uniform: bool) -> list[Any]:
    """Edges of so many batches of the middle size, whose windows are the same on all ranks."""
    maker = session.strategy._maker
    maker.open([(each, session.strategy._own(each)) for each in book.with_newest(newest)])
    taus, found = maker.taus, []
    draws = np.random.default_rng(0)
    for number in range(BATCHES):
        at = int(draws.integers(len(taus) - length))
        recipe = Recipe(4, taus[at], length, taus[at + length], number)
        window = maker._lesson_window(taus[at : at + length])
        if uniform:
            window.sampler = Uniform(len(window.nodes))
        found.append(maker.make(recipe).closure.edges)
    return found


def balance(store: Path, name: str) -> None:
    """Print the table of balance."""
    rows = []
    for task in ("node-regression", "link-prediction"):
        for lane in ("load-aware", "hash"):
            row = [name, task, lane]
            for uniform in (False, True):
                edges = []
                for rank in (0, 1):
                    session, book, newest = followed(store, Ranks(rank, 2), lane=lane, task=task)
                    edges.append(batches_of(session, book, newest, 3, uniform=uniform))
                ranks = np.array(edges, np.float64)
                each = (ranks.max(axis=0) / ranks.mean(axis=0)).mean()
                together = ranks.sum(axis=1).max() / ranks.sum(axis=1).mean()
                row += [f"{each:.3f}", f"{together:.3f}"]
            rows.append([*row, f"{ranks.mean():,.0f}"])
    table("set | task | lane | by load, a batch | all | uniform, a batch | all | edges a batch", rows)


def generator(store: Path, name: str) -> None:
    """Print the generator's rate by size, and how long training waited."""
    rows = []
    for task in ("node-regression", "link-prediction"):
        session, book, newest = followed(store, Ranks(), task=task, steps=32, adjuster="fixed")
        maker = session.strategy._maker
        maker.open([(each, session.strategy._own(each)) for each in book.with_newest(newest)])
        taus, rates = maker.taus, []
        for size in (0, 4, 8):
            length = max(1, round(maker._sizes[size][0] * HORIZON))
            began, edges = 0.0, 0
            for number in range(21):
                if number == 1:  # the first of a window sorts its questions
                    began, edges = time.perf_counter(), 0
                edges += maker.make(Recipe(size, taus[3], length, taus[3 + length], number)).closure.edges
            rates.append(f"{edges / (time.perf_counter() - began) / 1e6:.1f}")
        waited, took = [], []
        for epoch in range(7):
            report = session.strategy.learn(book.with_newest(newest), epoch)
            waited.append(report.seconds["batches"])
            took.append(report.seconds["train"])
        reads: dict[str, int] = report.batches[0].reads
        session.close()
        rows.append(
            [name, task, *rates, f"{100 * sum(waited[2:]) / sum(took[2:]):.1f} %", f"{statistics.median(took):.2f}",
             ", ".join(f"{count} {outcome}" for outcome, count in reads.items())]
        )  # fmt: skip
    table(
        "set | task | M edges/s, smallest | middle | largest size | waiting | s a pass of 32 steps | batches",
        rows,
    )


def memory(store: Path, name: str) -> None:
    """Print bytes that steps keep."""
    rows = []
    for model in ("tgcn", "wdgcn", "evolvegcn-o"):
        kept = []
        for sizes in ([0.2], [0.05]), ([1.0], [1.0]):
            params = {"snapshots": sizes[0], "vertices": sizes[1]}
            session, book, newest = followed(store, Ranks(), model=model, newest_share=1.0, **params)
            maker = session.strategy._maker
            maker.open([(each, session.strategy._own(each)) for each in book.with_newest(newest)])
            taus, length = maker.taus, max(1, round(sizes[0][0] * HORIZON))
            batch = maker.make(Recipe(0, taus[-1 - length], length, taus[-1], 0))
            with SavedBytes(list(session.model.parameters())) as saved:
                session.strategy._loss(batch)
            kept.append(saved.bytes)
        rows.append(
            [name, f"`{model}`", *(f"{each / 2**20:.1f}" for each in kept), f"{kept[0] / kept[1]:.3f}"]
        )
    table("set | model | 20 % × 5 %, MiB | full batch, MiB | share", rows)


def ways() -> dict[str, dict[str, Any]]:
    """Strategy parameters by name."""
    found: dict[str, dict[str, Any]] = {
        "full batch": {"snapshots": [1.0], "vertices": [1.0], "adjuster": "fixed"},
        BASE: {"snapshots": [0.2], "vertices": [1.0], "adjuster": "fixed"},
        "vertex batches, 5 %": {"snapshots": [1.0], "vertices": [0.05], "adjuster": "fixed"},
    }
    for s, v in FIXED:
        found[f"fixed {100 * s:g} % × {100 * v:g} %"] = {
            "snapshots": [s],
            "vertices": [v],
            "adjuster": "fixed",
        }
    sizes = {"snapshots": SNAPSHOTS, "vertices": VERTICES}
    return found | {name: {**sizes, "adjuster": name} for name in ("random", "bandit", "dqn")}


def curve(
    store: Path, params: dict[str, Any], seed: int, budget_s: float, **setting: Any
) -> tuple[list[Any], Any]:
    """(seconds of training so far, loss on the next snapshot), and the figures of floors there."""
    session, book, newest = followed(store, Ranks(), seed=seed, steps=8, **params, **setting)
    strategy, spent, kept, epoch = session.strategy, 0.0, [], 0
    strategy.learn(book.with_newest(newest), 1 << 20)  # compiles; what it learns is forgotten
    session.model.load_state_dict(session.floor.state_dict())
    strategy.learner.rate.optimiser.state.clear()
    strategy.rewind()
    while spent < budget_s:
        began = time.thread_time()
        strategy.learn(book.with_newest(newest), epoch)
        spent, epoch = spent + time.thread_time() - began, epoch + 1
        kept.append((spent, copy.deepcopy(session.model.state_dict())))
    manifests = list(session.lane.manifests)
    at = [each.tau for each in manifests].index(newest.tau) + 1
    session.advance(manifests[at])
    lesson = session.task.lesson(session.view, strategy)
    asked, truth = lesson.part(np.arange(len(lesson)))
    found = []
    for seconds, weights in kept:
        session.model.load_state_dict(weights)
        (answers,) = strategy.answer(session.model, [asked])
        loss = session.task.loss(torch.from_numpy(answers), torch.from_numpy(truth), "mean")
        found.append((seconds, float(loss)))
    judged = session.task.judge(strategy, session.model, session.floor, lesson, Ranks())
    strategy.close()
    return found, judged.figures()


def reached(points: list[tuple[float, float]], loss: float) -> float:
    return next((seconds for seconds, at in points if at <= loss), float("inf"))


def loss(store: Path, given: argparse.Namespace) -> None:
    """Print seconds to the loss, by way."""
    task = "node-regression" if given.set == "slashdot" else "link-prediction"
    curves: dict[str, list[Any]] = {name: [] for name in ways()}
    for seed in given.seeds:
        for name, params in ways().items():
            points, figures = curve(store, params, seed, given.budget, task=task, model=given.model)
            curves[name].append(points)
            print(
                seed,
                name,
                len(points),
                *(f"{at:.4f}" for _, at in points[:: max(1, len(points) // 6)]),
                flush=True,
            )
    told = {f"{metric} {scorer}": round(value, 5) for (metric, _, scorer), value in figures.items()}
    print({key: value for key, value in told.items() if key.startswith(("mse", "ap "))})
    rows = []
    targets = [1.05 * min(at for _, at in points) for points in curves[BASE]]
    for name, found in curves.items():
        seconds = [reached(points, target) for points, target in zip(found, targets, strict=True)]
        best = statistics.median(min(at for _, at in points) for points in found)
        missed = sum(not np.isfinite(each) for each in seconds)
        told_s = f"{statistics.median(seconds):.2f}" + (
            f" ({missed} of {len(seconds)} did not)" if missed else ""
        )
        rows.append([name, told_s, f"{best:.5f}"])
    table(f"{given.set}, `{given.model}` | s to 1.05 of the best of snapshot batches | best loss", rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["balance", "generator", "memory", "loss"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--set", default="slashdot", choices=["slashdot", "sx"])
    parser.add_argument("--model", default="tgcn")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of training of every way")
    parser.add_argument("--store", type=Path, help="made before; else it is made, and thrown away")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="freshet-hybrid-") as folder:
        store = given.store if given.store and given.store.exists() else None
        if store is None:
            store = store_of(given.set, given.data, given.store.parent if given.store else Path(folder))
        if given.part == "loss":
            loss(store, given)
        else:
            {"balance": balance, "generator": generator, "memory": memory}[given.part](store, given.set)


if __name__ == "__main__":
    main()
