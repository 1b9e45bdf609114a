"""Everything at once, for hours: python benchmarks/live.py [--minutes 20] [--rate 500] [--folder DIR].

A real broker; a producer of ``--rate`` live events per second whose nodes come and go, so that far more are seen than are alive;
``freshet-stream run`` with retention and publishing; ``freshet-trainer run`` with a budget, exports and ``overload: subsample``.
All are processes as their users start them. Printed by tenths of the run: anonymous memory of both services, the store on the
disk, snapshots the trainer is behind, freshness and oldest freshness (docs/metrics.md), AP of what was predicted beside
Recency's. Then of the whole run: the share of events that was learned, the most snapshots that it was behind, and the age of the
newest event that the weights have learned, at every moment from the first snapshot learned to the last. Asserted: every event is
in the log and every export in its topic, and memory is flat, that is, its last third is at most 5 % above the one before.
"""

import multiprocessing
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from harness import memory_mib, require

from freshet_graph.schemas.events import US_PER_S

TOPIC, VECTORS, PARTITIONS, INTERVAL_S = "live", "vectors", 4, 5.0
KEPT = 120
"""Snapshots in the log and the lane."""
SAMPLE_S, MOMENT_S = 5.0, 0.1
A_SNAPSHOT, ALIVE, ARRIVE = 2_000, 3_000, 1_200
"""Events in which so many new nodes come; so many are alive."""
BUDGET = {"nodes": 8_000, "events": 40_000}


def passing_by(events: int, start_us: int, rate: int) -> pa.Table:
    """Events between nodes that are alive: ids go up with time, and four of five events are with a node's own friends."""
    rng = np.random.default_rng(0)
    oldest = (np.arange(events) * ARRIVE) // A_SNAPSHOT
    src = oldest + rng.integers(0, ALIVE, events)
    friend = 1 + rng.integers(0, 5, events) * 7
    stranger = rng.random(events) < 0.2
    dst = np.where(stranger, oldest + rng.integers(0, ALIVE, events), src + friend)
    return harness.event_table(src=src, dst=dst, t=start_us + np.arange(events) * US_PER_S // rate)


def stream_keys(
    folder: Path, bootstrap: str, interval_s: float, lane: dict[str, Any], **more: Any
) -> dict[str, Any]:
    snapshots = {"interval_s": interval_s, "idle_timeout_s": 2.0}
    return harness.stream_keys(
        folder / "store", bootstrap, {"name": TOPIC}, lane, snapshots=snapshots, **more
    )


def trainer_keys(folder: Path) -> dict[str, Any]:
    return {
        "store": str(folder / "store"),
        "lane": "hash",
        "model": "tgn-history",
        "strategy": "sequential",
        "optimisation": {"epochs": 1, "batch_size": 200},
        "overload": "subsample",
        "budget": BUDGET,
        "exports": {"embeddings": True, "scores": True, "keep": KEPT},
        "checkpoint": str(folder / "checkpoints"),
        "metrics": {"port": 0},
    }


def producing(bootstrap: str, rate: int, seconds: float) -> tuple[Any, Any]:
    """A process that will send live events, and how many it has sent."""
    context = multiprocessing.get_context("spawn")
    sent = context.Value("q", 0)
    return context.Process(target=produce, args=(bootstrap, rate, seconds, sent), daemon=True), sent


def produce(bootstrap: str, rate: int, seconds: float, sent: Any) -> None:
    """Send events as they happen, in turn over the partitions, so that each of them stays in time order."""
    from confluent_kafka import Producer

    from freshet_graph.stream.decode.encode import encode_json

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True})
    start_us = time.time_ns() // 1000
    events = passing_by(int(rate * seconds), start_us, rate)
    for first in range(0, len(events), rate):
        messages = encode_json(events.slice(first, rate))
        due = start_us / US_PER_S + (first + len(messages)) / rate
        time.sleep(max(0.0, due - time.time()))
        for i, message in enumerate(messages):
            producer.produce(TOPIC, message, partition=i % PARTITIONS)
        producer.poll(0)
        sent.value = first + len(messages)
    producer.flush()


def watch(folder: Path, services: dict[str, Any], producer: Any) -> list[dict[str, float]]:
    """Memory of both services and the store's size, MiB, sampled until the producer is done."""
    samples: list[dict[str, float]] = []
    while producer.is_alive():
        time.sleep(SAMPLE_S)
        for name, process in services.items():
            log = folder / f"{name}.log"
            require(
                process.poll() is None, f"{name} ended with {process.returncode}:\n{log.read_text()[-4000:]}"
            )
        row = {name: memory_mib(process)[0] for name, process in services.items()}
        samples.append({**row, "store": size_mib(folder / "store")})
    return samples


def size_mib(folder: Path) -> float:
    total = 0
    for parent, _, names in os.walk(folder):  # which goes past folders that are swept meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total / 2**20


