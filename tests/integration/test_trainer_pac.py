"""``pac`` as users start it: two ranks that are killed, or told to end, go on with the same numbers."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_processes import PATIENCE_S, configure, numbers, ranks_of, run_to_end, scored, started, until
from trainer_streams import SECOND, held_back, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.stream.store.from_file import build_store

SNAPSHOTS = 12


def pac(folder: Path, store: Path) -> Path:
    return configure(
        folder,
        store=str(store),
        lane="sep",
        model="tgn-history",
        model_params={"memory": 8, "time_width": 8},
        strategy="pac",
        strategy_params={"shuffle_every": 2},
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pac") / "store"
    lane = Lane(name="sep", algorithm="sep", parts=4, params={"hubs": 0.1})
    events = meetings(snapshots=SNAPSHOTS, a_snapshot=80, nodes=60, features=False)
    return build_store(events, folder, interval_us=SECOND, lanes=[lane], graph="meetings")


@pytest.fixture(scope="module")
def straight(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The lines of an uninterrupted run with two ranks."""
    folder = tmp_path_factory.mktemp("straight")
    assert run_to_end(pac(folder, store), 2)["snapshots"] == SNAPSHOTS
    lines = scored(folder)
    assert sum(line["discarded"] for line in lines) > 0
    assert all(line["trained"] + line["discarded"] == line["scored"] for line in lines[1:])
    return lines


@pytest.mark.slow
def test_after_kill_nine_of_each_rank_torchrun_goes_on_with_the_same_numbers(
    store: Path, straight: list[dict], tmp_path: Path
) -> None:
    """``benchmarks/live_ranks.py`` does it 20 times."""
    shutil.copytree(store, tmp_path / "store")
    go_on = held_back(tmp_path / "store", "sep", 9)
    config = pac(tmp_path, tmp_path / "store")
    torchrun = "torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=5 --monitor-interval=0.2"
    command = f"{torchrun} --log-dir={tmp_path / 'ranks'} -m freshet_graph.trainer.cli run --config {config} --until-idle 5"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split()],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=log,
            stderr=log,
        )
        try:
            for victim, lines in enumerate((3, 7)):
                until(lambda lines=lines: len(scored(tmp_path)) >= lines, f"snapshot {lines}")
                ranks_of(process)[victim].kill()
            go_on()
            assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
        finally:
            for child in [*ranks_of(process), process]:
                child.kill()
            process.wait()
    assert numbers(scored(tmp_path)) == numbers(straight)


def test_after_sigterm_it_resumes_with_the_same_numbers(
    store: Path, straight: list[dict], tmp_path: Path
) -> None:
    config = pac(tmp_path, store)
    with started("run", "--config", str(config), "--ranks", "2", "--json") as process:
        until(lambda: len(scored(tmp_path)) >= 3, "the third snapshot")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    before = json.loads(out)["snapshots"]
    assert before >= 3
    assert run_to_end(config, 2)["snapshots"] == SNAPSHOTS - before
    assert numbers(scored(tmp_path)) == numbers(straight)
