"""The sink: when it commits, what it seals, and that no message counts twice or not at all."""

import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from log_events import event, poll
from sink_job import A, B, Job

from freshet_graph.schemas.store import CommitRecord


def test_a_snapshot_is_committed_as_soon_as_the_watermark_closes_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.5, 0.2, 0.9)
    assert job.sink.advance() is None
    job.offer(A, 1.0, first=3)
    record = job.sink.advance()
    assert record is not None and [s.tau for s in record.sealed] == [0]
    assert (record.sealed_through, record.tail_events) == (0, 1)
    assert job.sealed() == {0: [1, 0, 2]}


def test_open_events_are_durable_after_commit_every_s_and_only_if_there_are_any(tmp_path: Path) -> None:
    job = Job(tmp_path, interval_s=86_400.0, commit_every_s=10.0)
    job.clock.now += 100
    assert job.sink.advance() is None
    job.offer(A, 5, 3)
    first = job.sink.advance()
    assert first is not None and (first.tail_events, first.positions[0].next) == (2, 2)
    job.offer(A, 7, first=2)
    job.clock.now += 9.9
    assert job.sink.advance() is None
    job.clock.now += 0.1
    assert job.sink.advance() is not None
    job.clock.now += 1000
    job.idle(A, 3)
    assert job.sink.advance() is None
    job.restart()
    assert job.sink.next_offset(A) == 3
    job.sink.seal_all()
    assert job.sealed() == {0: [1, 0, 2]}


def test_offsets_advance_on_a_topic_with_nothing_but_bad_messages(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.sink.offer(poll("a", 0, [(4, None), (9, None)], first=4, end=12, tombstones=3))
    record = job.sink.flush()
    assert record is not None and record.refused == {"not_json": 2}
    assert (record.positions[0].next, record.positions[0].max_t_us) == (12, None)
    assert job.observer.counts == {("a", "not_json"): 2, ("a", "tombstones"): 3}
    [part] = job.writer.unpublished_rejects()
    assert part.table["offset"].to_pylist() == [4, 9]


def test_what_was_taken_in_before_is_dropped_whole_messages_at_a_time(tmp_path: Path) -> None:
    job = Job(tmp_path)
    three = [(0, [event(10, 1, 0), event(11, 1, 0)]), (1, None), (2, [event(20, 1, 1), event(21, 1, 1)])]
    job.sink.offer(poll("a", 0, three[:2], first=0, end=2, high_watermark=9))
    job.sink.offer(poll("a", 0, three[:2], first=0, end=2, high_watermark=9))
    job.sink.flush()
    job.sink.offer(poll("a", 0, three, first=0, end=3, high_watermark=9))
    job.restart()
    job.sink.offer(poll("a", 0, three, first=0, end=3, high_watermark=9))
    job.sink.seal_all()
    assert job.sealed() == {0: [10, 11, 20, 21]}
    assert job.writer.last is not None and job.writer.last.refused == {"not_json": 1}


def test_a_year_without_events_and_empty_intervals_cost_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.offer(A, 0, 3, 365 * 86_400, 365 * 86_400 + 1)
    record = job.sink.advance()
    assert record is not None and [s.tau for s in record.sealed] == [0, 3, 365 * 86_400]
    assert record.sealed_through == 365 * 86_400


def test_an_idle_partition_lets_the_others_go_on(tmp_path: Path) -> None:
    job = Job(tmp_path, idle_timeout_s=30.0, commit_every_s=1e6)
    job.sink.assign([A, B])
    job.offer(A, 0.5, 5)
    job.idle(B, 0)
    assert job.sink.advance() is None
    job.clock.now += 30
    assert job.sink.advance() is None, "nobody has said that it still is"
    job.idle(B, 0, since_s=30)
    record = job.sink.advance()
    assert record is not None and [s.tau for s in record.sealed] == [0]


def test_an_outage_of_the_brokers_seals_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, idle_timeout_s=30.0, idle_seal_s=60.0, commit_every_s=1e6)
    job.sink.assign([A, B])
    job.offer(A, 5, unread=False)
    job.offer(B, 4, unread=False)
    for silent_s in (3600, 7200):
        job.clock.now += 3600
        for key in (A, B):
            job.idle(key, 1, since_s=silent_s, silent_s=silent_s)
        assert job.sink.advance() is None
    job.idle(A, 1)
    job.idle(B, 1)
    assert job.sink.advance() is None
    job.offer(B, 4.5, first=1)
    record = job.sink.seal_all()
    assert record is not None and (record.late, [s.tau for s in record.sealed]) == (0, [4, 5])


def test_the_open_snapshot_is_sealed_after_all_are_idle_only_if_configured(tmp_path: Path) -> None:
    for name, idle_seal_s, sealed in (("never", None, {}), ("after", 60.0, {5: [0]})):
        job = Job(tmp_path / name, idle_timeout_s=30.0, idle_seal_s=idle_seal_s, commit_every_s=1.0)
        job.offer(A, 5, unread=False)
        job.clock.now += 89
        assert job.sink.advance() is not None
        assert job.sealed() == {}
        job.idle(A, 1, since_s=89)
        assert job.sink.advance() is None
        job.clock.now += 1
        job.idle(A, 1, since_s=90)
        job.sink.advance()
        assert job.sealed() == sealed
        assert job.sink.advance() is None


