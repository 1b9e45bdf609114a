"""Killed or without power before any file operation of a checkpoint: the newest that was acknowledged is there, and whole."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from crash_disk import KINDS, CrashDisk, Moment, put, states

from freshet_graph.trainer.session.checkpoint import Checkpoints

SAVED, KEPT = 4, 2
FOLDER = "made/for/them"


def save(root: Path, sequence: int) -> None:
    state = {"sequence": sequence, "weights": torch.full((3,), sequence), "nodes": np.arange(sequence)}
    Checkpoints(root / FOLDER, KEPT).save(sequence, state)


def newest(root: Path) -> int:
    """Sequence of the newest checkpoint, all of whose content is that of its number; −1 without one."""
    found = Checkpoints(root / FOLDER, KEPT).newest()
    if found is None:
        return -1
    sequence = int(found[0].stem)
    assert found[1]["sequence"] == sequence
    assert found[1]["weights"].tolist() == [sequence] * 3
    assert found[1]["nodes"].tolist() == list(range(sequence))
    return sequence


@pytest.fixture(scope="module", params=["by the trainer", "by the first checkpoint"])
def moments(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Moment]:
    """The folder is made as it is held against a second trainer, or as something is saved in it."""
    root = tmp_path_factory.mktemp("checkpoints")
    disk = CrashDisk(root)
    with disk.watched():
        if request.param == "by the trainer":
            with Checkpoints(root / FOLDER, KEPT).alone():
                pass
        for sequence in range(SAVED):
            save(root, sequence)
            disk.acknowledge()
    assert newest(root) == SAVED - 1
    return disk.moments


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_before_any_file_operation_loses_no_checkpoint_that_was_acknowledged(
    kind: str, moments: list[Moment], tmp_path: Path
) -> None:
    assert len(moments) > 4 * SAVED
    for number, (moment, tree) in enumerate(states(moments, kind, alone=True)):
        root = put(tree, tmp_path / str(number))
        where = f"{kind} before: {moment.operation}"
        assert newest(root) >= moment.done - 1, where
        save(root, SAVED)
        assert newest(root) == SAVED, where
        assert not list((root / FOLDER).glob("*.tmp")), where
        shutil.rmtree(root)
