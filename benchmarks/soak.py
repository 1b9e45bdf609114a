"""The stream job at full rate for a quarter of an hour, its memory watched: python benchmarks/soak.py [--minutes 15].

A real broker, a producer process that keeps the topic full without running away from retention, and ``freshet-stream run``
as its users start it: short cycles (the local pipeline is renewed many times), snapshots of a minute of event time, a lane, dead
letters, retention, one message in a thousand refused (JSON). Anonymous memory of the job and its children is sampled every
second. The slope is Theil and Sen's through the samples after ``--warm-up`` minutes, with its 95 % interval. Flat is a slope that
may be none, and a last third at most 5 % above the first; otherwise the exit code is 1. ``--folder`` holds broker and store.
"""

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa

TOPIC, PARTITIONS, NODES, INTERVAL_S = "soak", 4, 2_000, 60
CHUNK_EVENTS, EVENTS_A_SNAPSHOT = 20_000, 1_000_000
KEPT = 60
"""Snapshots: some 4 GB of log. Without retention a quarter of an hour at full rate takes tens."""
MOST_AHEAD = {"json": 3_000_000, "arrow": 8_000_000}
"""Events sent and not yet in the log: below what retention keeps, far above what a poll takes."""
RETENTION = {
    "log.retention.bytes": str(512 << 20), "log.segment.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "5000", "log.segment.delete.delay.ms": "1000",
}  # fmt: skip


def keys(folder: Path, bootstrap: str, given: Any) -> dict[str, Any]:
    topic = {"name": TOPIC, "format": given.format, "time_unit": "us" if given.format == "arrow" else "s"}
    return harness.stream_keys(
        folder / "store", bootstrap, topic, {"name": "hash", "parts": 4, "edge_life": 8}, cycle_s=10.0,
        kafka={"dead_letters": "soak.dead"}, snapshots={"interval_s": INTERVAL_S, "commit_every_s": 5},
        retention={"snapshots": KEPT},
    )  # fmt: skip


def produce(bootstrap: str, message_format: str, allowed: Any) -> None:
    """Fill the topic as fast as it goes up to the events ``allowed``; event time moves on with the events."""
    from confluent_kafka import Producer

    from freshet_graph.stream.decode.encode import encode_arrow, encode_json

    producer = Producer({
        "bootstrap.servers": bootstrap, "linger.ms": 20, "batch.num.messages": 20_000,
        "queue.buffering.max.messages": 1_000_000, "enable.idempotence": True,
        "queue.buffering.max.kbytes": 64 << 10,  # what is sent yet once it is held back: far less than retention keeps
    })  # fmt: skip
    rng, sent, start_us = np.random.default_rng(1), 0, 1_100_000_000_000_000
    step_us = INTERVAL_S * 1_000_000 // (EVENTS_A_SNAPSHOT // CHUNK_EVENTS)
    while True:
        while sent >= allowed.value:
            time.sleep(0.02)
        t = start_us + np.arange(CHUNK_EVENTS) * step_us // CHUNK_EVENTS
        src, dst = rng.integers(0, NODES, CHUNK_EVENTS), rng.integers(0, 50, CHUNK_EVENTS)
        batch: pa.RecordBatch = harness.event_table(src=src, dst=dst, t=t).to_batches()[0]
        sent, start_us = sent + CHUNK_EVENTS, start_us + step_us
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