def test_equal_times_are_ordered_by_topic_partition_then_offset(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.offer(B, 0, 0, first=20)
    job.offer(A, 0, 0, first=10)
    job.offer(B, 0, first=22)
    job.sink.seal_all()
    assert job.sealed() == {0: [10, 11, 20, 21, 22]}


def test_counts_are_told_once_though_batches_are_read_again_after_a_crash(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.5, 0.6)
    before = job.observer
    job.restart()
    assert before.counts["a", "INSERT"] == 0, "nothing was durable"
    job.offer(A, 0.5, 0.6)
    job.sink.flush()
    job.offer(A, 0.5, 0.6)
    job.sink.flush()
    assert job.observer.counts["a", "INSERT"] == 2
    assert job.observer.phases == {"order", "files", "record", "sweep"}
    assert len(job.observer.commits) == 1
    assert job.observer.open_bytes > 0


def test_a_full_disk_ends_the_sink_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.5, 1.5)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("freshet_graph.stream.store.places.folder.sync_file", full)
        with pytest.raises(OSError, match="No space"):
            job.sink.advance()
    job.offer(A, 1.6, first=2)
    for later in (
        job.sink.advance,
        job.sink.flush,
        job.sink.seal_all,
    ):  # there is room again, but what came may be too late for it
        with pytest.raises(OSError, match="No space"):
            later()
    job.restart()
    assert job.sink.next_offset(A) is None
    job.offer(A, 0.5, 1.5, 1.6)
    assert job.sink.advance() is not None
    job.sink.seal_all()
    assert job.sealed() == {0: [0], 1: [1, 2]}


def test_what_stays_open_is_on_the_disk_and_not_in_memory(tmp_path: Path) -> None:
    """A day-long interval: what the process holds itself doesn't grow with it."""
    job = Job(tmp_path, interval_s=86_400.0, commit_every_s=10.0)
    held = []
    for i in range(40):
        job.offer(A, *range(i * 500, i * 500 + 500), first=i * 500)
        job.clock.now += 10
        record = job.sink.advance()
        assert record is not None and record.tail_events == 500 * (i + 1)
        assert len(record.tail) <= 24
        held.append(pa.total_allocated_bytes())
    assert job.observer.open_bytes > 40 * 500 * 40, "all of it is open"
    assert max(held[10:]) <= max(held[:10]) + (64 << 10)
    assert job.sink.seal_all() is not None
    assert len(job.sealed()[0]) == 20_000


def test_commits_take_at_most_half_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    commit = job.writer.commit

    def slow(**arguments: Any) -> CommitRecord:
        job.clock.now += 3
        return commit(**arguments)

    monkeypatch.setattr(job.writer, "commit", slow)
    job.offer(A, 0, 1)
    assert job.sink.advance() is not None
    job.offer(A, 2, first=2)
    assert job.sink.advance() is None
    job.clock.now += 3
    record = job.sink.advance()
    assert record is not None and [s.tau for s in record.sealed] == [1]


def test_the_outbox_position_is_recorded_though_nothing_else_happens(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.sink.offer(poll("a", 0, [(0, None)], first=0, end=1))
    job.sink.flush()
    assert job.sink.flush() is None
    job.writer.mark_published(0)
    record = job.sink.flush()
    assert record is not None and record.published == 1
    assert job.sink.flush() is None


def test_sealing_all_seals_durable_and_pending_events_once(tmp_path: Path) -> None:
    job = Job(tmp_path, interval_s=100.0)
    job.offer(A, 10)
    job.sink.flush()
    job.offer(A, 5, 250, first=1)
    record = job.sink.seal_all()
    assert record is not None and (record.tail, record.sealed_through) == ([], 2)
    assert job.sink.seal_all() is None
    assert job.sealed() == {0: [1, 0], 2: [2]}


def test_event_ids_without_room_are_told_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.config = job.config.model_copy(update={"dedup_window_s": 60.0, "dedup_max_ids": 1})
    job.restart()
    for first in (0, 2, 4):
        named = [(first + i, [event(first + i, 1, i, event_id=f"id {first + i}")]) for i in range(2)]
        job.sink.offer(poll(*A, named, first=first, end=first + 2))
        job.sink.flush()
    assert job.observer.ids_missed == 1 + 2 + 2


def test_a_commit_that_is_made_is_not_made_again_whatever_fails_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.5, 0.7, 1.0)
    read = job.writer.open_tail
    failures = iter([MemoryError("no room for the open events")])

    def open_tail() -> pa.Table:
        for failure in failures:
            raise failure
        return read()

    monkeypatch.setattr(job.writer, "open_tail", open_tail)
    record = job.sink.advance()
    assert record is not None and [s.tau for s in record.sealed] == [0]
    assert job.sink.seal_all() is not None
    assert job.sealed() == {0: [0, 1], 1: [2]}
    assert [made.n for made in job.observer.commits] == [0, 1]
