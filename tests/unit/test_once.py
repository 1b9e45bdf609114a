"""Once means once: whatever fails behind a commit's record, and wherever a process ends, each message is in the log once."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from compacted import grown, seal, seen
from crash_disk import CrashDisk, put, states
from lane_stream import lane
from log_events import poll, stream_config
from once import KEY, MESSAGES, Killed, Trouble, drive, drive_to_the_end, messages, twice_or_lost
from placed import Places
from sink_job import A, Counting, Job
from structlog.testing import capture_logs
from test_cluster_parts import NoOffsets
from test_exports import add

from schemas.store import CommitRecord
from stream.cluster.log_host import LogHost
from stream.cluster.plan import Plan
from stream.held import hold, release
from stream.kafka.reader import Start
from stream.metrics import StreamMetrics
from stream.store.errors import LaneBusyError, StoreError
from stream.store.exports.layout import commit_name
from stream.store.exports.reader import ExportReader
from stream.store.exports.writer import ExportWriter
from stream.store.lane.layout import manifest_name
from stream.store.lane.writer import LaneWriter
from stream.store.log import writer as log_writer
from stream.store.log.layout import log_folder
from stream.store.log.writer import LogWriter
from stream.store.places import lease as lease_module
from stream.store.places.place import Place
from stream.store.verify.exports import verify_exports
from stream.store.verify.store import verify
from trainer.continual.checkpoint import Checkpoints

NOT_CLEANED_UP = "the store is not cleaned up, trying again with the next commit"


@pytest.fixture
def trouble(places: Places, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    with monkeypatch.context() as patch:
        yield Trouble(patch, in_bucket=places.in_bucket)


def require_once(trouble: Trouble, store: str, where: object) -> None:
    trouble.begin()
    assert twice_or_lost(store) == {}, where
    assert verify(store).problems == [], where


def behind_record(trouble: Trouble, n: int) -> int:
    """Number of the first operation after commit ``n``'s record is durable."""
    record, seen = f"{n:016d}.json", list(enumerate(trouble.operations))
    if trouble.in_bucket:
        return next(k for k, what in seen if what.startswith("put_new") and record in what) + 1
    linked = next(k for k, what in seen if what.startswith("link") and what.endswith(record))
    return next(k for k, what in seen[linked:] if what.startswith("fsync")) + 1


@pytest.mark.parametrize("commit", [0, 8, 10], ids=["first", "tail files absorbed", "sealed"])
@pytest.mark.parametrize("lasts", [1, 4])
def test_a_store_that_goes_away_behind_a_record_has_its_events_once(
    places: Places, trouble: Trouble, commit: int, lasts: int
) -> None:
    whole = places.address()
    assert drive_to_the_end(whole) == 0
    first, end = behind_record(trouble, commit), behind_record(trouble, commit + 1)
    removed = [what for what in trouble.operations[first:end] if what.startswith(("unlink", "remove"))]
    assert any("tail/" in what for what in removed) == (commit > 0)
    for gone in range(first, end):
        store = places.address()
        trouble.begin(lambda number, what, gone=gone: gone <= number < gone + lasts)  # type: ignore[misc]
        drive_to_the_end(store)
        assert trouble.met >= lasts
        require_once(trouble, store, (commit, gone - first))


@pytest.mark.parametrize("lost", [False, True], ids=["refused", "answer lost"])
def test_any_operation_that_is_refused_leaves_each_message_in_the_log_once(
    places: Places, trouble: Trouble, lost: bool
) -> None:
    for at in count():
        store = places.address()
        trouble.begin(lambda number, what, at=at: number == at, lost=lost)  # type: ignore[misc]
        drive_to_the_end(store)
        if not trouble.met:
            break
        require_once(trouble, store, at)
    assert at > 4 * MESSAGES


