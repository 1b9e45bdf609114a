"""200 kills -9 in a row of the stream job, and one broker restart of 30 s: is the log that of an undisturbed run?

    python benchmarks/kills.py [--kills 200] [--outage 30] [--seed 7]

A broker of its own, a topic of 4 partitions, a producer that never rests, and the command ``freshet-stream run`` with a
lane, killed at random moments and started again, with real processes. Printed: what was killed when, and the checksums
of the log and of its events in both stores. Exit code 1 if they differ.
"""

import argparse
import hashlib
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from schemas.config import Kafka, Topic
from schemas.events import event_schema
from stream.decode.formats.interface import MessageFormat, create_format
from stream.kafka.client import client_settings
from stream.kafka.producer import replay
from stream.kafka.topics import ensure_topic
from stream.store.lane.reader import LaneReader
from stream.store.log.reader import LogReader
from stream.store.verify.store import verify

BROKER = Path(__file__).resolve().parents[1] / "deploy" / "kafka" / "broker.py"
JOB = [sys.executable, "-c", "from stream.start import main; main()", "run", "--config"]
PARTITIONS = 4
DAY_S, SECONDS_AN_EVENT = 86_400, 60
EVENTS_PER_S, EVENTS_A_REPLAY = 400, 2_000
LATE_S = 10 * DAY_S
"""Partitions may run apart by this much event time: then no kill decides what is late."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--outage", type=float, default=30.0, help="seconds without a broker; 0: none")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "broker"
        address = broker("start", data)
        try:
            return measure(Path(folder), data, address, arguments)
        finally:
            broker("stop", data)


def measure(folder: Path, data: Path, address: str, arguments: argparse.Namespace) -> int:
    draws, topic = random.Random(arguments.seed), "edges"
    settings = client_settings(Kafka(bootstrap=address, topics=[Topic(name=topic)]))
    ensure_topic(settings, address, topic, PARTITIONS)
    stop, sent = threading.Event(), [0]
    ensure_topic(settings, address, "warm", 1)
    warm = configuration(folder / "warm", address, "warm")
    replay(
        edges(1, 0, 2_000),
        settings=settings,
        bootstrap=address,
        topic="warm",
        message_format=json_of(address),
    )
    # One whole run, so that no kill meets the compiler.
    subprocess.run([*JOB, str(warm), "--until-idle", "1"], check=True, capture_output=True)
    producer = threading.Thread(target=produce, args=(settings, address, topic, arguments.seed, stop, sent))
    producer.start()
    killed, whole = (
        configuration(folder / "killed", address, topic),
        configuration(folder / "whole", address, topic),
    )
    begun, commits, progress = time.monotonic(), [0], 0
    outage_at = arguments.kills // 2 if arguments.outage else -1
    for kill in range(arguments.kills):
        if kill == outage_at:
            progress += outage(folder, data, killed, arguments.outage)
        log = folder / "job.log"
        with log.open("wb") as output:
            job = subprocess.Popen([*JOB, str(killed)], stdout=output, stderr=subprocess.STDOUT)
        if kill % 4:  # three of four in its work, the others anywhere from the start of the process on
            until(lambda: commits_of(folder / "killed" / "store") > commits[-1])
        time.sleep(draws.uniform(0.0, 0.5 if kill % 4 else 2.0))
        if job.poll() is not None:
            print(f"the job ended by itself: {log.read_text()}")
            return 1
        job.send_signal(signal.SIGKILL)
        job.wait()
        commits.append(commits_of(folder / "killed" / "store"))
        if kill % 20 == 19:
            print(f"{kill + 1} kills, {commits[-1]:,} commits", file=sys.stderr, flush=True)
        progress += commits[-1] > commits[-2]
    seconds = time.monotonic() - begun
    stop.set()
    producer.join()
    for path in (killed, whole):
        subprocess.run([*JOB, str(path), "--until-idle", "2"], check=True, capture_output=True)
    found, expected = contents(folder / "killed" / "store"), contents(folder / "whole" / "store")
    problems = verify(folder / "killed" / "store").problems
    now = datetime.now(UTC).date()
    print(
        f"{arguments.kills} kills in {seconds:.0f} s, {progress} of them after new commits; {platform.machine()}, {now}"
    )
    if outage_at >= 0:
        print(f"one broker stopped and started again after {arguments.outage:.0f} s under the running job")
    print(f"{'':10} {'events':>10} {'snapshots':>10} {'log':>18} {'events':>18} {'lane':>18}")
    for name, entry in (("sent", None), ("killed", found), ("whole", expected)):
        if entry is None:
            print(f"{name:10} {sent[0]:>10,}")
        else:
            print(
                f"{name:10} {entry['events']:>10,} {entry['snapshots']:>10,} "
                f"{entry['log']:>18} {entry['rows']:>18} {entry['lane']:>18}"
            )
    same = found == expected and found["events"] == sent[0] and not problems
    print(f"verify: {problems or 'no problems'}; {'the same log' if same else 'THE LOGS DIFFER'}")
    return 0 if same else 1


def outage(folder: Path, data: Path, path: Path, seconds: float) -> int:
    """Kill the broker under a running job, resume it, and see the job go on; 1 if it did."""
    log = folder / "outage.log"
    with log.open("wb") as output:
        job = subprocess.Popen([*JOB, str(path)], stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: b"metrics:" in log.read_bytes())
        time.sleep(3)
        broker("stop", data)
        time.sleep(seconds)
        before = commits_of(folder / "killed" / "store")
        broker("resume", data)
        until(lambda: commits_of(folder / "killed" / "store") > before + 3)
        return 1
    finally:
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=30) == 0, log.read_text()


def produce(
    settings: dict[str, Any], address: str, topic: str, seed: int, stop: threading.Event, sent: list[int]
) -> None:
    """Edges in order of time, a few seconds' worth at a time, until told to stop."""
    while not stop.is_set():
        events = edges(seed + sent[0], sent[0], EVENTS_A_REPLAY)
        replay(
            events,
            settings=settings,
            bootstrap=address,
            topic=topic,
            rate=EVENTS_PER_S,
            message_format=json_of(address),
        )
        sent[0] += len(events)


