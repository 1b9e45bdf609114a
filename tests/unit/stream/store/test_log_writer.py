"""The log's writer: what it refuses, what a failure leaves, and that bytes depend on events alone."""

import errno
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_events import event, refusal

from freshet_graph.schemas.events import IdKind, event_schema
from freshet_graph.schemas.store import LogHeader, Position
from freshet_graph.stream.store.crash import CRASH_POINTS, arm
from freshet_graph.stream.store.errors import CorruptError, LaneBusyError, MismatchError, StoreError
from freshet_graph.stream.store.files.records import put_record, read_record
from freshet_graph.stream.store.log import writer as log_writer
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.sealed import FAN_IN, absorbed_from, canonical_batches, tail_schema
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.interface import plain
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.log import verify_log

HEADER = LogHeader(graph="g", interval_us=10, ids="int")


def events(*rows: dict[str, Any], ids: IdKind = "int") -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=event_schema(ids))


def tail(*rows: dict[str, Any], offset: int = 0) -> pa.Table:
    provenance = [
        {**row, "topic": "a", "partition": 0, "offset": offset + i, "tau": row["t"] // HEADER.interval_us}
        for i, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(provenance, schema=tail_schema("int"))


def at(next_offset: int) -> dict[tuple[str, int], Position]:
    return {("a", 0): Position(topic="a", partition=0, next=next_offset)}


def files(store: Place, folder: str) -> list[str]:
    inside = store / "log" / folder
    return sorted(str(path).removeprefix(f"{inside}/") for path in inside.rglob("*.arrow"))


def test_a_commit_is_there_when_the_log_is_opened_again(place: Place) -> None:
    with LogWriter.open(place, HEADER) as writer:
        writer.commit(positions=at(3), tail=tail(event(5, 6, 1), event(6, None, 2), event(9, 5, 12)))
        sealing = writer.open_tail().slice(0, 2)
        done = writer.commit(seal=[(0, sealing)], refused={"late": 1}, late=2, duplicates=3)
    with LogWriter.open(place, HEADER) as writer:
        assert writer.last == done
        assert writer.positions == at(3)
        assert writer.open_tail()["src"].to_pylist() == [9]
        assert (writer.num_nodes, writer.sealed_through, done.tail_events) == (2, 0, 1)
        last = writer.commit(seal=[(1, writer.open_tail())], refused={"late": 1, "other": 1}, late=1)
    assert last.refused == {"late": 2, "other": 1}
    assert (last.late, last.duplicates, last.tail) == (3, 3, [])
    log = LogReader(place)
    assert log.events(0)["src_node"].to_pylist() == [0, 1]
    assert log.events(0)["dst_node"].to_pylist() == [1, -1]
    assert log.events(1).select(["src_node", "dst_node"]).to_pylist() == [{"src_node": 2, "dst_node": 0}]
    assert files(place, "tail") == []


def test_a_second_writer_is_refused_until_the_first_closes(place: Place) -> None:
    first = LogWriter.open(place, HEADER, writer_id="one")
    with pytest.raises(LaneBusyError, match=r"being written by one\. Stop it, or choose another store"):
        LogWriter.open(place, HEADER, writer_id="two")
    first.close()
    with pytest.raises(StoreError, match="Open the log again"):
        first.commit(positions=at(1))
    LogWriter.open(place, HEADER, writer_id="two").close()


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("graph", "h", "graph = 'g', the configuration asks for 'h'."),
        ("interval_us", 11_500_000, "snapshots.interval_s = 1e-05, the configuration asks for 11.5."),
        ("ids", "string", "ids = 'int', the configuration asks for 'string'."),
        ("node_features", 2, "features.node = 0, the configuration asks for 2."),
        ("edge_features", 3, "features.edge = 0, the configuration asks for 3."),
        ("segments", 8, "features.segments = 4, the configuration asks for 8."),
    ],
)
def test_another_configuration_is_refused_with_its_key_and_unit(
    place: Place, key: str, value: Any, told: str
) -> None:
    with LogWriter.open(place, HEADER) as writer:
        writer.commit(positions=at(1), tail=tail(event(1, 2, 5)))
    with pytest.raises(MismatchError, match=re.escape(f"log.json has {told}")):
        LogWriter.open(place, HEADER.model_copy(update={key: value}))
    LogWriter.open(place, HEADER).close()


