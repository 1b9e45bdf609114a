"""Labels in the log: files of commits, gathered by compaction, dropped with the snapshots before which they were visible."""

from pathlib import Path

import pytest
from compacted import HEADER, grown, labels_of, seal
from lane_stream import SECOND
from log_events import Clock, event, label_poll, poll, stream_config
from placed import Places, problems_of

from freshet_graph.schemas.config import Topic
from freshet_graph.schemas.store import CommitRecord, LogIndex, Position
from freshet_graph.stream.microbatch import Quiet
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.compact.log import index_log
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.errors import CorruptError, FormatVersionError, MismatchError
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.log.layout import commit_name
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.verify.store import verify


def numbers(log: LogReader, after: int = -1) -> list[int]:
    return log.labels(after)["label"].to_pylist()


def test_a_commits_labels_are_visible_from_the_first_open_snapshot_on(places: Places) -> None:
    store = grown(places.new(), end=3)
    rows = LogReader(store).labels().to_pylist()
    assert [(row["event_id"], row["node"], row["commit"], row["visible_us"]) for row in rows] == [
        ("e0", None, 0, SECOND),
        (None, 0, 0, 3 * SECOND),
        ("e1", None, 1, 2 * SECOND),
        (None, 1, 1, 4 * SECOND),
        ("e2", None, 2, 3 * SECOND),
        (None, 2, 2, 5 * SECOND),
    ]
    assert verify(store).problems == []
    shown = inspect(store)["labels"]
    assert (shown["taken"], shown["kept"], shown["of_nodes"], shown["newest_commit"]) == (6, 6, 3, 2)
    assert shown["by_source"] == {"": 3, "a": 3}
    assert shown["visible"] == "1970-01-01T00:00:05Z"


def test_compaction_gathers_labels_in_few_files_and_retention_drops_them(places: Places) -> None:
    store = places.new()
    for first in range(0, 20, 2):
        seal(store, first, first + 2)
        index_log(LogReader(store), 0)
        log = LogReader(store)
        assert numbers(log) == [k for k in range(first + 2) for _ in "en"]
        assert len(log.label_files) <= 8
        assert verify(store).problems == []
    assert len(list((store / "log" / "labels").iterdir())) == 0
    assert numbers(log, 16) == [17, 17, 18, 18, 19, 19]

    compact(store, Keep(snapshots=5), always=True)
    log = LogReader(store)
    assert log.snapshots.first == 15
    # Of commit k the first is visible in snapshot k + 1, the second in k + 3.
    assert numbers(log) == [12, 13, 14, 14, *(k for k in range(15, 20) for _ in "en")]
    assert inspect(store)["labels"]["taken"] == 40
    assert verify(store).problems == []
    with LogWriter.open(store, HEADER) as writer:  # and labels without a snapshot
        read = Position(topic="labels", partition=0, next=21)
        writer.commit(positions={("labels", 0): read}, labels=labels_of(20))
    assert numbers(log)[-1] == 19
    log.refresh()
    assert numbers(log, 19) == [20, 20]
    assert verify(store).problems == []


def test_a_reader_goes_on_while_its_files_are_gathered(places: Places) -> None:
    store = grown(places.new(), end=6)
    log = LogReader(store)
    expected = log.labels()
    compact(store, always=True)
    assert log.labels() == expected


def test_a_missing_or_changed_file_of_labels_is_named(tmp_path: Path) -> None:
    store = grown(tmp_path, end=3)
    (store / "log/labels/1.arrow").unlink()
    (problem,) = problems_of(store)
    assert "labels/1.arrow is missing" in problem
    with pytest.raises(CorruptError, match=r"labels/1\.arrow is missing"):
        LogReader(store).labels()
    compacted = grown(tmp_path / "other", end=3)
    compact(compacted, always=True)
    (gathered,) = (compacted / "log/index").glob("labels-*.arrow")
    gathered.write_bytes(gathered.read_bytes()[:-1] + b"x")
    (problem,) = problems_of(compacted)
    assert gathered.name in problem


