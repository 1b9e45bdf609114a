"""What Flink's parallelism buys for reading and validation: python benchmarks/flink.py [--events N] [--rounds 3] [--tasks 1 2 4].

A real broker and a Flink inside the job server (deploy/flink) on this machine, a topic of 4 partitions filled before
anything is timed. Workers are processes of their own (a worker pool), started before the clock: rates are between the
first and the last micro-batch of a run, or the first and the last commit. Brokers, Flink's JVM and all workers share
the machine's cores, so that the table says what a task costs and how much of it can be given away, not what a
cluster does. All events must be in the log.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import apache_beam as beam
import harness
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.portable_runner import PortableRunner
from ingest import IDLE_S, configuration, fill, ran

from schemas.config import Runner, StreamConfig
from schemas.store import CommitRecord
from stream.cluster.job import ClusterJob, options
from stream.cluster.plan import ClusterPlan, announce, withdraw
from stream.cluster.stages import InWorker, ReadPartition
from stream.decode.decoder import Decoder
from stream.kafka.reader import PartitionReader
from stream.microbatch import MicroBatch
from stream.pipeline import DecodeFn
from stream.store.files.records import read_record
from stream.store.log.commits import numbers
from stream.store.log.layout import commit_name, log_folder

Batches = list[tuple[float, int]]
"""Time and rows of each."""


class Meter(beam.DoFn):  # type: ignore[misc]  # Beam has no types
    """Notes when how many rows came, in a file for each process and thread."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: MicroBatch) -> Iterator[None]:
        if element.events.num_rows:
            with (Path(self._folder) / f"{os.getpid()}-{threading.get_ident()}").open("a") as notes:
                notes.write(f"{time.time()} {element.events.num_rows}\n")
        return iter(())


def metered(folder: Path) -> Batches:
    """All batches so far, in order."""
    lines = [line.split() for path in folder.iterdir() for line in path.read_text().splitlines()]
    return sorted((float(line[0]), int(line[1])) for line in lines if len(line) == 2)


def rate(batches: Batches) -> float:
    """Rows per second after the first batch."""
    return sum(rows for _, rows in batches[1:]) / max(1e-9, batches[-1][0] - batches[0][0])


@contextmanager
def worker_pool(log: Path) -> Iterator[str]:
    """host:port of a pool that starts a process for each worker."""
    path = os.pathsep.join(filter(None, [str(harness.ROOT / "benchmarks"), *sys.path]))
    command = [sys.executable, "-m", "stream.cluster.worker_pool", "--port", "0"]
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


def partitions_of(config: StreamConfig) -> PartitionReader:
    return PartitionReader(config.kafka, lambda key: None, lambda topic, offsets: None)


def read_here(config: StreamConfig, events: int) -> float:
    """Reading and validation in this process, without Beam."""
    reader, decoder = partitions_of(config), Decoder(config.kafka.topics[0], config)
    batches: Batches = []
    try:
        while sum(rows for _, rows in batches) < events:
            for start in reader.starts:
                rows = decoder.decode(reader.take(start.topic, start.partition)).events.num_rows
                batches += [(time.time(), rows)] if rows else []
    finally:
        reader.close()
    return rate(batches)


def read_there(config: StreamConfig, events: int, meter: type[Meter]) -> float:
    """Reading and validation on Flink, and nothing after it."""
    reader = partitions_of(config)
    reader.close()
    plan = ClusterPlan.of(config, reader.starts)
    announce(config.store, plan.id)
    with harness.scratch() as folder:
        pipeline = beam.Pipeline(
            runner=PortableRunner(), options=PipelineOptions(options(config.runner, plan))
        )
        _ = (
            pipeline
            | beam.Create(plan.starts)
            | beam.ParDo(ReadPartition(InWorker(plan)))
            | beam.ParDo(DecodeFn(InWorker(plan))).with_output_types(MicroBatch)
            | beam.ParDo(meter(str(folder)))
        )
        result = pipeline.run()
        while sum(rows for _, rows in metered(folder)) < events:
            time.sleep(0.2)
        withdraw(config.store, plan.id)
        result.wait_until_finish()
        return rate(metered(folder))


def committed(store: str) -> float:
    """Events per second between the first and the last commit that took some."""
    root = log_folder(store)
    records = [read_record(root / commit_name(n), CommitRecord) for n in sorted(numbers(root))]
    marks = [(r.wall_time_us / 1e6, sum(p.next for p in r.positions)) for r in records]
    marks = [mark for at, mark in enumerate(marks) if at == 0 or mark[1] > marks[at - 1][1]]
    return (marks[-1][1] - marks[0][1]) / max(1e-9, marks[-1][0] - marks[0][0])


def measure(
    folder: Path, bootstrap: str, server: str, pool: str, given: Any, meter: type[Meter]
) -> dict[str, list[float]]:
    """Rates of all rounds, by way."""
    found: dict[str, list[float]] = {}

    def note(way: str, measured: float) -> None:
        found.setdefault(way, []).append(measured)
        print(f"{way}: {measured:,.0f} events/s", file=sys.stderr, flush=True)

    def fresh(tasks: int = 0) -> StreamConfig:
        """A store of its own; with tasks on Flink, a worker process for each."""
        config = configuration(Path(tempfile.mkdtemp(dir=folder)) / "store", bootstrap, "json-all")
        update: dict[str, Any] = {"snapshots": config.snapshots.model_copy(update={"commit_every_s": 0.5})}
        if tasks:
            flink = {"name": "flink", "job_server": server, "environment": f"external:{pool}"}
            update["runner"] = Runner.model_validate({**flink, "parallelism": tasks, "workers": tasks})
        return config.model_copy(update=update)

    fill(bootstrap, "json-all", given.events)
    read_here(fresh(), given.events)  # loads what is compiled
    for _ in range(given.rounds):
        note("read, validate: this process", read_here(fresh(), given.events))
        for tasks in given.tasks:
            note(f"read, validate: Flink, {tasks} tasks", read_there(fresh(tasks), given.events, meter))
        config = fresh()
        ran(config, given.events)
        note("to the committed log: this process", committed(config.store))
        for tasks in given.tasks:
            config = fresh(tasks)
            done = ClusterJob(config, until_idle_s=IDLE_S).run()
            harness.require(done.events == given.events, f"{done} is not all of {given.events:,} events")
            note(f"to the committed log: Flink, {tasks} tasks", committed(config.store))
    return found


def main(meter: type[Meter]) -> None:
    """Measure and print.

    Args:
        meter: ``Meter`` of this file imported by its name, as workers import it.
    """
    from stream.commands.run import quiet_beam
    from stream.service.collector import calm_collector

    given = harness.options(__doc__, events=2_000_000, rounds=3, tasks=[1, 2, 4])
    quiet_beam(debug=False)
    calm_collector()
    with ExitStack() as stack:
        folder = stack.enter_context(harness.scratch())
        bootstrap = stack.enter_context(harness.broker(folder / "kafka"))
        server = stack.enter_context(harness.server("flink/job_server.py", folder / "flink"))
        pool = stack.enter_context(worker_pool(folder / "pool.log"))
        found = measure(folder, bootstrap, server, pool, given, meter)
    harness.begin()
    first = {way.split(":")[0]: median(rates) for way, rates in reversed(found.items())}
    rows = (
        [
            way,
            harness.spread([each / 1e6 for each in rates], 3),
            f"{median(rates) / first[way.split(':')[0]]:.2f}",
        ]
        for way, rates in found.items()
    )
    harness.table("way | M JSON events/s, median (least to most) | of this process", rows)


if __name__ == "__main__":
    import flink

    main(flink.Meter)
