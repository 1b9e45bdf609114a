"""PAC beside plain training: python benchmarks/pac.py [--data FILE …] (SPEED's Tables IV and VI).

Every row trains a model on one lane with some ranks, each a process of its own joined by gloo, for a few epochs over
the first 70 % of a file, takes the epoch that predicts the next 15 % best, and predicts the last 15 %: ``evaluate``'s
protocol, without baselines and rankings. Columns:

- *AP*, *inductive*: average precision of the test, of all events and of those with a node that training never saw;
- *cut*: training events that no rank could learn, mean over epochs; *events per rank*: their standard deviation;
- *nodes per rank*: share of the nodes of which a rank has memory while it learns, mean of ranks;
- *memory*: mails and walks a rank has, at most, the largest of ranks; *events*: events and graph, on every rank;
- *CPU s*: of training, per epoch, of the slowest rank; *MiB sent*: payload that a rank sent per epoch.

``--hubs`` are of the rules of SEP, ``--batch`` has the events of a step, of all ranks together or, with ``--share each``, of
each. ``--shuffle-every 0`` combines the parts once (SPEED's Fig. 7). ``sep-two-pass`` sees the first 70 % before, as under
``evaluate``.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.partition.offline import training_params
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.evaluation.evaluate import _Run, all_inserts
from freshet_graph.trainer.evaluation.protocol import OfflineProtocol
from freshet_graph.trainer.evaluation.split import split_by_time
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import Figures
from freshet_graph.trainer.strategies.speed.pac import PacStrategy

SHARES = (0.7, 0.15, 0.15)


class Run(_Run):
    """One seed under ``evaluate``'s protocol; what training took and did is written down."""

    def prepare(self) -> None:
        """Listen to the strategy."""
        self.cpu = 0.0
        self.learned: list[tuple[int, int, int]] = []
        self.nodes: list[float] = []
        strategy = self.session.strategy
        learn = strategy.learn

        def timed(example_sets: Any, epoch: int) -> Any:
            began = time.process_time()
            report = learn(example_sets, epoch)
            self.cpu += time.process_time() - began
            self.learned.append((len(example_sets[-1].learned), report.events, report.discarded))
            if isinstance(strategy, PacStrategy):
                held = strategy._groups.is_local()
                self.nodes.append(float(held.mean()) if len(held) else 0.0)
            return report

        strategy.learn = timed  # type: ignore[method-assign]  # for as long as this run

    def _warm_up(self) -> None:
        super()._warm_up()
        self.cpu = 0.0
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


def work(store: Path, lane_name: str, seed: int, given: Any) -> dict[str, Any]:
    """As one rank: what it found and took."""
    ranks, lane, epochs = Ranks.from_environment("cpu"), LaneReader(store, lane_name), given.epochs
    config = TrainerConfig.model_validate({
        "model": given.model, "strategy": "pac", "lane": lane_name, "seed": seed,
        "strategy_params": {
            "synchronise": given.synchronise, "batch": given.share, "shuffle_every": given.shuffle_every or None
        },
        "optimisation": {"epochs": epochs, "batch_size": given.batch},
    })  # fmt: skip
    inserts = all_inserts(lane.log)
    split = split_by_time(inserts.visible_us, SHARES)
    run = Run(config, lane, ranks, split, seed, OfflineProtocol(lane, inserts, split, seed), None)
    run.prepare()
    figures = run.figures()  # of the first rank
    learned, events, discarded = (sum(column) for column in zip(*run.learned, strict=True))
    harness.require(events > 0, "no event was learned")
    held = run.session.strategy.held_bytes
    ranks.close()
    return {
        "ap": figures.get("ap"), "inductive_ap": figures.get("inductive_ap"), "cut": discarded / (events + discarded),
        "events": learned / epochs, "nodes": statistics.mean(run.nodes), "memory_mib": held["memory"] / 2**20,
        "events_mib": held["events"] / 2**20, "cpu_s": run.cpu / epochs, "sent_mib": run.sent / 2**20 / epochs,
    }  # fmt: skip


def cells(seeds: list[list[dict[str, Any]]]) -> list[str]:
    """Of the seeds of a setting, each the figures of its ranks."""

    def mean(name: str, of_ranks: Callable[[list[float]], float] = max) -> float:
        return statistics.mean(of_ranks([rank[name] for rank in ranks]) for ranks in seeds)

    return [
        *(mean_and_deviation([ranks[0][name] for ranks in seeds]) for name in ("ap", "inductive_ap")),
        f"{100 * mean('cut'):.1f} %", f"{mean('events', statistics.pstdev):.0f}",
        f"{100 * mean('nodes', statistics.mean):.0f} %", f"{mean('memory_mib'):.2f}", f"{mean('events_mib'):.1f}",
        f"{mean('cpu_s'):.1f}", f"{mean('sent_mib'):.0f}",
    ]  # fmt: skip


def mean_and_deviation(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.mean(known):.4f}" + (f" ± {statistics.stdev(known):.4f}" if len(known) > 1 else "")


def rows(given: Any) -> Iterator[list[str]]:
    for data, lane in itertools.product(given.data, given.lanes):
        for hubs in given.hubs if lane.startswith("sep") else [0.0]:
            name = f"{lane} {100 * hubs:g} %" if lane.startswith("sep") else lane
            with harness.scratch() as folder:
                store = store_of(data, folder / "store", lane, hubs, given)
                for ranks in given.ranks:
                    seeds = [
                        harness.on_ranks(ranks, work, store, lane, seed, given) for seed in range(given.seeds)
                    ]
                    yield [
                        f"{Path(data).stem}, {given.model}",
                        name,
                        str(ranks),
                        str(len(seeds)),
                        *cells(seeds),
                    ]


def store_of(data: Path, store: Path, lane: str, hubs: float, given: Any) -> Path:
    events = read_events(harness.existing(data))
    t = events.events["t"].to_numpy()
    until_us = int(split_by_time(t[events.events["op"].to_numpy() == 1], SHARES).train_until_us)
    interval_us = int(-(-(t.max() - t.min()) // given.snapshots))
    params = {"hubs": hubs} if lane.startswith("sep") else {}
    params = training_params(lane, params, int(t.min()), until_us)
    return harness.built(
        store, events, interval_us, [Lane(name=lane, algorithm=lane, parts=given.parts, params=params)]
    )


def main() -> None:
    given = harness.options(
        __doc__, data=[harness.DATA / "collegemsg.parquet"], model="tgn-history", lanes=["sep"], hubs=[0.05],
        ranks=[1, 2, 4], parts=8, epochs=1, batch=200, share={"choices": ["divided", "each"], "default": "divided"},
        snapshots=25, synchronise="latest", shuffle_every=16, seeds=1,
    )  # fmt: skip
    titles = (
        "data, model | lane | ranks | seeds | AP | inductive | cut | events per rank, std | nodes per rank"
    )
    harness.table(f"{titles} | memory per rank, MiB | events, MiB | CPU s | MiB sent", rows(given))


if __name__ == "__main__":
    main()
