"""Files and records of a store: whole or absent, and never read when they aren't what was written."""

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from data_files import write_file, write_table

from freshet_graph.schemas.store import FileRef, LaneHeader, LogHeader
from freshet_graph.stream.store.crash import VARIABLE
from freshet_graph.stream.store.errors import CorruptError, FormatVersionError, LaneBusyError
from freshet_graph.stream.store.files.data import checksum, open_table, read_table
from freshet_graph.stream.store.files.records import put_record, read_record
from freshet_graph.stream.store.files.sweep import new_writer_id
from freshet_graph.stream.store.places.durable import FolderLock
from freshet_graph.stream.store.places.interface import inside
from freshet_graph.stream.store.places.place import place_of
from freshet_graph.stream.store.places.write_out import WriteOut

HEADER = LogHeader(graph="g", interval_us=1, ids="int")
TABLE = pa.table({"x": pa.array(range(100), pa.int64())})


def test_record_batches_stay_apart(tmp_path: Path) -> None:
    reference = write_table(tmp_path, "x.arrow", TABLE.to_batches(max_chunksize=30))
    reader = open_table(tmp_path, reference)
    assert [reader.get_batch(k).num_rows for k in range(reader.num_record_batches)] == [30, 30, 30, 10]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def write(sink: Any) -> None:
        sink.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path, "sub/x.arrow", write)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_commit_that_fails_while_naming_removes_all_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("freshet_graph.stream.store.places.folder.sync_folder", full)
    with pytest.raises(OSError, match="No space"), place_of(tmp_path).stage() as staging:
        staging.add_table("a.arrow", TABLE)
        staging.add_table("b.arrow", TABLE)
        staging.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_arrow_is_a_typed_error_even_with_the_right_checksum(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("text", b"hello" * 30)):
        reference = write_file(tmp_path, name, lambda sink, content=content: sink.write(content))
        with pytest.raises(CorruptError, match="not an Arrow file"):
            open_table(tmp_path, reference)


def test_a_table_of_another_schema_is_a_typed_error(tmp_path: Path) -> None:
    reference = write_table(tmp_path, "x.arrow", TABLE)
    with pytest.raises(CorruptError, match=r"x\.arrow has the columns x of another schema, expected y"):
        read_table(tmp_path, reference, schema=pa.schema([("y", pa.int64())]))


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "", "a//b", ".", "a/.hidden", "a\\b", "a/\0"]
)
def test_no_path_in_a_record_leads_out_of_the_store(tmp_path: Path, path: str) -> None:
    with pytest.raises(CorruptError, match="isn't a plain path inside the store"):
        open_table(tmp_path, FileRef(path=path, bytes=1, checksum="0"))
    with pytest.raises(CorruptError):
        write_table(tmp_path, path, TABLE)


def test_no_symbolic_link_leads_out_of_the_store(tmp_path: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    store.mkdir()
    outside.mkdir()
    (store / "link").symlink_to(outside)
    with pytest.raises(CorruptError, match="symbolic link"):
        inside(place_of(store), "link/x.arrow")


def test_a_file_system_without_hard_links_keeps_records_from_being_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    written = put_record(tmp_path / "log.json", HEADER)
    assert read_record(tmp_path / "log.json", LogHeader) == written
    with pytest.raises(FileExistsError):
        put_record(tmp_path / "log.json", HEADER)
    assert [p.name for p in tmp_path.iterdir()] == ["log.json"]


def test_every_flipped_bit_and_every_truncation_of_a_record_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    put_record(path, HEADER)
    content = path.read_bytes()
    for i in range(len(content)):
        for damaged in (content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :], content[:i]):
            path.write_bytes(damaged)
            with pytest.raises((CorruptError, FormatVersionError), match=r"log\.json"):
                read_record(path, LogHeader)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"format_version":1}\n'])
def test_what_is_no_record_is_a_typed_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.json").write_bytes(content)
    with pytest.raises(CorruptError, match=r"log\.json"):
        read_record(tmp_path / "log.json", LogHeader)


def test_a_record_of_another_kind_is_a_typed_error(tmp_path: Path) -> None:
    put_record(tmp_path / "x.json", HEADER)
    with pytest.raises(CorruptError, match="is not a LaneHeader"):
        read_record(tmp_path / "x.json", LaneHeader)


def test_a_second_writer_is_refused_with_the_first_ones_name(tmp_path: Path) -> None:
    first = FolderLock(tmp_path, new_writer_id())
    named = rf"is being written by process {os.getpid()} on {socket.gethostname()}\. Stop it, or choose another store$"
    with pytest.raises(LaneBusyError, match=named):
        FolderLock(tmp_path, "second-writer")
    first.release()
    first.release()
    FolderLock(tmp_path, "second-writer").release()


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from freshet_graph.stream.store.places.durable import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1]), 'doomed'); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(LaneBusyError, match="doomed"):
            FolderLock(tmp_path, "heir")
        process.send_signal(signal.SIGKILL)
        process.wait()
    FolderLock(tmp_path, "heir").release()


def test_a_crash_point_kills_at_the_pass_that_was_asked_for() -> None:
    code = (
        "from freshet_graph.stream.store.crash import crash_point\n"
        "for i in range(5): print(i, flush=True); crash_point('here')"
    )
    for wanted, seen in (("here:3", "0\n1\n2\n"), ("here", "0\n"), ("elsewhere", "0\n1\n2\n3\n4\n")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, VARIABLE: wanted},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == seen
        assert done.returncode == (0 if wanted == "elsewhere" else -signal.SIGKILL)


@pytest.mark.parametrize("pieces", [[0], [1, 0, 7], [1 << 16, 3, (1 << 24) + 5, (1 << 25) - 1]])
def test_what_is_written_out_early_is_every_byte_and_its_checksum_that_of_the_file(
    tmp_path: Path, pieces: list[int]
) -> None:
    content = [bytes(range(256)) * (length // 256) + b"x" * (length % 256) for length in pieces]
    with WriteOut(tmp_path / "x") as file:
        sink = file.native()
        for piece in content:
            sink.write(piece)
            assert sink.tell() == file.bytes
    assert (tmp_path / "x").read_bytes() == b"".join(content)
    assert file.checksum == checksum(tmp_path / "x")


def test_arrow_writes_out_the_bytes_that_it_writes_itself(tmp_path: Path) -> None:
    written = write_table(tmp_path, "x.arrow", TABLE)
    with pa.OSFile(str(tmp_path / "y"), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    assert (tmp_path / "x.arrow").read_bytes() == (tmp_path / "y").read_bytes()
    assert written.bytes == (tmp_path / "y").stat().st_size
