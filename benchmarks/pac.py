"""PAC beside plain training: python benchmarks/pac.py [--data FILE …] (SPEED's Tables IV and VI).

Every row trains a model on one lane with some ranks, each a process of its own joined by gloo, for a few epochs over
the first 70 % of a file, takes the epoch that predicts the next 15 % best, and predicts the last 15 %: ``evaluate``'s
protocol, without baselines and rankings. Columns:

- *AP*, *inductive*: average precision of the test, of all events and of those with a node that training never saw;
- *cut*: training events that no rank could learn, mean over epochs; *events per rank*: their standard deviation;
- *nodes per rank*: share of the nodes of which a rank has memory while it learns, mean of ranks;
- *memory*: mails and walks a rank has, at most, the largest of ranks; *events*: events and graph, on every rank;
- *s per epoch*: of training, of the slowest rank, and its CPU seconds, which a busy machine says less about;
- *MiB sent*: payload that a rank sent per epoch; *partitioner*: seconds it took for the file.

``--hubs`` are of sep, ``--batch`` has the events of a step, of all ranks together or, with ``--share each``, of each. Rows are
appended to --out as JSON when they are done; what is there already is not run again.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

from schemas.config import Lane
from schemas.trainer_config import TrainerConfig
from stream.decode.files import read_events
from stream.store.lane.reader import LaneReader
from trainer.evaluation.evaluate import _Run, all_inserts
from trainer.evaluation.protocol import OfflineProtocol
from trainer.evaluation.split import split_by_time
from trainer.ranks import Ranks
from trainer.scoring.metrics import Figures
from trainer.strategies.speed.pac import PacStrategy

BATCH = 200
KEYS = (
    "data",
    "model",
    "lane",
    "hubs",
    "parts",
    "ranks",
    "epochs",
    "batch",
    "share",
    "snapshots",
    "synchronise",
    "seed",
)


class Run(_Run):
    """One seed under ``evaluate``'s protocol; what training took and did is written down."""

    def prepare(self) -> None:
        """Listen to the strategy."""
        self.wall = self.cpu = 0.0
        self.learned: list[tuple[int, int, int]] = []
        self.nodes: list[float] = []
        strategy = self.session.strategy
        learn = strategy.learn

        def timed(example_sets: Any, epoch: int) -> Any:
            began, began_cpu = time.perf_counter(), time.process_time()
            report = learn(example_sets, epoch)
            self.wall += time.perf_counter() - began
            self.cpu += time.process_time() - began_cpu
            self.learned.append((len(example_sets[-1].learned), report.events, report.discarded))
            if isinstance(strategy, PacStrategy):
                held = strategy._groups.is_local()
                self.nodes.append(float(held.mean()) if len(held) else 0.0)
            return report

        strategy.learn = timed  # type: ignore[method-assign]  # for as long as this run

    def _warm_up(self) -> None:
        super()._warm_up()
        self.wall = self.cpu = 0.0
        self.learned.clear()
        self.nodes.clear()
        self.ranks.traffic.sent_bytes.clear()

    def _test(self) -> Figures:
        self.sent = sum(self.ranks.traffic.sent_bytes.values())
        return self._figures([
            self._evaluate(examples.of_events(self.split.test(examples.times)), baselines=False)
            for examples in self._rest()
            if self.split.test(examples.times).any()
        ])  # fmt: skip


def work(row: dict[str, Any], out: Path) -> None:
    """As one rank."""
    ranks, lane, epochs = Ranks.from_environment("cpu"), LaneReader(row["store"], row["lane"]), row["epochs"]
    config = TrainerConfig.model_validate({
        "model": row["model"], "strategy": "pac", "lane": row["lane"], "seed": row["seed"],
        "strategy_params": {"synchronise": row["synchronise"], "batch": row["share"]},
        "optimisation": {"epochs": epochs, "batch_size": row["batch"]},
    })  # fmt: skip
    inserts = all_inserts(lane)
    split = split_by_time(inserts.visible_us, (0.7, 0.15, 0.15))
    protocol = OfflineProtocol(lane, inserts, split, row["seed"])
    run = Run(config, lane, ranks, split, row["seed"], protocol, None)
    run.prepare()
    figures = run.figures()
    learned, events, discarded = (sum(column) for column in zip(*run.learned, strict=True))
    harness.require(events > 0, f"no event of {row['data']} was learned")
    held = run.session.strategy.held_bytes
    own = [
        learned / epochs, run.wall / epochs, run.cpu / epochs, held["memory"] / 2**20, held["events"] / 2**20,
        run.sent / 2**20 / epochs, statistics.mean(run.nodes),
    ]  # fmt: skip
    everyones = np.array(
        [ranks.total([value if rank == ranks.rank else 0.0 for value in own]) for rank in range(ranks.size)]
    )
    if ranks.rank == 0:
        largest = dict(
            zip(
                ("wall_s", "cpu_s", "memory_mib", "events_mib", "sent_mib"),
                everyones.max(axis=0)[1:6],
                strict=True,
            )
        )
        found = {
            **{key: row[key] for key in KEYS},
            **{name: figures.get(name) for name in ("ap", "inductive_ap", "validation_ap")},
            **largest,
            "cut": discarded / (events + discarded),
            "events_std": float(everyones[:, 0].std()),
            "nodes": float(everyones[:, 6].mean()),
            "partition_s": sum(manifest.quality.seconds for manifest in lane.manifests),
        }
        with out.open("a") as file:
            file.write(json.dumps(found) + "\n")
    ranks.close()