def watch(job: Any, log: Path, allowed: Any, producer: Any, given: Any) -> dict[str, np.ndarray]:
    """Sample once a second, and hold the producer back if the job is far behind."""
    samples: list[dict[str, float]] = []
    address, started = harness.address_of(job, log), time.monotonic()
    while (elapsed := time.monotonic() - started) < given.minutes * 60:
        alive = job.poll() is None and producer.is_alive()
        harness.require(alive, f"job or producer ended early:\n{log.read_text()[-4000:]}")
        series = harness.scraped(address)
        events, refused = (series.get(f"freshet_stream_{kind}_total", 0.0) for kind in ("events", "refused"))
        # By what is in the log, not by lag, which is unknown while the job connects again.
        allowed.value = int(events + refused) + MOST_AHEAD[given.format]
        anonymous, mapped = harness.memory_mib(job)
        samples.append({
            "seconds": elapsed, "anonymous": anonymous, "mapped": mapped, "events": events,
            "unread": series.get("freshet_stream_consumer_lag_messages", 0.0),
            "cycles": series.get("freshet_stream_restarts_total", 0.0),
        })  # fmt: skip
        time.sleep(max(0.0, 1.0 - (time.monotonic() - started - elapsed)))
    return {name: np.array([row[name] for row in samples]) for name in samples[0]}


def show(found: dict[str, np.ndarray], result: dict[str, Any], given: Any) -> bool:
    """Print what was seen; whether memory is flat."""
    from scipy.stats import theilslopes

    warm = found["seconds"] >= 60 * min(given.warm_up, given.minutes / 2)
    minutes, anonymous, events = (found[name][warm] for name in ("seconds", "anonymous", "events"))
    minutes = minutes / 60
    slope, _, low, high = (float(value) for value in theilslopes(anonymous[::5], minutes[::5]))
    third = len(anonymous) // 3
    first, last = np.median(anonymous[:third]), np.median(anonymous[-third:])
    rate = (events[-1] - events[0]) / (minutes[-1] - minutes[0]) / 60
    starved = np.mean(found["unread"][warm] < CHUNK_EVENTS / 100)
    by_minute = np.array_split(found["anonymous"], max(1, round(given.minutes)))
    flat = bool(low <= 0 and last <= harness.FLAT_GROWTH * first)
    print(f"{given.minutes:g} minutes of {given.format}, {int(found['cycles'][-1]) + 1} cycles")
    print(
        f"  {result['events']:,} events, {result['refused']:,} refused, {result['snapshots']} snapshots sealed"
    )
    print(f"  {rate:,.0f} events/s after the warm-up; topic empty in {starved:.0%} of samples")
    print(f"  anonymous memory, MiB: {first:.0f} in the first third after the warm-up, {last:.0f} in the last, "
          f"{found['anonymous'].max():.0f} at most; mapped files {found['mapped'].max():.0f} at most")  # fmt: skip
    print(f"  by minute: {' '.join(f'{np.median(part):.0f}' for part in by_minute)}")
    print(
        f"  slope {slope:+.2f} MiB per minute ({low:+.2f} to {high:+.2f}): {'flat' if flat else 'NOT FLAT'}"
    )
    return flat


def main() -> None:
    format_ = {"choices": ["json", "arrow"], "default": "json"}
    given = harness.options(__doc__, minutes=15.0, warm_up=5.0, format=format_, folder={"type": Path})
    with harness.scratch(given.folder) as folder, harness.broker(folder / "kafka", RETENTION) as bootstrap:
        harness.topics(bootstrap, PARTITIONS, TOPIC)
        context = multiprocessing.get_context("spawn")
        allowed = context.Value("q", MOST_AHEAD[given.format])
        producer = context.Process(target=produce, args=(bootstrap, given.format, allowed), daemon=True)
        producer.start()
        job = harness.service(folder, "stream", keys(folder, bootstrap, given), "--json")
        try:
            found = watch(job, folder / "stream.log", allowed, producer, given)
            producer.kill()
            harness.require(harness.ended(job) == 0, f"the job ended with {job.returncode}")
        finally:
            producer.kill()
            harness.kill(job)
        result = json.loads((folder / "stream.log").read_text().splitlines()[-1])
        flat = show(found, result, given)
        in_log = harness.events_in(folder / "store")
        print(f"  {in_log:,} events in the log")
        harness.require(result["events"] > 0 and in_log > 0, "no event came into the log")
    harness.require(flat, "memory is not flat")


if __name__ == "__main__":
    main()