def test_labels_that_were_taken_twice_are_named(tmp_path: Path) -> None:
    store = grown(tmp_path, end=2)
    with LogWriter.open(store, HEADER) as writer:
        read = Position(topic="labels", partition=0, next=3)
        writer.commit(positions={("labels", 0): read}, labels=labels_of(1))
    (problem,) = problems_of(store)
    assert "has offset 1 of labels[0], though an earlier commit had reached offset 2" in problem


def test_a_release_that_would_lose_labels_refuses_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = grown(tmp_path, end=3)
    monkeypatch.setattr(CommitRecord, "VERSIONS", (1, 2))
    with pytest.raises(FormatVersionError):
        LogReader(store)
    monkeypatch.undo()
    compact(store, always=True)
    monkeypatch.setattr(LogIndex, "VERSIONS", (1,))
    with pytest.raises(CorruptError, match="format"):
        LogReader(store)


def test_a_log_without_labels_is_written_as_before(tmp_path: Path) -> None:
    with LogWriter.open(tmp_path, HEADER) as writer:
        writer.commit(late=1)
    path = tmp_path / "log" / commit_name(0)
    assert read_record(path, CommitRecord).format_version == 2
    assert b"labels" not in path.read_bytes()


def test_labels_fix_the_kind_of_ids_as_events_do(tmp_path: Path) -> None:
    with LogWriter.open(tmp_path, HEADER) as writer:
        read = Position(topic="labels", partition=0, next=1)
        writer.commit(positions={("labels", 0): read}, labels=labels_of(0))
    with pytest.raises(MismatchError, match="ids"):
        LogWriter.open(tmp_path, HEADER.model_copy(update={"ids": "string"}))
    with LogWriter.open(tmp_path, HEADER) as writer:
        assert not writer.may_begin_with_history


def test_labels_never_move_event_time_and_never_hold_it(tmp_path: Path) -> None:
    config = stream_config(str(tmp_path), idle_timeout_s=8.0, idle_seal_s=4.0)
    config.kafka.topics.append(Topic(name="labels", kind="labels"))
    clock = Clock()
    with LogWriter.open(tmp_path, log_header(config)) as writer:
        sink = SnapshotSink(writer, config, clock=clock)
        sink.assign([("a", 0), ("labels", 0), ("labels", 1)])
        sink.offer(poll("a", 0, [(0, [event(1, 2, 500_000)]), (1, [event(1, 3, 1_500_000)])], first=0, end=2))
        record = sink.advance()
        assert record is not None and record.sealed_through == 0, "unheard label topics do not hold it"
        far = label_poll("labels", 0, [(0, "e", -(10**12)), (1, "e", 10**12)], first=0, end=2)
        sink.offer(far)
        record = sink.flush()
        assert record is not None and (record.sealed_through, record.late, record.num_labels) == (0, 0, 2)
        assert record.positions[-1].max_t_us is None
        clock.now += 20
        unread = label_poll("labels", 1, [(0, "e", 0)], first=0, end=1)
        sink.offer(unread)  # a label topic that is being read keeps no idle stream from sealing
        sink.offer(poll("a", 0, [], first=2, end=2, quiet=Quiet(20, 0)))
        record = sink.advance()
        assert record is not None and record.sealed_through == 1
        sink.close()
    with LogWriter.open(tmp_path, log_header(config)) as writer:  # positions of the log do not hold it either
        sink = SnapshotSink(writer, config, clock=clock)
        sink.offer(poll("a", 0, [(2, [event(1, 2, 9_000_000)])], first=2, end=3))
        record = sink.flush()
        assert record is not None and record.sealed_through == 8
        sink.close()
    visible = LogReader(tmp_path).labels()["visible_us"].to_pylist()
    assert visible == [1_500_000, 10**12, 2_000_000]
