"""kill -9 of the stream job at random moments of a real stream: nothing is lost, nothing is there twice."""

import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from real_data import real_file
from streaming import T0, configuration, edge, fresh_topic, result, send, settings, started, written

from stream.decode.event_file import read_events
from stream.kafka.producer import replay
from stream.store.lane_reader import LaneReader
from stream.store.log_reader import LogReader

pytestmark = [pytest.mark.real, pytest.mark.integration]

KILLS = 20
SEED = 7
EVENTS_PER_S = 900.0
"""So slow that events keep coming while the job is killed again and again."""

READY = "metrics:"
"""The job prints this when it is loaded and begins to work."""


def test_twenty_kills_leave_the_log_of_an_uninterrupted_run(kafka: str, tmp_path: Path) -> None:
    events = read_events(real_file("collegemsg.parquet")).events
    topic, draws = fresh_topic(kafka), random.Random(SEED)
    producer = threading.Thread(
        target=replay,
        args=(events,),
        kwargs={"settings": settings(kafka), "bootstrap": kafka, "topic": topic, "rate": EVENTS_PER_S},
    )
    warm_up(tmp_path / "warm", kafka)
    producer.start()
    killed = store_configuration(tmp_path / "killed", kafka, topic)
    commits = [0]
    for kill in range(KILLS):
        log = tmp_path / f"{kill}.log"
        job = started("run", "--config", killed, log=log)
        wait_until_ready(log)
        if kill % 2:  # somewhere in its work, the others anywhere from its start on
            wait_for_commits(tmp_path / "killed" / "store", commits[-1] + 1)
        time.sleep(draws.uniform(0.0, 1.5))
        assert job.poll() is None, log.read_text()
        job.send_signal(signal.SIGKILL)
        assert job.wait(timeout=10) == -signal.SIGKILL
        commits.append(commits_of(tmp_path / "killed" / "store"))
    producer.join()
    assert commits == sorted(commits)
    assert len(set(commits)) > KILLS / 4  # it got on between the kills
    result("run", "--config", killed, "--until-idle", "1")

    whole = store_configuration(tmp_path / "whole", kafka, topic)
    assert result("run", "--config", whole, "--until-idle", "1")["events"] == len(events)
    assert contents(tmp_path / "killed" / "store") == contents(tmp_path / "whole" / "store")
    assert result("verify", tmp_path / "killed" / "store")["problems"] == []


def store_configuration(folder: Path, kafka: str, topic: str) -> Path:
    """Short commits and small polls, so that kills meet every step."""
    folder.mkdir()
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2}]
    snapshots = {"commit_every_s": 0.05}
    small = {"max_poll_records": 500}
    content = configuration(
        folder / "store", kafka, topic, lanes=lanes, snapshots=snapshots, kafka=small, cycle_s=1.0
    )
    return written(folder, content)


def warm_up(folder: Path, kafka: str) -> None:
    """One whole run, so that no kill meets the compiler: what it was compiling would be compiled anew each time."""
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, 2, T0), edge(2, 3, T0 + 86_400)])
    result("run", "--config", store_configuration(folder, kafka, topic), "--until-idle", "0.5")


def wait_for_commits(store: Path, count: int) -> None:
    """Until the log has so many commits; not for ever, the stream may be at its end."""
    deadline = time.monotonic() + 10
    while commits_of(store) < count and time.monotonic() < deadline:
        time.sleep(0.02)


def wait_until_ready(log: Path) -> None:
    deadline = time.monotonic() + 60
    while READY not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def commits_of(store: Path) -> int:
    return len(list((store / "log" / "commits").glob("*.json")))


def contents(store: Path) -> dict[str, Any]:
    """Checksums of everything that a log and a lane are made of, and where reading has come to."""
    log, lane = LogReader(store), LaneReader(store, "hash")
    assert log.last is not None
    return {
        "log": [(s.tau, s.events.checksum, s.nodes.checksum, s.num_late) for s in log.snapshots],
        "lane": [(m.tau, m.assignment.checksum, m.edges.checksum) for m in lane.manifests],
        "positions": [(p.partition, p.next, p.max_t_us) for p in log.last.positions],
        "refused": log.last.refused,
        "late": log.last.late,
    }
