"""Kernels can be kept whoever runs the services, and where."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from freshet_graph.stream import compiled
from freshet_graph.stream.compiled import FOLDER, compiling, kernels_folder
from freshet_graph.stream.kernels import njit


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which only the folder for temporary files can be written to."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(compiled, "_writable", lambda folder: False)
    monkeypatch.delenv(FOLDER, raising=False)


def test_where_nothing_else_can_be_written_kernels_go_to_the_folder_for_temporary_files(
    tmp_path: Path,
) -> None:
    first = kernels_folder()
    assert first is not None
    assert first.parent == tmp_path / "tmp"
    assert first.stat().st_mode & 0o077 == 0, "kernels are code: nobody else may put any there"
    assert kernels_folder() == first, "the next process finds them"


def test_a_folder_that_can_only_be_read_is_where_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "image" / "json_kernel_0"
    shipped.mkdir(parents=True)
    (shipped / "kernel.nbi").write_bytes(b"compiled")
    for folder in (shipped, shipped.parent):
        folder.chmod(0o555)
    monkeypatch.setenv(FOLDER, str(tmp_path / "image"))
    own = kernels_folder()
    assert own is not None
    assert own != tmp_path / "image"
    assert (own / "json_kernel_0" / "kernel.nbi").read_bytes() == b"compiled"
    assert [folder.stat().st_mode & 0o777 for folder in (own, own / "json_kernel_0")] == [0o700] * 2


def test_kernels_that_somebody_else_left_there_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "tmp" / f"freshet-kernels-{os.getuid() + 1}"
    trap.mkdir()
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    assert kernels_folder() != trap
    assert list(trap.iterdir()) == []


def test_a_folder_that_can_be_written_to_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(FOLDER, str(tmp_path / "kept"))
    assert kernels_folder() is None


def test_what_is_compiled_is_counted_once() -> None:
    @njit
    def double(values):  # type: ignore[no-untyped-def]
        return values * 2

    with compiling() as found:
        double(np.ones(2))
        double(np.ones(3))
    assert [name.rsplit(".", 1)[1] for name in found] == ["double"]
    double(np.ones(2, np.int64))
    assert len(found) == 1


def test_kernels_kept_under_a_module_that_has_moved_are_compiled_again(tmp_path: Path) -> None:
    kernel = (
        "from {} import Pair\nfrom freshet_graph.stream.kernels import njit\n"
        "@njit(cache=True)\ndef add(pair): return pair.a + pair.b\n"
    )
    call = "import kernel; print(kernel.add(kernel.Pair(1, 2)), sum(kernel.add.stats.cache_hits.values()))"
    environment = {**os.environ, FOLDER: str(tmp_path / "kept"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def hits() -> str:
        command = [sys.executable, "-c", call]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    pair = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: int\n    b: int\n"
    (tmp_path / "before.py").write_text(pair)
    (tmp_path / "kernel.py").write_text(kernel.format("before"))
    assert [hits(), hits()] == ["3 0\n", "3 1\n"]
    (tmp_path / "before.py").rename(tmp_path / "moved.py")
    (tmp_path / "kernel.py").write_text(kernel.format("moved"))
    assert [hits(), hits()] == ["3 0\n", "3 1\n"], "kept under its new name"
