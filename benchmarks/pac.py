"""PAC beside plain training: python benchmarks/pac.py [--data FILE …] (SPEED's Tables IV, VI and VII).

Every row trains a model on one lane with some ranks, each a process of its own joined by gloo, for a few epochs over
the first 70 % of a file, takes the epoch that predicts the next 15 % best, and predicts the last 15 %: ``evaluate``'s
protocol, without baselines and rankings. Columns:

- *AP*, *inductive*: average precision of the test, of all events and of those with a node that training never saw;
- *cut*: training events that no rank could learn, mean over epochs; *events a rank*: their standard deviation;
- *nodes a rank*: share of the nodes of which a rank has memory while it learns, mean of ranks;
- *memory*: mails and walks a rank held, at most, the largest of ranks; *events*: events and graph, on every rank;
- *s an epoch*: of training, of the slowest rank, and its CPU seconds, which a busy machine says less about;
- *MiB sent*: payload a rank sent an epoch; *partitioner*: seconds it took for the file.

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
from trainer.evaluation.evaluate import _Run, all_inserts
from trainer.evaluation.protocol import OfflineProtocol
from trainer.evaluation.split import split_by_time
from trainer.ranks import Ranks
from trainer.scoring.metrics import Figures
from trainer.strategies.speed.pac import PacStrategy

DATA = (
    Path(__file__).resolve().parents[1] / "../shared/data/collegemsg.parquet"
)  # a folder of real graphs: docs/performance.md
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
                held = strategy._groups.held()
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
        found = [
            self._judge(examples.of_events(self.split.test(examples.times)), floor=False)
            for examples in self._rest()
            if self.split.test(examples.times).any()
        ]
        return self._figures(found)


def work(row: dict[str, Any], out: Path) -> None:
    """As one rank."""
    ranks = Ranks.from_environment("cpu")
    lane = LaneReader(row["store"], row["lane"])
    config = TrainerConfig(
        model=row["model"],
        strategy="pac",
        lane=row["lane"],
        seed=row["seed"],
        strategy_params={"synchronise": row["synchronise"], "batch": row["share"]},
        optimisation=Optimisation(epochs=row["epochs"], batch_size=row["batch"]),
    )
    inserts = all_inserts(lane)
    split = split_by_time(inserts.visible_us, (0.7, 0.15, 0.15))
    protocol = OfflineProtocol(lane, inserts, split, row["seed"])
    run = Run(config, lane, ranks, split, row["seed"], protocol, None)
    run.prepare()
    figures = run.figures()
    learned, events, discarded = (sum(column) for column in zip(*run.learned, strict=True))
    held = run.session.strategy.held_bytes
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
    """Rows as Markdown, seeds of one setting as their mean ± standard deviation."""
    lines = [
        "| data, model | lane | ranks | seeds | AP | inductive | cut | events a rank, std | nodes a rank | memory a rank, MiB "
        "| events, MiB | s an epoch | CPU s | MiB sent | partitioner, s |",
        "|" + "---|" * 15,
    ]
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        settings.setdefault(tuple(row[key] for key in KEYS if key != "seed"), []).append(row)
    for runs in settings.values():
        row = runs[0]
        lane = f"sep {100 * row['hubs']:g} %" if row["lane"] == "sep" else row["lane"]
        lane = "any" if row["ranks"] == 1 else lane
        lane += ", `mean`" if row["synchronise"] == "mean" else ""
        lane += f", batch {row['batch']}" if row["batch"] != BATCH else ""
        lane += " each" if row["share"] == "each" and row["ranks"] > 1 else ""
        mean = {
            key: statistics.mean(run[key] for run in runs)
            for key in row
            if key not in (*KEYS, "ap", "inductive_ap", "validation_ap")
        }
        cells = [
            f"{Path(row['data']).stem}, {row['model']}", lane, row["ranks"], len(runs),
            _spread([run["ap"] for run in runs]), _spread([run["inductive_ap"] for run in runs]), f"{100 * mean['cut']:.1f} %",
            f"{mean['events_std']:.0f}", f"{100 * mean['nodes']:.0f} %", f"{mean['memory_mib']:.2f}", f"{mean['events_mib']:.1f}",
            f"{mean['wall_s']:.1f}", f"{mean['cpu_s']:.1f}", f"{mean['sent_mib']:.0f}", f"{mean['partition_s']:.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.mean(known):.4f}"
    return f"{mean} ± {statistics.stdev(known):.4f}" if len(known) > 1 else mean


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", type=Path, default=[DATA])
    parser.add_argument("--model", default="tgn-history")
    parser.add_argument("--lanes", nargs="+", default=["sep"])
    parser.add_argument("--hubs", nargs="+", type=float, default=[0.05], help="of sep")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=BATCH, help="events a step")
    parser.add_argument("--share", choices=["divided", "each"], default="divided", help="whose --batch is")
    parser.add_argument("--snapshots", type=int, default=25)
    parser.add_argument("--synchronise", default="latest")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON lines; what is there is not run again")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        work(json.loads(given.rank_of), given.out)
        return
    missing = [str(data) for data in given.data if not data.exists()]
    if missing:
        sys.exit(f"{missing[0]} is not there; name a Parquet file of src, dst, t with --data")
    if given.out is None:
        with tempfile.TemporaryDirectory(prefix="freshet-pac-") as folder:
            print(table(measure(given, Path(folder) / "rows.jsonl")))
    else:
        print(table(measure(given, given.out)))


def measure(given: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """Run what is not in ``out`` yet; all rows that are there then."""
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for data in given.data:
        for lane in given.lanes:
            for hubs in given.hubs if lane == "sep" else [0.0]:
                rows = [
                    {
                        "data": str(data), "model": given.model, "lane": lane, "hubs": hubs, "parts": given.parts,
                        "ranks": ranks, "epochs": given.epochs, "batch": given.batch, "share": given.share,
                        "snapshots": given.snapshots, "synchronise": given.synchronise, "seed": seed,
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
                            start({**row, "store": str(Path(folder) / "store")}, out)
    return [json.loads(line) for line in out.read_text().splitlines()]


def _store(data: Path, folder: Path, lane: str, hubs: float, given: argparse.Namespace) -> None:
    import pyarrow.compute as pc

    from schemas.config import Lane
    from stream.decode.files import read_events

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
