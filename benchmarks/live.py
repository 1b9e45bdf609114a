"""Everything at once, for hours: python benchmarks/live.py [--minutes 20] [--rate 500] [--keep FILE].

A real broker; a producer of live events whose nodes come and go, so that far more are seen than are alive; ``freshet-stream
run`` with retention and publishing; ``freshet-trainer run`` with a budget, exports and ``overload: subsample``. All are
processes as their users start them. Told by tenths of the run: anonymous memory of both services, the store on the disk,
snapshots the trainer is behind, freshness and oldest freshness (docs/metrics.md), AP of what was predicted beside Recency's. Then
of the whole run: the share of events that was learned, the most snapshots that it was behind, the age of the newest event that
the weights have learned, at every moment from the first snapshot learned to the last, and whether every event is in the log and
every export in its topic. Memory is flat when its last third is at most 5 % above the
one before: the first tenths hold imports, kernels and a window that fills.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from continual import BUDGET, passing_by
from numpy.typing import NDArray
from soak import FLAT_GROWTH, address_of, broker, memory_mib, scraped

from schemas.config import Kafka, Topic
from schemas.events import US_PER_S
from stream.decode.encode import encode_json
from stream.kafka.client import client_settings
from stream.kafka.topics import ensure_topic
from stream.store.log.reader import LogReader
from trainer.continual.journal import ScoreFile, weighted_mean

TOPIC, VECTORS, PARTITIONS = "live", "vectors", 4
INTERVAL_S = 5.0
KEPT = 120
"""Snapshots in the log and the lane."""
SAMPLE_S = 5.0
MOMENT_S = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=500, help="Events a second.")
    parser.add_argument("--folder", type=Path, help="Where broker and store lie.")
    parser.add_argument("--keep", type=Path, help="File for all samples, JSON.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name, broker(Path(name), {}) as bootstrap:
        return live(Path(name), bootstrap, given)


def live(folder: Path, bootstrap: str, given: argparse.Namespace) -> int:
    """Run everything for the time asked for and tell what was seen; 0 if nothing was lost and memory is flat."""
    settings = client_settings(Kafka(bootstrap=bootstrap, topics=[Topic(name=TOPIC)]))
    for topic in (TOPIC, VECTORS):
        ensure_topic(settings, bootstrap, topic, PARTITIONS)
    context = multiprocessing.get_context("spawn")
    sent = context.Value("q", 0)
    arguments = (bootstrap, given.rate, given.minutes * 60, sent)
    producer = context.Process(target=produce, args=arguments, daemon=True)
    job = service(folder, "stream", stream_config(folder, bootstrap))
    services = {"stream": job}
    try:
        address = address_of(job, folder / "stream.log")
        producer.start()
        services["trainer"] = service(folder, "trainer", trainer_config(folder), "--until-idle", "90")
        samples = watch(folder, services, producer)
        services["trainer"].wait(300)
        while scraped(address).get("freshet_stream_publish_lag_exports"):
            time.sleep(0.5)
        job.send_signal(signal.SIGTERM)
        job.wait(180)
    finally:
        for process in services.values():
            process.kill()
    codes = {name: process.returncode for name, process in services.items()}
    lines = ScoreFile(folder / "checkpoints").lines()
    if given.keep is not None:
        given.keep.write_text(json.dumps({"samples": samples, "lines": lines}), encoding="utf-8")
    flat = tell(samples, lines)
    return 0 if arrived(folder, bootstrap, sent.value, codes) and flat else 1


def service(folder: Path, name: str, content: Mapping[str, Any], *more: str) -> "subprocess.Popen[bytes]":
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(dict(content)), encoding="utf-8")
    entry = {"stream": "stream.start", "trainer": "trainer.cli"}[name]
    command = [sys.executable, "-c", f"from {entry} import main; main()", "run", "--config", str(path), *more]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def stream_config(folder: Path, bootstrap: str) -> dict[str, Any]:
    return {
        "graph": "live",
        "store": str(folder / "store"),
        "kafka": {"bootstrap": bootstrap, "topics": [{"name": TOPIC, "format": "json"}]},
        "snapshots": {"interval_s": INTERVAL_S, "idle_timeout_s": 2.0},
        "lanes": [{"name": "hash", "algorithm": "hash", "parts": 1}],
        "retention": {"snapshots": KEPT},
        "publish": [{"exports": "hash", "topic": VECTORS, "format": "arrow"}],
        "metrics": {"port": 0},
    }


def trainer_config(folder: Path) -> dict[str, Any]:
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


def watch(
    folder: Path, services: "dict[str, subprocess.Popen[bytes]]", producer: Any
) -> list[dict[str, float]]:
    """Memory of both services and the store's size, MiB, sampled until the producer is done."""
    samples: list[dict[str, float]] = []
    while producer.is_alive():
        time.sleep(SAMPLE_S)
        row = {"seconds": time.time()}
        for name, process in services.items():
            if process.poll() is not None:
                log = (folder / f"{name}.log").read_text()[-4000:]
                raise SystemExit(f"{name} ended with exit code {process.returncode}:\n{log}")
            row[name] = memory_mib(process.pid)[0]
        samples.append(row | {"store": size_mib(folder / "store")})
    return samples


def size_mib(folder: Path) -> float:
    total = 0
    for parent, _, names in os.walk(folder):  # which goes past folders that are swept meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total / 2**20


