"""Once means once: whatever fails behind a commit's record, and wherever a process ends, each message is in the log once."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from crash_disk import CrashDisk, put, states
from once import (
    MESSAGES,
    NOT_CLEANED_UP,
    Killed,
    Trouble,
    behind_record,
    drive,
    drive_to_the_end,
    require_once,
    twice_or_lost,
)
from placed import Places
from sink_job import A, Counting, Job
from structlog.testing import capture_logs
from sweeps import sweep

from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.sink import SnapshotSink
from freshet_graph.stream.store.errors import LaneBusyError, StoreError
from freshet_graph.stream.store.files.sweep import CleanUp
from freshet_graph.stream.store.log import writer as log_writer
from freshet_graph.stream.store.log.layout import log_folder
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places import lease as lease_module
from freshet_graph.stream.store.verify.store import verify


@sweep
@pytest.mark.parametrize("commit", [0, 8, 10], ids=["first", "tail files absorbed", "sealed"])
@pytest.mark.parametrize("lasts", [1, 4])
def test_a_store_that_goes_away_behind_a_record_has_its_events_once(
    places: Places, trouble: Trouble, commit: int, lasts: int, step: int
) -> None:
    whole = places.address()
    assert drive_to_the_end(whole) == 0
    first, end = behind_record(trouble, commit), behind_record(trouble, commit + 1)
    removed = [what for what in trouble.operations[first:end] if what.startswith(("unlink", "remove"))]
    assert any("tail/" in what for what in removed) == (commit > 0)
    for gone in range(first, end, step):
        store = places.address()
        trouble.begin(lambda number, what, gone=gone: gone <= number < gone + lasts)  # type: ignore[misc]
        drive_to_the_end(store)
        assert trouble.met >= lasts
        require_once(trouble, store, (commit, gone - first))


@sweep
@pytest.mark.parametrize("lost", [False, True], ids=["refused", "answer lost"])
def test_any_operation_that_is_refused_leaves_each_message_in_the_log_once(
    places: Places, trouble: Trouble, lost: bool, step: int
) -> None:
    for at in count(0, step):
        store = places.address()
        trouble.begin(lambda number, what, at=at: number == at, lost=lost)  # type: ignore[misc]
        drive_to_the_end(store)
        if not trouble.met:
            break
        require_once(trouble, store, at)
    assert at > 4 * MESSAGES


@sweep
def test_a_process_that_ends_before_any_operation_leaves_each_message_in_the_log_once(
    places: Places, trouble: Trouble, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    life = [0]
    monkeypatch.setattr(
        lease_module, "_started", lambda pid: str(life[0])
    )  # a lease of an earlier life is nobody's
    for at in count(0, step):
        life[0] += 1
        store = places.address()
        trouble.begin(lambda number, what, at=at: number == at, kills=True)  # type: ignore[misc]
        with suppress(Killed):
            drive(store)
        if not trouble.met:
            break
        life[0] += 1
        trouble.begin()
        assert drive_to_the_end(store) == 0
        require_once(trouble, store, at)
    assert at > 4 * MESSAGES


class Acknowledging(Counting):
    """Tells a disk what the job was told is durable."""

    def __init__(self, disk: CrashDisk) -> None:
        super().__init__()
        self._disk = disk

    def committed(self, record: CommitRecord) -> None:
        self._disk.acknowledge()


@sweep
@pytest.mark.parametrize("kind", ["powerless", "names first", "mixed"])
def test_a_machine_that_loses_power_has_each_message_in_the_log_once(
    kind: str, tmp_path: Path, step: int
) -> None:
    (tmp_path / "whole").mkdir()
    disk = CrashDisk(tmp_path / "whole")
    with disk.watched():
        drive(str(tmp_path / "whole"), Acknowledging(disk))
    for number, (moment, tree) in enumerate(states(disk.moments[::step], kind)):
        store = put(tree, tmp_path / str(number))
        assert drive_to_the_end(str(store)) == 0
        assert twice_or_lost(str(store)) == {}, f"{kind} before: {moment.operation}"
        assert verify(store).problems == [], f"{kind} before: {moment.operation}"
        shutil.rmtree(store)


def test_what_can_never_be_removed_is_told_once_and_swept_by_the_next_start(
    places: Places, trouble: Trouble
) -> None:
    store = places.address()
    trouble.begin(lambda number, what: what.startswith(("unlink", "remove")) and "tail/" in what)
    with capture_logs() as logs:
        assert drive_to_the_end(store) == 0
    assert trouble.met > 1
    assert [line["event"] for line in logs].count(NOT_CLEANED_UP) == 1
    require_once(trouble, store, "kept")


def test_what_could_not_be_removed_is_removed_after_the_next_commit(places: Places, trouble: Trouble) -> None:
    store = places.address()
    trouble.begin(
        lambda number, what: what.startswith(("unlink", "remove")) and "tail/" in what and not trouble.met
    )
    assert drive_to_the_end(store) == 0
    assert trouble.met == 1
    trouble.begin()
    assert tail_files(store) == []


def tail_files(store: str) -> list[str]:
    return [path.name for path in (log_folder(store) / "tail").iterdir()]


class Fails:
    """A step that fails once, as a mistake of the future may."""

    def __init__(self, error: BaseException, step: Callable[..., Any] = lambda *_: None) -> None:
        self.error, self.failed = error, False
        self._step = step

    def __call__(self, *arguments: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise self.error
        return self._step(*arguments)


STEPS: dict[str, Callable[[Job, BaseException, pytest.MonkeyPatch], Fails]] = {}


def step(
    fail: Callable[[Job, BaseException, pytest.MonkeyPatch], Fails],
) -> Callable[[Job, BaseException, pytest.MonkeyPatch], Fails]:
    STEPS[fail.__name__] = fail
    return fail


@step
def the_clean_up(job: Job, error: BaseException, patch: pytest.MonkeyPatch) -> Fails:
    fails = Fails(error)
    patch.setattr(job.writer._clean_up, "run", fails)
    return fails


@step
def the_observer_of_phases(job: Job, error: BaseException, patch: pytest.MonkeyPatch) -> Fails:
    fails = Fails(error)
    job.writer.on_phase = lambda phase, seconds: fails() if phase == "record" else None
    return fails


@step
def the_end_of_the_commit(job: Job, error: BaseException, patch: pytest.MonkeyPatch) -> Fails:
    fails = Fails(error)
    patch.setattr(log_writer, "crash_point", lambda name: fails() if name == "commit.done" else None)
    return fails


@step
def what_the_sink_does_then(job: Job, error: BaseException, patch: pytest.MonkeyPatch) -> Fails:
    fails = Fails(error, job.writer.open_tail)
    patch.setattr(job.writer, "open_tail", fails)
    return fails


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), StoreError("no"), RuntimeError("a mistake")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("failing", STEPS)
def test_the_sink_gives_back_nothing_that_the_log_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: Exception
) -> None:
    job = Job(tmp_path, commit_every_s=1.0)
    job.offer(A, 0.1, 0.2)
    job.clock.now += 2
    fails = STEPS[failing](job, error, monkeypatch)
    with capture_logs() as logs:
        record = job.sink.advance()
    assert fails.failed and record is not None and record.n == 0
    assert [(line["event"], line["commit"]) for line in logs if "commit" in line] == [
        ("a commit is made, but a step after it failed", 0)
    ]
    assert job.sink.advance() is None, "nothing waits for another commit"
    job.offer(A, 0.3, 1.5, first=2)
    job.sink.seal_all()
    job.writer.close()
    assert job.sealed() == {0: [0, 1, 2], 1: [3]}
    assert job.observer.counts["a", "INSERT"] == 4
    assert [commit.n for commit in job.observer.commits] == [0, 1]
    assert verify(tmp_path).problems == []


def test_the_end_of_a_process_behind_a_record_goes_on_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    sink = SnapshotSink(job.writer, job.config, clock=job.clock)
    job.sink = sink
    job.offer(A, 0.1)
    the_clean_up(job, KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        sink.flush()
    assert job.writer.last is not None
    with pytest.raises(KeyboardInterrupt):  # and nothing is committed again
        sink.flush()
    assert job.writer.last.n == 0
    sink.close()
    job.writer.close()


def test_the_writer_takes_no_offset_twice_and_leaves_none_out(tmp_path: Path) -> None:
    job = Job(tmp_path, commit_every_s=1.0)
    job.offer(A, 0.1, 0.2)
    assert job.sink.flush() is not None
    for begins in (0, 3):
        job.restart()
        with pytest.raises(StoreError, match=rf"at offset 2, .* begins at {begins}\. Start again"):
            job.writer.commit(begins={A: begins})
        with pytest.raises(StoreError, match="Open the log again"):
            job.writer.commit(begins={A: 2})
        assert job.writer.last is not None and job.writer.last.n == 0


def test_a_writer_that_comes_to_know_of_anothers_commit_makes_none_after_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.1)
    assert job.sink.flush() is not None
    job.writer.lock.release()
    other = LogWriter.open(tmp_path, job.writer.header)
    other.commit()
    job.writer._chain.refresh()  # as a sweep beside a compaction does
    job.offer(A, 0.2, first=1)
    with pytest.raises(LaneBusyError, match="were made while"):
        job.sink.flush()
    other.close()
    assert verify(tmp_path).problems == []


def test_clean_up_stops_at_a_failure_keeps_it_for_later_and_tells_each_trouble_once(tmp_path: Path) -> None:
    done: list[str] = []
    broken = {"a", "c"}

    def work(name: str) -> Callable[[], None]:
        def try_it() -> None:
            done.append(name)
            if name in broken:
                raise OSError(errno.EIO, "no")

        return try_it

    clean_up = CleanUp(tmp_path)
    tasks = {name: work(name) for name in "abc"}
    with capture_logs() as logs:
        for task in (*tasks.values(), tasks["b"]):
            clean_up.add(task)
        clean_up.run()
        assert done == ["a"], "the rest waits: each further try may take a minute"
        clean_up.run()
        assert done == ["a", "b", "c"], "what failed came last"
        broken.clear()
        clean_up.run()
        assert done == ["a", "b", "c", "a", "c"]
        clean_up.run()
        assert done == ["a", "b", "c", "a", "c"]
        assert [line["event"] for line in logs] == [NOT_CLEANED_UP]
        broken.add("a")
        clean_up.add(tasks["a"])
        clean_up.run()
    assert [line["event"] for line in logs] == [NOT_CLEANED_UP] * 2
