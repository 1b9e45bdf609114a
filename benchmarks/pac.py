"""PAC beside plain training: python benchmarks/pac.py --data FILE … (SPEED's Tables IV, VI and VII).

Every row trains a model on one lane with some ranks, each a process of its own joined by gloo, for a few epochs over
the first 70 % of a file, takes the epoch that predicts the next 15 % best, and predicts the last 15 %: ``evaluate``'s
protocol, without floors and rankings. Columns:

- ``ap``, ``ind``: average precision of the test, of all events and of those with a node that training never saw;
- ``cut %``: training events that no rank could learn, mean over epochs; ``std``: standard deviation of ranks' events;
- ``nodes %``: share of the nodes of which a rank has memory while it learns, mean of ranks;
- ``MiB``: mails and walks a rank held, at most, the largest of ranks; ``events``: events, graph, on every rank;
- ``s``: seconds an epoch of training of the slowest rank, and its CPU seconds, which a busy machine says less about;
- ``MiB sent``: payload a rank sent an epoch; ``part s``: what the partitioner took for the file.

Rows are appended to --out as JSON when they are done; what is there already is not run again.
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

from schemas.trainer_config import Optimisation, TrainerConfig
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from trainer.data.split import split_by_time
from trainer.evaluate import _all_inserts, _figures, _Run
from trainer.ranks import Ranks
from trainer.scoring.predictions import Figures, predict
from trainer.strategies.pac import PacStrategy

KEYS = (
    "data",
    "model",
    "lane",
    "hubs",
    "parts",
    "ranks",
    "epochs",
    "batch",
    "snapshots",
    "synchronise",
    "seed",
)


class Run(_Run):
    """One seed under ``evaluate``'s protocol; what training took and did is written down."""

    def prepare(self) -> None:
        """Listen to the strategy."""
        self.wall = self.cpu = 0.0
        self.reports: list[tuple[int, int, int]] = []
        self.nodes: list[float] = []
        train = self.strategy.train

        def timed(examples: Any, epoch: int) -> Any:
            began, began_cpu = time.perf_counter(), time.process_time()
            report = train(examples, epoch)
            self.wall += time.perf_counter() - began
            self.cpu += time.process_time() - began_cpu
            self.reports.append((len(examples.learned), report.events, report.discarded))
            if isinstance(self.strategy, PacStrategy):
                held = self.strategy._groups.held()
                self.nodes.append(float(held.mean()) if len(held) else 0.0)
            return report

        self.strategy.train = timed  # type: ignore[method-assign]  # for as long as this run

    def _warm_up(self) -> None:
        super()._warm_up()
        self.wall = self.cpu = 0.0
        self.reports.clear()
        self.nodes.clear()
        self.ranks.sent_bytes.clear()

    def _test(self) -> Figures:
        self.sent = sum(self.ranks.sent_bytes.values())
        found = [
            predict(
                self.strategy,
                self.model,
                None,
                examples.of_events(self.split.test(t)).only_random(),
                self.ranks,
            )
            for examples, t in self._snapshots(float("inf"), self.config.optimisation.epochs)
            if self.split.test(t).any()
        ]
        return _figures(found)


def work(row: dict[str, Any], out: Path) -> None:
    """As one rank."""
    ranks = Ranks.from_environment("cpu")
    lane = LaneReader(row["store"], row["lane"])
    config = TrainerConfig(
        model=row["model"],
        strategy="pac",
        lane=row["lane"],
        seed=row["seed"],
        strategy_params={"synchronise": row["synchronise"]},
        optimisation=Optimisation(epochs=row["epochs"], batch_size=row["batch"]),
    )
    inserts = _all_inserts(lane)
    run = Run(config, lane, ranks, inserts, split_by_time(inserts.visible_us, (0.7, 0.15, 0.15)), row["seed"])
    run.prepare()
    figures = run.figures()
    learned, events, discarded = (sum(column) for column in zip(*run.reports, strict=True))
    held = run.strategy.held_bytes
    own = [
        float(learned),
        run.wall,
        run.cpu,
        held["memory"],
        held["events"],
        run.sent,
        statistics.mean(run.nodes),
    ]
    everyones = np.array(
        [ranks.total([value if rank == ranks.rank else 0.0 for value in own]) for rank in range(ranks.size)]
    )
    epochs = row["epochs"]
    if ranks.rank == 0:
        found = {
            **{key: row[key] for key in KEYS},
            "ap": figures.get("ap"),
            "inductive_ap": figures.get("inductive_ap"),
            "validation_ap": figures.get("validation_ap"),
            "cut": discarded / (events + discarded),
            "events_std": float(everyones[:, 0].std() / epochs),
            "events_rank": float(everyones[:, 0].max() / epochs),
            "wall_s": float(everyones[:, 1].max() / epochs),
            "cpu_s": float(everyones[:, 2].max() / epochs),
            "memory_mib": float(everyones[:, 3].max() / 2**20),
            "events_mib": float(everyones[:, 4].max() / 2**20),
            "sent_mib": float(everyones[:, 5].max() / 2**20 / epochs),
            "nodes": float(everyones[:, 6].mean()),
            "partition_s": sum(manifest.quality.seconds for manifest in lane.manifests),
        }
        with out.open("a") as file:
            file.write(json.dumps(found) + "\n")
    ranks.close()


