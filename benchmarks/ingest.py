"""Kafka to the committed log beside a bare poll loop of the same client: python benchmarks/ingest.py [--rounds 3] [--beside].

``--beside`` compares two jobs instead: one reads JSON by ``fields``, the other takes ``t`` from the record, too. Both have one
open snapshot.

A real broker on this machine (deploy/kafka), topics of 4 partitions, filled before anything is timed. Bare loops and the whole
path (poll, validate, order, dense ids, files, fsync: the job itself) take turns, so that what else the machine does meets all
of them. The bare loops that ratios are of run in a process as Python starts it; one more runs with the memory settings of the
job (``freshet_graph.stream.service.memory``), which help any reader. Rates are wall time, medians over the rounds, ratios of
those; CPU time
is that of the process, the client's thread and the commits' included, the broker's not. All events must be in the log.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import harness
import pyarrow as pa

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.decode.columns import canonical
from freshet_graph.stream.decode.formats.interface import create_format
from freshet_graph.stream.job.loop import StreamJob
from freshet_graph.stream.kafka.client import client_settings
from freshet_graph.stream.kafka.producer import replay
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.synthetic import interactions

PARTITIONS, NODES, SNAPSHOTS, SPAN_S, IDLE_S = 4, 50_000, 20, 1_000_000.0, 0.5
Rounds = dict[str, list[tuple[float, float]]]
"""By way: events per second and CPU nanoseconds per event of each round."""


def timed(events: int, work: Callable[..., float], *given: Any) -> tuple[float, float]:
    """Events per second, and CPU nanoseconds of this process per event."""
    began = time.process_time()
    rate = work(*given)
    return rate, (time.process_time() - began) / events * 1e9


def configuration(
    store: Path, bootstrap: str, topic: str, *, every_s: float = SPAN_S / SNAPSHOTS, **more: Any
) -> StreamConfig:
    """The defaults, but for snapshots: so many over the whole stream, whatever its length."""
    named, every = {"name": topic, "format": topic.split("-", 1)[0]} | more, {"interval_s": every_s}
    return StreamConfig.model_validate(harness.stream_keys(store, bootstrap, named, snapshots=every))


def fill(bootstrap: str, topic: str, events: int) -> None:
    """The same synthetic interactions into a topic, by the hash of src."""
    table = interactions(NODES, events, seed=1, span_s=SPAN_S).combine_chunks()
    batch = canonical(table.to_batches()[0], "int", "s").batch
    config = configuration(Path("unused"), bootstrap, topic)
    done = replay(
        pa.Table.from_batches([batch]), settings=client_settings(config.kafka), bootstrap=bootstrap, topic=topic,
        message_format=create_format(config.kafka.topics[0], config.kafka, config.ids), partitions=PARTITIONS,
    )  # fmt: skip
    harness.require(done.sent == events, f"{done.sent} of {events} events were sent")


def bare(bootstrap: str, topic: str, opened: Callable[[list[bytes]], int]) -> float:
    """Events per second of nothing but polling a topic to its end, with the job's own client settings."""
    from kafka import TopicPartition

    from freshet_graph.stream.kafka.reader import open_consumer

    consumer = open_consumer(configuration(Path("unused"), bootstrap, topic).kafka)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    left, events = sum(consumer.end_offsets(partitions).values()), 0
    began = time.perf_counter()
    while left > 0:
        for records in consumer.poll(timeout_ms=1000).values():
            left -= len(records)
            events += opened([record.value for record in records])
    rate = events / (time.perf_counter() - began)
    consumer.close(autocommit=False)
    return rate


def arrow_rows(values: list[bytes]) -> int:
    """Open Arrow messages, unchecked."""
    return sum(pa.ipc.open_stream(value).read_next_batch().num_rows for value in values)