def by_tenths(samples: list[dict[str, float]], lines: list[dict[str, Any]]) -> Any:
    """Rows of the table."""
    from freshet_graph.trainer.continual.drift import weighted_mean

    tenths = zip(np.array_split(np.array(samples), 10), np.array_split(np.array(lines), 10), strict=True)
    for tenth, (seen, learned) in enumerate(tenths, 1):
        events, lag = sum(line["events"] for line in learned), [line["lag"] for line in learned]
        fresh = (np.median([line["wall_time"] - line[key] for line in learned]) for key in ("t_max", "t_min"))
        yield [
            tenth, len(learned), f"{events:,}",
            *(f"{np.median([row[name] for row in seen]):.0f}" for name in ("stream", "trainer", "store")),
            f"{np.median(lag):.0f} ({max(lag)})", *(f"{each:.1f}" for each in fresh),
            f"{sum(line['trained'] for line in learned) / events:.0%}",
            f"{sum(line['evicted'] for line in learned):,}",
            *(f"{weighted_mean(list(learned), name, 'scored'):.3f}" for name in ("ap", "recency_ap")),
        ]  # fmt: skip


def ages_s(lines: list[dict[str, Any]]) -> np.ndarray:
    """Age of the newest event that the weights have learned, seconds, every tenth of a second between the first and last line.

    It grows until the next snapshot is learned, so it is an interval at least just before.
    """
    trained = [line for line in lines if line["trained"]]
    learned, newest = (np.array([line[key] for line in trained]) for key in ("wall_time", "t_max"))
    moments = np.arange(learned[0], learned[-1], MOMENT_S)
    latest = np.searchsorted(learned, moments, side="right") - 1
    ages: np.ndarray = moments - np.maximum.accumulate(newest)[latest]
    return ages


def published(bootstrap: str) -> int:
    """Exports all of whose rows are in the topic."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "live", "enable.auto.commit": False})
    places = [TopicPartition(VECTORS, number, 0) for number in range(PARTITIONS)]
    left = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    consumer.assign(places)
    missing: dict[int, int] = {}
    while left:
        for message in consumer.consume(1000, timeout=30):
            rows = pa.ipc.open_stream(message.value()).read_all()
            export = int(rows.schema.metadata[b"export"])
            missing[export] = missing.get(export, int(rows.schema.metadata[b"rows"])) - len(rows)
            left -= 1
    consumer.close()
    return sum(rows <= 0 for rows in missing.values())


def run(folder: Path, bootstrap: str, given: Any) -> None:
    from freshet_graph.trainer.continual.journal import ScoreFile

    harness.topics(bootstrap, PARTITIONS, TOPIC, VECTORS)
    producer, sent = producing(bootstrap, given.rate, given.minutes * 60)
    publish = [{"exports": "hash", "topic": VECTORS, "format": "arrow"}]
    more = {"retention": {"snapshots": KEPT}, "publish": publish}
    keys = stream_keys(folder, bootstrap, INTERVAL_S, {"name": "hash", "parts": 1}, **more)
    services = {"stream": harness.service(folder, "stream", keys)}
    try:
        address = harness.address_of(services["stream"], folder / "stream.log")
        producer.start()
        services["trainer"] = harness.service(folder, "trainer", trainer_keys(folder), "--until-idle", "90")
        samples = watch(folder, services, producer)
        services["trainer"].wait(harness.PATIENCE_S)
        lag = "freshet_stream_publish_lag_exports"
        harness.until(lambda: not harness.scraped(address).get(lag), "exports to be published")
        codes = [harness.ended(services["stream"]), services["trainer"].returncode]
    finally:
        harness.kill(*services.values())
    lines = ScoreFile(folder / "checkpoints").lines()
    titles = "tenth | snapshots | events | stream MiB | trainer MiB | store MiB | behind, snapshots (most) | freshness, s"
    harness.table(
        f"{titles} | oldest freshness, s | learned | forgotten nodes | AP | Recency",
        by_tenths(samples, lines),
    )
    events, trained = (sum(line[key] for line in lines) for key in ("events", "trained"))
    ages = np.percentile(ages_s(lines), (50, 99, 100))
    print(f"{trained:,} of {events:,} events learned ({trained / events:.1%}); at most {max(line['lag'] for line in lines)} "
          f"snapshots of {INTERVAL_S:g} s behind; the weights' newest event is {ages[0]:.1f} s old (median), {ages[1]:.1f} s "
          f"(99 % of the time at most), {ages[2]:.1f} s (at most)")  # fmt: skip
    commits = [int(path.stem) for path in (folder / "store/exports/hash/commits").glob("*.json")]
    exports, whole, in_log = max(commits) + 1, published(bootstrap), harness.events_in(folder / "store")
    print(f"{sent.value:,} events sent, {in_log:,} in the log; {exports} exports committed, {whole} in the topic, "
          f"whole; exit codes {codes}")  # fmt: skip
    flat = [harness.is_flat(name, [row[name] for row in samples]) for name in services]
    require(in_log == sent.value > 0 and whole == exports and not any(codes), "something was lost")
    require(all(flat), "memory is not flat")


def main() -> None:
    given = harness.options(__doc__, minutes=20.0, rate=500, folder={"type": Path})
    with harness.scratch(given.folder) as folder, harness.broker(folder / "kafka") as bootstrap:
        run(folder, bootstrap, given)


if __name__ == "__main__":
    main()