def json_of(address: str) -> MessageFormat:
    """JSON with Freshet's own fields."""
    topic = Topic(name="edges")
    return create_format(topic, Kafka(bootstrap=address, topics=[topic]), "int")


def edges(seed: int, first: int, rows: int) -> pa.Table:
    """Edges number ``first`` and on of an endless stream in order of time."""
    rng = np.random.default_rng(seed)
    columns = {
        "op": np.ones(rows, np.int8),
        "src": rng.integers(0, 1_000, rows),
        "dst": rng.integers(0, 1_000, rows),
        "t": (1_100_000_000 + (first + np.arange(rows)) * SECONDS_AN_EVENT) * 1_000_000,
        "weight": np.ones(rows, np.float32),
    }
    schema = event_schema("int")
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def configuration(folder: Path, address: str, topic: str) -> Path:
    folder.mkdir()
    path = folder / "stream.yaml"
    content = {
        "graph": "kills",
        "store": str(folder / "store"),
        "kafka": {"bootstrap": address, "topics": [{"name": topic}], "max_poll_records": 500},
        "snapshots": {
            "interval_s": DAY_S,
            "commit_every_s": 0.1,
            "lateness_s": LATE_S,
            "idle_timeout_s": 3600,
        },
        "lanes": [{"name": "hash", "algorithm": "hash", "parts": 2}],
        "metrics": {"port": 0},
        "cycle_s": 2.0,
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def contents(store: Path) -> dict[str, Any]:
    """What a store holds, as counts and checksums."""
    log, lane = LogReader(store), LaneReader(store, "hash")
    rows, files, manifests = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    events = 0
    for snapshot in log.snapshots:
        table = log.events(snapshot.tau)
        events += table.num_rows
        files.update(f"{snapshot.tau} {snapshot.events.checksum} {snapshot.nodes.checksum}".encode())
        for column in ("src", "dst", "t"):
            rows.update(table[column].to_numpy().tobytes())
    for manifest in lane.manifests:
        manifests.update(f"{manifest.tau} {manifest.assignment.checksum} {manifest.edges.checksum}".encode())
    return {
        "events": events,
        "snapshots": len(log.snapshots),
        "log": files.hexdigest()[:16],
        "rows": rows.hexdigest()[:16],
        "lane": manifests.hexdigest()[:16],
    }


def commits_of(store: Path) -> int:
    return len(list((store / "log" / "commits").glob("*.json")))


def until(condition: Any, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s")
        time.sleep(0.02)


def broker(action: str, data: Path) -> str:
    command = [sys.executable, str(BROKER), action, "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return (done.stdout.splitlines() or [""])[-1]


if __name__ == "__main__":
    sys.exit(main())
