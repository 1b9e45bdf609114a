"""Labels in the log: files of commits, gathered by compaction, dropped with the snapshots before which they were visible."""

from pathlib import Path

import pyarrow as pa
import pytest
from compacted import HEADER, grown, labels_of, seal
from lane_stream import SECOND
from log_events import Clock, event, label_poll, poll, stream_config
from placed import Places, problems_of
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.config import Topic
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import CommitRecord, LogIndex, Position
from freshet_graph.stream.microbatch import Quiet
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.compact.log import index_log
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.errors import CorruptError, FormatVersionError, MismatchError, StoreError
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.log.labels import arrived_schema
from freshet_graph.stream.store.log.layout import commit_name
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.opened import open_store
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


def test_rows_are_joined_with_the_label_that_counts(tmp_path: Path) -> None:
    """The newest of the best source; then the label that came with the event, of scores by snapshot and row."""
    said = [
        ("e0", 1, 9, 0, "model"),
        ("e0", 0, 5, 1, "analyst"),
        ("e0", 1, 7, 1, "analyst"),
        ("e2", 3, 8, 0, None),
    ]
    rows = [
        {
            "event_id": one,
            "label": label,
            "t": t,
            "priority": rank,
            "source": source,
            "topic": "labels",
            "partition": 0,
            "offset": k,
        }
        for k, (one, label, t, rank, source) in enumerate(said)
    ]
    sealed = pa.table(
        {
            name: {"event_id": ["e0", "e1", "e2"], "label": [None, 4, 5], "t": [1, 2, SECOND + 1]}.get(
                name, [1.0 if name == "weight" else 1 if name in ("op", "src", "dst") else None] * 3
            )
            for name in event_schema("int").names
        },
        schema=event_schema("int"),
    )
    with LogWriter.open(tmp_path, HEADER) as writer:
        read = Position(topic="labels", partition=0, next=4)
        labels = pa.Table.from_pylist(rows, schema=arrived_schema("int"))
        writer.commit(
            seal=[(0, sealed.slice(0, 2)), (1, sealed.slice(2))],
            positions={("labels", 0): read},
            labels=labels,
        )
    store = open_store(tmp_path)
    joined = store.with_labels(store.events()).select(["event_id", "label", "label_source"]).to_pylist()
    assert [tuple(row.values()) for row in joined] == [("e0", 1, "analyst"), ("e1", 4, None), ("e2", 3, None)]
    scores = pa.table({"tau": [1, 0, 0], "row": [0, 1, 0], "event_id": ["e2", "e1", None]})
    found = store.with_labels(scores)
    assert found["label"].to_pylist() == [3, 4, None]
    assert [one and one.timestamp() for one in found["label_visible"].to_pylist()] == [2.0, None, None]
    bare = store.with_labels(pa.table({"event_id": ["e1", "e0"], "label_source": ["old", "old"]}))
    assert bare.to_pylist()[1] | {"label_visible": None} == {
        "event_id": "e0", "label": 1, "label_visible": None, "label_source": "analyst",
    }  # fmt: skip
    assert bare["label"].to_pylist() == [None, 1]
    with pytest.raises(StoreError, match=r"columns tau, and labels are joined by event_id. Keep that column"):
        store.with_labels(pa.table({"tau": [1]}))


def test_a_store_without_labels_of_topics_joins_what_came_with_events(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(snapshots=2))
    store = open_store(str(tmp_path / "store"))
    joined = store.with_labels(store.events())
    assert joined["label"].null_count == len(joined) > 0
