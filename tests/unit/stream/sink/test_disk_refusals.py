"""A disk that refuses: the sentence has the file, the operation, the reason and a remedy, and is never about damage."""

import errno
import fcntl
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from compacted import grown
from typer.testing import CliRunner

from freshet_graph import open_store
from freshet_graph.stream.commands.compact import compact
from freshet_graph.stream.commands.verify import verify
from freshet_graph.stream.store.files import data
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.sweep import COMPACTION, lock_folder
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.place import place_of

SNAPSHOTS = 20

app = typer.Typer()
app.command("compact")(compact)
app.command("verify")(verify)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grown(tmp_path_factory.mktemp("store"), end=SNAPSHOTS)


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def refuse(
    patch: pytest.MonkeyPatch, module: Any, function: str, number: int, where: Callable[[str], bool]
) -> None:
    """Have a function of the system fail for some files; as the kernel's, without a name where it has none."""
    real = getattr(module, function)

    def call(file: Any, *given: Any, **more: Any) -> Any:
        path = str(Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else file)
        if where(path):
            raise OSError(number, os.strerror(number), *(() if isinstance(file, int) else (path,)))
        return real(file, *given, **more)

    patch.setattr(module, function, call)


def told(command: str, store: Path) -> str:
    done = CliRunner().invoke(app, [command, str(store)])
    assert done.exit_code == 1, done.output
    (sentence,) = done.output.splitlines()
    return sentence


NO_FOLDER_SYNC = "This file system cannot make names durable"
NO_LOCKS = "This file system has no locks"


@pytest.mark.parametrize(
    ("module", "function", "number", "only", "words"),
    [
        (os, "fsync", errno.EINVAL, os.path.isdir, f": fsync: Invalid argument (EINVAL). {NO_FOLDER_SYNC}"),
        (os, "fsync", errno.EIO, os.path.isfile, ".tmp: fsync: Input/output error (EIO). The disk fails"),
        (fcntl, "flock", errno.ENOLCK, None, f"lock: flock: No locks available (ENOLCK). {NO_LOCKS}"),
        (fcntl, "flock", errno.ENOTSUP, None, f"lock: flock: Operation not supported (ENOTSUP). {NO_LOCKS}"),
        (os, "link", errno.EIO, None, ".tmp: link: Input/output error (EIO). The disk fails"),
        (os, "mkdir", errno.EROFS, None, "/index: mkdir: Read-only file system (EROFS). Mount"),
        (os, "mkdir", errno.ENOTDIR, None, "/index: mkdir: Not a directory (ENOTDIR). A file is where a folder should be"),
        (os, "rename", errno.EACCES, None, ".tmp: rename: Permission denied (EACCES). Give the user"),
        (os, "listdir", errno.ESTALE, None, ": list: Stale file handle (ESTALE). The server"),
        (io, "open", errno.EMFILE, None, "log.json: read: Too many open files (EMFILE). This process may have "),
    ],
)  # fmt: skip
def test_a_refused_call_is_a_sentence_with_file_operation_reason_and_remedy(
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    function: str,
    number: int,
    only: Callable[[str], bool] | None,
    words: str,
) -> None:
    refuse(monkeypatch, module, function, number, lambda p: str(store) in p and (only is None or only(p)))
    sentence = told("compact", store)
    assert sentence.startswith(f"error: {store}/"), sentence
    assert words in sentence


def test_bytes_that_do_not_reach_the_disk_are_told_by_their_file(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, content: Any) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    real = io.open
    monkeypatch.setattr(
        io, "open", lambda file, *how, **more: Full() if "w" in str(how) + str(more) else real(file, *how, **more)
    )  # fmt: skip
    assert "/log/index/" in (sentence := told("compact", store))
    assert ": write: Input/output error (EIO). The disk fails" in sentence


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOMEM])
def test_what_cannot_be_read_is_not_called_damaged(
    store: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for module, function in ((io, "open"), (pa, "memory_map")):
        refuse(monkeypatch, module, function, number, lambda path: path.endswith("events.arrow"))
    sentence = told("verify", store)
    reason = f"read: {os.strerror(number)} ({errno.errorcode[number]}). "
    assert sentence.startswith(f"error: {store}/log/snapshots/0/events.arrow: {reason}")
    assert "amage" not in sentence
    assert "copy" not in sentence


def test_a_lack_of_memory_for_content_is_not_called_damage(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(buffer: pa.Buffer) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(data, "open_bounded", exhausted)
    assert ": read: Cannot allocate memory (ENOMEM). Free some memory" in told("verify", store)


def mapped(store: Path) -> int:
    """Files of a store that this process has mapped."""
    return Path("/proc/self/maps").read_text().count(f" {store}/")


def test_a_table_of_many_snapshots_maps_few_files(store: Path) -> None:
    events = open_store(store).events()
    assert mapped(store) == 0
    assert events["t"].num_chunks > SNAPSHOTS, "it is no copy in one piece"


def test_a_long_file_is_mapped_and_read_where_the_system_maps_none(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MAPPED_BYTES", 1)
    log = LogReader(store)
    reference = log.snapshots[0].events
    table = read_table(log.root, reference)
    assert mapped(store) == 1
    refuse(monkeypatch, pa, "memory_map", errno.ENODEV, lambda path: True)
    assert read_table(log.root, reference).equals(table)
    assert mapped(store) == 1


def test_a_compaction_that_another_one_refuses_says_to_try_again(store: Path) -> None:
    lock = lock_folder(place_of(store) / "log", "the-stream-job", COMPACTION)
    try:
        sentence = told("compact", store)
    finally:
        lock.release()
    assert sentence == f"error: {store}/log is being compacted by the-stream-job. Try again once it is done"
