"""Several ranks compute what one rank computes, whatever the partition."""

import json
import os
import socket
import subprocess
from pathlib import Path

import every_collective
import pytest
import rank_numbers
import torch
from rank_equality import require_equal
from rank_numbers import numbers, small_batches
from thread_ranks import FakeLink, side_by_side
from trainer_processes import PATIENCE_S
from trainer_streams import make_lane, meetings
from warm_popen import WarmPopen

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import join_ranks

SCRIPT = Path(rank_numbers.__file__)


def run_ranks(size: int, script: Path, *arguments: str) -> None:
    """Start ``size`` processes with torchrun's environment and wait for all of them."""
    for _ in range(3):  # a free port may be taken between asking for it and binding it
        codes, errors = tried(size, script, *arguments)
        if "EADDRINUSE" not in errors:
            break
    assert codes == [0] * size, errors


def tried(size: int, script: Path, *arguments: str) -> tuple[list[int], str]:
    """Exit codes, and what was written to standard error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = [
        WarmPopen(
            ["python", str(script), *arguments],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.returncode for rank in ranks], "\n".join(errors)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "parts"), [(2, 2), (3, 4)])
def test_several_processes_compute_what_one_computes(size: int, parts: int, tmp_path: Path) -> None:
    """Losses, gradients, weights, predictions and embeddings, in float64 to 1e-10 and in float32 to 1e-5."""
    make_lane(tmp_path / "store", events=meetings(snapshots=5, a_snapshot=40), parts=parts)
    run_ranks(size, SCRIPT, str(tmp_path / "store"), "hash", str(tmp_path / "out"))
    several = torch.load(tmp_path / "out", weights_only=True)
    one = numbers(str(tmp_path / "store"), "hash", Ranks())
    assert several["numbers"].keys() == one.keys()
    for key, wanted in one.items():
        dtype = torch.float64 if "float64" in key else torch.float32
        require_equal(several["numbers"][key], wanted, dtype)
    assert several["few"] == small_batches(str(tmp_path / "store"), "hash", Ranks())
    assert min(several["sent"]) > 0, (
        "features, embeddings, gradients and memory crossed ranks and were counted"
    )


@pytest.mark.slow
def test_a_rank_without_any_node_takes_part_without_hanging(tmp_path: Path) -> None:
    """Three parts of which the partitioner, seeing two nodes only, leaves some empty."""
    make_lane(
        tmp_path / "store", events=meetings(snapshots=3, a_snapshot=30, nodes=2, features=False), parts=3
    )
    run_ranks(3, SCRIPT, str(tmp_path / "store"), "hash", str(tmp_path / "out"))
    assert torch.load(tmp_path / "out", weights_only=True)["few"]["finite"]


def test_processes_compute_and_count_what_threads_do(tmp_path: Path) -> None:
    """So what is tested on threads, of which only the link is another one, holds for processes."""
    run_ranks(2, Path(every_collective.__file__), str(tmp_path / "found"))
    found = [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in range(2)]
    assert found == json.loads(json.dumps(side_by_side(2, every_collective.told, FakeLink(1.0, 1.0))))


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("model", "threads", "environment", "expected"),
    [
        ("tgn-history", None, {}, 1),
        ("tgn-history", 2, {}, 2),
        ("tgn-history", None, {"OMP_NUM_THREADS": "3"}, 3),
        ("tgcn", None, {}, CORES),
        ("tgcn", None, {"LOCAL_WORLD_SIZE": str(CORES)}, 1),
        ("tgcn", None, {"OMP_NUM_THREADS": "3"}, 3),
        ("tgcn", 1, {"OMP_NUM_THREADS": "3"}, 1),
    ],
)
def test_an_event_model_has_one_thread_and_a_snapshot_model_the_ranks_cores_unless_told_otherwise(
    model: str,
    threads: int | None,
    environment: dict[str, str],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)  # as OMP_NUM_THREADS has torch begin
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        join_ranks(TrainerConfig(model=model, threads=threads, device="cpu"))
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
