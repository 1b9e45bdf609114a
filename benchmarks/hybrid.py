"""Hybrid batches on real streams: python benchmarks/hybrid.py PART [--data DIR] [--set NAME].

- balance: edges that batches of each of two ranks aggregate, over 200 batches, beside targets drawn uniformly: the mean over
  batches of (largest rank / mean rank), and the same of all batches together. On a ``load-aware`` lane and on a ``hash`` one.
- generator: edges per second of the processor that one thread makes into batches, and the share of training's time that it
  waited for them.
- memory: bytes that a step keeps for its backward pass, of a batch of 20 % × 5 % and of a full batch.
- hops: the error of ``dcrnn``, which ``hybrid`` refuses, where only what is some hops away is there.
"""

import argparse
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
from schemas.trainer_config import Optimisation, TrainerConfig
from stream.decode.files import read_events
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.models.unroll import unroll
from trainer.ranks import Ranks
from trainer.session.session import Session
from trainer.session.snapshot_trainer import ExampleWindow
from trainer.strategies.dynahb.batches import Recipe
from trainer.strategies.esdg.blocks import SavedBytes
from trainer.strategies.snapshots.whole import WholeLayout

DATA = Path("../shared/data")  # a folder of real graphs: docs/performance.md
HORIZON, WINDOW, BATCHES = 16, 4, 200
WEEK_US = 7 * 86_400_000_000
MOST_HOPS = 6
SETS = {"sx": ("sx_mathoverflow", WEEK_US, 10), "digg": ("digg_reply", 6 * 3_600_000_000, 8)}
"""Of each set the file, µs of a snapshot, and snapshots that an edge lives; slashdot is made by DynaHB's protocol."""


class Uniform:
    """Targets drawn without regard to load."""

    def __init__(self, size: int) -> None:
        self._size = size

    def draw(self, count: int, generator: np.random.Generator) -> Any:
        return np.sort(generator.choice(self._size, min(count, self._size), replace=False))


def store_of(name: str, data: Path, folder: Path) -> Path:
    """A store of a set with a lane by load and one by hash, of two parts."""
    store = folder / "store"
    if name in SETS:
        stem, interval_us, life = SETS[name]
        source = data / f"{stem}.parquet"
    else:
        source, interval_us, life = folder / "slashdot.parquet", int(84_444_600 / 200 * 1e6), 30
        import pyarrow.parquet as pq

        pq.write_table(slashdot(data / STREAMS["slashdot"].source), source)
    lanes = [Lane(name=each, algorithm=each, parts=2, edge_life=life) for each in ("load-aware", "hash")]
    build_store(read_events(source).events, store, interval_us=interval_us, lanes=lanes)
    return store


def kept_store(name: str, data: Path, store: Path) -> Path:
    """A store that was made before, or is made now."""
    return store if store.exists() else store_of(name, data, store.parent)


def followed(
    store: Path, ranks: Ranks, *, lane: str = "load-aware", task: str = "node-regression", model: str = "tgcn",
    strategy: str = "hybrid", seed: int = 0, beyond: int = 1, **params: Any,
) -> tuple[Session, ExampleWindow, Any]:  # fmt: skip
    """A session at a horizon that is not at the stream's end, its examples, and the newest one."""
    reader = LaneReader(store, lane)
    config = TrainerConfig(
        lane=lane, model=model, model_params={"hidden": 32}, strategy=strategy, strategy_params=params, seed=seed,
        window=WINDOW, horizon=HORIZON, task=task, optimisation=Optimisation(),
    )  # fmt: skip
    session = Session(config, reader, ranks)
    book = ExampleWindow(session.task, session.strategy.needs.example_sets)
    first = max(0, len(reader.manifests) // 2 - HORIZON - 1)
    if task == "node-regression":  # a degree counts pairs of all snapshots that an edge lives for
        for manifest in list(reader.manifests)[:first]:
            session.task.remember(manifest.tau, reader.log.events(manifest.tau), manifest.num_nodes)
    for manifest in list(reader.manifests)[first : first + HORIZON + 1]:
        session.advance(manifest)
        newest = session.task.examples(session.view, session.strategy)
        book.open(newest)
    return session, book, newest


def batches_of(
    session: Session, book: ExampleWindow, newest: Any, length: int, *, uniform: bool
) -> list[Any]:
    """Edges of so many batches of the middle size, whose windows are the same on all ranks."""
    maker = session.strategy.maker
    maker.open([(each, session.strategy.own(each)) for each in book.with_newest(newest)])
    taus, found = maker.taus, []
    draws = np.random.default_rng(0)
    for number in range(BATCHES):
        at = int(draws.integers(len(taus) - length))
        recipe = Recipe(4, taus[at], length, taus[at + length], number)
        window = maker._lesson_window(at, length)
        if uniform:
            window.sampler = Uniform(len(window.nodes))
        found.append(maker.make(recipe).layout.edges)
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
        maker = session.strategy.maker
        maker.open([(each, session.strategy.own(each)) for each in book.with_newest(newest)])
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
            maker = session.strategy.maker
            maker.open([(each, session.strategy.own(each)) for each in book.with_newest(newest)])
            taus, length = maker.taus, max(1, round(sizes[0][0] * HORIZON))
            batch = maker.make(Recipe(0, taus[-1 - length], length, taus[-1], 0))
            with SavedBytes(list(session.model.parameters())) as saved:
                session.strategy.loss(batch)
            kept.append(saved.bytes)
        rows.append(
            [name, f"`{model}`", *(f"{each / 2**20:.1f}" for each in kept), f"{kept[0] / kept[1]:.3f}"]
        )
    table("set | model | 20 % × 5 %, MiB | full batch, MiB | share", rows)


def hops(store: Path, name: str) -> None:
    """Print how wrong ``dcrnn``'s embeddings are if a rank has what is some hops away from the nodes asked about."""
    session, _, newest = followed(store, Ranks(), model="dcrnn", strategy="whole")
    asked, _ = newest.part(np.random.default_rng(0).choice(len(newest), 100, replace=False))
    nodes = np.unique(asked.ends[0])
    horizon = session.strategy.timeline.before_newest(nodes)
    graphs = [session.view.csr(tau) for tau in horizon.taus]
    layout = WholeLayout(horizon, session.model)
    there, inputs = layout.present, layout.rows
    rows, known = [], nodes

    def embedded() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = unroll(session.model.stages, layout)[0][-1][horizon.places(nodes)]
        return found

    true = embedded()
    for hop in range(MOST_HOPS + 1):
        near = torch.zeros(len(horizon.nodes), dtype=torch.bool)
        near[horizon.places(known)] = True
        layout.present, layout.rows = there & near, inputs * near.unsqueeze(1)
        apart = embedded() - true
        error = float(apart.norm() / true.norm())
        rows.append([str(hop), f"{100 * len(known) / len(horizon.nodes):.1f} %", f"{error:.2e}"])
        near_by = [
            graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
            for graph in graphs
            for node in known[known < graph.num_nodes]
        ]
        known = np.unique(np.concatenate([known, *near_by]))
    table(f"{name}, `dcrnn`: hops | nodes | relative error", rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"balance": balance, "generator": generator, "memory": memory, "hops": hops}
    parser.add_argument("part", choices=list(parts))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--set", default="slashdot", choices=["slashdot", *SETS])
    parser.add_argument(
        "--store", type=Path, help="made before; else it is made here, and without the option thrown away"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="freshet-hybrid-") as folder:
        parts[given.part](kept_store(given.set, given.data, given.store or Path(folder) / "store"), given.set)


if __name__ == "__main__":
    main()
