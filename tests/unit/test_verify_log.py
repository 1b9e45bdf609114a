"""Verifying a log: whole logs pass, and every damage is found and named."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from log_events import SECOND, Clock, event, poll, stream_config

from schemas.store import CommitRecord
from stream.sink.snapshot_sink import SnapshotSink, log_header
from stream.store.errors import ConfigMissingError
from stream.store.files.records import canonical, checksum_of, put_record, read_record
from stream.store.log.writer import LogWriter
from stream.store.verify.log import verify_log


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("whole")
    config = stream_config(str(store))
    with LogWriter.open(store, log_header(config)) as writer:
        sink = SnapshotSink(writer, config, clock=Clock())
        for n in range(3):
            messages = [(2 * n, [event(n, 7, n * SECOND), event(7, n, n * SECOND + 5)]), (2 * n + 1, None)]
            sink.offer(poll("a", 0, messages, first=2 * n, end=2 * n + 2, high_watermark=99))
            assert (sink.advance() or sink.flush()) is not None
    return store


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def forge(store: Path, n: int, **changes: Any) -> None:
    """Replace a commit, and bind those after it to it, as someone with the format's description could."""
    link = None
    for path in sorted((store / "log/commits").iterdir())[n:]:
        content = read_record(path, CommitRecord).model_dump(mode="json")
        content |= changes if link is None else {"previous": link}
        link = checksum_of(content)
        path.write_bytes(canonical(content | {"checksum": link}))


def test_a_whole_log_has_no_problem_and_all_its_files_are_counted(store: Path) -> None:
    check = verify_log(store)
    files = [path for path in (store / "log").rglob("*") if path.is_file() and path.name != "lock"]
    assert check.problems == []
    assert check.files == len(files) == 12
    assert check.bytes == sum(path.stat().st_size for path in files)


def test_no_log_is_no_empty_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigMissingError):
        verify_log(tmp_path)


def test_every_kind_of_file_is_checked_for_flipped_bytes(store: Path) -> None:
    for path in [p for p in (store / "log").rglob("*") if p.is_file() and p.name != "lock"]:
        content = path.read_bytes()
        for i in range(3, len(content), 97):
            path.write_bytes(content[:i] + bytes([content[i] ^ 16]) + content[i + 1 :])
            problems = verify_log(store).problems
            assert any(path.name in problem for problem in problems), f"{path} at {i}: {problems}"
        path.write_bytes(content)
    assert verify_log(store).problems == []


def test_missing_and_truncated_files_are_all_listed(store: Path) -> None:
    log = store / "log"
    (log / "rejects/1.arrow").unlink()
    (log / "snapshots/0/events.arrow").write_bytes(b"")
    (log / "snapshots/1/nodes.arrow").unlink()
    problems = verify_log(store).problems
    assert len(problems) == 3
    for name in (
        "rejects/1.arrow is missing",
        "snapshots/0/events.arrow has 0 bytes",
        "snapshots/1/nodes.arrow is missing",
    ):
        assert sum(name in problem for problem in problems) == 1


def test_a_damaged_commit_does_not_hide_what_comes_after_it(store: Path) -> None:
    (store / "log/commits/0000000000000001.json").write_bytes(b"{}")
    (store / "log/tail/2.arrow").unlink()
    problems = verify_log(store).problems
    assert "0000000000000001.json" in problems[0]
    assert any("tail/2.arrow is missing" in problem for problem in problems)


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
    store: Path, n: int, changes: dict[str, Any], sentence: str
) -> None:
    forge(store, n, **changes)
    assert any(pa.compute.match_substring_regex(p, sentence).as_py() for p in verify_log(store).problems)


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
    store: Path, key: str, value: int, sentence: str
) -> None:
    path = store / "log/commits/0000000000000001.json"
    sealed = read_record(path, CommitRecord).model_dump(mode="json")["sealed"]
    forge(store, 1, sealed=[{**sealed[0], key: value}])
    assert any(pa.compute.match_substring_regex(p, sentence).as_py() for p in verify_log(store).problems)


def test_a_commit_beyond_a_missing_one_is_found(store: Path) -> None:
    (store / "log/commits/0000000000000001.json").unlink()
    assert any("commit 1 is missing" in problem for problem in verify_log(store).problems)


def test_events_out_of_order_and_wrong_dense_ids_are_found(tmp_path: Path) -> None:
    from schemas.events import event_schema
    from stream.store.files.data import write_table

    config = stream_config(str(tmp_path))
    rows = [event(1, 2, 5), event(3, 1, 4)]
    with LogWriter.open(tmp_path, log_header(config)) as writer:
        record = writer.commit(seal=[(0, pa.Table.from_pylist(rows, schema=event_schema("int")))])
    assert any(
        "event 1 is earlier than the one before" in problem for problem in verify_log(tmp_path).problems
    )
    log = tmp_path / "log"
    table = pa.ipc.open_file(log / "snapshots/0/events.arrow").read_all()
    wrong = table.set_column(9, table.schema.field("src_node"), pa.array([0, 0]))
    reference = write_table(log, "snapshots/0/events.arrow", wrong)
    (log / "commits/0000000000000000.json").unlink()
    sealed = record.sealed[0].model_copy(update={"events": reference})
    put_record(log / "commits/0000000000000000.json", record.model_copy(update={"sealed": [sealed]}))
    assert any(
        "dense ids of the events are not those" in problem for problem in verify_log(tmp_path).problems
    )
