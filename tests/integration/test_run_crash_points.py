"""kill -9 of the whole command at every step of a commit, on a real broker: the log is that of an undisturbed run."""

import json
import signal
from pathlib import Path

import pytest
from forked import Commands
from streaming import T0, configuration, contents, edge, fresh_topic, read_topic, send, written
from sweeps import sweep

from freshet_graph.stream.store.crash import AFTER_COMMIT, CRASH_POINTS
from freshet_graph.stream.store.verify.store import verify

pytestmark = pytest.mark.integration

POINTS = [
    *(f"{point}:1" for point in (*CRASH_POINTS, *AFTER_COMMIT)),
    "file.torn:4",
    "file.renamed:3",
    "record.torn:2",
]
"""Every point, and some later passes: other files of a commit, the second record."""


def batch(k: int) -> list[bytes | None]:
    """Two more days of events: the first is sealed once they are read. Some are refused, and a tombstone."""
    day = T0 + 2 * k * 86_400
    return [
        *(edge(k * 10 + i, i, day + i) for i in range(8)),
        b"{not json",
        None,
        *(edge(i, k + i, day + 86_400 + i) for i in range(4)),
    ]


@sweep
def test_a_kill_at_every_step_of_a_commit_changes_no_sealed_byte(
    kafka: str, tmp_path: Path, commands: Commands, step: int
) -> None:
    topic, letters = fresh_topic(kafka), fresh_topic(kafka, stem="dead")
    killed = store_configuration(tmp_path / "killed", kafka, topic, letters)
    for k, point in enumerate(POINTS[::step]):
        send(kafka, topic, batch(k))
        log = tmp_path / f"{point}.log"
        ended = commands.run("run", "--config", killed, "--until-idle", "0.3", log=log, crash_at=point)
        assert ended == -signal.SIGKILL, f"{point} was not reached: {log.read_text()}"
        if (tmp_path / "killed/store/log/log.json").exists():  # it was killed before the header else
            assert verify(tmp_path / "killed" / "store").problems == [], point
    log = tmp_path / "last.log"
    assert commands.run("run", "--config", killed, "--until-idle", "0.3", log=log) == 0, log.read_text()

    published = [json.loads(value or b"null")["offset"] for _, value in read_topic(kafka, letters)]
    refused = [14 * k + 8 for k in range(len(POINTS[::step]))]
    assert sorted(set(published)) == refused, "every refused message is in the dead letters, at least once"

    whole = store_configuration(tmp_path / "whole", kafka, topic, letters)
    assert commands.run("run", "--config", whole, "--until-idle", "0.3", log=log) == 0, log.read_text()
    # A batch's days lie after those before it, so it makes no difference whether idleness or the watermark sealed them.
    assert contents(tmp_path / "killed" / "store") == contents(tmp_path / "whole" / "store")
    assert verify(tmp_path / "killed" / "store").problems == []


def store_configuration(folder: Path, kafka: str, topic: str, letters: str) -> Path:
    folder.mkdir()
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2}]
    content = configuration(folder / "store", kafka, topic, lanes=lanes, kafka={"dead_letters": letters})
    return written(folder, content)
