"""200 kills -9 in a row of the stream job, and one broker restart of 30 s: is the log that of an undisturbed run?

    python benchmarks/kills.py [--kills 200] [--outage 30] [--seed 7]

A broker of its own, a topic of 4 partitions, a producer that never rests, and the command ``freshet-stream run`` with a
lane, killed at random moments and started again, with real processes. Printed: the kills, and the checksums of the log, of its
events and of the lane in both stores. Asserted: they are equal, every event that was sent is there, and ``verify`` finds no
fault. ``--outage 0``: the broker is left alone.
"""

import hashlib
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from harness import require, service, until

from freshet_graph.schemas.config import Kafka, Topic

TOPIC, PARTITIONS, DAY_S, SECONDS_AN_EVENT = "edges", 4, 86_400, 60
EVENTS_PER_S, EVENTS_A_REPLAY = 400, 2_000
LATE_S = 10 * DAY_S
"""Partitions may run apart by this much event time: then no kill decides what is late."""


def edges(seed: int, first: int, rows: int) -> pa.Table:
    """Edges number ``first`` and on of an endless stream in order of time."""
    rng = np.random.default_rng(seed)
    t = (1_100_000_000 + (first + np.arange(rows)) * SECONDS_AN_EVENT) * 1_000_000
    return harness.event_table(src=rng.integers(0, 1_000, rows), dst=rng.integers(0, 1_000, rows), t=t)


def send(settings: dict[str, Any], address: str, topic: str, events: pa.Table, rate: float = 0) -> None:
    from freshet_graph.stream.decode.formats.interface import create_format
    from freshet_graph.stream.kafka.producer import replay

    named = Topic(name=topic)
    json_ = create_format(named, Kafka(bootstrap=address, topics=[named]), "int")
    replay(events, settings=settings, bootstrap=address, topic=topic, rate=rate, message_format=json_)


def keys(folder: Path, address: str, topic: str) -> dict[str, Any]:
    times = {"interval_s": DAY_S, "commit_every_s": 0.1, "lateness_s": LATE_S, "idle_timeout_s": 3600}
    return harness.stream_keys(
        folder / "store", address, {"name": topic}, {"name": "hash", "parts": 2}, snapshots=times, cycle_s=2.0,
        kafka={"max_poll_records": 500},
    )  # fmt: skip


def to_the_end(folder: Path, address: str, topic: str, idle_s: int) -> None:
    job = service(folder, "stream", keys(folder, address, topic), "--until-idle", str(idle_s))
    require(job.wait() == 0, f"the job ended badly:\n{(folder / 'stream.log').read_text()[-3000:]}")


def commits_of(folder: Path) -> int:
    return len(list((folder / "store" / "log" / "commits").glob("*.json")))


def contents(store: Path) -> list[Any]:
    """Counts of events and snapshots, and checksums of the log's files, its events and the lane."""
    from freshet_graph.stream.store.lane.reader import LaneReader
    from freshet_graph.stream.store.log.reader import LogReader

    log, lane = LogReader(store), LaneReader(store, "hash")
    rows, files, manifests = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    events = 0
    for snapshot in log.snapshots:
        found = log.events(snapshot.tau)
        events += found.num_rows
        files.update(f"{snapshot.tau} {snapshot.events.checksum} {snapshot.nodes.checksum}".encode())
        for column in ("src", "dst", "t"):
            rows.update(found[column].to_numpy().tobytes())
    for manifest in lane.manifests:
        manifests.update(f"{manifest.tau} {manifest.assignment.checksum} {manifest.edges.checksum}".encode())
    return [events, len(log.snapshots), *(each.hexdigest()[:16] for each in (files, rows, manifests))]


def outage(killed: Path, address: str, data: Path, seconds: float) -> None:
    """Stop the broker under a running job, start it again, and see the job continue."""
    command = [sys.executable, str(harness.ROOT / "deploy/kafka/broker.py")]
    job = service(killed, "stream", keys(killed, address, TOPIC))
    try:
        harness.address_of(job, killed / "stream.log")
        time.sleep(3)
        subprocess.run([*command, "stop", "--data", str(data)], check=True, capture_output=True)
        time.sleep(seconds)
        before = commits_of(killed)
        subprocess.run([*command, "resume", "--data", str(data)], check=True, capture_output=True)
        until(lambda: commits_of(killed) > before + 3, "commits after the outage")
        require(harness.ended(job) == 0, (killed / "stream.log").read_text()[-3000:])
    finally:
        harness.kill(job)


def kill_again_and_again(killed: Path, address: str, data: Path, given: Any) -> int:
    """How many of the kills came after new commits."""
    draws, commits, after_commits = random.Random(given.seed), [0], 0
    for kill in range(given.kills):
        if given.outage and kill == given.kills // 2:
            outage(killed, address, data, given.outage)
        job = service(killed, "stream", keys(killed, address, TOPIC))
        if kill % 4:  # three of four in its work, the others anywhere from the start of the process on
            until(lambda: commits_of(killed) > commits[-1], "a commit")
        time.sleep(draws.uniform(0.0, 0.5 if kill % 4 else 2.0))
        require(
            job.poll() is None, f"the job ended by itself:\n{(killed / 'stream.log').read_text()[-3000:]}"
        )
        job.kill()
        job.wait()
        commits.append(commits_of(killed))
        after_commits += commits[-1] > commits[-2]
        if kill % 20 == 19:
            print(f"{kill + 1} kills, {commits[-1]:,} commits", file=sys.stderr, flush=True)
    return after_commits


def measure(folder: Path, data: Path, address: str, given: Any) -> None:
    from freshet_graph.stream.store.verify.store import verify

    settings = harness.topics(address, PARTITIONS, TOPIC)
    harness.topics(address, 1, "warm")
    send(settings, address, "warm", edges(1, 0, 2_000))
    to_the_end(folder / "warm", address, "warm", 1)  # so that no kill meets the compiler
    stop, sent = threading.Event(), [0]

    def produce() -> None:
        while not stop.is_set():
            send(
                settings, address, TOPIC, edges(given.seed + sent[0], sent[0], EVENTS_A_REPLAY), EVENTS_PER_S
            )
            sent[0] += EVENTS_A_REPLAY

    producer = threading.Thread(target=produce)
    producer.start()
    killed, whole = folder / "killed", folder / "whole"
    began = time.monotonic()
    try:
        after_commits = kill_again_and_again(killed, address, data, given)
        seconds = time.monotonic() - began
    finally:
        stop.set()
        producer.join()
    for each in (killed, whole):
        to_the_end(each, address, TOPIC, 2)
    found, problems = (
        {each.name: contents(each / "store") for each in (killed, whole)},
        verify(killed / "store").problems,
    )
    print(f"{given.kills} kills in {seconds:.0f} s, {after_commits} of them after new commits")
    rows = [["sent", sent[0], *"––––"], *([name, *each] for name, each in found.items())]
    harness.table("run | events | snapshots | log | events | lane", rows)
    require(found["killed"] == found["whole"] and found["killed"][0] == sent[0], "the logs differ")
    require(not problems, f"verify: {problems}")


def main() -> None:
    given = harness.options(__doc__, kills=200, outage=30.0, seed=7)
    with harness.scratch() as folder, harness.broker(folder / "broker") as address:
        measure(folder, folder / "broker", address, given)


if __name__ == "__main__":
    main()
