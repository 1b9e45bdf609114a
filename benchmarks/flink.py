"""What Flink's parallelism buys for reading and validation: python benchmarks/flink.py.

A real broker and a Flink inside the job server (deploy/flink) on this machine, a topic of 4 partitions filled before
anything is timed. Workers are processes of their own (a worker pool), started before the clock: rates are between the
first and the last micro-batch of a run, or the first and the last commit. Brokers, Flink's JVM and all workers share
the machine's cores, so that the table says what a task costs and how much of it can be given away, not what a
cluster does.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import psutil
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.portable_runner import PortableRunner
from ingest import PARTITIONS, broker, configuration, fill

from schemas.config import Runner, StreamConfig
from schemas.store import CommitRecord
from stream.cluster.current import announce, withdraw
from stream.cluster.job import ClusterJob, options
from stream.cluster.plan import ClusterPlan
from stream.cluster.stages import InWorker, ReadPartition
from stream.commands.run import quiet_beam
from stream.decode.decoder import Decoder
from stream.job.loop import StreamJob
from stream.kafka.reader import PartitionReader
from stream.metrics import StreamMetrics
from stream.microbatch import MicroBatch
from stream.pipeline import DecodeFn
from stream.service.collector import calm_collector
from stream.store.files.records import read_record
from stream.store.log.commits import numbers
from stream.store.log.layout import commit_name, log_folder

SERVER = Path(__file__).resolve().parents[1] / "deploy" / "flink" / "job_server.py"


class Meter(beam.DoFn):  # type: ignore[misc]  # Beam has no types
    """Notes when how many rows came, in a file for each process and thread."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: MicroBatch) -> Iterator[None]:
        if element.events.num_rows:
            with (Path(self._folder) / f"{os.getpid()}-{threading.get_ident()}").open("a") as notes:
                notes.write(f"{time.time()} {element.events.num_rows}\n")
        return iter(())


def metered(folder: Path) -> list[tuple[float, int]]:
    """(time, rows) of all batches so far, in order."""
    lines = [line.split() for path in folder.iterdir() for line in path.read_text().splitlines()]
    return sorted((float(at), int(rows)) for at, rows in (line for line in lines if len(line) == 2))


def rate(batches: list[tuple[float, int]]) -> float:
    """Rows a second after the first batch."""
    return sum(rows for _, rows in batches[1:]) / max(1e-9, batches[-1][0] - batches[0][0])


@contextmanager
def job_server(folder: Path) -> Iterator[str]:
    """host:port of a job server with a Flink inside."""

    def call(action: str) -> str:
        command = [sys.executable, str(SERVER), action, "--data", str(folder)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    try:
        yield call("start").splitlines()[-1]
    finally:
        call("stop")


@contextmanager
def worker_pool(log: Path) -> Iterator[str]:
    """host:port of a pool that starts a process for each worker."""
    here = [str(Path(__file__).resolve().parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, here))}
    command = [sys.executable, "-m", "stream.cluster.worker_pool", "--port", "0"]
    with log.open("wb") as output:
        pool = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        while not (found := re.search(r"serving at (\S+)\n", log.read_text())):
            if pool.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        yield found.group(1)
    finally:
        for process in [*psutil.Process(pool.pid).children(recursive=True), pool]:
            process.kill()
        pool.wait()


def with_runner(config: StreamConfig, server: str, pool: str, tasks: int) -> StreamConfig:
    """The same on Flink, a worker process a task."""
    runner = Runner(
        name="flink", job_server=server, environment=f"external:{pool}", parallelism=tasks, workers=tasks
    )
    return config.model_copy(update={"runner": runner})


def read_here(config: StreamConfig, events: int) -> float:
    """Reading and validation in this process, without Beam."""
    reader = PartitionReader(config.kafka, lambda key: None, lambda topic, offsets: None)
    decoder = Decoder(config.kafka.topics[0], config)
    batches: list[tuple[float, int]] = []
    left = events
    try:
        while left > 0:
            for start in reader.starts:
                rows = decoder.decode(reader.take(start.topic, start.partition)).events.num_rows
                left -= rows
                batches += [(time.time(), rows)] if rows else []
    finally:
        reader.close()
    return rate(batches)


