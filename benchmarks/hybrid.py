"""Hybrid batches on real streams: python benchmarks/hybrid.py [PART …] [--data DIR] [--set NAME].

- balance: edges that batches of each of two ranks aggregate, over 200 batches, beside targets drawn uniformly: the mean over
  batches of (largest rank / mean rank), and the same of all batches together. On a ``load-aware`` lane and on a ``hash`` one.
- generator: edges per second of the processor that one thread makes into batches, and the share of training's time that it
  waited for them.
- reach: shares of live nodes and their edges that the states of ``dcrnn`` (K = 2) depend on, mean of five batches.
- memory: bytes that a step keeps for its backward pass, of a batch of 20 % × 5 % and of a full batch.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import DAY_US
from node_streams import STREAMS, slashdot

from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow
from freshet_graph.trainer.strategies.dynahb.batches import Recipe
from freshet_graph.trainer.strategies.esdg.blocks import SavedBytes

HORIZON, WINDOW, BATCHES = 16, 4, 200
SETS = {"sx": ("sx_mathoverflow", 7 * DAY_US, 10), "digg": ("digg_reply", DAY_US // 4, 8)}
"""Of each set the file, µs of a snapshot, and snapshots that an edge lives; slashdot is made by DynaHB's protocol."""


class Uniform:
    """Targets drawn without regard to load."""

    def __init__(self, size: int) -> None:
        self._size = size

    def draw(self, count: int, generator: np.random.Generator) -> Any:
        return np.sort(generator.choice(self._size, min(count, self._size), replace=False))


def store_of(name: str, data: Path, folder: Path) -> Path:
    """A store of a set with a lane by load and one by hash, of two parts."""
    if name in SETS:
        stem, interval_us, life = SETS[name]
        source = harness.existing(data / f"{stem}.parquet")
    else:
        import pyarrow.parquet as pq

        source, interval_us, life = folder / "slashdot.parquet", int(84_444_600 / 200 * 1e6), 30
        pq.write_table(slashdot(harness.existing(data / STREAMS["slashdot"].source)), source)
    lanes = harness.lanes("load-aware", "hash", parts=2, edge_life=life)
    return harness.built(folder / "store", source, interval_us, lanes)