def cells(runs: list[dict[str, Any]]) -> list[str]:
    """A setting, its seeds as their mean ± standard deviation."""
    row, mean = runs[0], lambda key: statistics.mean(run[key] for run in runs)
    lane = f"sep {100 * row['hubs']:g} %" if row["lane"] == "sep" else row["lane"]
    lane = "any" if row["ranks"] == 1 else lane
    lane += ", `mean`" if row["synchronise"] == "mean" else ""
    lane += f", batch {row['batch']}" if row["batch"] != BATCH else ""
    lane += " each" if row["share"] == "each" and row["ranks"] > 1 else ""
    return [
        f"{Path(row['data']).stem}, {row['model']}", lane, str(row["ranks"]), str(len(runs)),
        *(mean_and_deviation([run[name] for run in runs]) for name in ("ap", "inductive_ap")),
        f"{100 * mean('cut'):.1f} %", f"{mean('events_std'):.0f}", f"{100 * mean('nodes'):.0f} %",
        f"{mean('memory_mib'):.2f}", f"{mean('events_mib'):.1f}", f"{mean('wall_s'):.1f}", f"{mean('cpu_s'):.1f}",
        f"{mean('sent_mib'):.0f}", f"{mean('partition_s'):.2f}",
    ]  # fmt: skip


def mean_and_deviation(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.mean(known):.4f}" + (f" ± {statistics.stdev(known):.4f}" if len(known) > 1 else "")


def measure(given: Any, out: Path) -> list[list[dict[str, Any]]]:
    """Run what is not in ``out`` yet; all rows that are there then, by setting."""
    read = lambda: [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []  # noqa: E731
    known = [{key: row[key] for key in KEYS} for row in read()]
    for data, lane in itertools.product(given.data, given.lanes):
        for hubs in given.hubs if lane == "sep" else [0.0]:
            shared = {key: getattr(given, key) for key in KEYS if hasattr(given, key)}
            rows = [
                {**shared, "data": str(data), "lane": lane, "hubs": hubs, "ranks": ranks, "seed": seed}
                for ranks in given.ranks
                for seed in range(given.seeds)
            ]
            rows = [row for row in rows if row not in known]
            with harness.scratch() as folder:
                store = store_of(data, folder / "store", lane, hubs, given) if rows else None
                for row in rows:
                    spec = json.dumps({**row, "store": str(store)})
                    harness.on_ranks(row["ranks"], __file__, "--rank-of", spec, "--out", out)
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in read():
        settings.setdefault(tuple(row[key] for key in KEYS if key != "seed"), []).append(row)
    return list(settings.values())


def store_of(data: Path, store: Path, lane: str, hubs: float, given: Any) -> Path:
    events = read_events(harness.existing(data))
    t = events.events["t"].to_numpy()
    interval_us = int(-(-(t.max() - t.min()) // given.snapshots))
    params = {"hubs": hubs} if lane == "sep" else {}
    return harness.built(
        store, events, interval_us, [Lane(name=lane, algorithm=lane, parts=given.parts, params=params)]
    )


def main() -> None:
    given = harness.options(
        __doc__, data=[harness.DATA / "collegemsg.parquet"], model="tgn-history", lanes=["sep"], hubs=[0.05],
        ranks=[1, 2, 4], parts=8, epochs=1, batch=BATCH, share={"choices": ["divided", "each"], "default": "divided"},
        snapshots=25, synchronise="latest", seeds=1, out={"type": Path},
        rank_of={"type": json.loads, "help": argparse.SUPPRESS},
    )  # fmt: skip
    if harness.is_rank():
        work(given.rank_of, given.out)
        return
    harness.begin()
    sys.stdout.flush()
    with harness.scratch() as folder:
        settings = measure(given, given.out or folder / "rows.jsonl")
    titles = (
        "data, model | lane | ranks | seeds | AP | inductive | cut | events per rank, std | nodes per rank"
    )
    rest = "memory per rank, MiB | events, MiB | s per epoch | CPU s | MiB sent | partitioner, s"
    harness.table(f"{titles} | {rest}", map(cells, settings))


if __name__ == "__main__":
    main()
