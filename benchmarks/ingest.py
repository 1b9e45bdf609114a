"""Kafka to the committed log beside a bare poll loop of the same client: python benchmarks/ingest.py.

A real broker on this machine (deploy/kafka), topics of 4 partitions, filled before anything is timed. Bare loops and
the whole path (poll, validate, order, dense ids, files, fsync: the job itself) take turns, so that what else the machine
does meets all of them. The bare loops that ratios are of run in a process as Python starts it; one more runs with the
memory settings of the job (``stream.service.memory``), which help any reader. Rates are wall time, medians over the
rounds, ratios of those; CPU time is that of the process, the client's thread and the commits' included, the broker's not.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import TopicPartition

from schemas.config import Lane, StreamConfig
from stream.commands.run import quiet_beam
from stream.decode.columns import canonical
from stream.decode.formats.interface import create_format
from stream.job.loop import Ran, StreamJob
from stream.kafka.client import client_settings
from stream.kafka.producer import replay
from stream.kafka.reader import open_consumer
from stream.metrics import StreamMetrics
from stream.service.collector import calm_collector
from stream.service.memory import keep_memory
from stream.store.lane.writer import LaneWriter
from stream.synthetic import interactions

BROKER = Path(__file__).resolve().parents[1] / "deploy" / "kafka" / "broker.py"
PARTITIONS, NODES, SNAPSHOTS, PARTS, WINDOW = 4, 50_000, 20, 4, 4
SPAN_S = 1_000_000.0
LANES = ("hash", "distdy", "sep", "hdrf")
IDLE_S = 0.5


@dataclass
class Measured:
    """Wall rates and CPU times of one way, round by round."""

    rates: list[float] = field(default_factory=list)
    cpu_ns: list[float] = field(default_factory=list)

    def add(self, events: int, work: Callable[[], float]) -> None:
        """One more round; ``work`` returns events a second."""
        self.note(*timed(events, work))

    def note(self, rate: float, cpu_ns: float) -> None:
        """One more round, timed elsewhere."""
        self.rates.append(rate)
        self.cpu_ns.append(cpu_ns)

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(self.rates)


def timed(events: int, work: Callable[..., float], *given: Any) -> tuple[float, float]:
    """Events a second, and CPU nanoseconds of this process an event."""
    begun_s = time.process_time()
    rate = work(*given)
    return rate, (time.process_time() - begun_s) / events * 1e9


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """host:port of a fresh broker, stopped at the end."""

    def call(action: str) -> str:
        command = [sys.executable, str(BROKER), action, "--data", str(folder)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    try:
        yield call("start").splitlines()[-1]
    finally:
        call("stop")


def configuration(store: Path, bootstrap: str, topic: str, lanes: tuple[str, ...] = ()) -> StreamConfig:
    """The defaults, but for snapshots: so many over the whole stream, whatever its length."""
    return StreamConfig.model_validate(
        {
            "graph": "bench",
            "store": str(store),
            "kafka": {"bootstrap": bootstrap, "topics": [{"name": topic, "format": topic.split("-", 1)[0]}]},
            "snapshots": {"interval_s": SPAN_S / SNAPSHOTS},
            "lanes": [lane(name).model_dump() for name in lanes],
            "metrics": {"port": 0},
        }
    )


def lane(name: str) -> Lane:
    """A lane with defaults."""
    return Lane(name=name, algorithm=name, parts=PARTS, window=WINDOW)


def fill(bootstrap: str, topic: str, events: int) -> None:
    """The same synthetic interactions into a topic, by the hash of src."""
    table = interactions(NODES, events, seed=1, span_s=SPAN_S).combine_chunks()
    batch = canonical(table.to_batches()[0], "int", "s").batch
    config = configuration(Path("unused"), bootstrap, topic)
    done = replay(
        pa.Table.from_batches([batch]),
        settings=client_settings(config.kafka),
        bootstrap=bootstrap,
        topic=topic,
        message_format=create_format(config.kafka.topics[0], config.kafka, config.ids),
        partitions=PARTITIONS,
    )
    print(f"  {topic}: {done.sent:,} events sent at {done.events_per_s:,.0f} a second", flush=True)


def bare(bootstrap: str, topic: str, opened: Callable[[list[bytes]], int]) -> float:
    """Events a second of nothing but polling a topic to its end, with the job's own client settings."""
    consumer = open_consumer(configuration(Path("unused"), bootstrap, topic).kafka)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    left = sum(consumer.end_offsets(partitions).values())
    events = 0
    started = time.perf_counter()
    while left > 0:
        for records in consumer.poll(timeout_ms=1000).values():
            left -= len(records)
            events += opened([record.value for record in records])
    rate = events / (time.perf_counter() - started)
    consumer.close(autocommit=False)
    return rate


def rows(values: list[bytes]) -> int:
    """Open Arrow messages, unchecked."""
    return sum(pa.ipc.open_stream(value).read_next_batch().num_rows for value in values)