def followed(
    store: Path, ranks: Ranks, *, lane: str = "load-aware", task: str = "node-regression", model: str = "tgcn",
    strategy: str = "hybrid", seed: int = 0, **params: Any,
) -> tuple[Any, ExampleWindow, Any]:  # fmt: skip
    """A session at a horizon that is not at the stream's end, its training examples, and the newest of them."""
    target = {"next": "in_degree"} if task == "node-regression" else {}
    session = harness.session_of(
        store, ranks, lane=lane, model=model, model_params={"hidden": 32}, strategy=strategy, strategy_params=params,
        seed=seed, window=WINDOW, horizon=HORIZON, task=task, task_params=target,
    )  # fmt: skip
    reader, book = session.lane, ExampleWindow(session.task, session.strategy.needs.example_sets)
    manifests = list(reader.manifests)
    first = max(0, len(manifests) // 2 - HORIZON - 1)
    if target:  # a degree counts pairs of all snapshots that an edge lives for
        for manifest in manifests[:first]:
            session.task.remember(manifest.tau, reader.log.events(manifest.tau), manifest.num_nodes)
    for manifest in manifests[first : first + HORIZON + 1]:
        newest = harness.examples_of(session, [manifest])
        book.open(newest)
    return session, book, newest


def opened(session: Any, book: ExampleWindow, newest: Any) -> Any:
    """What makes a session's batches, opened at its newest snapshot."""
    maker = session.strategy.maker
    maker.open([(each, session.strategy.local_items(each)) for each in book.with_newest(newest)])
    return maker


def batches_of(session: Any, book: ExampleWindow, newest: Any, length: int, *, uniform: bool) -> list[Any]:
    """Edges of so many batches of the middle size, whose windows are the same on all ranks."""
    maker = opened(session, book, newest)
    taus, found = maker.taus, []
    draws = np.random.default_rng(0)
    for number in range(BATCHES):
        at = int(draws.integers(len(taus) - length))
        recipe = Recipe(4, taus[at], length, taus[at + length], number)
        window = maker._example_sampler(at, length)
        if uniform:
            window.sampler = Uniform(len(window.nodes))
        found.append(maker.make(recipe).layout.edges)
    return found


def balance(store: Path, name: str) -> Iterator[list[str]]:
    for task in ("node-regression", "link-prediction"):
        for lane in ("load-aware", "hash"):
            row = [name, task, lane]
            for uniform in (False, True):
                sessions = (followed(store, Ranks(rank, 2), lane=lane, task=task) for rank in (0, 1))
                edges = np.array([batches_of(*each, 3, uniform=uniform) for each in sessions], np.float64)
                batch = (edges.max(axis=0) / edges.mean(axis=0)).mean()
                together = edges.sum(axis=1).max() / edges.sum(axis=1).mean()
                row += [f"{batch:.3f}", f"{together:.3f}"]
            yield [*row, f"{edges.mean():,.0f}"]


def generator(store: Path, name: str) -> Iterator[list[str]]:
    for task in ("node-regression", "link-prediction"):
        session, book, newest = followed(store, Ranks(), task=task, steps=32, adjuster="fixed")
        maker = opened(session, book, newest)
        taus, rates = maker.taus, []
        for size in (0, 4, 8):
            length = max(1, round(maker._sizes[size][0] * HORIZON))
            began, edges = 0.0, 0
            for number in range(21):
                if number == 1:  # the first of a window sorts its questions
                    began, edges = time.thread_time(), 0
                edges += maker.make(Recipe(size, taus[3], length, taus[3 + length], number)).layout.edges
            rates.append(f"{edges / (time.thread_time() - began) / 1e6:.1f}")
        waited, took = [], []
        for epoch in range(7):
            began = time.perf_counter()
            report = session.strategy.learn(book.with_newest(newest), epoch)
            waited.append(report.seconds["batches"])
            took.append(time.perf_counter() - began)
        reads: dict[str, int] = report.figures["reservoir_reads"]
        harness.require(sum(reads.values()) > 0, "no batch was read")
        session.close()
        share = f"{100 * sum(waited[2:]) / sum(took[2:]):.1f} %"
        counts = ", ".join(f"{count} {outcome}" for outcome, count in reads.items())
        yield [name, task, *rates, share, f"{statistics.median(took):.2f}", counts]


def reach(store: Path, name: str) -> Iterator[list[str]]:
    for task in ("node-regression", "link-prediction"):
        session, book, newest = followed(store, Ranks(), task=task)
        maker = opened(session, book, newest)
        for size, layers in ((0, 1), (2, 1), (8, 1), (0, 2)):
            shares = []
            length = max(1, round(maker._sizes[size][0] * HORIZON))
            for first in range(2, 12, 2):
                recipe = Recipe(size, maker.taus[first], length, maker.taus[first + length], first)
                snapshots, nodes = maker.past.part(first, length).snapshots, maker.make(recipe).nodes
                reached = np.zeros(len(snapshots[-1].home), np.bool_)
                reached[nodes[nodes < len(reached)]] = True
                counts = np.zeros((2, 2))  # live nodes and edges: those reached, all
                for snapshot in reversed(
                    snapshots
                ):  # a state needs the one before it two hops around, in each layer
                    for _ in range(2 * layers):
                        reached[
                            snapshot.neighbours(np.flatnonzero(reached[: len(snapshot.home)]), None, 0)[1]
                        ] = True
                    live, degrees = snapshot.local.nodes, np.diff(snapshot.local.indptr)
                    counts += [[each[reached[live]].sum(), each.sum()] for each in (degrees > 0, degrees)]
                shares.append(counts[:, 0] / counts[:, 1])
            of_nodes, of_edges = np.mean(shares, axis=0)
            size_of = "{:g} % × {:g} %".format(*(100 * share for share in maker._sizes[size]))
            yield [name, task, size_of, str(layers), f"{of_nodes:.2f}", f"{of_edges:.2f}"]
        session.close()


def memory(store: Path, name: str) -> Iterator[list[str]]:
    for model in ("tgcn", "wdgcn", "evolvegcn-o"):
        kept = []
        for snapshots, vertices in ((0.2, 0.05), (1.0, 1.0)):
            sizes = {"snapshots": [snapshots], "vertices": [vertices]}
            session, book, newest = followed(store, Ranks(), model=model, newest_share=1.0, **sizes)
            maker = opened(session, book, newest)
            taus, length = maker.taus, max(1, round(snapshots * HORIZON))
            batch = maker.make(Recipe(0, taus[-1 - length], length, taus[-1], 0))
            with SavedBytes(list(session.model.parameters())) as saved:
                session.strategy.loss(batch)
            kept.append(saved.bytes)
        yield [name, f"`{model}`", *(f"{each / 2**20:.1f}" for each in kept), f"{kept[0] / kept[1]:.3f}"]


PARTS = {
    "balance": (
        balance,
        "set | task | lane | by load, a batch | all | uniform, a batch | all | edges a batch",
    ),
    "generator": (
        generator,
        "set | task | M edges/s, smallest | middle | largest size | waiting | s a pass of 32 steps | batches",
    ),
    "reach": (reach, "set | task | size | layers of `dcrnn` | share of nodes | share of edges"),
    "memory": (memory, "set | model | 20 % × 5 %, MiB | full batch, MiB | share"),
}


def main() -> None:
    sets = {"default": "slashdot", "choices": ["slashdot", *SETS]}
    given = harness.options(__doc__, {"parts": []}, data=harness.DATA, set=sets)
    torch.set_num_threads(1)
    with harness.scratch() as folder:
        harness.tables(PARTS, given.parts, store_of(given.set, given.data, folder), given.set)


if __name__ == "__main__":
    main()
