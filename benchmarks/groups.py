"""Training by ``group`` on two ranks, beside PSG: python benchmarks/groups.py [--only passes|error|ap] [--data DIR].

A stream is cut into slices of equally many events and its edges never end, so every snapshot is larger than the one before;
or into days, and its edges end after some, so that snapshots are as unequal as days are.
Ranks are processes joined by gloo, with one thread each.

- ``passes``: a pass over all groups of a horizon by each way of composing and scheduling steps, in nine rounds, each a few
  snapshots further, the second pass there. The ways take turns, so what else the machine does is shared. Told are the medians
  over rounds of seconds on the wall and the part of a pass below PSG's, and the same of the processor: each step as long as
  its busiest rank's measured groups. Then imbalance and efficiency, likewise, and the part that profiling and solving took.
- ``error``: relative error of predicted seconds on groups that never ran: the time model is fitted to the groups of one pass,
  on one rank, and predicts those that are trained after the stream has moved on. Beside it, how far two runs of one group
  differ, which no model can foresee. ``--times FILE`` writes the measured seconds
  of the last model's groups, as ``freshet-trainer simulate --times`` reads them.
- ``ap``: average precision of the test events by ``freshet-trainer evaluate --ranks 2``, in intervals of equal length.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import yaml
from timeline import table

from schemas.config import Lane
from schemas.events import US_PER_S
from schemas.trainer_config import Optimisation, TrainerConfig
from stream.decode.files import read_events
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.ranks import Ranks
from trainer.session.session import Session
from trainer.session.snapshot_trainer import ExampleWindow

DATA = Path("../shared/data")  # a folder of real graphs: docs/performance.md
DAY_US = 86_400_000_000
SETS: dict[str, tuple[str, int | None, int | None]] = {
    "sx": ("sx_mathoverflow", None, None),
    "slashdot": ("slashdot_reply", None, None),
    "collegemsg": ("collegemsg", None, None),
    "email, daily": ("email_eu", DAY_US, 3),
    "digg, daily": ("digg_reply", DAY_US, 2),
}
"""Of each set: the file, microseconds of a snapshot (None: slices of equally many events), and the life of an edge."""
MODELS = ("wdgcn", "tgcn", "evolvegcn-h", "gatlstm")
WINDOW = 4
ROUNDS = 9
MOST = 100
"""Snapshots of a set, at most."""
WAYS: dict[str, dict[str, Any]] = {
    "psg": {"composition": "schedule", "algorithm": "psg", "groups_per_rank": 1},
    "schedule": {"composition": "schedule"},
    "fixed": {},
}
MARGIN = 0.08
"""Below PSG, the part of a pass that is asked for."""


class Follower:
    """A session of one way, and the examples of its horizon."""

    def __init__(self, store: Path, model: str, params: dict[str, Any], ranks: Ranks, horizon: int) -> None:
        self.session = Session(
            TrainerConfig(
                lane="hash", model=model, strategy="group", strategy_params=params, window=WINDOW,
                horizon=horizon, optimisation=Optimisation(batch_size=1 << 20),
            ),
            LaneReader(store, "hash"),
            ranks,
        )  # fmt: skip
        self.manifests = list(self.session.lane.manifests)
        self.strategy: Any = self.session.strategy
        self._book = ExampleWindow(self.session.task, self.strategy.needs.example_sets)
        self._at, self._passes = 0, 0

    def follow(self, until: int, learning_from: int) -> None:
        """Advance to a snapshot, by its number; examples are kept from another one on."""
        for manifest in self.manifests[self._at : until]:
            self.session.advance(manifest)
            if manifest.sequence >= learning_from:
                self._newest = self.session.task.examples(self.session.view, self.strategy)
                self._book.open(self._newest)
        self._at = until

    def learn(self) -> Any:
        """A pass over all groups of the horizon."""
        self._passes += 1
        profile = self.strategy._profile
        measured = profile.measured

        def kept(names: Any, sizes: Any, seconds: Any) -> None:
            self.names, self.sizes, self.seconds = names, sizes, seconds
            measured(names, sizes, seconds)

        profile.measured = kept
        try:
            return self.strategy.learn(self._book.with_newest(self._newest), self._passes)
        finally:
            profile.measured = measured


def passes(store: Path, horizon: int, models: list[str], chosen: list[str]) -> None:
    """Print a row per model and way, on the first rank."""
    ranks, rows = Ranks.from_environment("cpu"), []
    for model in models:
        ways = {name: Follower(store, model, WAYS[name], ranks, horizon) for name in chosen}
        slices = len(next(iter(ways.values())).manifests)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        worked: dict[str, list[float]] = {name: [] for name in ways}
        reports: dict[str, list[Any]] = {name: [] for name in ways}
        for until in np.linspace(horizon + 1, min(slices, MOST), ROUNDS).astype(int).tolist():
            for way in ways.values():
                way.follow(until, until - horizon)
            for measured in (False, True):
                for name, way in ways.items():
                    ranks.total([0.0])
                    began = time.perf_counter()
                    report = way.learn()
                    ranks.total([0.0])
                    if measured:
                        taken[name].append(time.perf_counter() - began)
                        worked[name].append(
                            way.seconds.sum()
                            / ranks.size
                            / report.figures["schedule_ratio"]["efficiency", "measured"]
                        )
                        reports[name].append(report)
        for name in ways:
            rows.append([f"`{model}`", name, *_pass_row(taken, worked, name, reports[name])])
        if not ranks.rank:
            print("\n".join(" | ".join(row) for row in rows[-len(ways) :]), file=sys.stderr, flush=True)
    if not ranks.rank:
        table(
            "model | way | pass, s | below PSG | rounds ≥ 8 % below | of the processor, s | below PSG | rounds ≥ 8 % below | "
            "imbalance | efficiency | solving and profiling",
            rows,
        )
    ranks.close()


def _pass_row(
    taken: dict[str, list[float]], worked: dict[str, list[float]], name: str, reports: list[Any]
) -> list[str]:
    told = []
    for seconds in (taken, worked):
        own, psg = (np.array(seconds[way]) for way in (name, "psg"))
        below = 1 - own / psg
        told += [
            f"{np.median(own):.2f}",
            f"{np.median(below):.1%} ({below.min():.1%} … {below.max():.1%})",
            f"{(below >= MARGIN).sum()} of {len(below)}",
        ]
    figures = [
        statistics.median(report.figures["schedule_ratio"][figure, "measured"] for report in reports)
        for figure in ("imbalance", "efficiency")
    ]
    beside = sum(report.seconds["schedule"] + report.seconds["profile"] for report in reports)
    return [*told, *(f"{figure:.3f}" for figure in figures), f"{beside / sum(taken[name]):.2%}"]


def errors(store: Path, horizon: int, models: list[str], name: str, times: Path | None) -> None:
    """Print a row per model."""
    rows = []
    for model in models:
        measured: dict[int, float] = {}
        way = Follower(store, model, {}, Ranks(device="cpu"), horizon)
        found: list[float] = []
        again: list[float] = []
        known: set[int] = set()
        for until in np.linspace(horizon + 1, min(len(way.manifests), MOST), ROUNDS).astype(int).tolist():
            way.follow(until, until - horizon)
            before = way.strategy._profile.model
            way.learn()
            fresh = np.array([tau not in known for tau in way.names])
            if known and fresh.any():
                predicted = before.predict(way.sizes)
                found += (np.abs(predicted / way.seconds - 1)[fresh]).tolist()
            known |= set(way.names)
            way.learn()
            second = way.seconds
            way.learn()
            again += np.abs(way.seconds / second - 1).tolist()
            measured |= dict(zip(way.names, way.seconds.tolist(), strict=True))
        rows.append(
            [
                f"`{model}`",
                name,
                str(len(found)),
                *(f"{np.quantile(each, at):.1%}" for each in (found, again) for at in (0.5, 0.95)),
            ]
        )
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    table(
        "model | set | groups that never ran | median error | 95th percentile | two runs, median | 95th percentile",
        rows,
    )
    if times is not None:
        times.write_text(json.dumps([measured[name] for name in sorted(measured)]))


def build(data: Path, name: str, slices: int, store: Path) -> None:
    """A store of a set with a lane."""
    stem, interval_us, life = SETS[name]
    events = read_events(data / f"{stem}.parquet").events
    if interval_us is None:
        interval_us = US_PER_S
        events = events.take(pa.array(np.argsort(events["t"].to_numpy(), kind="stable")))
        t = pa.array(np.arange(len(events)) * slices // len(events) * US_PER_S)
        at = events.schema.get_field_index("t")
        events = events.set_column(at, events.schema.field(at), t.cast(events.schema.field(at).type))
    lanes = [Lane(name="hash", algorithm="hash", parts=2, edge_life=life)]
    build_store(events, store, interval_us=interval_us, lanes=lanes)


def precision(data: Path, slices: int, model: str, params: dict[str, Any], seed: int) -> float:
    """Average precision of the test events."""
    events = read_events(data).events["t"]
    span_s = (events.to_numpy().max() - events.to_numpy().min()) / 1e6
    keys = {
        "lane": "distdy", "model": model, "strategy": "group", "strategy_params": params, "window": WINDOW, "horizon": 11,
        "interval_s": int(span_s / slices), "seed": seed, "optimisation": {"epochs": 5},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "trainer.yaml"
        config.write_text(yaml.safe_dump(keys), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "trainer.cli",
            "evaluate",
            "--config",
            str(config),
            "--data",
            str(data),
        ]
        found = subprocess.run([*command, "--ranks", "2", "--json"], check=True, capture_output=True)
    told: float = json.loads(found.stdout)["ap"]
    return told


def precisions(data: Path, slices: int, models: list[str], ways: list[str], seeds: list[int]) -> None:
    """Print a row per model."""
    rows = []
    for model in models:
        found = {way: [precision(data, slices, model, WAYS[way], seed) for seed in seeds] for way in ways}
        rows.append([f"`{model}`", *(", ".join(f"{ap:.4f}" for ap in found[way]) for way in ways)])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    table("model | " + " | ".join(f"AP, {way}" for way in ways), rows)


def start(arguments: list[str], size: int) -> None:
    """This script on so many ranks."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    started = []
    for rank in range(size):
        where = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
        }
        environment = {**os.environ, **(where if size > 1 else {}), "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen([sys.executable, __file__, *arguments], env=environment))
    codes = [each.wait() for each in started]
    if any(codes):
        raise SystemExit(max(codes))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="passes", choices=["passes", "error", "ap"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--set", default="sx", choices=list(SETS))
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--slices", type=int, default=32)
    parser.add_argument("--horizon", type=int, default=11)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--times", type=Path, help="measured seconds of groups are written there")
    parser.add_argument("--store", type=Path, help="made before, as by this script")
    given = parser.parse_args()
    if given.only == "ap":
        precisions(
            given.data / f"{SETS[given.set][0]}.parquet", given.slices, given.models, given.ways, given.seeds
        )
        return
    if given.store is not None:
        torch.set_num_threads(1)
        if given.only == "error":
            errors(given.store, given.horizon, given.models, given.set, given.times)
        else:
            passes(given.store, given.horizon, given.models, given.ways)
        return
    with tempfile.TemporaryDirectory(prefix="freshet-groups-") as folder:
        store = Path(folder) / "store"
        build(given.data, given.set, given.slices, store)
        start([*sys.argv[1:], "--store", str(store)], 1 if given.only == "error" else 2)


if __name__ == "__main__":
    main()