def test_a_log_without_a_commit_becomes_what_the_configuration_asks_for(place: Place) -> None:
    LogWriter.open(place, HEADER.model_copy(update={"interval_us": 11, "graph": "typo"})).close()
    with LogWriter.open(place, HEADER) as writer:
        with pytest.raises(LaneBusyError):  # only the holder of the lock may replace it
            LogWriter.open(place, HEADER.model_copy(update={"interval_us": 12}))
        assert LogReader(place).header == writer.header
        writer.commit(positions=at(1))
    assert (LogReader(place).header.interval_us, LogReader(place).header.graph) == (10, "g")
    assert verify_log(place).problems == []


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point.startswith("record.")])
def test_a_kill_while_the_header_is_replaced_leaves_one_whole_header(tmp_path: Path, point: str) -> None:
    LogWriter.open(tmp_path, HEADER.model_copy(update={"interval_us": 11})).close()
    victim = os.fork()
    if not victim:
        arm(point)
        LogWriter.open(tmp_path, HEADER)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(victim, 0)[1]) == signal.SIGKILL
    assert LogReader(tmp_path).header.interval_us in (10, 11)
    with LogWriter.open(tmp_path, HEADER) as writer:
        assert writer.header.interval_us == 10
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == ["commits", "lock", "log.json"]


def test_snapshots_are_sealed_once_in_order_and_never_empty(place: Place) -> None:
    one = events(event(1, 2, 25))
    with LogWriter.open(place, HEADER) as writer:
        with pytest.raises(ValueError, match="snapshot 1 cannot be sealed after 2"):
            writer.commit(seal=[(2, one), (1, one)])
        with pytest.raises(ValueError, match="snapshot 2 has no events"):
            writer.commit(seal=[(2, one.slice(0, 0))])
        writer.commit(seal=[(2, one)], sealed_through=7)
        with pytest.raises(ValueError, match="snapshot 7 cannot be sealed after 7"):
            writer.commit(seal=[(7, one)])
        assert writer.commit(positions=at(2)).sealed_through == 7


def test_a_full_disk_leaves_the_log_as_it_was_and_the_commit_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter.open(tmp_path, HEADER) as writer:
        writer.commit(positions=at(1), tail=tail(event(1, 2, 5)))
        with monkeypatch.context() as patch:

            def full(path: Path) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr("freshet_graph.stream.store.places.folder.sync_file", full)
            with pytest.raises(OSError, match="No space"):
                writer.commit(seal=[(0, events(event(1, 2, 5), event(3, 3, 6)))], tail=tail(event(4, 4, 15)))
        assert (writer.num_nodes, files(tmp_path, "tail"), files(tmp_path, "snapshots")) == (
            0,
            ["0.arrow"],
            [],
        )
        writer.commit(seal=[(0, events(event(3, 1, 5)))])
    assert LogReader(tmp_path).external_ids().to_pylist() == [3, 1]


def test_a_record_of_unknown_fate_stops_the_writer_until_the_log_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter.open(tmp_path, HEADER)
    put = log_writer.put_record

    def put_then_fail(path: Path, record: Any) -> Any:
        put(path, record)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(log_writer, "put_record", put_then_fail)
    with pytest.raises(OSError, match="Input/output"):
        writer.commit(positions=at(4))
    monkeypatch.undo()
    with pytest.raises(StoreError, match="Open the log again"):
        writer.commit(positions=at(5))
    writer.close()
    with LogWriter.open(tmp_path, HEADER) as again:
        assert again.positions == at(4)


def test_locks_that_do_not_work_are_noticed_at_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    one = LogWriter.open(tmp_path, HEADER, writer_id="one")
    two = LogWriter.open(tmp_path, HEADER, writer_id="two")
    one.commit(positions=at(1))
    with pytest.raises(LaneBusyError, match=r"was made by one while two held the log's lock"):
        two.commit(positions=at(1))


def test_what_a_crash_left_is_swept_and_what_is_foreign_stays(tmp_path: Path) -> None:
    with LogWriter.open(tmp_path, HEADER) as writer:
        writer.commit(positions=at(1), tail=tail(event(1, 2, 5)), rejects=refusal(0))
    log = tmp_path / "log"
    left = [
        "tail/1.arrow",
        "tail/1.arrow.tmp",
        "rejects/1.arrow",
        "snapshots/-4/events.arrow.tmp",
        "log.json.tmp",
    ]
    left.append("commits/0000000000000001.json.tmp")
    for name in [*left, "tail/notes.txt"]:
        (log / name).parent.mkdir(exist_ok=True, parents=True)
        (log / name).write_bytes(b"left")
    LogWriter.open(tmp_path, HEADER).close()
    assert [name for name in left if (log / name).exists()] == []
    assert not (log / "snapshots/-4").exists()
    assert (log / "tail/notes.txt").exists()
    assert files(tmp_path, "tail") == ["0.arrow"]
    assert files(tmp_path, "rejects") == ["0.arrow"]


