"""What Flink's parallelism buys from Kafka to the committed log: python benchmarks/flink.py [--events N] [--tasks 1 2 4].

A real broker and a Flink inside the job server (deploy/flink) on this machine, a topic of 4 partitions filled before
anything is timed. Workers are processes of their own (a worker pool), started before the clock: rates are between the
first and the last commit that took events. Brokers, Flink's JVM and all workers share the machine's cores, so the table says
what a task costs and how much of it can be given away, not what a cluster does. All events must be in the log.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import harness
from ingest import IDLE_S, configuration, fill, ran

from freshet_graph.schemas.config import Runner, StreamConfig
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.cluster.job import ClusterJob
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.log.commits import numbers
from freshet_graph.stream.store.log.layout import commit_name, log_folder


@contextmanager
def worker_pool(log: Path) -> Iterator[str]:
    """host:port of a pool that starts a process for each worker."""
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "freshet_graph.stream.cluster.worker_pool", "--port", "0"]
    with log.open("wb") as output:
        pool = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path})
    try:
        pattern = re.compile(r"serving at (\S+)\n")
        harness.until(lambda: pattern.search(log.read_text()) or pool.poll() is not None, "the worker pool")
        found = pattern.search(log.read_text())
        harness.require(found, log.read_text())
        yield found[1]  # type: ignore[index]
    finally:
        harness.kill(pool)


def committed(store: str) -> float:
    """Events per second between the first and the last commit that took some."""
    root = log_folder(store)
    records = [read_record(root / commit_name(n), CommitRecord) for n in sorted(numbers(root))]
    marks = [(r.wall_time_us / 1e6, sum(p.next for p in r.positions)) for r in records]
    marks = [mark for at, mark in enumerate(marks) if at == 0 or mark[1] > marks[at - 1][1]]
    return (marks[-1][1] - marks[0][1]) / max(1e-9, marks[-1][0] - marks[0][0])


def measure(
    folder: Path, bootstrap: str, server: str, pool: str, given: Any
) -> Iterator[tuple[str, StreamConfig]]:
    """Run every way in turns; its name and its configuration, whose store has all events."""
    fill(bootstrap, "json-all", given.events)
    for _ in range(given.rounds):
        for tasks in (0, *given.tasks):
            store = Path(tempfile.mkdtemp(dir=folder)) / "store"
            config = configuration(store, bootstrap, "json-all")
            update: dict[str, Any] = {
                "snapshots": config.snapshots.model_copy(update={"commit_every_s": 0.5})
            }
            if tasks:
                flink = {"name": "flink", "job_server": server, "environment": f"external:{pool}"}
                update["runner"] = Runner.model_validate({**flink, "parallelism": tasks, "workers": tasks})
            config = config.model_copy(update=update)
            if tasks:
                done = ClusterJob(config, until_idle_s=IDLE_S).run()
                harness.require(done.events == given.events, f"{done} is not all of {given.events:,} events")
            else:
                ran(config, given.events)
            yield f"Flink, {tasks} tasks" if tasks else "this process", config


def main() -> None:
    from freshet_graph.stream.commands.run import quiet_beam
    from freshet_graph.stream.service.collector import calm_collector

    given = harness.options(__doc__, events=1_000_000, rounds=3, tasks=[1, 2, 4])
    quiet_beam(debug=False)
    calm_collector()
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(harness.scratch())
        bootstrap = stack.enter_context(harness.broker(folder / "kafka"))
        server = stack.enter_context(harness.server("flink/job_server.py", folder / "flink"))
        pool = stack.enter_context(worker_pool(folder / "pool.log"))
        for way, config in measure(folder, bootstrap, server, pool, given):
            found.setdefault(way, []).append(committed(config.store))
            print(f"{way}: {found[way][-1]:,.0f} events/s", file=sys.stderr, flush=True)
    here = median(found["this process"])
    rows = (
        [way, harness.spread([each / 1e6 for each in rates], 3), f"{median(rates) / here:.2f}"]
        for way, rates in found.items()
    )
    harness.table("way | M JSON events/s, median (least to most) | of this process", rows)


if __name__ == "__main__":
    main()
