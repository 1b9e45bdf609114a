"""One thread or two for a rank, on a quiet host and a busy one: python benchmarks/threads.py [MODEL ...].

``freshet-trainer run`` learns the first events of collegemsg, with the key ``threads`` and without any environment
variable. Seconds and processor seconds are those of training, without loading libraries. Busy is a host with two more
processes per core that do nothing but count. Nothing else may run beside the benchmark.
"""

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import psutil
import yaml
from live_rate import processor

from schemas.config import Lane
from schemas.events import US_PER_S
from stream.decode.files import read_events
from stream.store.from_file import build_store

ROWS = {"tgn-history": "sequential", "sage-linear": "vertex", "wdgcn": "whole", "tmgcn": "whole"}
"""Strategies by model."""
A_SNAPSHOT = 500
"""Events in it."""
THREADS = (1, 2)
LANE = Lane(name="hash", algorithm="hash", parts=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(ROWS), metavar="MODEL")
    default = Path(__file__).parents[2] / "shared/data/collegemsg.parquet"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--snapshots", type=int, default=4, help="that each run learns")
    parser.add_argument("--runs", type=int, default=1, help="of each cell, whose median is printed")
    given = parser.parse_args()
    print(f"{processor()}, {os.cpu_count()} cores, {datetime.datetime.now(datetime.UTC).date()}")
    print(
        "| model | strategy | threads | quiet, s | processor, s | busy, s | processor, s |\n|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory(prefix="freshet-threads-") as name:
        store = store_of(Path(name) / "store", given.data, given.snapshots)
        for model in given.models:
            for threads in THREADS:
                keys = {"model": model, "strategy": ROWS[model], "threads": threads, "store": str(store)}
                cells = []
                for more in (0, 2 * (os.cpu_count() or 1)):
                    with busy(more):
                        took = [trained(keys) for _ in range(given.runs)]
                    cells += [f"{median(column):.1f}" for column in zip(*took, strict=True)]
                print(f"| `{model}` | `{ROWS[model]}` | {threads} | {' | '.join(cells)} |", flush=True)
    return 0


def store_of(folder: Path, data: Path, snapshots: int) -> Path:
    """A store of the first events, whose snapshots have equally many."""
    read = read_events(data)
    table = read.events.sort_by("t").slice(0, snapshots * A_SNAPSHOT)
    at = table.schema.get_field_index("t")
    moments = [row * US_PER_S for row in range(len(table))]
    evened = replace(read, events=table.set_column(at, table.schema.field(at), [moments]))
    build_store(evened, folder, interval_us=A_SNAPSHOT * US_PER_S, lanes=[LANE])
    return folder


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes beside, each on as much of a core as it gets."""
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def trained(keys: dict[str, object]) -> tuple[float, float]:
    """Seconds of a run from its line ``training`` to its end, and of its processor."""
    with tempfile.TemporaryDirectory(prefix="freshet-run-") as folder:
        config = Path(folder) / "trainer.yaml"
        values = {**keys, "lane": LANE.name, "checkpoint": f"{folder}/checkpoints", "metrics": {"port": 0}}
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.cli", "run", "--config", config, "--until-idle", "0", "--json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("OMP_", "GOMP_", "KMP_"))
            },
        )
        assert process.stderr is not None
        log, began, spent = "", 0.0, 0.0
        for line in process.stderr:
            log += line
            if not began and line.startswith('{"event": "training"'):
                began, spent = time.perf_counter(), sum(psutil.Process(process.pid).cpu_times()[:2])
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{keys}\n{log[-2000:]}")
        return time.perf_counter() - began, usage.ru_utime + usage.ru_stime - spent


if __name__ == "__main__":
    sys.exit(main())