def test_a_missing_commit_and_a_commit_of_another_log_are_typed_errors(tmp_path: Path) -> None:
    for store in ("one", "two"):
        with LogWriter.open(tmp_path / store, HEADER, writer_id=store) as writer:
            for n in range(3):
                writer.commit(positions=at(n))
    commits = tmp_path / "one/log/commits"
    shutil.copy(tmp_path / "two/log/commits/0000000000000001.json", commits)
    for opened in (LogReader, lambda store: LogWriter.open(store, HEADER)):
        with pytest.raises(CorruptError, match=r"1\.json follows a record with checksum .* another log"):
            opened(tmp_path / "one")
    (commits / "0000000000000001.json").unlink()
    for opened in (LogReader, lambda store: LogWriter.open(store, HEADER)):
        with pytest.raises(CorruptError, match=r"1\.json is missing, though commit 2 exists"):
            opened(tmp_path / "one")


def test_the_first_commit_belongs_to_its_header(place: Place) -> None:
    for store in ("one", "two"):
        with LogWriter.open(place / store, HEADER.model_copy(update={"graph": store})) as writer:
            writer.commit(positions=at(1))
    (place / "one/log/log.json").unlink()
    put_record(place / "one/log/log.json", read_record(place / "two/log/log.json", LogHeader))
    with pytest.raises(CorruptError, match="another log"):
        LogReader(place / "one")


def test_rejects_are_unpublished_until_a_commit_has_recorded_it(place: Place) -> None:
    with LogWriter.open(place, HEADER) as writer:
        for n in range(3):
            writer.commit(positions=at(n + 1), rejects=refusal(n) if n != 1 else None)
        found = [(part.commit, part.table["offset"].to_pylist()) for part in writer.unpublished_rejects()]
        assert found == [(0, [0]), (2, [2])]
        writer.mark_published(0)
        assert [part.commit for part in writer.unpublished_rejects()] == [2]
    with LogWriter.open(place, HEADER) as writer:
        assert [part.commit for part in writer.unpublished_rejects()] == [0, 2], "at least once"
        writer.mark_published(2)
        assert writer.commit().published == 3
    with LogWriter.open(place, HEADER) as writer:
        assert list(writer.unpublished_rejects()) == []


