"""A job that is killed at any point of a commit and started again seals the same files, byte for byte."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.events import event_schema
from stream.store.crash import CRASH_POINTS, VARIABLE
from stream.store.log.reader import LogReader
from stream.store.verify.log import verify_log

JOB = Path(__file__).parents[1] / "support" / "crash_job.py"
PASS = {"store.created": 1, "commit.begun": 4, "file.torn": 12, "file.written": 17, "file.renamed": 15}
"""Which pass of a point is hit; elsewhere the third: files and records of the first commits are there by then."""


def run_job(store: Path, crash_at: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, VARIABLE: crash_at}
    return subprocess.run(
        [sys.executable, str(JOB), str(store)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def sealed_files(store: Path) -> dict[str, bytes]:
    folder = store / "log" / "snapshots"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.arrow"))}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("undisturbed")
    done = run_job(store)
    assert done.stdout == "done\n", done.stderr
    return store


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_kill_at_every_crash_point_changes_no_sealed_byte(
    point: str, undisturbed: Path, tmp_path: Path
) -> None:
    killed = run_job(tmp_path, f"{point}:{PASS.get(point, 3)}")
    assert killed.returncode == -signal.SIGKILL, f"{point} was not reached: {killed.stdout}{killed.stderr}"
    if point != "store.created":
        assert verify_log(tmp_path).problems == []
    again = run_job(tmp_path)
    assert again.stdout == "done\n", again.stderr
    assert sealed_files(tmp_path) == sealed_files(undisturbed)
    assert verify_log(tmp_path).problems == []
    assert leftovers(tmp_path) == []


def test_a_chain_of_kills_changes_no_sealed_byte(undisturbed: Path, tmp_path: Path) -> None:
    for point in CRASH_POINTS[1:]:
        killed = run_job(tmp_path, f"{point}:2")
        assert killed.returncode == -signal.SIGKILL, (
            f"{point} was not reached: {killed.stdout}{killed.stderr}"
        )
    assert run_job(tmp_path).stdout == "done\n"
    assert sealed_files(tmp_path) == sealed_files(undisturbed)
    expected, found = LogReader(undisturbed), LogReader(tmp_path)
    assert expected.last is not None and found.last is not None
    assert (found.last.positions, found.last.refused) == (expected.last.positions, expected.last.refused)
    assert found.last.late == 0


def test_the_job_is_worth_killing(undisturbed: Path) -> None:
    log = LogReader(undisturbed)
    assert len(log.snapshots) >= 10
    assert log.last is not None and log.last.refused["not_json"] > 5
    assert all(event_schema("int").names == log.events(s.tau).schema.names[:-2] for s in log.snapshots)


def leftovers(store: Path) -> list[str]:
    """Files that no commit names."""
    log = LogReader(store)
    assert log.last is not None
    commits = log.last.n + 1
    named = {f"commits/{n:016d}.json" for n in range(commits)} | {"log.json", "lock"}
    named |= {file.path for snapshot in log.snapshots for file in (snapshot.events, snapshot.nodes)}
    named |= {file.path for file in log.last.tail}
    files = {str(path.relative_to(store / "log")) for path in (store / "log").rglob("*") if path.is_file()}
    return sorted(name for name in files - named if not name.startswith("rejects/"))