def ran(config: StreamConfig, events: int) -> Ran:
    """The job until it is idle; all events must be in the log."""
    done = StreamJob(config, StreamMetrics(config), until_idle_s=IDLE_S).run()
    if (done.events, done.refused, done.late) != (events, 0, 0):
        raise SystemExit(f"{done} is not all of {events:,} events")
    return done


def whole(bootstrap: str, topic: str, events: int, *lanes: str) -> float:
    """Events a second of the job from its first poll to its last commit, lanes beside it."""
    with tempfile.TemporaryDirectory() as folder:
        return ran(configuration(Path(folder) / "store", bootstrap, topic, lanes), events).events_per_s


def alone(bootstrap: str, topic: str, events: int, found: dict[str, Measured]) -> None:
    """Each lane over the finished log, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(Path(folder) / "store", bootstrap, topic)
        ran(config, events)

        def caught_up(name: str) -> float:
            with LaneWriter(config.store, lane(name)) as writer:
                started = time.perf_counter()
                writer.catch_up()
                return events / (time.perf_counter() - started)

        for name in LANES:
            found[name].add(events, lambda name=name: caught_up(name))


def measure_lanes(bootstrap: str, events: int, found: dict[str, Measured]) -> None:
    """Each lane alone, and each beside the log."""
    alone(bootstrap, "arrow-lanes", events, found)
    for name in LANES:
        found[f"with {name}"].add(events, lambda name=name: whole(bootstrap, "arrow-lanes", events, name))


def show(name: str, measured: Measured, against: Measured | None = None) -> None:
    """One row of the table."""
    ratio = "" if against is None else f"{measured.rate / against.rate:7.2f}x"
    low, high = min(measured.rates) / 1e6, max(measured.rates) / 1e6
    cpu_ns = statistics.median(measured.cpu_ns)
    print(f"  {name:<58}{measured.rate / 1e6:8.3f}{low:9.3f}{high:8.3f}{cpu_ns:9.0f}{ratio:>10}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json-events", type=int, default=1_000_000)
    parser.add_argument("--arrow-events", type=int, default=8_000_000)
    parser.add_argument("--lane-events", type=int, default=500_000, help="0: no lanes.")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    keep_memory()
    quiet_beam(debug=False)
    calm_collector()
    ways = (
        "bare json",
        "job json",
        "bare arrow",
        "kept arrow",
        "job arrow",
        *LANES,
        *(f"with {name}" for name in LANES),
    )
    found = {name: Measured() for name in ways}
    with (
        tempfile.TemporaryDirectory() as folder,
        broker(Path(folder) / "kafka") as bootstrap,
        ProcessPoolExecutor(1, get_context("spawn")) as plain,
    ):

        def plainly(way: str, events: int, topic: str, opened: Callable[[list[bytes]], int]) -> None:
            found[way].note(*plain.submit(timed, events, bare, bootstrap, topic, opened).result())

        fill(bootstrap, "json-all", given.json_events)
        fill(bootstrap, "arrow-all", given.arrow_events)
        fill(bootstrap, "arrow-lanes", max(given.lane_events, 1))
        # Loads what is compiled.
        whole(bootstrap, "arrow-lanes", max(given.lane_events, 1), *(LANES if given.lane_events else ()))
        for _ in range(given.rounds):
            plainly("bare json", given.json_events, "json-all", len)
            found["job json"].add(given.json_events, lambda: whole(bootstrap, "json-all", given.json_events))
            plainly("bare arrow", given.arrow_events, "arrow-all", rows)
            found["kept arrow"].add(given.arrow_events, lambda: bare(bootstrap, "arrow-all", rows))
            found["job arrow"].add(
                given.arrow_events, lambda: whole(bootstrap, "arrow-all", given.arrow_events)
            )
            if given.lane_events:
                measure_lanes(bootstrap, given.lane_events, found)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"\n{os.cpu_count()} cores, load averages at the end {load}, {given.rounds} rounds, {time.strftime('%F')}"
    )
    print(
        f"  {'million events a second':<58}{'median':>8}{'lowest':>9}{'highest':>8}{'CPU ns':>9}{'ratio':>10}"
    )
    show("JSON: bare poll() loop", found["bare json"])
    show("JSON: Kafka → validation → committed log", found["job json"], found["bare json"])
    show("Arrow, 4,096 edges a message: bare poll() and open", found["bare arrow"])
    show("  the same with the memory settings of the job", found["kept arrow"], found["bare arrow"])
    show("Arrow: Kafka → validation → committed log, no lane", found["job arrow"], found["bare arrow"])
    for name in LANES if given.lane_events else ():
        show(f"lane {name} alone, over a finished log", found[name])
    for name in LANES if given.lane_events else ():
        show(f"Arrow: the log with lane {name} beside it", found[f"with {name}"])


if __name__ == "__main__":
    main()
