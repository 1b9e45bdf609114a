"""A lane whose writer is killed at any point of a commit gets the same files, byte for byte, when it goes on."""

import shutil
import signal
from pathlib import Path

import pytest
from lane_crash_job import catch_up
from lane_stream import lane, lane_files, make_store

from freshet_graph.stream.store.crash import CRASH_POINTS
from freshet_graph.stream.store.lane.layout import COMMITS
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.verify.store import verify

LANES = {"distdy": lane("distdy"), "sep": lane("sep", edge_life=2)}
POINTS = [
    *(("distdy", f"{point}:1") for point in CRASH_POINTS[1:]),
    *(("sep", f"{point}:4") for point in CRASH_POINTS[1:]),
    *(("sep", f"{point}:{k}") for point in ("file.torn", "file.renamed") for k in (2, 3, 5, 13, 17)),
]
"""Points and passes: every file of a snapshot, records of header and manifests, with and without base and state."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("undisturbed"), *LANES.values())


def run(processes, store: Path, name: str, crash_at: str = "") -> int:
    job = processes.Process(target=catch_up, args=(store, LANES[name], crash_at))
    job.start()
    job.join(180)
    return job.exitcode


def without_lane(undisturbed: Path, store: Path) -> None:
    shutil.copytree(undisturbed / "log", store / "log")


def leftovers(store: Path, name: str) -> set[str]:
    """Files that no manifest names."""
    reader = LaneReader(store, name)
    named = {"lane.json", "lock"}
    states = [m.state for m in reader.manifests if m.state][-2:]
    for manifest in reader.manifests:
        named.add(f"{COMMITS}/{manifest.tau}.json")
        data = (manifest.assignment, manifest.edges, manifest.segments, manifest.event_parts, manifest.base)
        named |= {file.path for file in data if file}
    named |= {state.path for state in states}
    found = {str(path.relative_to(reader.root)) for path in reader.root.rglob("*") if path.is_file()}
    return found ^ named


@pytest.mark.parametrize(("name", "point"), POINTS)
def test_a_kill_at_every_crash_point_changes_no_byte(processes, undisturbed, tmp_path, name, point):
    without_lane(undisturbed, tmp_path)
    assert run(processes, tmp_path, name, point) == -signal.SIGKILL, f"{point} was not reached"
    assert verify(tmp_path).problems == []
    assert run(processes, tmp_path, name) == 0
    assert lane_files(tmp_path, name) == lane_files(undisturbed, name)
    assert verify(tmp_path).problems == []
    assert leftovers(tmp_path, name) == set()


@pytest.mark.parametrize("name", LANES)
def test_a_chain_of_kills_changes_no_byte(processes, undisturbed, tmp_path, name):
    without_lane(undisturbed, tmp_path)
    for point in ("record.linked", "file.torn", "files.named", "record.named", "file.renamed", "commit.done"):
        assert run(processes, tmp_path, name, f"{point}:2") == -signal.SIGKILL
    assert run(processes, tmp_path, name) == 0
    assert lane_files(tmp_path, name) == lane_files(undisturbed, name)
    assert leftovers(tmp_path, name) == set()


def test_the_lanes_are_worth_killing(undisturbed):
    for name in LANES:
        found = LaneReader(undisturbed, name).manifests
        assert len(found) == 8
        assert sum(manifest.base is not None for manifest in found) == 2
        assert sum(manifest.state is not None for manifest in found) >= 3
    assert any(manifest.event_parts for manifest in LaneReader(undisturbed, "sep").manifests)
