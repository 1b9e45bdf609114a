"""Kafka to the committed log beside a bare poll loop of the same client: python benchmarks/ingest.py.

A real broker on this machine (deploy/kafka), topics of 4 partitions, filled before anything is timed. Bare loops and
the whole path (poll, validate, order, dense ids, files, fsync: the job itself) take turns in one process, so that what
else the machine does meets all of them; rates are medians over the rounds, ratios are of those. Wall time.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition

from schemas.config import Lane, StreamConfig
from stream.commands.run import _calm_collector, _quiet_beam
from stream.decode.columns import canonical
from stream.job import StreamJob
from stream.kafka.client import client_settings
from stream.kafka.producer import replay
from stream.kafka.reader import open_consumer
from stream.metrics import StreamMetrics
from stream.store.lane_writer import LaneWriter
from stream.synthetic import interactions

BROKER = Path(__file__).resolve().parents[1] / "deploy" / "kafka" / "broker.py"
PARTITIONS, NODES, SNAPSHOTS, PARTS, WINDOW = 4, 50_000, 20, 4, 4
SPAN_S = 1_000_000.0
LANES = ("hash", "distdy", "sep", "hdrf")
IDLE_S = 0.5


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


def configuration(
    store: Path, bootstrap: str, topic: str, events: int, lanes: list[Lane] | None = None
) -> StreamConfig:
    """The defaults, but for snapshots: so many over the whole stream, whatever its length."""
    del events
    return StreamConfig.model_validate(
        {
            "graph": "bench",
            "store": str(store),
            "kafka": {"bootstrap": bootstrap, "topics": [{"name": topic, "format": topic.split("-", 1)[0]}]},
            "snapshots": {"interval_s": SPAN_S / SNAPSHOTS},
            "lanes": [] if lanes is None else [lane.model_dump() for lane in lanes],
            "metrics": {"port": 0},
        }
    )


def fill(bootstrap: str, topic: str, events: int) -> None:
    """The same synthetic interactions into a topic, by the hash of src."""
    table = interactions(NODES, events, seed=1, span_s=SPAN_S).combine_chunks()
    batch = canonical(table.to_batches()[0], "int", "s").batch
    config = configuration(Path("unused"), bootstrap, topic, events)
    done = replay(
        pa.Table.from_batches([batch]),
        settings=client_settings(config.kafka),
        bootstrap=bootstrap,
        topic=topic,
        message_format=config.kafka.topics[0].format,
        partitions=PARTITIONS,
    )
    print(f"  {topic}: {done.sent:,} events sent at {done.events_per_s:,.0f} a second", flush=True)


def polled(consumer: KafkaConsumer, topic: str, opened: Callable[[list[bytes]], int]) -> float:
    """Events a second of nothing but polling from the topic's start to its end."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    left = sum(ends.values())
    events = 0
    started = time.perf_counter()
    while left > 0:
        for records in consumer.poll(timeout_ms=1000).values():
            left -= len(records)
            events += opened([record.value for record in records])
    return events / (time.perf_counter() - started)


def bare(bootstrap: str, topic: str, opened: Callable[[list[bytes]], int]) -> float:
    """Rate of a bare poll loop with the job's own client settings."""
    consumer = open_consumer(configuration(Path("unused"), bootstrap, topic, 0).kafka)
    try:
        return polled(consumer, topic, opened)
    finally:
        consumer.close(autocommit=False)


def rows(values: list[bytes]) -> int:
    """Open Arrow messages, unchecked."""
    return sum(pa.ipc.open_stream(value).read_next_batch().num_rows for value in values)


def whole(bootstrap: str, topic: str, events: int, *lanes: Lane) -> tuple[float, dict[str, float]]:
    """Rate of the job from its first poll to its last commit; and seconds of each lane that follows, alone."""
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(Path(folder) / "store", bootstrap, topic, events, list(lanes))
        ran = StreamJob(config, StreamMetrics(config), until_idle_s=IDLE_S).run()
        if (ran.events, ran.refused, ran.late) != (events, 0, 0):
            raise SystemExit(f"{topic}: {ran} is not all of {events:,} events")
        return ran.events_per_s, {}


def alone(bootstrap: str, topic: str, events: int) -> dict[str, float]:
    """Events a second of each lane over the finished log, one after another."""
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(Path(folder) / "store", bootstrap, topic, events)
        StreamJob(config, StreamMetrics(config), until_idle_s=IDLE_S).run()
        for name in LANES:
            with LaneWriter(config.store, lane(name)) as writer:
                started = time.perf_counter()
                writer.catch_up()
                rates[name] = events / (time.perf_counter() - started)
    return rates


def lane(name: str) -> Lane:
    """A lane with defaults."""
    return Lane(name=name, algorithm=name, parts=PARTS, window=WINDOW)


def show(name: str, rates: list[float], against: list[float] | None = None) -> None:
    """One row: median, lowest and highest, and the ratio to another row."""
    median = statistics.median(rates)
    ratio = "" if against is None else f"{median / statistics.median(against):9.2f}x"
    print(
        f"  {name:<60}{median / 1e6:8.3f}  ({min(rates) / 1e6:.3f} to {max(rates) / 1e6:.3f}){ratio}",
        flush=True,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json-events", type=int, default=1_000_000)
    parser.add_argument("--arrow-events", type=int, default=8_000_000)
    parser.add_argument("--lane-events", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    _quiet_beam(debug=False)
    _calm_collector()
    json_events, arrow_events, lane_events = (
        arguments.json_events,
        arguments.arrow_events,
        arguments.lane_events,
    )
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder) / "kafka") as bootstrap:
        fill(bootstrap, "json-all", json_events)
        fill(bootstrap, "arrow-all", arrow_events)
        fill(bootstrap, "arrow-lanes", lane_events)
        whole(bootstrap, "arrow-lanes", lane_events)  # loads what is compiled
        found: dict[str, list[float]] = {
            name: [] for name in ("poll json", "job json", "poll arrow", "job arrow")
        }
        for _ in range(arguments.rounds):
            found["poll json"].append(bare(bootstrap, "json-all", len))
            found["job json"].append(whole(bootstrap, "json-all", json_events)[0])
            found["poll arrow"].append(bare(bootstrap, "arrow-all", rows))
            found["job arrow"].append(whole(bootstrap, "arrow-all", arrow_events)[0])
        print(f"Million events a second, median of {arguments.rounds} rounds (lowest to highest)")
        show("JSON: bare poll() loop", found["poll json"])
        show("JSON: Kafka → validation → committed log", found["job json"], found["poll json"])
        show("Arrow, 4,096 edges a message: bare poll() and open", found["poll arrow"])
        show("Arrow: Kafka → validation → committed log", found["job arrow"], found["poll arrow"])
        if lane_events:
            rates = [alone(bootstrap, "arrow-lanes", lane_events) for _ in range(arguments.rounds)]
            for name in LANES:
                show(f"lane {name} alone, over the finished log", [rate[name] for rate in rates])


if __name__ == "__main__":
    main()