def tell(samples: list[dict[str, float]], lines: list[dict[str, Any]]) -> bool:
    """Print a row for each tenth of the run; whether memory is flat."""
    print("| tenth | snapshots | events | stream MiB | trainer MiB | store MiB | behind, snapshots (most) | "
          "freshness, s | oldest freshness, s | learned | forgotten nodes | AP | Recency |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for tenth, (seen, learned) in enumerate(
        zip(np.array_split(np.array(samples), 10), np.array_split(np.array(lines), 10), strict=True), 1
    ):
        memory = " | ".join(
            f"{np.median([row[name] for row in seen]):.0f}" for name in ("stream", "trainer", "store")
        )
        events = sum(line["events"] for line in learned)
        lag = [line["lag"] for line in learned]
        freshness, oldest = (
            np.median([line["wall_time"] - line[key] for line in learned]) for key in ("t_max", "t_min")
        )
        trained = sum(line["trained"] for line in learned) / events
        forgotten = sum(line["evicted"] for line in learned)
        ap, recency = (weighted_mean(list(learned), name, "scored") for name in ("ap", "recency_ap"))
        print(f"| {tenth} | {len(learned)} | {events:,} | {memory} | {np.median(lag):.0f} ({max(lag)}) | {freshness:.1f} | "
              f"{oldest:.1f} | {trained:.0%} | {forgotten:,} | {ap:.3f} | {recency:.3f} |", flush=True)  # fmt: skip
    events, trained = (sum(line[key] for line in lines) for key in ("events", "trained"))
    ages = np.percentile(ages_s(lines), (50, 99, 100))
    print(f"{trained:,} of {events:,} events learned ({trained / events:.1%}); at most {max(line['lag'] for line in lines)} "
          f"snapshots of {INTERVAL_S:g} s behind; the weights' newest event is {ages[0]:.1f} s old (median), {ages[1]:.1f} s "
          f"(99 % of the time at most), {ages[2]:.1f} s (at most)")  # fmt: skip
    flat = True
    third = len(samples) // 3
    for name in ("stream", "trainer"):
        memory = np.array([row[name] for row in samples])
        before, last = np.median(memory[third : 2 * third]), np.median(memory[-third:])
        flat &= bool(last <= FLAT_GROWTH * before)
        print(
            f"{name}: {before:.0f} MiB in the second third, {last:.0f} in the last, {memory.max():.0f} at most"
        )
    return flat


def ages_s(lines: list[dict[str, Any]]) -> NDArray[np.float64]:
    """Age of the newest event that the weights have learned, seconds, every tenth of a second between the first and last line.

    It grows until the next snapshot is learned, so it is an interval at least just before.
    """
    trained = [line for line in lines if line["trained"]]
    learned, newest = (np.array([line[key] for line in trained]) for key in ("wall_time", "t_max"))
    moments = np.arange(learned[0], learned[-1], MOMENT_S)
    seen = np.searchsorted(learned, moments, side="right") - 1
    ages: NDArray[np.float64] = moments - np.maximum.accumulate(newest)[seen]
    return ages


def arrived(folder: Path, bootstrap: str, sent: int, codes: dict[str, int]) -> bool:
    """Print whether every event is in the log, and every export, whole, in the topic."""
    reader = LogReader(folder / "store")
    assert reader.last is not None
    events = reader.totals.events + reader.last.tail_events
    commits = sorted(int(path.stem) for path in (folder / "store/exports/hash/commits").glob("*.json"))
    rows, whole = published(bootstrap)
    complete = [export for export, count in rows.items() if count >= whole[export]]
    print(f"{sent:,} events sent, {events:,} in the log; {commits[-1] + 1} exports committed, {len(complete)} in the "
          f"topic, whole; exit codes {codes}")  # fmt: skip
    return events == sent and len(complete) == commits[-1] + 1 and not any(codes.values())


def published(bootstrap: str) -> tuple[dict[int, int], dict[int, int]]:
    """Rows that came of each export, and how many it has."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "live", "enable.auto.commit": False})
    places = [TopicPartition(VECTORS, number, 0) for number in range(PARTITIONS)]
    left = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    consumer.assign(places)
    rows: dict[int, int] = {}
    whole: dict[int, int] = {}
    while left:
        for message in consumer.consume(1000, timeout=30):
            table = pa.ipc.open_stream(message.value()).read_all()
            export = int(table.schema.metadata[b"export"])
            rows[export] = rows.get(export, 0) + len(table)
            whole[export] = int(table.schema.metadata[b"rows"])
            left -= 1
    consumer.close()
    return rows, whole


def produce(bootstrap: str, rate: int, seconds: float, sent: Any) -> None:
    """Send events as they happen, in turn over the partitions, so that each of them stays in time order."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True})
    events = passing_by(int(rate * seconds))
    start_us = time.time_ns() // 1000
    t = pa.array(start_us + np.arange(len(events)) * US_PER_S // rate)
    events = events.set_column(events.schema.get_field_index("t"), events.schema.field("t"), t)
    for begin in range(0, len(events), rate):
        messages = encode_json(events.slice(begin, rate))
        due = start_us / US_PER_S + (begin + len(messages)) / rate
        time.sleep(max(0.0, due - time.time()))
        for i, message in enumerate(messages):
            producer.produce(TOPIC, message, partition=i % PARTITIONS)
        producer.poll(0)
        sent.value = begin + len(messages)
    producer.flush()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
