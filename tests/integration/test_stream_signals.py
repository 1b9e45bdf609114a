"""SIGTERM at any moment: what was read is committed, the exit code is 0, and it takes seconds."""

import json
import random
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from handlers import caught
from own_broker import Own
from running_job import (
    SECONDS,
    Running,
    ended_by,
    endpoint,
    events_of,
    get,
    reached,
    sealed,
)
from streaming import T0, configuration, edge, fresh_topic, run_job, send, started, written

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream import background
from freshet_graph.stream.job import lane_threads
from freshet_graph.stream.kafka import dead_letters
from freshet_graph.stream.sink import SEAL_SNAPSHOTS
from freshet_graph.stream.start import NOTHING_READ
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.plan import Stream, plan
from freshet_graph.stream.store.verify.store import verify

pytestmark = pytest.mark.integration


def test_from_its_first_moment_on(kafka: str, tmp_path: Path) -> None:
    topic, draws = fresh_topic(kafka), random.Random(5)
    send(kafka, topic, [edge(1, i, T0 + i) for i in range(5)])
    path = written(tmp_path, configuration(tmp_path / "store", kafka, topic))
    begun_s = time.monotonic()
    first = started("run", "--config", path, log=tmp_path / "first.log", cold=True)
    reached(lambda: events_of(tmp_path / "store") == 5)
    whole_s = time.monotonic() - begun_s  # signals are spread over as long
    planned = plan(Stream(rate=1, nodes=6, features=0, interval_s=60, keep_days=0)).stream_memory_bytes
    assert psutil.Process(first.pid).memory_info().rss == pytest.approx(planned, rel=0.3)
    ended_by(first, tmp_path / "first.log")
    for k in range(3):
        log = tmp_path / f"{k}.log"
        job = started("run", "--config", path, "--json", log=log, cold=True)
        reached(lambda: caught(job.pid))  # noqa: B023  in this round only; before that there is no line of ours to run
        time.sleep((k + draws.random()) / 3 * whole_s if k else 0)
        ended_by(job, log)
        told = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"snapshots"')]
        assert len(told) == 1, "one summary, also of nothing"
        assert told[0]["ended"] == "stopped"
        assert set(told[0]) == set(NOTHING_READ)
    assert verify(tmp_path / "store").problems == []


def test_while_one_empty_partition_lets_go_of_many_snapshots(kafka: str, tmp_path: Path) -> None:
    """All are closed at once; a stop, like a kill, waits for no more than one commit may seal, and a start goes on there."""
    topic, store, count = fresh_topic(kafka, partitions=2), tmp_path / "store", 1_500
    send(kafka, topic, [edge(1, i, T0 + i) for i in range(count)])
    short = {"interval_s": 1, "idle_timeout_s": 0.5}
    content = configuration(store, kafka, topic, snapshots=short)
    running = Running(StreamConfig(**content))
    try:
        reached(lambda: sealed(store) > 0)
    finally:
        running.close()
    assert [ran.idle for ran in running.ran] == [False]
    assert 0 < sealed(store) < count - 1
    assert events_of(store) == count, "the others are durable, too"
    ran, _ = run_job(content)
    assert (ran.events, sealed(store)) == (0, count)
    commits = [json.loads(path.read_text()) for path in (store / "log" / "commits").glob("*.json")]
    assert max(len(commit["sealed"]) for commit in commits) == SEAL_SNAPSHOTS
    assert verify(store).problems == []


def test_while_brokers_do_not_answer(own: Own, tmp_path: Path) -> None:
    topic = fresh_topic(own.address)
    send(own.address, topic, [edge(1, i, T0 + i) for i in range(5)])
    # A cycle that ends in the outage must not need a broker either.
    path = written(tmp_path, configuration(tmp_path / "store", own.address, topic, cycle_s=1.0))
    log = tmp_path / "job.log"
    job = started("run", "--config", path, log=log)
    try:
        reached(lambda: events_of(tmp_path / "store") == 5)
        own.signal(signal.SIGKILL)
        reached(lambda: "no broker of " in get(f"{endpoint(log)}/readyz"))
    finally:
        ended_by(job, log)
    # Before there was ever a broker: it waits for one, and is told to end.
    job = started("run", "--config", path, log=tmp_path / "none.log")
    try:
        endpoint(tmp_path / "none.log")
    finally:
        ended_by(job, tmp_path / "none.log")


@pytest.mark.parametrize("slow", ["letters", "lane"])
def test_in_the_idle_drain(kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    at_work, over = threading.Event(), threading.Event()

    def work(*_: object, **__: object) -> None:
        at_work.set()
        over.wait(60)

    whole: tuple[object, str] = (dead_letters, "send_all") if slow == "letters" else (LaneWriter, "_commit")
    monkeypatch.setattr(*whole, work)
    monkeypatch.setattr(lane_threads, "CLOSE_S", 0.5)
    monkeypatch.setattr(background, "_left_behind", [])
    topic, letters = fresh_topic(kafka), fresh_topic(kafka, stem="dead")
    send(kafka, topic, [edge(1, 2, T0), b"{"])
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2}]
    content = configuration(tmp_path / "store", kafka, topic, lanes=lanes, kafka={"dead_letters": letters})
    running = Running(StreamConfig(**content), until_idle_s=0.3)
    try:
        assert at_work.wait(30)
        reached(lambda: sealed(tmp_path / "store") == 1)
        running.job.stop()
        running.thread.join(SECONDS)
        assert not running.thread.is_alive()
    finally:
        over.set()
        running.close()
    assert [ran.events for ran in running.ran] == [1]
    left = {"letters": "dead-letters", "lane": "lane-hash"}[slow]
    assert background.left_behind() == [left], "a lane's lock goes with the process, not before"
