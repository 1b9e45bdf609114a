"""A disk slower than Kafka: a bounded amount waits in memory, the rest in Kafka, where it shows as lag; all is kept."""

import threading
import time
from pathlib import Path

import pytest
from running_job import Running, reached
from streaming import T0, configuration, edge, fresh_topic, log_table, run_job, send

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.store.places.folder import FolderStaging

pytestmark = pytest.mark.integration

EVENTS, PARTITIONS, A_POLL = 12_000, 4, 200
BYTES_AN_EVENT = 120
"""More than an event takes while it waits."""


def test_a_slow_disk_shows_as_lag_and_nothing_is_dropped(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, free = FolderStaging.finish, threading.Event()

    def finish(staging: FolderStaging) -> None:
        if "log" in staging.root.parts and not free.wait(60):
            raise TimeoutError
        synced(staging)

    monkeypatch.setattr(FolderStaging, "finish", finish)
    topic = fresh_topic(kafka, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        mine = range(partition, EVENTS, PARTITIONS)
        send(kafka, topic, [edge(i, partition, T0 + 10 * i) for i in mine], partition=partition)
    content = configuration(
        tmp_path / "store",
        kafka,
        topic,
        kafka={"max_poll_records": A_POLL},
        snapshots={"max_pending_bytes": 1_000 * BYTES_AN_EVENT},
    )
    running = Running(StreamConfig(**content))
    try:
        seen: list[int] = []

        def taken() -> int:
            """Events that wait in memory: two commits' worth at most, each with the poll that passed the limit."""
            sink = running.job.log.sink
            waiting = (sink.pending, sink.committing)
            assert all(some.bytes <= (1_000 + A_POLL) * BYTES_AN_EVENT for some in waiting)
            return sum(len(table) for some in waiting for table in some.events)

        def stands_still() -> bool:
            seen.append(running.job.lag() or 0)  # not known before the first look
            time.sleep(0.3)
            still = len(seen) > 4 and len(set(seen[-4:])) == 1 and 0 < seen[-1] < EVENTS
            return still and seen[-1] == EVENTS - taken()

        reached(stands_still)
        assert 0 < taken() < EVENTS / 2
        assert running.totals.events == 0
        free.set()
        reached(lambda: running.job.lag() == 0)
    finally:
        free.set()
        running.close()
    run_job(content)
    assert sorted(log_table(tmp_path / "store")["src"].to_pylist()) == list(range(EVENTS))