def test_many_commits_of_one_open_snapshot_keep_few_tail_files_and_rewrite_little(tmp_path: Path) -> None:
    written, most = 0, 0
    with LogWriter.open(tmp_path, HEADER.model_copy(update={"interval_us": 10**9})) as writer:
        for n in range(300):
            record = writer.commit(
                positions=at(n + 1),
                tail=tail(*[event(n, i, 5) for i in range(20)], offset=n).set_column(
                    12, "tau", pa.array([0] * 20)
                ),
            )
            written += next((file.bytes for file in record.tail if file.path == f"tail/{n}.arrow"), 0)
            most = max(most, len(record.tail))
        assert writer.open_tail()["src"].to_pylist() == [n for n in range(300) for _ in range(20)]
        assert writer.last is not None and writer.last.tail_events == 6000
        assert files(tmp_path, "tail") == sorted(file.path.removeprefix("tail/") for file in writer.last.tail)
        held = sum(file.bytes for file in writer.last.tail)
    assert most <= 4 * FAN_IN
    assert written <= 8 * held


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=400))
@settings(max_examples=60, deadline=None)
def test_the_number_of_tail_files_is_bounded_whatever_commits_write(sizes: list[int]) -> None:
    kept: list[int] = []
    for size in sizes:
        first = absorbed_from(kept, size)
        kept = [*kept[:first], sum(kept[first:]) + size]
    assert sum(kept) == sum(sizes)
    assert len(kept) <= FAN_IN * (2 + int(np.log2(sum(sizes))) // 3)


def test_a_tail_file_stays_named_while_one_of_its_events_is_open(place: Place) -> None:
    with LogWriter.open(place, HEADER) as writer:
        writer.commit(positions=at(2), tail=tail(event(1, 1, 5), event(2, 2, 25)))
        writer.commit(positions=at(3), tail=tail(event(3, 3, 15), offset=2))
        record = writer.commit(
            seal=[(0, writer.open_tail().slice(0, 1)), (1, writer.open_tail().slice(2, 1))]
        )
        assert [plain(file.path) for file in record.tail] == ["tail/0.arrow"]
        assert [plain(name) for name in files(place, "tail")] == ["0.arrow"]
        assert writer.open_tail()["src"].to_pylist() == [2]


def test_bytes_of_a_snapshot_depend_on_its_values_alone() -> None:
    values = np.arange(1, 41, dtype=np.int32)
    mask = values % 3 == 0
    garbage = pa.array(values, mask=mask)  # the values under the nulls stay in the buffer
    clean = pa.array([None if m else int(v) for v, m in zip(values, mask, strict=True)], pa.int32())
    text = pa.array([None if m else f"s{v}" for v, m in zip(values, mask, strict=True)])
    rows = [None if m else [float(v)] * (v % 4) for v, m in zip(values, mask, strict=True)]
    lists = pa.array(rows, pa.list_(pa.float32()))
    long = pa.table(
        {
            "x": pa.concat_arrays([clean, garbage, clean]),
            "s": pa.concat_arrays([text] * 3),
            "l": pa.concat_arrays([lists] * 3),
        }
    )
    plain = pa.table({"x": clean, "s": text, "l": lists})
    sliced = long.slice(40, 40)
    chunked = pa.concat_tables([plain.slice(0, 13), long.slice(53, 27)])
    wanted = ipc(plain)
    assert ipc(sliced) == wanted
    assert ipc(chunked) == wanted


def test_bytes_of_a_snapshot_do_not_depend_on_what_follows_it_in_memory() -> None:
    text = [f"s{i}" for i in range(30)]
    lists = [[float(i)] * (i % 3) for i in range(30)]
    long = pa.table(
        {"x": pa.array(range(30), pa.int8()), "s": text, "l": pa.array(lists, pa.list_(pa.float32()))}
    )
    for start in (0, 8):
        alone = pa.Table.from_pylist(long.slice(start, 13).to_pylist(), schema=long.schema)
        assert ipc(long.slice(start, 13)) == ipc(alone)


def test_bytes_of_a_snapshot_do_not_depend_on_how_its_columns_came_together() -> None:
    """Chunks, values under nulls, a child that begins late and bitmaps with set bits after the end: all the same bytes."""
    kind = pa.list_(pa.float32())
    wanted = [None, [1.0, 2.0], [], None, [3.0]]
    ends = pa.array([0, 2, 4, 4, 7, 8], pa.int32())  # the nulls have values
    hidden = pa.ListArray.from_arrays(
        ends, pa.array([9, 9, 1, 2, 9, 9, 9, 3], pa.float32()), mask=pa.array([v is None for v in wanted])
    )
    late = pa.ListArray.from_arrays(
        pa.array([2, 2, 4, 4, 4, 5], pa.int32()),
        pa.array([9, 9, 1, 2, 3, 9], pa.float32()),
        mask=pa.array([v is None for v in wanted]),
    )
    chunks = [pa.array(wanted[:3], kind), pa.array(wanted[3:], kind)]
    numbers = [1, None, 3, None, 5]
    loose = pa.Array.from_buffers(
        pa.int64(), 5, [pa.py_buffer(b"\xf5"), pa.py_buffer(np.array([1, 77, 3, 77, 5, 99]))]
    )
    assert loose.to_pylist() == numbers
    clean = pa.table({"l": pa.array(wanted, kind), "n": pa.array(numbers, pa.int64())})
    for lists in (hidden, late, pa.chunked_array(chunks)):
        assert ipc(pa.table({"l": lists, "n": loose})) == ipc(clean)
    text = pa.table({"s": ["a", "bc", "d"]})
    beyond = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([1, 2, 4, 5, 6], np.int32)), pa.py_buffer(b"xabcdy")]
    )
    assert ipc(pa.table({"s": beyond})) == ipc(text)
    nothing = pa.chunked_array([pa.nulls(2, kind), pa.array([[1.0]], kind)])
    assert ipc(pa.table({"l": nothing})) == ipc(pa.table({"l": pa.array([None, None, [1.0]], kind)}))
    for some in ([[1.0, 2.0], [], [3.0]], [[1.0], None, [], [2.0]], [[], None]):
        for lists in (pa.array(some, kind), pa.array([[9.0], *some], kind)[1:]):
            for before, after in ((0, 3), (2, 0), (9, 8), (0, 0)):
                around = [pa.nulls(before, kind), lists, pa.nulls(after, kind)]
                together = pa.array([*[None] * before, *some, *[None] * after], kind)
                assert ipc(pa.table({"l": pa.chunked_array(around)})) == ipc(pa.table({"l": together}))


def ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in canonical_batches(table, 16):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