def test_a_process_that_ends_before_any_operation_leaves_each_message_in_the_log_once(
    places: Places, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = [0]
    monkeypatch.setattr(
        lease_module, "_started", lambda pid: str(life[0])
    )  # a lease of an earlier life is nobody's
    for at in count():
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


@pytest.mark.parametrize("kind", ["powerless", "names first", "mixed"])
def test_a_machine_that_loses_power_has_each_message_in_the_log_once(kind: str, scratch: Path) -> None:
    (scratch / "whole").mkdir()
    disk = CrashDisk(scratch / "whole")
    with disk.watched():
        drive(str(scratch / "whole"), Acknowledging(disk))
    for number, (moment, tree) in enumerate(states(disk.moments, kind)):
        store = put(tree, scratch / str(number))
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

    def __init__(self, error: Exception, step: Callable[..., Any] = lambda *_: None) -> None:
        self.error, self.failed = error, False
        self._step = step

    def __call__(self, *arguments: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise self.error
        return self._step(*arguments)


STEPS: dict[str, Callable[[Job, Exception, pytest.MonkeyPatch], Fails]] = {}


def step(fail: Callable[[Job, Exception, pytest.MonkeyPatch], Fails]) -> None:
    STEPS[fail.__name__] = fail


@step
def the_clean_up(job: Job, error: Exception, patch: pytest.MonkeyPatch) -> Fails:
    fails = Fails(error)
    patch.setattr(job.writer._clean_up, "run", fails)
    return fails


@step
def the_observer_of_phases(job: Job, error: Exception, patch: pytest.MonkeyPatch) -> Fails:
    fails = Fails(error)
    job.writer.on_phase = lambda phase, seconds: fails() if phase == "record" else None
    return fails


@step
def the_end_of_the_commit(job: Job, error: Exception, patch: pytest.MonkeyPatch) -> Fails:
    fails = Fails(error)
    patch.setattr(log_writer, "crash_point", lambda name: fails() if name == "commit.done" else None)
    return fails


@step
def what_the_sink_does_then(job: Job, error: Exception, patch: pytest.MonkeyPatch) -> Fails:
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


def test_the_writer_takes_no_offset_twice_and_leaves_none_out(tmp_path: Path) -> None:
    job = Job(tmp_path, commit_every_s=1.0)
    job.offer(A, 0.1, 0.2)
    assert job.sink.flush() is not None
    for begins in (0, 3):
        job.restart()
        with pytest.raises(StoreError, match=rf"at offset 2, .* begins at {begins}\. Start again"):
            job.writer.commit(begins={A: begins})
        with pytest.raises(StoreError, match="open the log again"):
            job.writer.commit(begins={A: 2})
        assert job.writer.last is not None and job.writer.last.n == 0


def test_a_writer_that_comes_to_know_of_anothers_commit_makes_none_after_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.1)
    assert job.sink.flush() is not None
    job.writer._lock.release()
    other = LogWriter.open(tmp_path, job.writer.header)
    other.commit(refused={"late": 1})
    job.writer._chain.refresh()  # as a sweep beside a compaction does
    job.offer(A, 0.2, first=1)
    with pytest.raises(LaneBusyError, match="were made while"):
        job.sink.flush()
    other.close()
    assert verify(tmp_path).problems == []


# On a cluster: the log in a worker process


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LogHost]]:
    """Opens the log of a store as a worker does; a job whose configuration this process holds."""
    monkeypatch.setattr("stream.cluster.log_host.GroupOffsets", NoOffsets)
    held: list[str] = []

    def opened(store: str) -> LogHost:
        config = stream_config(store, commit_every_s=1e-9)
        plan = Plan.of(config, [Start(*KEY, 0, MESSAGES)])
        hold(plan.id, config)
        held.append(plan.id)
        return LogHost(plan, config, StreamMetrics(config))

    yield opened
    for name in held:
        release(name)


def drive_on_a_cluster(store: str, hosted: Callable[[str], LogHost]) -> None:
    """What a worker does with batches that come again after each failure, from where the log says."""
    host = hosted(store)
    try:
        while (first := host._sink.next_offset(KEY) or 0) < MESSAGES:
            host.write(poll(*KEY, messages(first, first + 1), first=first, end=first + 1))
        host._room.made(host._sink.seal_all)
    except BaseException:
        host.close(flush=False)
        raise
    host.close()


