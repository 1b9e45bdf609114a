"""Commits on a thread of their own: what is offered meanwhile, how much of it, and what a failure leaves."""

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from log_events import SECOND, Clock, event, poll, stream_config

import freshet_graph.stream.sink
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter

A = ("a", 0)


class SlowDisk:
    """A sink over a log whose commits wait until they are let through, or fail."""

    def __init__(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = stream_config(str(store), interval_s=1.0, commit_every_s=1e9)
        self.writer = LogWriter.open(store, log_header(self.config))
        self.sink = SnapshotSink(self.writer, self.config, clock=Clock(), refused=self.refused)
        self.free, self.begun = threading.Event(), threading.Event()
        self.refusals: list[OSError] = []
        self.waits = True
        made = self.writer.commit

        def commit(**arguments: Any) -> CommitRecord:
            self.begun.set()
            assert self.free.wait(90)
            if self.refusals:
                raise self.refusals.pop()
            return made(**arguments)

        monkeypatch.setattr(self.writer, "commit", commit)
        monkeypatch.setattr(freshet_graph.stream.sink, "SEAL_BYTES", 0)

    def refused(self, error: OSError) -> None:
        if not self.waits:
            raise error

    def offer(self, first: int, *seconds: float) -> None:
        """One event a message at offsets from ``first`` on; its src is its offset."""
        messages = [(first + i, [event(first + i, 0, round(s * SECOND))]) for i, s in enumerate(seconds)]
        end = first + len(seconds)
        self.sink.offer(poll(*A, messages, first=first, end=end, high_watermark=end + 1))

    def begin(self) -> None:
        """Start a commit that doesn't end."""
        assert self.sink.advance(wait=False) is None
        assert self.begun.wait(90)

    def sealed(self) -> dict[int, list[int]]:
        """External src ids by snapshot."""
        log = LogReader(self.config.store)
        return {s.tau: log.events(s.tau)["src"].to_pylist() for s in log.snapshots}


@pytest.fixture
def disk(tmp_path, monkeypatch):
    slow = SlowDisk(tmp_path, monkeypatch)
    yield slow
    slow.free.set()
    slow.sink.close()
    slow.writer.close()


def test_what_is_offered_during_a_commit_is_in_the_next_one(disk):
    disk.offer(0, 0.5, 1.5)
    disk.begin()
    disk.offer(2, 1.7, 2.5)
    assert disk.sink.next_offset(A) == 4
    assert disk.sink.advance(wait=False) is None
    disk.free.set()
    record = disk.sink.advance(wait=True)
    assert [s.tau for s in record.sealed] == [0]
    assert (record.positions[0].next, record.tail_events) == (2, 1)
    record = disk.sink.seal_all()
    assert ([s.tau for s in record.sealed], record.positions[0].next) == ([1, 2], 4)
    assert disk.sealed() == {0: [0], 1: [1, 2], 2: [3]}


def test_an_event_of_a_snapshot_that_is_being_sealed_is_late(disk):
    disk.offer(0, 0.5, 1.5)
    disk.begin()
    disk.offer(2, 0.6)
    disk.free.set()
    disk.sink.seal_all()
    assert disk.sealed() == {0: [0], 1: [2, 1]}


def test_so_much_waits_for_a_slow_disk_and_no_more(disk):
    disk.sink._rules = disk.sink._rules.model_copy(update={"max_pending_bytes": 50_000})
    disk.offer(0, *[0.5] * 100, 1.5)
    disk.begin()
    first, taken = 101, []
    done = threading.Event()

    def read_on() -> None:  # as a source does: another poll only once the last one was taken
        nonlocal first
        while not done.is_set():
            disk.offer(first, *[1.5] * 100)
            first += 100
            taken.append(disk.sink.pending.bytes)
            if disk.sink.advance(wait=False) is not None:
                done.set()

    source = threading.Thread(target=read_on)
    source.start()
    while source.is_alive() and (not taken or taken[-1] < 50_000):
        time.sleep(0.01)
    source.join(0.3)
    assert source.is_alive()
    assert taken[-1] >= 50_000 > taken[-2]
    held = len(taken)
    disk.free.set()
    source.join(90)
    assert not source.is_alive()
    assert len(taken) == held
    disk.sink.seal_all()
    assert disk.sealed() == {0: list(range(100)), 1: list(range(100, first))}


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_refused_commit_is_tried_again_and_what_came_meanwhile_is_in_the_next(disk):
    disk.refusals = [FULL, FULL]
    disk.offer(0, 0.5, 1.5)
    disk.begin()
    disk.offer(2, 0.6, 2.5)
    disk.free.set()
    record = disk.sink.advance(wait=True)
    assert not disk.refusals
    assert ([s.tau for s in record.sealed], record.late, record.positions[0].next) == ([0], 0, 2)
    record = disk.sink.seal_all()
    assert (record.late, record.positions[0].next) == (1, 4)
    assert disk.sealed() == {0: [0], 1: [2, 1], 2: [3]}


def test_a_failed_commit_fails_every_later_call(disk):
    disk.waits, disk.refusals = False, [FULL]
    disk.offer(0, 0.1, 1.5)
    disk.begin()
    disk.offer(2, 1.6)
    disk.free.set()
    for later in (disk.sink.advance, disk.sink.flush, disk.sink.seal_all, disk.sink.advance):
        with pytest.raises(OSError, match="No space left"):
            later()
    assert LogReader(disk.config.store).last is None


def test_closing_ends_the_tries_of_a_refused_commit(disk):
    disk.refusals = [FULL] * 1_000_000
    disk.offer(0, 0.5, 1.5)
    disk.begin()
    disk.free.set()
    disk.sink.close()
    assert LogReader(disk.config.store).last is None


def test_closing_waits_for_the_commit_under_way(disk):
    disk.offer(0, 0.5, 1.5)
    disk.begin()
    threading.Timer(0.2, disk.free.set).start()
    disk.sink.close()
    assert disk.sealed() == {0: [0]}
