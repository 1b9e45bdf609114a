"""Ranks on several hosts, which share a store but no folder of checkpoints: started by the environment alone."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml
from log_lines import error_of
from trainer_processes import PATIENCE_S, configure, numbers, run_to_end, scored, started, until
from trainer_streams import held_back, make_lane, meetings

IMPATIENT = Path(__file__).parent / "impatient"
SNAPSHOTS = 12
STOP = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    make_lane(folder / "store", events=meetings(snapshots=SNAPSHOTS, a_snapshot=80), parts=2)
    return folder / "store"


@pytest.fixture(scope="module")
def straight(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The lines of an uninterrupted run of two ranks on one host."""
    folder = tmp_path_factory.mktemp("straight")
    run_to_end(configure(folder, store=str(store)), 2)
    return scored(folder)


@pytest.fixture
def address() -> tuple[str, str]:
    """Of rank 0's store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "127.0.0.1", str(free.getsockname()[1])


def host(
    folders: list[Path], address: tuple[str, str], *arguments: str, rank: int, **more: str
) -> AbstractContextManager[subprocess.Popen]:
    """``run`` on one of the hosts, with the configuration of its folder; for ``more`` see ``started``."""
    return started(
        "run", "--config", str(folders[rank] / "trainer.yaml"), "--json", *arguments,
        RANK=str(rank), WORLD_SIZE=str(len(folders)), MASTER_ADDR=address[0], MASTER_PORT=address[1], **more,
    )  # fmt: skip


@contextmanager
def hosts(
    folders: list[Path], address: tuple[str, str], *arguments: str, **more: str
) -> Iterator[list[subprocess.Popen]]:
    """``host`` on each of them."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(host(folders, address, *arguments, rank=rank, **more))
            for rank in range(len(folders))
        ]


@pytest.fixture
def folders(store: Path, tmp_path: Path) -> list[Path]:
    """Those of two hosts, with one store."""
    shutil.copytree(store, tmp_path / "store")
    hosts = [tmp_path / "a", tmp_path / "b"]
    for folder in hosts:
        folder.mkdir()
        configure(folder, store=str(tmp_path / "store"))
    return hosts


def ended(processes: list[subprocess.Popen]) -> list[tuple[str, str]]:
    return [process.communicate(timeout=PATIENCE_S) for process in processes]


@pytest.mark.parametrize("left", ["nothing", "older"])
def test_a_host_resumes_from_what_rank_0_has_and_not_from_its_own_folder(
    folders: list[Path], straight: list[dict], address: tuple[str, str], left: str
) -> None:
    first, second = folders
    go_on = held_back(folders[0].parent / "store", "hash", STOP)
    with hosts(folders, address) as processes:
        until(lambda: len(scored(first)) == 2, "the second snapshot")
        if left == "older":  # as of a time when this host had rank 0
            newest = max((first / "checkpoints").glob("*.pt"))
            (second / "checkpoints").mkdir()
            shutil.copy(newest, second / "checkpoints")
        until(lambda: len(scored(first)) == STOP, "the last snapshot")
        for process in processes:
            process.send_signal(signal.SIGTERM)
        out = ended(processes)
    assert [process.returncode for process in processes] == [0, 0], out
    assert json.loads(out[0][0])["snapshots"] == STOP
    assert out[1][0] == "", "one rank prints"
    go_on()
    with hosts(folders, address, "--until-idle", "1") as processes:
        out = ended(processes)
    assert [process.returncode for process in processes] == [0, 0], out
    assert numbers(scored(first)) == numbers(straight)


@pytest.mark.slow
def test_a_host_that_is_silent_for_a_minute_ends_the_attempt(
    folders: list[Path], address: tuple[str, str]
) -> None:
    """Six seconds here."""
    first, _ = folders
    held_back(folders[0].parent / "store", "hash", STOP)
    impatient = os.pathsep.join([str(IMPATIENT), os.environ.get("PYTHONPATH", "")])
    with hosts(folders, address, cold=True, LOST_S="6", PYTHONPATH=impatient) as processes:
        until(lambda: len(scored(first)) == STOP, "the last snapshot")
        processes[1].send_signal(signal.SIGSTOP)
        _, err = processes[0].communicate(timeout=PATIENCE_S)
    assert processes[0].returncode == 1
    assert error_of(err).startswith("rank 1 has been silent for 6 seconds, so this attempt ends")


def test_hosts_with_two_configurations_end_with_one_sentence(
    folders: list[Path], address: tuple[str, str]
) -> None:
    path = folders[1] / "trainer.yaml"
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(values | {"seed": 5}))
    with hosts(folders, address) as processes:
        out = ended(processes)
    for process, (_, err) in zip(processes, out, strict=True):
        assert process.returncode == 1
        assert error_of(err).startswith(
            "the configuration of rank 1 is not that of rank 0. Give all ranks the same file"
        )


def test_hosts_that_are_killed_are_started_again_one_by_one_and_learn_each_snapshot_once(
    folders: list[Path], straight: list[dict], address: tuple[str, str]
) -> None:
    """By a supervisor on each host, which knows nothing of the others."""
    first, _ = folders
    go_on = held_back(folders[0].parent / "store", "hash", STOP)
    with ExitStack() as stack:
        start = partial(host, folders, address, "--until-idle", "5")
        processes = [stack.enter_context(start(rank=rank)) for rank in (0, 1)]
        until(lambda: len(scored(first)) == STOP - 1, "the third snapshot")
        processes[1].kill()
        until(lambda: len(scored(first)) == STOP or processes[0].poll() is not None, "the end of the attempt")
        processes[1].wait()
        starts = 0
        while (codes := [process.poll() for process in processes]) != [0, 0]:
            for rank, code in enumerate(codes):
                if code not in (None, 0):
                    starts += 1
                    processes[rank] = stack.enter_context(start(rank=rank))
                    if starts == 2:
                        until(lambda: len(scored(first)) == STOP, "the fourth snapshot")
                        go_on()
                        until(lambda: len(scored(first)) > STOP, "the fifth snapshot")
                        processes[0].kill()
            assert starts < 12
            time.sleep(0.2)
    assert numbers(scored(first)) == numbers(straight)
