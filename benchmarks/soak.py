"""The stream job at full rate for a quarter of an hour, its memory watched: python benchmarks/soak.py [--minutes 15].

A real broker, a producer process that keeps the topic full without running away from retention, and ``freshet-stream run``
as its users start it: short cycles (the local pipeline is renewed many times), snapshots of a few seconds, a lane, dead
letters, retention, one message in a thousand refused. Memory is the resident set of the job and its children, sampled
every second, split as Linux has it into anonymous memory (what a leak would grow) and mapped files (the open tail, which
the kernel can drop). The slope is Theil and Sen's through the samples after the warm-up, with its 95 % interval: memory
goes up and down by hundreds of MiB with every commit. Flat is a slope that may be none, and a last third at most 5 % above
the first.
"""

import argparse
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import yaml
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families
from scipy.stats import theilslopes

from schemas.config import Kafka, Topic
from schemas.events import Op, event_schema
from stream.decode.encode import encode_arrow, encode_json
from stream.kafka.client import client_settings
from stream.kafka.topics import ensure_topic
from stream.store.log.reader import LogReader

BROKER = Path(__file__).resolve().parents[1] / "deploy" / "kafka" / "broker.py"
TOPIC, DEAD = "soak", "soak.dead"
PARTITIONS, NODES, INTERVAL_S = 4, 2_000, 60
CHUNK_EVENTS = 20_000
EVENTS_A_SNAPSHOT = 1_000_000
KEPT = 60
"""Snapshots: some 4 GB of log. Without retention a quarter of an hour at full rate takes tens."""
MOST_AHEAD = {"json": 3_000_000, "arrow": 8_000_000}
"""Events sent and not yet in the log: below what retention keeps, far above what a poll takes."""
RETENTION = {
    "log.retention.bytes": str(512 << 20), "log.segment.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "5000", "log.segment.delete.delay.ms": "1000",
}  # fmt: skip
FLAT_GROWTH = 1.05
"""Median of the last third of the samples over that of the first."""


