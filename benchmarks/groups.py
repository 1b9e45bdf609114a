"""Training by ``group`` on two ranks, beside PSG: python benchmarks/groups.py [--only passes|error] [--data DIR].

A stream is cut into slices of equally many events and its edges never end, so every snapshot is larger than the one before;
or into days, and its edges end after some, so that snapshots are as unequal as days are.
Ranks are processes joined by gloo, with one thread each.

- ``passes``: a pass over all groups of a horizon by each way of composing and scheduling steps, in nine rounds, each a few
  snapshots further, the second pass there. The ways take turns, so what else the machine does is shared. Printed are the medians
  over rounds of seconds on the wall and the part of a pass below PSG's, and the same of the processor: each step as long as
  its busiest rank's measured groups. Then imbalance and efficiency, and the part that profiling and solving took.
- ``error``: relative error of predicted seconds on groups that never ran: the time model is fitted to the groups of one pass,
  on one rank, and predicts those that are trained after the stream has moved on. Beside it, how far two runs of one group
  differ, which no model can foresee. ``--times FILE`` writes the measured seconds
  of the last model's groups, as ``freshet-trainer simulate --times`` reads them.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
import torch
from harness import DAY_US

from freshet_graph.stream.decode.files import read_events
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow

SETS: dict[str, tuple[str, int | None, int | None]] = {
    "sx": ("sx_mathoverflow", None, None),
    "slashdot": ("slashdot_reply", None, None),
    "collegemsg": ("collegemsg", None, None),
    "email, daily": ("email_eu", DAY_US, 3),
    "digg, daily": ("digg_reply", DAY_US, 2),
}
"""Of each set: the file, microseconds of a snapshot (None: slices of equally many events), and the life of an edge."""
MODELS = ["wdgcn", "tgcn", "evolvegcn-h", "gatlstm"]
WINDOW, ROUNDS = 4, 9
MOST = 100
"""Snapshots of a set, at most."""
WAYS: dict[str, dict[str, Any]] = {
    "psg": {"composition": "schedule", "algorithm": "psg", "groups_per_rank": 1},
    "schedule": {"composition": "schedule"},
    "fixed": {},
}


class Follower:
    """A session of one way, and the training examples of its horizon."""

    def __init__(self, store: Path, model: str, params: dict[str, Any], ranks: Ranks, horizon: int) -> None:
        keys = {
            "lane": "hash",
            "model": model,
            "strategy": "group",
            "strategy_params": params,
            "window": WINDOW,
        }
        optimisation = {"batch_size": 1 << 20}
        self.session = harness.session_of(store, ranks, **keys, horizon=horizon, optimisation=optimisation)
        self.manifests, self.strategy = list(self.session.lane.manifests), self.session.strategy
        self._book = ExampleWindow(self.session.task, self.strategy.needs.example_sets)
        self._next, self._passes, self._horizon = 0, 0, horizon

    def rounds(self) -> list[int]:
        """The snapshot at which each round is."""
        last = min(len(self.manifests), MOST)
        return np.linspace(self._horizon + 1, last, ROUNDS).astype(int).tolist()

    def follow(self, until: int) -> None:
        """Advance to a snapshot, by its number; examples are kept of the horizon before it."""
        for manifest in self.manifests[self._next : until]:
            self.session.advance(manifest)
            if manifest.sequence >= until - self._horizon:
                self._newest = self.session.task.examples(self.session.view, self.strategy)
                self._book.open(self._newest)
        self._next = until

    def learn(self) -> Any:
        """A pass over all groups of the horizon, whose names, sizes and seconds are kept."""
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


def passes(given: Any) -> list[list[str]]:
    """As one rank: a row per model and way."""
    torch.set_num_threads(1)
    ranks, rows = Ranks.from_environment("cpu"), []
    for model in given.models:
        ways = {name: Follower(given.store, model, WAYS[name], ranks, given.horizon) for name in given.ways}
        took: dict[str, list[tuple[float, float, Any]]] = {name: [] for name in ways}
        for until in next(iter(ways.values())).rounds():
            for way in ways.values():
                way.follow(until)
            for measured in (False, True):
                for name, way in ways.items():
                    ranks.total([0.0])
                    began = time.perf_counter()
                    report = way.learn()
                    ranks.total([0.0])
                    wall_s = time.perf_counter() - began
                    efficiency = report.figures["schedule_ratio"]["efficiency", "measured"]
                    if measured:
                        took[name].append((wall_s, way.seconds.sum() / ranks.size / efficiency, report))
        rows += [[f"`{model}`", name, *pass_cells(took, name)] for name in ways]
    ranks.close()
    return rows


def pass_cells(took: dict[str, list[tuple[float, float, Any]]], name: str) -> list[str]:
    cells = []
    for clock in (0, 1):
        own, psg = (np.array([each[clock] for each in took[way]]) for way in (name, "psg"))
        below = 1 - own / psg
        cells += [f"{np.median(own):.2f}", f"{np.median(below):.1%} ({below.min():.1%} … {below.max():.1%})"]
    reports = [report for *_, report in took[name]]
    for figure in ("imbalance", "efficiency"):
        cells.append(f"{median(each.figures['schedule_ratio'][figure, 'measured'] for each in reports):.3f}")
    beside = sum(each.seconds["schedule"] + each.seconds["profile"] for each in reports)
    return [*cells, f"{beside / sum(wall_s for wall_s, *_ in took[name]):.2%}"]


def errors(given: Any) -> Iterator[list[str]]:
    """A row per model."""
    for model in given.models:
        way = Follower(given.store, model, {}, Ranks(device="cpu"), given.horizon)
        measured: dict[int, float] = {}
        found, again = list[float](), list[float]()
        for until in way.rounds():
            way.follow(until)
            before = way.strategy._profile.model
            way.learn()
            fresh = np.array([tau not in measured for tau in way.names])
            if measured and fresh.any():
                found += np.abs(before.predict(way.sizes) / way.seconds - 1)[fresh].tolist()
            way.learn()
            second = way.seconds
            way.learn()
            again += np.abs(way.seconds / second - 1).tolist()
            measured |= dict(zip(way.names, way.seconds.tolist(), strict=True))
        quantiles = [f"{np.quantile(each, share):.1%}" for each in (found, again) for share in (0.5, 0.95)]
        yield [f"`{model}`", given.set, str(len(found)), *quantiles]
    if given.times:
        given.times.write_text(json.dumps([measured[name] for name in sorted(measured)]))


def build(data: Path, name: str, slices: int, store: Path) -> Path:
    """A store of a set with a lane."""
    stem, interval_us, life = SETS[name]
    source = read_events(harness.existing(data / f"{stem}.parquet"))
    if interval_us is None:
        source, interval_us = harness.evened(source, -(-len(source.events) // slices))
    return harness.built(store, source, interval_us, harness.lanes("hash", parts=2, edge_life=life))


def main() -> None:
    given = harness.options(
        __doc__, only={"default": "passes", "choices": ["passes", "error"]}, data=harness.DATA,
        set={"default": "sx", "choices": list(SETS)}, models=MODELS, ways=list(WAYS), slices=32, horizon=11,
        times={"type": Path},
    )  # fmt: skip
    torch.set_num_threads(1)
    with harness.scratch() as folder:
        given.store = build(given.data, given.set, given.slices, folder / "store")
        if given.only == "error":
            titles = "model | set | groups that never ran | median error | 95th percentile | two runs, median"
            harness.table(f"{titles} | 95th percentile", errors(given))
        else:
            titles = "model | way | pass, s | below PSG | of the processor, s | below PSG | imbalance"
            rows = harness.on_ranks(2, passes, given)[0]
            harness.table(f"{titles} | efficiency | solving and profiling", rows)


if __name__ == "__main__":
    main()