def start(row: dict[str, Any], out: Path) -> None:
    """Run one row in ``ranks`` processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = row["ranks"]
    here = max(size, os.cpu_count() or 1)  # a thread a rank, also where there is one rank
    shared = {
        **os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(here), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    command = [sys.executable, __file__, "--rank-of", json.dumps(row), "--out", str(out)]
    processes = [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=sys.stderr
        )
        for rank in range(size)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"a rank of {row} failed")


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown."""
    lines = [
        "| data | model | lane | ranks | ap | ind | cut % | std | nodes % | MiB | events MiB | s | CPU s | MiB sent | part s |",
        "|" + "---|" * 15,
    ]
    for row in rows:
        lane = f"{row['lane']} {100 * row['hubs']:g} %" if row["lane"] == "sep" else row["lane"]
        cells = [
            Path(row["data"]).stem, row["model"], lane, row["ranks"], _number(row["ap"], 4), _number(row["inductive_ap"], 4),
            f"{100 * row['cut']:.1f}", f"{row['events_std']:.0f}", f"{100 * row['nodes']:.0f}", f"{row['memory_mib']:.1f}",
            f"{row['events_mib']:.1f}", f"{row['wall_s']:.1f}", f"{row['cpu_s']:.1f}", f"{row['sent_mib']:.0f}",
            f"{row['partition_s']:.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", type=Path, default=[])
    parser.add_argument("--model", default="tgn")
    parser.add_argument("--lanes", nargs="+", default=["sep"])
    parser.add_argument("--hubs", nargs="+", type=float, default=[0.0, 0.01, 0.05, 0.1], help="of sep")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--snapshots", type=int, default=25)
    parser.add_argument("--synchronise", default="latest")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("pac.jsonl"))
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        work(json.loads(given.rank_of), given.out)
        return
    done = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    for data in given.data:
        for lane in given.lanes:
            for hubs in given.hubs if lane == "sep" else [0.0]:
                rows = [
                    {
                        "data": str(data), "model": given.model, "lane": lane, "hubs": hubs, "parts": given.parts,
                        "ranks": ranks, "epochs": given.epochs, "batch": given.batch, "snapshots": given.snapshots,
                        "synchronise": given.synchronise, "seed": seed,
                    }
                    for ranks in given.ranks
                    for seed in range(given.seeds)
                ]  # fmt: skip
                known = [{key: row[key] for key in KEYS} for row in done]
                rows = [row for row in rows if row not in known]
                if rows:
                    with tempfile.TemporaryDirectory(prefix="freshet-pac-") as folder:
                        _store(data, Path(folder) / "store", lane, hubs, given)
                        for row in rows:
                            start({**row, "store": str(Path(folder) / "store")}, given.out)
    print(table([json.loads(line) for line in given.out.read_text().splitlines()]))


def _store(data: Path, folder: Path, lane: str, hubs: float, given: argparse.Namespace) -> None:
    import pyarrow.compute as pc

    from schemas.config import Lane
    from stream.decode.event_file import read_events

    events = read_events(data)
    span = pc.min_max(events.events["t"]).as_py()
    interval_us = -(-(span["max"] - span["min"]) // given.snapshots)
    params = {"hubs": hubs} if lane == "sep" else {}
    build_store(
        events,
        folder,
        interval_us=interval_us,
        lanes=[Lane(name=lane, algorithm=lane, parts=given.parts, params=params)],
    )


if __name__ == "__main__":
    main()
