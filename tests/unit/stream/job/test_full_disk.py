"""A disk that is full at any step of a commit: the commit is tried again, and the log is that of a disk with room."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from log_events import SECOND, Clock, event, poll, stream_config

from freshet_graph.schemas.config import Lane
from freshet_graph.stream.job import open_log
from freshet_graph.stream.job.open_log import RoomForCommits
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.crash import CRASH_POINTS
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.stream.store.lane import writer as lane_writer
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log import writer as log_writer
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places import folder
from freshet_graph.stream.store.verify.store import verify

BEFORE_ITS_NAME = CRASH_POINTS[CRASH_POINTS.index("commit.begun") : CRASH_POINTS.index("record.linked")]
LANE = Lane(name="hash", algorithm="hash", parts=2)


class FullDisk:
    """Refuses at a named step, so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.step, self.refusals, self.refused = "", 0, 0
        for module in modules:
            monkeypatch.setattr(module, "crash_point", self.pass_)

    def fill(self, step: str, refusals: int) -> None:
        self.step, self.refusals = step, refusals

    def pass_(self, name: str, before: object = None) -> None:
        if name == self.step and self.refusals:
            self.refusals -= 1
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write(store: Path, disk: FullDisk | None, step: str = "") -> None:
    """Three snapshots in three commits of files, tail, rejects and record; new nodes in each."""
    config = stream_config(str(store), ids="string", commit_every_s=1.0)
    clock = Clock()
    waits = RoomForCommits(str(store), stop=lambda: False, retried=lambda: None)
    with LogWriter.open(store, log_header(config)) as writer:
        sink = SnapshotSink(writer, config, clock=clock, refused=waits.wait)
        for k in range(4):
            rows = [event(f"n{k}", f"n{k + 1}", k * SECOND + i) for i in range(3)]
            sink.offer(
                poll("a", 0, [(2 * k, rows), (2 * k + 1, None)], first=2 * k, end=2 * k + 2, ids="string")
            )
            clock.now += 2
            if disk is not None and k:  # the first commit makes the folders
                disk.fill(step, refusals=2)
            sink.advance()
        sink.seal_all()


def sealed(store: Path) -> list[Any]:
    return [(s.tau, s.events.checksum, s.nodes.checksum, s.num_nodes) for s in LogReader(store).snapshots]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    monkeypatch.setattr(open_log, "RETRY_S", 0.0)
    return FullDisk(monkeypatch, folder, log_writer, lane_writer)


@pytest.mark.parametrize("step", BEFORE_ITS_NAME)
def test_a_commit_goes_through_once_there_is_room(disk: FullDisk, tmp_path: Path, step: str) -> None:
    write(tmp_path / "room", None)
    write(tmp_path / "full", disk, step)
    assert disk.refused >= 6
    assert sealed(tmp_path / "full") == sealed(tmp_path / "room")
    assert verify(tmp_path / "full").problems == []


@pytest.mark.parametrize("step", ["record.linked", "record.named"])
def test_a_refusal_behind_the_records_name_is_settled_by_opening_the_log_again(
    disk: FullDisk, tmp_path: Path, step: str
) -> None:
    with pytest.raises(StoreError, match="Open the log again"):
        write(tmp_path, disk, step)
    config = stream_config(str(tmp_path), ids="string")
    with LogWriter.open(tmp_path, log_header(config)) as writer:
        assert SnapshotSink(writer, config).next_offset(("a", 0)) == 4, "the second commit is there"
    assert verify(tmp_path).problems == []


@pytest.mark.parametrize("step", CRASH_POINTS[1:])
def test_a_lane_goes_on_once_there_is_room(disk: FullDisk, tmp_path: Path, step: str) -> None:
    write(tmp_path, None)
    with LaneWriter(tmp_path, LANE) as writer:
        disk.fill(step, refusals=2)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                writer.catch_up()
        writer.catch_up()
        assert len(writer.manifests) == 4
    assert verify(tmp_path).problems == []


def test_what_is_not_a_full_disk_is_an_error_at_once_and_a_stop_ends_the_wait() -> None:
    waits = RoomForCommits("here", stop=lambda: True, retried=lambda: None)
    with pytest.raises(PermissionError):
        waits.wait(OSError(errno.EACCES, os.strerror(errno.EACCES)))
    assert waits.reason is None
    with pytest.raises(
        Failure, match=r"the disk of here has no room for a commit: .*No space left.*Nothing is lost"
    ):
        waits.wait(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
