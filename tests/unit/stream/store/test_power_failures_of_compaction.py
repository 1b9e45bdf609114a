"""Killed or without power before any file operation of a compaction: what is to be kept is there, whatever was dropped."""

import shutil
from pathlib import Path

import pytest
from compacted import catch_up, log_content, seal, seen
from crash_disk import CrashDisk, Moment, put, states
from lane_stream import lane, random_events
from sweeps import sweep

from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify

LANE = lane("sep", edge_life=2, base_every=2, window=2)
EVENTS = random_events(snapshots=7, a_snapshot=12, nodes=10)
KEEP = Keep(snapshots=3)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was compacted once and grew since, so that an older index, ids and bases are there to be replaced."""
    store = tmp_path_factory.mktemp("before") / "store"
    seal(store, 0, 5, EVENTS)
    catch_up(store, LANE)
    compact(store, KEEP, always=True)
    seal(store, 5, 7, EVENTS)
    catch_up(store, LANE)
    assert verify(store).problems == []
    return store


@pytest.fixture(scope="module")
def moments(before: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Moment]:
    store = Path(shutil.copytree(before, tmp_path_factory.mktemp("compacted") / "store"))
    disk = CrashDisk(store)
    with disk.watched():
        done = compact(store, KEEP, always=True)
        disk.acknowledge()
    assert done.dropped == 2
    return disk.moments


def content(store: Path) -> list[object]:
    """All that is read of the snapshots that both sides keep."""
    return [*log_content(store, 4), *seen(store, "sep", 4, window=2)]


@sweep
@pytest.mark.parametrize("kind", ["killed", "powerless", "mixed"])
def test_a_crash_before_any_file_operation_of_a_compaction_keeps_what_is_to_be_kept(
    kind: str, before: Path, moments: list[Moment], tmp_path: Path, step: int
) -> None:
    expected = content(before)
    assert len(moments) > 40
    for number, (moment, tree) in enumerate(states(moments[::step], kind)):
        store = put(tree, tmp_path / str(number))
        where = f"{kind} before: {moment.operation}"
        assert verify(store).problems == [], where
        disk = CrashDisk(store, killed_at=moment if kind == "killed" else None)
        with disk.watched():
            compact(store, KEEP)  # what was begun is swept
        if kind == "killed" and moment.killed() != moment.powerless():
            left_over = list(states(disk.moments, "powerless", alone=True))
            for again, (end, left) in enumerate(left_over[number % 12 :: 12]):
                after = put(left, tmp_path / f"{number}-{again}")
                assert verify(after).problems == [], f"{where}, then without power before: {end.operation}"
                assert content(after) == expected, f"{where}, then without power before: {end.operation}"
                shutil.rmtree(after)
        compact(store, KEEP, always=True)
        assert LogReader(store).snapshots.first == 4, where
        assert content(store) == expected, where
        shutil.rmtree(store)