@dataclass
class Samples:
    """One row a second."""

    seconds: list[float] = field(default_factory=list)
    anonymous_mib: list[float] = field(default_factory=list)
    mapped_mib: list[float] = field(default_factory=list)
    events: list[float] = field(default_factory=list)
    unread: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)

    def after(self, warm_s: float) -> slice:
        return slice(int(np.searchsorted(self.seconds, warm_s)), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--warm-up", type=float, default=5.0, help="Minutes before memory has to be flat.")
    parser.add_argument("--cycle", type=float, default=10.0, help="cycle_s of the job, seconds.")
    parser.add_argument("--format", choices=["json", "arrow"], default="json")
    parser.add_argument("--folder", type=Path, help="Where broker and store lie; some GB.")
    parser.add_argument("--keep", type=Path, help="File for all samples, JSON.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, broker(Path(folder)) as bootstrap:
        told = soak(Path(folder), bootstrap, arguments)
    print(json.dumps(told)) if arguments.json else show(told)
    return 0 if told["flat"] else 1


def soak(folder: Path, bootstrap: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run job and producer for the time asked for; returns what was seen."""
    settings = client_settings(Kafka(bootstrap=bootstrap, topics=[Topic(name=TOPIC)]))
    ensure_topic(settings, bootstrap, TOPIC, PARTITIONS)
    context = multiprocessing.get_context("spawn")
    allowed = context.Value("q", MOST_AHEAD[arguments.format])
    producer = context.Process(target=produce, args=(bootstrap, arguments.format, allowed), daemon=True)
    producer.start()
    log = folder / "job.log"
    with log.open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, "-c", "from stream.start import main; main()", "run", "--config",
             str(configured(folder, bootstrap, arguments)), "--json"],
            stdout=subprocess.PIPE, stderr=output,
        )  # fmt: skip
    try:
        samples = watch(job, log, allowed, producer, arguments)
    finally:
        producer.kill()
        job.send_signal(signal.SIGTERM)
        out, _ = job.communicate(timeout=120)
    return summary(samples, arguments, json.loads(out), job.returncode) | accounted(folder / "store")


def accounted(store: Path) -> dict[str, Any]:
    """Whether every message before the log's offsets is in the log or among the rejects."""
    reader = LogReader(store)
    last = reader.last
    assert last is not None
    read = sum(position.next for position in last.positions)
    events = reader.totals.events + last.tail_events
    refused = sum(last.refused.values())
    return {
        "messages_read": read,
        "events_in_log": events,
        "refused_in_log": refused,
        "reasons": last.refused,
    }


def watch(
    job: "subprocess.Popen[bytes]", log: Path, allowed: Any, producer: Any, arguments: argparse.Namespace
) -> Samples:
    """Sample once a second, and hold the producer back where the job is far behind."""
    samples, address = Samples(), address_of(job, log)
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < arguments.minutes * 60:
        try:
            series = scraped(address)
        except OSError as error:
            with suppress(subprocess.TimeoutExpired):
                job.wait(5)
            ended = f"exit code {job.returncode}"
            raise SystemExit(f"no metrics ({error}), {ended}; log:\n{log.read_text()[-4000:]}") from error
        if job.poll() is not None or not producer.is_alive():
            raise SystemExit(f"job or producer ended early:\n{log.read_text()[-4000:]}")
        unread = series.get("freshet_stream_consumer_lag_messages", 0.0)
        taken = sum(series.get(f"freshet_stream_{kind}_total", 0.0) for kind in ("events", "refused"))
        # By what is in the log, not by lag: nobody knows that while the job connects anew.
        allowed.value = int(taken) + MOST_AHEAD[arguments.format]
        anonymous, mapped = memory_mib(job.pid)
        samples.seconds.append(elapsed)
        samples.anonymous_mib.append(anonymous)
        samples.mapped_mib.append(mapped)
        samples.events.append(series.get("freshet_stream_events_total", 0.0))
        samples.unread.append(unread)
        samples.cycles.append(series.get("freshet_stream_restarts_total", 0.0))
        time.sleep(max(0.0, 1.0 - (time.monotonic() - started - elapsed)))
    return samples


def summary(
    samples: Samples, arguments: argparse.Namespace, result: dict[str, Any], code: int
) -> dict[str, Any]:
    warm = samples.after(min(arguments.warm_up, arguments.minutes / 2) * 60)
    minutes = np.array(samples.seconds[warm]) / 60
    anonymous = np.array(samples.anonymous_mib[warm])
    slope, _, slope_low, slope_high = (float(value) for value in theilslopes(anonymous[::5], minutes[::5]))
    third = len(anonymous) // 3
    first, last = float(np.median(anonymous[:third])), float(np.median(anonymous[-third:]))
    events = np.array(samples.events[warm])
    if arguments.keep is not None:
        arguments.keep.write_text(json.dumps(asdict(samples)), encoding="utf-8")
    return {
        "minutes": arguments.minutes,
        "format": arguments.format,
        "cycles": int(samples.cycles[-1]) + 1,
        "events": result["events"],
        "refused": result["refused"],
        "late": result["late"],
        "snapshots": result["snapshots"],
        "events_per_s": float((events[-1] - events[0]) / (minutes[-1] - minutes[0]) / 60),
        "exit_code": code,
        "anonymous_first_third_mib": first,
        "anonymous_last_third_mib": last,
        "anonymous_most_mib": float(max(samples.anonymous_mib)),
        "mapped_most_mib": float(max(samples.mapped_mib)),
        "slope_mib_a_minute": slope,
        "slope_interval": [slope_low, slope_high],
        "starved_share": float(np.mean(np.array(samples.unread[warm]) < CHUNK_EVENTS / 100)),
        "by_minute_mib": [
            round(float(np.median(chunk)))
            for chunk in np.array_split(np.array(samples.anonymous_mib), max(1, round(arguments.minutes)))
        ],
        "flat": code == 0 and slope_low <= 0 and last <= FLAT_GROWTH * first,
    }


def show(told: dict[str, Any]) -> None:
    print(
        f"{told['minutes']:g} minutes of {told['format']}, {told['cycles']} cycles, exit code {told['exit_code']}"
    )
    print(
        f"  {told['events']:,} events, {told['refused']:,} refused, {told['snapshots']} snapshots sealed and in a lane"
    )
    print(
        f"  {told['events_per_s']:,.0f} events/s after the warm-up; topic empty in {told['starved_share']:.0%} of samples"
    )
    print(
        f"  anonymous memory, MiB: {told['anonymous_first_third_mib']:.0f} in the first third after the warm-up, "
        f"{told['anonymous_last_third_mib']:.0f} in the last, {told['anonymous_most_mib']:.0f} at most; "
        f"mapped files {told['mapped_most_mib']:.0f} at most"
    )
    print(
        f"  {told['messages_read']:,} messages read, {told['events_in_log']:,} events in the log, "
        f"{told['refused_in_log']:,} refused ({told['reasons']})"
    )
    print(f"  by minute: {' '.join(str(value) for value in told['by_minute_mib'])}")
    low, high = told["slope_interval"]
    verdict = "flat" if told["flat"] else "NOT FLAT"
    print(f"  slope {told['slope_mib_a_minute']:+.2f} MiB a minute ({low:+.2f} to {high:+.2f}): {verdict}")


def produce(bootstrap: str, message_format: str, allowed: Any) -> None:
    """Fill the topic as fast as it goes up to the events ``allowed``; event time moves on with the events."""
    producer = Producer({
        "bootstrap.servers": bootstrap, "linger.ms": 20, "batch.num.messages": 20_000,
        "queue.buffering.max.messages": 1_000_000, "enable.idempotence": True,
        "queue.buffering.max.kbytes": 64 << 10,  # what is sent yet once it is held back: far less than retention keeps
    })  # fmt: skip
    rng = np.random.default_rng(1)
    step_us = INTERVAL_S * 1_000_000 // (EVENTS_A_SNAPSHOT // CHUNK_EVENTS)
    start_us, sent = 1_100_000_000_000_000, 0
    while True:
        while sent >= allowed.value:
            time.sleep(0.02)
        sent += CHUNK_EVENTS
        batch = chunk(rng, start_us, step_us)
        start_us += step_us
        if message_format == "json":
            messages = encode_json(batch)
            messages[::997] = [b'{"src": 1, "t": "never"}'] * len(messages[::997])
        else:
            messages = list(encode_arrow(batch))
        for i, message in enumerate(messages):
            while True:
                try:
                    producer.produce(TOPIC, message, partition=i % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)


def chunk(rng: np.random.Generator, start_us: int, step_us: int) -> pa.RecordBatch:
    """Edges among a fixed set of nodes, in order of time."""
    rows, schema = CHUNK_EVENTS, event_schema("int")
    columns = {
        "op": pa.array(np.full(rows, int(Op.INSERT), np.int8)),
        "src": pa.array(rng.integers(0, NODES, rows)),
        "dst": pa.array(rng.integers(0, 50, rows)),
        "t": pa.array(start_us + np.arange(rows) * step_us // rows),
        "weight": pa.array(np.ones(rows, np.float32)),
    }
    arrays = [columns.get(f.name, pa.nulls(rows, f.type)) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def configured(folder: Path, bootstrap: str, arguments: argparse.Namespace) -> Path:
    content = {
        "graph": "soak",
        "store": str(folder / "store"),
        "kafka": {
            "bootstrap": bootstrap,
            "topics": [{"name": TOPIC, "format": arguments.format, "time_unit": "us" if arguments.format == "arrow" else "s"}],
            "dead_letters": DEAD,
        },
        "snapshots": {"interval_s": INTERVAL_S, "commit_every_s": 5},
        "lanes": [{"name": "hash", "algorithm": "hash", "parts": 4, "edge_life": 8}],
        "retention": {"snapshots": KEPT},
        "metrics": {"port": 0},
        "cycle_s": arguments.cycle,
    }  # fmt: skip
    path = folder / "stream.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def address_of(job: "subprocess.Popen[bytes]", log: Path) -> str:
    """Where the job says that it serves its metrics."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and job.poll() is None:
        if told := re.search(r'"event": "metrics".*?"url": "(http[^"]+)"', log.read_text()):
            return f"{told[1]}/metrics"
        time.sleep(0.2)
    raise SystemExit(f"the job didn't start:\n{log.read_text()[-2000:]}")


def scraped(address: str) -> dict[str, float]:
    """Every series summed over its labels."""
    with urllib.request.urlopen(address, timeout=30) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def memory_mib(pid: int) -> tuple[float, float]:
    """Anonymous memory and mapped files of a process and its children."""
    anonymous = mapped = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue  # it has just ended
        kib = {
            line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith("Rss")
        }
        anonymous += kib.get("RssAnon", 0) / 1024
        mapped += (kib.get("RssFile", 0) + kib.get("RssShmem", 0)) / 1024
    return anonymous, mapped


@contextmanager
def broker(folder: Path, properties: Mapping[str, str] = RETENTION) -> Iterator[str]:
    """A real broker, by default with little retention."""
    data = str(folder / "kafka")
    extra = [f"--property={key}={value}" for key, value in properties.items()]
    done = subprocess.run(
        [sys.executable, str(BROKER), "start", "--data", data, *extra],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    try:
        yield done.stdout.splitlines()[-1]
    finally:
        subprocess.run([sys.executable, str(BROKER), "stop", "--data", data], check=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
