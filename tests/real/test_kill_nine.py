"""kill -9 of the stream job at random moments of a real stream: nothing is lost, nothing is there twice."""

import random
import signal
import threading
import time
from pathlib import Path

import pytest
from decoding import message_format
from forked import Commands
from real_data import real_file
from streaming import configuration, contents, fresh_topic, settings, written

from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.kafka.producer import replay
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify

pytestmark = [pytest.mark.real, pytest.mark.integration, pytest.mark.slow]

KILLS = 20
SEED = 7

READY = '"event": "metrics"'
"""The job logs this when it is loaded and begins to work."""


def test_twenty_kills_leave_the_log_of_an_uninterrupted_run(
    kafka: str, tmp_path: Path, commands: Commands
) -> None:
    events = read_events(real_file("collegemsg.parquet")).events
    topic, draws = fresh_topic(kafka), random.Random(SEED)
    killed = store_configuration(tmp_path / "killed", kafka, topic)
    share, commits = -(-len(events) // KILLS), [0]
    for kill in range(KILLS):
        # Events keep coming while the job is killed, however fast or slow this machine is.
        options = {
            "settings": settings(kafka),
            "bootstrap": kafka,
            "topic": topic,
            "message_format": message_format("json"),
        }
        part = events.slice(kill * share, share)
        producer = threading.Thread(target=replay, args=(part,), kwargs=options | {"rate": 10_000.0})
        log = tmp_path / f"{kill}.log"
        job = commands.start("run", "--config", killed, log=log)
        wait_until_ready(log)
        producer.start()
        if kill % 2:  # somewhere in its work, the others anywhere from its start on
            wait_for_commits(tmp_path / "killed" / "store", commits[-1] + 1)
        time.sleep(draws.uniform(0.0, 0.4))
        assert job.is_alive(), log.read_text()
        job.kill()
        job.join(10)
        assert job.exitcode == -signal.SIGKILL
        commits.append(commits_of(tmp_path / "killed" / "store"))
        producer.join()
    assert commits == sorted(commits)
    assert len(set(commits)) > KILLS / 4  # it got on between the kills
    log = tmp_path / "end.log"
    assert commands.run("run", "--config", killed, "--until-idle", "0.5", log=log) == 0, log.read_text()

    whole = store_configuration(tmp_path / "whole", kafka, topic)
    assert commands.run("run", "--config", whole, "--until-idle", "0.5", log=log) == 0, log.read_text()
    assert sum(snapshot.num_events for snapshot in LogReader(tmp_path / "whole" / "store").snapshots) == len(
        events
    )
    assert contents(tmp_path / "killed" / "store") == contents(tmp_path / "whole" / "store")
    assert verify(tmp_path / "killed" / "store").problems == []


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


def wait_for_commits(store: Path, count: int) -> None:
    """Until the log has so many commits; not for ever, the stream may be at its end."""
    deadline = time.monotonic() + 5
    while commits_of(store) < count and time.monotonic() < deadline:
        time.sleep(0.02)


def wait_until_ready(log: Path) -> None:
    deadline = time.monotonic() + 60
    while READY not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def commits_of(store: Path) -> int:
    return len(list((store / "log" / "commits").glob("*.json")))
