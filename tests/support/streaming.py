"""What tests of the stream job share: topics filled, jobs run in this process or as a command, logs read back."""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from warm_popen import WarmPopen, run

from freshet_graph.schemas.config import Kafka, StreamConfig, Topic
from freshet_graph.stream.job.loop import Ran, StreamJob
from freshet_graph.stream.kafka.client import client_settings
from freshet_graph.stream.kafka.topics import ensure_topic
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader

DAY_US = 86_400_000_000
T0 = 1_100_000_000  # 2004-11-09, seconds
IDLE_S = 0.6
COMMAND = [sys.executable, "-c", "from freshet_graph.stream.start import main; main()"]


def settings(bootstrap: str) -> dict[str, Any]:
    """Client settings for a broker without security."""
    return client_settings(Kafka(bootstrap=bootstrap, topics=[Topic(name="any")]))


def fresh_topic(bootstrap: str, *, partitions: int = 1, stem: str = "edges") -> str:
    """A new, empty topic."""
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    ensure_topic(settings(bootstrap), bootstrap, name, partitions)
    return name


def send(bootstrap: str, topic: str, messages: list[bytes | None], *, partition: int = 0) -> None:
    """Put messages into a topic partition, in order."""
    producer = KafkaProducer(**settings(bootstrap), linger_ms=5)
    futures = [
        producer.send(topic, message, key=b"gone" if message is None else None, partition=partition)
        for message in messages
    ]
    producer.flush(timeout=30)
    for future in futures:
        future.get(timeout=30)
    producer.close()


def send_records(bootstrap: str, topic: str, records: list[dict[str, Any]]) -> None:
    """Put whole records into partition 0 of a topic, in order: value, key, headers, timestamp_ms."""
    producer = KafkaProducer(**settings(bootstrap), linger_ms=5)
    futures = [producer.send(topic, **{"value": None, "partition": 0, **record}) for record in records]
    producer.flush(timeout=30)
    for future in futures:
        future.get(timeout=30)
    producer.close()


def edge(src: object, dst: object, t: float, **more: object) -> bytes:
    """A JSON event."""
    return json.dumps({"src": src, "dst": dst, "t": t, **more}).encode()


def configuration(store: Path, bootstrap: str, *topics: dict[str, str] | str, **more: Any) -> dict[str, Any]:
    """The smallest configuration of a test: daily snapshots, short commits, a free port."""
    named = [{"name": topic} if isinstance(topic, str) else topic for topic in topics]
    kafka = {"bootstrap": bootstrap, "topics": named, **more.pop("kafka", {})}
    snapshots = {"interval_s": 86_400, "commit_every_s": 0.3, **more.pop("snapshots", {})}
    base = {"graph": "test", "store": str(store), "time_bounds": [0, None], "metrics": {"port": 0}}
    return base | {"kafka": kafka, "snapshots": snapshots} | more


def run_job(content: dict[str, Any], *, until_idle_s: float = IDLE_S) -> tuple[Ran, StreamMetrics]:
    """Run a stream job in this process until it is idle."""
    config = StreamConfig(**content)
    metrics = StreamMetrics(config)
    return StreamJob(config, metrics, until_idle_s=until_idle_s).run(), metrics


def written(folder: Path, content: dict[str, Any]) -> Path:
    """The configuration as a file."""
    path = folder / "stream.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def command(
    *arguments: str | Path, timeout_s: float = 120, secrets: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run freshet-stream to its end, with further variables in its environment."""
    return run(
        ["freshet-stream", *arguments], environment=_environment() | (secrets or {}), timeout_s=timeout_s
    )


def started(
    *arguments: str | Path, log: Path, secrets: dict[str, str] | None = None, cold: bool = False
) -> "subprocess.Popen[bytes]":
    """Start freshet-stream; its standard output and error go to ``log``. ``cold``: it loads its libraries itself."""
    with log.open("ab") as output:
        return (subprocess.Popen if cold else WarmPopen)(
            [*(COMMAND if cold else ["freshet-stream"]), *map(str, arguments)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment() | (secrets or {}),
        )


def result(*arguments: str | Path) -> dict[str, Any]:
    """Run freshet-stream with --json and return its object."""
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def log_table(store: Path) -> pa.Table:
    """All sealed events of a store, in log order."""
    reader = LogReader(store)
    tables = [reader.events(snapshot.tau) for snapshot in reader.snapshots]
    return pa.concat_tables(tables)


def contents(store: Path) -> dict[str, Any]:
    """Checksums of everything that the log and the lane ``hash`` are made of, and where reading has come to."""
    log, lane = LogReader(store), LaneReader(store, "hash")
    assert log.last is not None
    return {
        "log": [(s.tau, s.events.checksum, s.nodes.checksum, s.num_late) for s in log.snapshots],
        "lane": [(m.tau, m.assignment.checksum, m.edges.checksum) for m in lane.manifests],
        "positions": [(p.partition, p.next, p.max_t_us) for p in log.last.positions],
        "refused": log.last.refused,
        "late": log.last.late,
    }


def triples(table: pa.Table) -> list[tuple[int, int, int, int]]:
    """(op, src, dst, t) of each row."""
    columns = (table[name].to_pylist() for name in ("op", "src", "dst", "t"))
    return list(zip(*columns, strict=True))


def read_topic(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of everything in a topic, in order of partition and offset."""
    consumer = KafkaConsumer(
        **settings(bootstrap), group_id=None, auto_offset_reset="earliest", enable_auto_commit=False
    )
    partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or [])]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    found: list[tuple[bytes | None, bytes | None]] = []
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        for records in consumer.poll(timeout_ms=500).values():
            found += [(record.key, record.value) for record in records]
    consumer.close()
    return found


def settled(bootstrap: str, topic: str) -> None:
    """Wait for the marks of all transactions that ended: brokers answer before they are in the topic."""
    ends: list[int] = []
    deadline = time.monotonic() + 60
    while not ends or ends[0] != ends[1]:
        assert time.monotonic() < deadline, f"a transaction is open at {ends[0]} of {ends[1]}"
        ends.clear()
        for level in ("read_committed", "read_uncommitted"):
            consumer = KafkaConsumer(**settings(bootstrap), isolation_level=level)
            partition = TopicPartition(topic, 0)
            ends.append(int(consumer.end_offsets([partition])[partition]))
            consumer.close()


def interactions(
    path: Path, *, events: int = 5_000, nodes: int = 200, days: int = 12, seed: int = 3
) -> pa.Table:
    """A file of inserts and deletes in order of time, some at equal times."""
    rng = np.random.default_rng(seed)
    seconds = np.sort(rng.integers(0, days * 86_400, events)) // 60 * 60
    table = pa.table(
        {
            "src": rng.integers(0, nodes, events),
            "dst": rng.integers(0, nodes, events),
            "t": T0 + seconds,
            "op": np.where(rng.random(events) < 0.15, -1, 1).astype(np.int8),
        }
    )
    pq.write_table(table, path)
    return table


def expected(table: pa.Table) -> list[tuple[int, int, int, int]]:
    """What the log has to hold of a file sent in order through one topic partition."""
    rows = zip(*(table[name].to_pylist() for name in ("op", "src", "dst", "t")), strict=True)
    return sorted(((op, src, dst, t * 1_000_000) for op, src, dst, t in rows), key=lambda row: row[3])


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FRESHET_STREAM")}