def ran(config: StreamConfig, events: int) -> Any:
    """The job until it is idle; all events must be in the log."""
    done = StreamJob(config, StreamMetrics(config), until_idle_s=IDLE_S).run()
    harness.require(
        (done.events, done.refused, done.late) == (events, 0, 0), f"{done} is not all of {events:,} events"
    )
    return done


def whole(bootstrap: str, topic: str, events: int, **more: Any) -> float:
    """Events per second of the job from its first poll to its last commit."""
    with harness.scratch() as folder:
        rate: float = ran(configuration(folder / "store", bootstrap, topic, **more), events).events_per_s
        return rate


def beside(bootstrap: str, given: Any) -> Iterator[list[str]]:
    """CPU nanoseconds per event of both jobs, by turns."""
    events, found = given.json_events, Rounds()
    fill(bootstrap, "json-all", events)
    ways = {"t: t": "t", "t: $timestamp": "$timestamp"}
    for number in range(given.rounds + 1):  # the first one compiles
        for name, path in ways.items():
            fields = {"src": "src", "dst": "dst", "t": path}

            def work(fields: dict[str, str] = fields) -> float:
                return whole(bootstrap, "json-all", events, every_s=1e9, fields=fields)

            one = timed(events, work)
            if number:
                found.setdefault(name, []).append(one)
    first = median(cpu_ns for _, cpu_ns in found["t: t"])
    for name, rounds in found.items():
        cpu = [cpu_ns for _, cpu_ns in rounds]
        yield [name, harness.spread(cpu, 0), f"{median(cpu) / first:.2f}"]


def measure(bootstrap: str, plain: ProcessPoolExecutor, given: Any) -> Rounds:
    """Rounds of all ways."""
    fill(bootstrap, "json-all", given.json_events)
    fill(bootstrap, "arrow-all", given.arrow_events)
    fill(bootstrap, "arrow-warm", 1)
    whole(bootstrap, "arrow-warm", 1)  # compiles
    found: Rounds = {}
    formats = (
        ("JSON", "json-all", given.json_events, len),
        ("Arrow", "arrow-all", given.arrow_events, arrow_rows),
    )
    for _ in range(given.rounds):
        for name, topic, events, opened in formats:
            bare_run = events, bare, bootstrap, topic, opened
            found.setdefault(f"{name}: bare poll() loop", []).append(plain.submit(timed, *bare_run).result())
            if name == "Arrow":
                found.setdefault("Arrow: the same with the memory settings of the job", []).append(
                    timed(*bare_run)
                )
            job = timed(events, whole, bootstrap, topic, events)
            found.setdefault(f"{name}: Kafka → validation → committed log", []).append(job)
    return found


def rows(found: Rounds) -> Iterator[list[str]]:
    for way, rounds in found.items():
        rates, cpu_ns = zip(*rounds, strict=True)
        bare_way = found[f"{way.split(':')[0]}: bare poll() loop"]
        ratio = f"{median(rates) / median(rate for rate, _ in bare_way):.2f}"
        yield [way, harness.spread([rate / 1e6 for rate in rates], 3), f"{median(cpu_ns):.0f}", ratio]


def main() -> None:
    from freshet_graph.stream.commands.run import quiet_beam
    from freshet_graph.stream.service.collector import calm_collector
    from freshet_graph.stream.service.memory import keep_memory

    given = harness.options(__doc__, json_events=1_000_000, arrow_events=8_000_000, rounds=3, beside=False)
    keep_memory()
    quiet_beam(debug=False)
    calm_collector()
    with (
        harness.scratch() as folder,
        harness.broker(folder / "kafka") as bootstrap,
        ProcessPoolExecutor(1, get_context("spawn")) as plain,
    ):
        if given.beside:
            head = "fields of JSON | CPU ns per event, median (least to most) | of t in the message"
            harness.table(head, beside(bootstrap, given))
            return
        found = measure(bootstrap, plain, given)
    harness.table(
        "way | M events/s, median (least to most) | CPU ns per event | of the bare loop", rows(found)
    )


if __name__ == "__main__":
    main()