def test_on_a_cluster_each_message_is_in_the_log_once(
    places: Places, trouble: Trouble, hosted: Callable[[str], LogHost]
) -> None:
    whole = places.address()
    drive_on_a_cluster(whole, hosted)
    numbers = [
        number
        for n in (0, 8, 10)
        for number in range(behind_record(trouble, n), behind_record(trouble, n + 1))
    ]
    for at in numbers:
        store = places.address()
        trouble.begin(lambda number, what, at=at: number == at)  # type: ignore[misc]
        while True:
            with suppress(OSError, StoreError):
                drive_on_a_cluster(store, hosted)
                break
        assert trouble.met
        require_once(trouble, store, at)


# Lanes, exports, checkpoints


class Behind:
    """Meets one operation between a durable record and the next file that is written."""

    def __init__(self, record: str, number: int) -> None:
        self.record, self.left = record, number
        self.state = "before"

    def __call__(self, number: int, what: str) -> bool:
        operation = what.split(maxsplit=1)[0]
        if self.state == "before" and self.record in what and operation in ("link", "put_new"):
            self.state = "named" if operation == "link" else "behind"
        elif self.state == "named" and operation == "fsync":
            self.state = "behind"
        elif self.state == "behind" and operation in ("fsync", "mkdir", "put", "put_new"):
            self.state = "over"
        elif self.state == "behind":
            self.left -= 1
            return self.left == -1
        return False


@pytest.mark.parametrize("tau", [0, 2, 4])
def test_nothing_behind_a_lanes_manifest_fails_it(places: Places, trouble: Trouble, tau: int) -> None:
    wanted = lane("hdrf", base_every=2)
    whole = grown(places.new(), wanted, end=5)  # type: ignore[arg-type]
    expected = seen(whole, "hdrf", 0)  # type: ignore[arg-type]
    for at in count():
        store = places.new()
        seal(store, 0, 5)  # type: ignore[arg-type]
        trouble.begin(Behind(f"hdrf/{manifest_name(tau)}", at))
        with LaneWriter(store, wanted) as writer, capture_logs() as logs:
            assert writer.catch_up() == 5
        if not trouble.met:
            break
        told = [line["event"] for line in logs if line["event"] == NOT_CLEANED_UP]
        assert len(told) == 1 or not (at or places.in_bucket), "but for the record's second name"
        trouble.begin()
        assert seen(store, "hdrf", 0) == expected  # type: ignore[arg-type]
        assert verify(store).problems == []
        if not places.in_bucket:
            LaneWriter(store, wanted).close()
            assert len(list((store / "lanes/hdrf/state").iterdir())) <= 2
    assert at > 2


def test_an_export_whose_record_may_be_there_keeps_its_files_and_nothing_behind_it_fails(
    places: Places, trouble: Trouble
) -> None:
    def export_three(store: Place) -> int:
        for failures in count():
            with suppress(OSError):
                writer = ExportWriter(store, "lane")
                while len(writer.reader.commits) < 3:
                    add(writer)
                    writer.retain(2)
                return failures
        raise AssertionError

    whole = places.new()
    trouble.begin()
    assert export_three(whole) == 0
    total = len(trouble.operations)
    for at, behind in [*((at, False) for at in range(total)), *((at, True) for at in range(3))]:
        for lost in (False, True):
            store = places.new()
            rule = Behind(commit_name(2), at) if behind else lambda number, what, at=at: number == at
            trouble.begin(rule, lost=lost)  # type: ignore[arg-type]
            failures = export_three(store)
            assert trouble.met == 1
            assert failures == 0 or not behind
            trouble.begin()
            assert len(ExportReader(store, "lane").commits) == 3
            assert verify_exports(store, "lane").problems == []


def test_checkpoints_that_cannot_be_removed_do_not_fail_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(monkeypatch, in_bucket=False)
    (tmp_path / "left.pt.tmp").touch()
    checkpoints = Checkpoints(tmp_path, keep=1)
    trouble.begin(lambda number, what: what.startswith("unlink"))
    with capture_logs() as logs:
        for sequence in range(3):
            assert checkpoints.save(sequence, {"n": sequence}).exists()
    assert checkpoints.newest_sequence() == 2
    assert [line["event"] for line in logs] == [NOT_CLEANED_UP]
    trouble.begin()
    checkpoints.save(3, {"n": 3})
    assert [path.name for path in tmp_path.iterdir()] == [f"{3:016d}.pt"]
