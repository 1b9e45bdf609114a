"""Verifying a log, in a folder or a bucket: whole logs pass, and every damage is found and named."""

from typing import Any

import pyarrow as pa
import pytest
from data_files import write_table
from log_events import SECOND, Clock, event, poll, stream_config
from placed import Changes, Places, anew, files_of

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError
from freshet_graph.stream.store.files.records import canonical, checksum_of, put_record, read_record
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.log import verify_log


@pytest.fixture(scope="module")
def store(places: Places) -> Place:
    """A store that every test leaves as it was."""
    store, config = places.new(), stream_config("unused")
    with LogWriter.open(store, log_header(config)) as writer:
        sink = SnapshotSink(writer, config, clock=Clock())
        for n in range(3):
            messages = [(2 * n, [event(n, 7, n * SECOND), event(7, n, n * SECOND + 5)]), (2 * n + 1, None)]
            sink.offer(poll("a", 0, messages, first=2 * n, end=2 * n + 2, high_watermark=99))
            assert (sink.advance() or sink.flush()) is not None
    return store


def problems_of(store: Place) -> list[str]:
    with anew(store) as place:
        return verify_log(place).problems


def forge(change: Changes, store: Place, n: int, **changes: Any) -> None:
    """Replace a commit, and bind those after it to it, as someone with the format's description could."""
    link = None
    for path in sorted((store / "log/commits").iterdir())[n:]:
        content = read_record(path, CommitRecord).model_dump(mode="json")
        content |= changes if link is None else {"previous": link}
        link = checksum_of(content)
        change.write(path, canonical(content | {"checksum": link}))


def test_a_whole_log_has_no_problem_and_all_its_files_are_counted(store: Place) -> None:
    check = verify_log(store)
    files = files_of(store).values()
    assert check.problems == []
    assert check.files == len(files) == 14
    assert check.bytes == sum(path.stat().st_size for path in files)


def test_no_log_is_no_empty_log(place: Place) -> None:
    with pytest.raises(ConfigMissingError):
        verify_log(place)


def test_missing_and_truncated_files_are_all_listed(store: Place, change: Changes) -> None:
    files = files_of(store)
    rejects, events, nodes = (
        files[f"log/{name}.arrow"] for name in ("rejects/1", "snapshots/0/events", "snapshots/1/nodes")
    )
    change.remove(rejects)
    change.write(events, b"")
    change.remove(nodes)
    problems = problems_of(store)
    assert len(problems) == 3
    for words in (f"{rejects} is missing", f"{events} has 0 bytes", f"{nodes} is missing"):
        assert sum(words in problem for problem in problems) == 1


def test_a_damaged_commit_does_not_hide_what_comes_after_it(store: Place, change: Changes) -> None:
    tail = files_of(store)["log/tail/2.arrow"]
    change.write(store / "log/commits/0000000000000001.json", b"{}")
    change.remove(tail)
    problems = problems_of(store)
    assert "0000000000000001.json" in problems[0]
    assert any(f"{tail} is missing" in problem for problem in problems)


@pytest.mark.parametrize(
    ("n", "changes", "sentence"),
    [
        (1, {"positions": []}, "goes back from offset 2 to None in a\\[0\\]"),
        (2, {"refused": {}, "late": 0}, "smaller totals than the commit before: not_json"),
        (2, {"tail_events": 7}, "says 7 events are open, its tail files hold 2"),
        (2, {"sealed_through": None}, "opens snapshots again: closed through None after 0"),
        (1, {"sealed_through": -1}, "snapshot 0 .* its commit closes only up to -1"),
    ],
)
def test_records_that_contradict_each_other_are_found(
    store: Place, change: Changes, n: int, changes: dict[str, Any], sentence: str
) -> None:
    forge(change, store, n, **changes)
    assert any(pa.compute.match_substring_regex(p, sentence).as_py() for p in problems_of(store))


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("num_events", 5, "num_events is 2, its commit says 5"),
        ("num_nodes", 9, "2 ids are in use after it, its commit says 9"),
        ("max_t_us", 1, "max_t_us is 5, its commit says 1"),
        ("tau", -5, "num_late|lies after the end of snapshot -5"),
    ],
)
def test_a_snapshot_that_its_commit_describes_wrongly_is_found(
    store: Place, change: Changes, key: str, value: int, sentence: str
) -> None:
    path = store / "log/commits/0000000000000001.json"
    sealed = read_record(path, CommitRecord).model_dump(mode="json")["sealed"]
    forge(change, store, 1, sealed=[{**sealed[0], key: value}])
    assert any(pa.compute.match_substring_regex(p, sentence).as_py() for p in problems_of(store))


def test_a_commit_beyond_a_missing_one_is_found(store: Place, change: Changes) -> None:
    change.remove(store / "log/commits/0000000000000001.json")
    assert any("commit 1 is missing" in problem for problem in problems_of(store))


def test_events_whose_dense_ids_are_not_in_use_are_refused_at_every_try(place: Place) -> None:
    config = stream_config("unused")
    with LogWriter.open(place, log_header(config)) as writer:
        rows = pa.Table.from_pylist([event(1, 2, 5)], schema=event_schema("int"))
        record = writer.commit(seal=[(0, rows)])
    table = LogReader(place).events(0)
    wrong = table.set_column(9, table.schema.field("src_node"), pa.array([7]))
    reference = write_table(place / "log", record.sealed[0].events.path, wrong)
    commit = place / "log/commits/0000000000000000.json"
    commit.unlink()
    sealed = record.sealed[0].model_copy(update={"events": reference})
    put_record(commit, record.model_copy(update={"sealed": [sealed]}))
    log = LogReader(place)
    for _ in range(2):
        with pytest.raises(CorruptError, match="dense ids 7 to 7 in src_node, its commit says 2 are in use"):
            log.events(0)


def test_events_out_of_order_and_wrong_dense_ids_are_found(place: Place) -> None:
    config = stream_config("unused")
    rows = [event(1, 2, 5), event(3, 1, 4)]
    with LogWriter.open(place, log_header(config)) as writer:
        record = writer.commit(seal=[(0, pa.Table.from_pylist(rows, schema=event_schema("int")))])
    assert any("event 1 is earlier than the one before" in problem for problem in problems_of(place))
    log = place / "log"
    table = LogReader(place).events(0)
    wrong = table.set_column(9, table.schema.field("src_node"), pa.array([0, 0]))
    reference = write_table(log, record.sealed[0].events.path, wrong)
    commit = log / "commits/0000000000000000.json"
    commit.unlink()
    sealed = record.sealed[0].model_copy(update={"events": reference})
    put_record(commit, record.model_copy(update={"sealed": [sealed]}))
    assert any("dense ids of the events are not those" in problem for problem in problems_of(place))
