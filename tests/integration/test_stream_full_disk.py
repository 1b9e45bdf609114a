"""A disk that fills up under a running job and gets room again: the job waits, says so, and loses nothing."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from log_lines import error_of
from running_job import Running, reached
from streaming import T0, command, configuration, contents, edge, fresh_topic, result, run_job, send, written
from structlog.testing import capture_logs

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream import background
from freshet_graph.stream.store.places.folder import FolderStaging
from freshet_graph.stream.store.verify.store import verify

pytestmark = pytest.mark.integration

DISK_BYTES = 8 << 20
LANES = [{"name": "hash", "algorithm": "hash", "parts": 2}]


class SmallDisk:
    """A file system of a few megabytes where this user may mount one; elsewhere a stand-in that refuses writes.

    Attributes:
        folder: Where the store goes.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        self._mounted = os.name == "posix" and _done(["mount", *options])
        self._full = False
        if not self._mounted:
            whole = FolderStaging.add

            def add(staging: FolderStaging, relative: str, write: Callable[[Any], None]) -> Any:
                if self._full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return whole(staging, relative, write)

            monkeypatch.setattr(FolderStaging, "add", add)

    def fill(self) -> None:
        self._full = True
        if self._mounted:
            with (self.folder / "ballast").open("wb", buffering=0) as ballast:
                try:
                    while ballast.write(b"x" * 4096):
                        pass
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def free(self) -> None:
        self._full = False
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        if self._mounted:
            assert _done(["umount", "--lazy", str(self.folder)])  # files of it are mapped


def _done(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "disk", monkeypatch)
    yield made
    made.close()


def test_a_full_disk_is_waited_for(
    kafka: str, tmp_path: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RETRY_S", 0.2)
    topic, store = fresh_topic(kafka), disk.folder / "store"

    def day(k: int) -> list[bytes | None]:
        return [edge(k, i, T0 + 86_400 * k + i) for i in range(500)]

    for k in range(2):
        send(kafka, topic, day(k))
    content = configuration(store, kafka, topic, lanes=LANES)
    with capture_logs() as logs:
        running = Running(StreamConfig(**content))
        try:
            reached(lambda: running.totals.events == 1_000 and running.job.lane_lags() == {"hash": 0})
            disk.fill()
            for k in range(2, 6):
                send(kafka, topic, day(k))
            reached(lambda: f"the disk of {store} has no room for a commit: " in running.ready()[1])
            assert running.ready()[0] == 503
            assert running.totals.events == 1_000
            disk.free()
            reached(lambda: running.totals.events == 3_000 and running.ready() == (200, "ready"))
        finally:
            disk.free()
            running.close()
    assert len(running.ran) == 1
    told = [line["event"] for line in logs]
    assert told.count("no room for a commit, waiting for it") == 1
    assert told.count("the store takes commits again") == 1
    run_job(content)
    whole = configuration(tmp_path / "whole", kafka, topic, lanes=LANES)
    run_job(whole)
    assert contents(store) == contents(tmp_path / "whole")
    assert verify(store).problems == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_disk_that_is_full_at_the_start_is_named(
    kafka: str, tmp_path: Path, disk: SmallDisk, begun: bool
) -> None:
    topic, store = fresh_topic(kafka), disk.folder / "store"
    path = written(tmp_path, configuration(store, kafka, topic, lanes=LANES))
    if begun:
        send(kafka, topic, [edge(1, 2, T0)])
        run_job(configuration(store, kafka, topic, lanes=LANES[:0]))
    disk.fill()
    done = command("run", "--config", path, "--until-idle", "0.1", "--json")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert error_of(done.stderr).startswith(f"the disk of {store} is full")
    assert "Make room and start again" in done.stderr
    disk.free()
    assert result("run", "--config", path, "--until-idle", "0.1")["events"] == 0
    assert verify(store).problems == []


def test_a_lane_that_finds_no_room_is_tried_again_and_the_log_goes_on(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RETRY_S", 0.2)
    full, whole = [True], FolderStaging.add

    def add(staging: FolderStaging, relative: str, write: Callable[[Any], None]) -> Any:
        if full[0] and "lanes" in staging.root.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(staging, relative, write)

    monkeypatch.setattr(FolderStaging, "add", add)
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(day, i, T0 + 86_400 * day + i) for day in range(3) for i in range(5)])
    content = configuration(tmp_path / "store", kafka, topic, lanes=LANES)
    with capture_logs() as logs:
        running = Running(StreamConfig(**content))
        try:
            reached(lambda: running.ready() == (503, "lane hash: [Errno 28] No space left on device"))
            reached(lambda: running.totals.snapshots == 2)
            full[0] = False
            reached(lambda: running.ready() == (200, "ready"))
            assert running.job.lane_lags() == {"hash": 0}
        finally:
            running.close()
    assert [line["task"] for line in logs if line["event"] == "works again"] == ["lane-hash"]
    run_job(content)
    assert verify(tmp_path / "store").problems == []
