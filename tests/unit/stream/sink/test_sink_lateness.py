"""What the sink takes for late, and what becomes of it."""

import errno
import json
from pathlib import Path

import pytest
from sink_job import A, B, Job


def test_late_events_go_to_the_open_snapshot_by_default(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.5, 4.5)
    assert job.sink.advance() is not None
    job.offer(A, 0.7, 4.2, 2, first=2)
    record = job.sink.seal_all()
    assert record is not None and (record.late, record.sealed[0].num_late, record.refused) == (2, 2, {})
    assert job.sealed() == {0: [0], 4: [2, 4, 3, 1]}
    assert job.observer.counts["a", "next-snapshot"] == 2


def test_late_events_are_dead_letters_if_configured(tmp_path: Path) -> None:
    job = Job(tmp_path, late="dead-letter")
    job.offer(A, 0.5, 4.5)
    assert job.sink.advance() is not None
    job.offer(A, 0.75, 4.2, first=2)
    record = job.sink.seal_all()
    assert record is not None and (record.late, record.sealed[0].num_late, record.refused) == (1, 0, {})
    assert job.sealed() == {0: [0], 4: [3, 1]}
    [part] = job.writer.unpublished_rejects()
    [row] = part.table.to_pylist()
    assert (row["topic"], row["partition"], row["offset"], row["reason"]) == ("a", 0, 2, "late")
    assert row["sentence"].startswith("its snapshot 0 is sealed (all up to 3 are)")
    assert json.loads(row["raw"]) == {"src": 2, "dst": 0, "t": 750_000}
    assert job.observer.counts == {
        ("a", "INSERT"): 3,
        ("a", "dead-letter"): 1,
        ("a", 0, "watermark"): 4_500_000,
    }


def test_out_of_order_events_within_the_allowance_are_not_late(tmp_path: Path) -> None:
    job = Job(tmp_path, lateness_s=2.0)
    job.offer(A, 0.5, 2.9)
    assert job.sink.advance() is None
    job.offer(A, 0.9, 3.0, first=2)
    record = job.sink.advance()
    assert record is not None and record.late == 0
    assert job.sealed() == {0: [0, 2]}


def test_a_clock_that_runs_ahead_makes_late_what_follows_it_and_every_event_is_kept(tmp_path: Path) -> None:
    job = Job(tmp_path / "alone")
    job.offer(A, 1, 301, 2, 3)  # within time_skew_s, as it would come through the decoder
    assert job.sink.advance() is not None
    job.offer(A, 4, 5, 301.5, first=4)
    record = job.sink.seal_all()
    assert record is not None and (record.late, record.sealed[-1].num_late) == (2, 2)
    assert job.observer.counts["a", "next-snapshot"] == 2
    assert job.sealed() == {1: [0], 2: [2], 3: [3], 301: [4, 5, 1, 6]}


def test_a_clock_that_runs_ahead_in_one_partition_seals_nothing_that_another_still_brings(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    job.sink.assign([A, B])
    job.offer(A, 1, 301)
    job.offer(B, 1.5, 5)
    assert job.sink.advance() is not None
    job.offer(B, 6, 7.5, first=2)
    job.offer(A, 8, first=2)  # ahead of b, which alone holds the watermark now: in time
    job.offer(B, 9, first=4)
    assert job.sink.advance() is not None
    job.offer(A, 8.5, first=3)  # behind b: late
    record = job.sink.seal_all()
    assert record is not None and record.late == 1
    assert job.sealed() == {1: [0, 0], 5: [1], 6: [2], 7: [3], 8: [2], 9: [3, 4], 301: [1]}


def test_a_partition_that_starts_late_loses_no_event_to_lateness_if_it_is_assigned(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.sink.assign([A, B])
    job.offer(A, 0.5, 7.5)
    assert job.sink.advance() is None
    job.offer(B, 0.6, 6)
    record = job.sink.advance()
    assert record is not None and (record.late, [s.tau for s in record.sealed]) == (0, [0])
    job.restart()
    job.sink.assign([A, B])
    job.offer(A, 9, first=2)
    job.offer(B, 6.5, first=2)
    record = job.sink.seal_all()
    assert record is not None and (record.late, [s.tau for s in record.sealed]) == (0, [6, 7, 9])


def test_a_commit_that_failed_has_sealed_nothing_so_nothing_is_late_for_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    job.offer(A, 0.5, 1.5)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("freshet_graph.stream.store.places.folder.sync_file", full)
        with pytest.raises(OSError, match="No space"):
            job.sink.advance()
    job.restart()
    job.offer(A, 0.5, 1.5, 0.7)
    record = job.sink.seal_all()
    assert record is not None and record.late == 0
    assert job.sealed() == {0: [0, 2], 1: [1]}
