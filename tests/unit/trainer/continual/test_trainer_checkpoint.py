"""Checkpoints and the score file: whole or not there, each snapshot once, nothing that could run code."""

import errno
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sweeps import sweep

from freshet_graph.schemas.errors import one_line
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import LaneBusyError
from freshet_graph.trainer.continual.drift import weighted_mean
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.scoring.metrics import flat_figures
from freshet_graph.trainer.session.checkpoint import FORMAT, Checkpoints


def test_what_is_saved_comes_back_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "folder", keep=2)
    assert checkpoints.newest() is None
    for sequence in (1, 2, 10):
        state = {"a": {"b": np.arange(sequence)}, "w": torch.ones(2) * sequence, "n": sequence, "s": "x"}
        checkpoints.save(sequence, state)
    path, state = checkpoints.newest()
    assert path == checkpoints.newest_path()
    assert (state["sequence"], state["n"], state["s"]) == (10, 10, "x")
    assert state["a"]["b"].tolist() == list(range(10))
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == [f"{n:016d}.pt" for n in (2, 10)]


def test_a_crash_while_writing_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(0, {"n": 0})

    def crash(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crash)
        with pytest.raises(OSError, match="disk full"):
            checkpoints.save(1, {"n": 1})
    assert checkpoints.newest_path() == tmp_path / f"{0:016d}.pt"
    checkpoints.save(2, {"n": 2})
    assert [p.name for p in tmp_path.iterdir()] == [f"{2:016d}.pt"]


@pytest.mark.parametrize("content", [b"", b"not a checkpoint"], ids=["empty", "noise"])
def test_a_file_that_is_no_checkpoint_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{3:016d}.pt").write_bytes(content)
    with pytest.raises(Failure, match=rf"checkpoint {tmp_path}/0*3\.pt cannot be read .*Remove it"):
        Checkpoints(tmp_path, 1).newest()


@sweep
def test_a_checkpoint_with_a_changed_byte_is_damaged_wherever_it_is(step: int, tmp_path: Path) -> None:
    """torch loads most of them, with other numbers: it never compares the checksums of its own archive."""
    checkpoints = Checkpoints(tmp_path, 1)
    path = checkpoints.save(3, {"w": torch.arange(4), "n": {"s": "x"}})
    whole = path.read_bytes()
    mark = whole.rindex(b"xxh64:")
    for place in range(0, len(whole), step):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        if mark <= place < mark + len(b"xxh64:"):  # it looks like an older one, and all of it is there
            assert checkpoints.newest()[1]["w"].tolist() == [0, 1, 2, 3]
            continue
        with pytest.raises(Failure, match=rf"checkpoint {path} is damaged: it differs .*\. Remove it to"):
            checkpoints.newest()
    path.write_bytes(whole[:mark])  # as written before there were checksums
    assert checkpoints.newest()[1]["w"].tolist() == [0, 1, 2, 3]


def test_what_the_disk_refuses_is_told_with_the_key_and_no_checkpoint_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    path = checkpoints.save(0, {"n": 0})

    real = os.open

    def read_only(file: Path, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
        return real(file, flags, *mode)

    def unreadable(file: Path, **_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        with pytest.raises(Failure) as caught, checkpoints.alone():
            pass
    assert str(caught.value) == (
        f"folder {tmp_path} of checkpoints cannot be used: {tmp_path}/lock: open: Read-only file system (EROFS). Mount its "
        "file system for writing. Or choose another folder in the key checkpoint"
    )
    monkeypatch.setattr(torch, "load", unreadable)
    with pytest.raises(OSError, match="Input/output error") as refused:
        checkpoints.newest()
    assert one_line(refused.value).startswith(f"{path}: read: Input/output error (EIO). The disk fails")


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self._folder,)


@pytest.mark.parametrize("way", ["pickle alone", "as torch saves", "as torch saved once"])
def test_code_in_a_checkpoint_is_refused_and_never_runs(way: str, tmp_path: Path) -> None:
    path, made = tmp_path / f"{3:016d}.pt", tmp_path / "made"
    state = {"format": FORMAT, "sequence": 3, "weights": Code(made)}
    if way == "pickle alone":
        path.write_bytes(pickle.dumps(state, protocol=2))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=way == "as torch saves")
    with pytest.raises(Failure, match=rf"checkpoint {path} cannot be read .*. Remove it"):
        Checkpoints(tmp_path, 1).newest()
    assert not made.exists()


def test_another_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / f"{0:016d}.pt")
    with pytest.raises(Failure, match="has format 99, this release reads 2"):
        Checkpoints(tmp_path, 1).newest()


def test_lines_beyond_the_checkpoint_and_torn_ones_go(tmp_path: Path) -> None:
    scores = ScoreFile(tmp_path)
    scores.cut_after(None)  # nothing there
    for sequence in range(4):
        scores.append({"sequence": sequence, "ap": sequence / 4})
    with scores.path.open("a", encoding="utf-8") as file:
        file.write('{"sequence": 4, "a')
    assert [line["sequence"] for line in scores.lines()] == [0, 1, 2, 3]
    scores.cut_after(1)
    assert [json.loads(text)["sequence"] for text in scores.path.read_text().splitlines()] == [0, 1]
    scores.cut_after(None)
    assert scores.lines() == []


@pytest.mark.parametrize("damage", [b"{garbage", b"[1]", b'{"ap": 1}', b"\xff\xfe"])
def test_a_damaged_line_of_scores_is_told_by_its_number(damage: bytes, tmp_path: Path) -> None:
    scores = ScoreFile(tmp_path)
    scores.append({"sequence": 0})
    scores.path.write_bytes(scores.path.read_bytes() + damage + b"\n" + scores.path.read_bytes())
    with pytest.raises(Failure, match=r"scores.jsonl: line 2 is damaged. Remove the line"):
        scores.lines()


def test_keys_of_figures_and_means_over_lines() -> None:
    figures = {("ap", "all", "model"): 1.0, ("auc", "inductive", "recency"): 0.5}
    assert flat_figures(figures) == {"ap": 1.0, "recency_inductive_auc": 0.5}
    lines = [{"ap": 1.0, "scored": 1}, {"ap": 0.0, "scored": 3}, {"scored": 5}]
    assert weighted_mean(lines, "ap", "scored") == 0.25
    assert weighted_mean(lines, "mrr", "scored") is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_told_as_such_whatever_torch_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(0, {"a": torch.zeros(3)})
    opened = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda path, *how: opened(Path("/dev/full") if path.name.endswith(".pt.tmp") else path, *how),
    )
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints.save(1, {"a": torch.zeros(50_000)})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:016d}.pt"]


def test_a_second_trainer_on_one_folder_is_refused_until_the_first_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshet_graph.trainer.session.checkpoint.LET_GO_S", 0.2)
    folder = tmp_path / "made" / "checkpoints"
    with (
        Checkpoints(folder, 1).alone(),
        pytest.raises(LaneBusyError, match="choose another folder in the key checkpoint"),
        Checkpoints(folder, 2).alone(),
    ):
        pass
    with Checkpoints(folder, 1).alone():
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(Failure, match=r"of checkpoints cannot be used: .*[.] Or choose"),
        Checkpoints(tmp_path / "file", 1).alone(),
    ):
        pass
