"""A job that is killed at any point of a commit and started again seals the same files, byte for byte."""

import signal
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from crash_job import NUM_LABELS, seal_everything

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.store.crash import CRASH_POINTS
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.log import verify_log

PASS = {"store.created": 1, "commit.begun": 4, "file.torn": 12, "file.written": 17, "file.renamed": 15}
"""Which pass of a point is hit; elsewhere the third: files and records of the first commits are there by then."""


def run_job(processes: ForkServerContext, store: Path, crash_at: str = "") -> int | None:
    """Exit code of a job; 0: everything is sealed."""
    job = processes.Process(target=seal_everything, args=(store, crash_at))
    job.start()
    job.join(120)
    return job.exitcode


def sealed_files(store: Path) -> dict[str, bytes]:
    folder = store / "log" / "snapshots"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.arrow"))}


@pytest.fixture(scope="module")
def undisturbed(processes: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("undisturbed")
    assert run_job(processes, store) == 0
    return store


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_kill_at_every_crash_point_changes_no_sealed_byte(
    point: str, processes: ForkServerContext, undisturbed: Path, tmp_path: Path
) -> None:
    killed = run_job(processes, tmp_path, f"{point}:{PASS.get(point, 3)}")
    assert killed == -signal.SIGKILL, f"{point} was not reached"
    if point != "store.created":
        assert verify_log(tmp_path).problems == []
    assert run_job(processes, tmp_path) == 0
    assert sealed_files(tmp_path) == sealed_files(undisturbed)
    assert labels(tmp_path) == labels(undisturbed)
    assert verify_log(tmp_path).problems == []
    assert leftovers(tmp_path) == []


def test_a_chain_of_kills_changes_no_sealed_byte(
    processes: ForkServerContext, undisturbed: Path, tmp_path: Path
) -> None:
    for point in CRASH_POINTS[1:]:
        assert run_job(processes, tmp_path, f"{point}:2") == -signal.SIGKILL, f"{point} was not reached"
    assert run_job(processes, tmp_path) == 0
    assert sealed_files(tmp_path) == sealed_files(undisturbed)
    assert labels(tmp_path) == labels(undisturbed)
    expected, found = LogReader(undisturbed), LogReader(tmp_path)
    assert expected.last is not None and found.last is not None
    assert (found.last.positions, found.last.refused) == (expected.last.positions, expected.last.refused)
    assert found.last.late == 0


def test_the_job_is_worth_killing(undisturbed: Path) -> None:
    log = LogReader(undisturbed)
    assert len(log.snapshots) >= 10
    assert log.last is not None and log.last.refused["not_json"] > 5
    assert log.last.num_labels == NUM_LABELS and len(log.label_files) > 3
    assert all(event_schema("int").names == log.events(s.tau).schema.names[:-2] for s in log.snapshots)


def labels(store: Path) -> list[dict[str, object]]:
    """All labels in order; a kill may move them to another commit."""
    return LogReader(store).labels().drop_columns(["commit", "visible_us"]).to_pylist()


def leftovers(store: Path) -> list[str]:
    """Files that no commit names."""
    log = LogReader(store)
    assert log.last is not None
    commits = log.last.n + 1
    named = {f"commits/{n:016d}.json" for n in range(commits)} | {"log.json", "lock"}
    named |= {file.path for snapshot in log.snapshots for file in snapshot.files}
    named |= {file.path for file in log.last.tail} | {file.reference.path for file in log.label_files}
    files = {str(path.relative_to(store / "log")) for path in (store / "log").rglob("*") if path.is_file()}
    return sorted(name for name in files - named if not name.startswith("rejects/"))