def read_there(config: StreamConfig, events: int, meter: type[Meter]) -> float:
    """Reading and validation on Flink, and nothing after it."""
    reader = PartitionReader(config.kafka, lambda key: None, lambda topic, offsets: None)
    reader.close()
    plan = ClusterPlan.of(config, reader.starts)
    announce(config.store, plan.id)
    with tempfile.TemporaryDirectory() as folder:
        pipeline = beam.Pipeline(
            runner=PortableRunner(), options=PipelineOptions(options(config.runner, plan))
        )
        _ = (
            pipeline
            | beam.Create(plan.starts)
            | beam.ParDo(ReadPartition(InWorker(plan)))
            | beam.ParDo(DecodeFn(InWorker(plan))).with_output_types(MicroBatch)
            | beam.ParDo(meter(folder))
        )
        result = pipeline.run()
        while sum(rows for _, rows in metered(Path(folder))) < events:
            time.sleep(0.2)
        withdraw(config.store, plan.id)
        result.wait_until_finish()
        return rate(metered(Path(folder)))


def committed(store: str) -> float:
    """Events a second between the first and the last commit that took some."""
    root = log_folder(store)
    records = [read_record(root / commit_name(n), CommitRecord) for n in sorted(numbers(root))]
    marks = [(r.wall_time_us / 1e6, sum(p.next for p in r.positions)) for r in records]
    marks = [mark for at, mark in enumerate(marks) if at == 0 or mark[1] > marks[at - 1][1]]
    return (marks[-1][1] - marks[0][1]) / max(1e-9, marks[-1][0] - marks[0][0])


def row(name: str, rates: list[float], against: float) -> None:
    """One line: median, lowest and highest, and the ratio to the first row."""
    median = statistics.median(rates)
    print(
        f"  {name:<58}{median / 1e6:8.3f}  ({min(rates) / 1e6:.3f} to {max(rates) / 1e6:.3f}){median / against:8.2f}x"
    )


def main(meter: type[Meter]) -> None:
    """Command line.

    Args:
        meter: ``Meter`` of this file imported by its name, as workers import it.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    quiet_beam(debug=False)
    calm_collector()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = stack.enter_context(broker(folder / "kafka"))
        server = stack.enter_context(job_server(folder / "flink"))
        pool = stack.enter_context(worker_pool(folder / "pool.log"))
        events = arguments.events
        fill(bootstrap, "json-all", events)

        def fresh(**more: Any) -> StreamConfig:
            store = Path(tempfile.mkdtemp(dir=folder)) / "store"
            config = configuration(store, bootstrap, "json-all")
            every = config.snapshots.model_copy(update={"commit_every_s": 0.5})
            return config.model_copy(update={"snapshots": every, **more})

        found: dict[str, list[float]] = {}

        def note(name: str, rate: float) -> None:
            found.setdefault(name, []).append(rate)
            print(f"  {name}: {rate:,.0f} events/s", flush=True)

        read_here(fresh(), events)  # loads what is compiled
        for _ in range(arguments.rounds):
            note("read, validate: this process", read_here(fresh(), events))
            for tasks in arguments.tasks:
                config = with_runner(fresh(), server, pool, tasks)
                note(f"read, validate: Flink, {tasks} tasks", read_there(config, events, meter))
            config = fresh()
            StreamJob(config, StreamMetrics(config), until_idle_s=0.5).run()
            note("to the committed log: this process", committed(config.store))
            for tasks in arguments.tasks:
                config = with_runner(fresh(), server, pool, tasks)
                ran = ClusterJob(config, until_idle_s=0.5).run()
                if ran.events != events:
                    raise SystemExit(f"{ran} is not all of {events:,} events")
                note(f"to the committed log: Flink, {tasks} tasks", committed(config.store))
        cores = os.cpu_count()
        print(
            f"Million JSON events a second, {PARTITIONS} topic partitions, {cores} cores, {arguments.rounds} rounds"
        )
        for name, rates in found.items():
            first = next(key for key in found if key.split(":")[0] == name.split(":")[0])
            row(name, rates, statistics.median(found[first]))


if __name__ == "__main__":
    import flink

    main(flink.Meter)
