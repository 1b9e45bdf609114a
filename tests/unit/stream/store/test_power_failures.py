"""Killed or without power before any file operation, with any write torn: what was acknowledged is there, all else can go on."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from crash_disk import KINDS, CrashDisk, Moment, Tree, put, states
from lane_stream import lane, lane_files, make_store, random_events
from sweeps import sweep
from written_log import commits, durable_in_log, write_log, write_log_again_and_again

from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.verify.store import verify

LANE = lane("sep", edge_life=2, base_every=2)
SNAPSHOTS = 3


def sealed_files(store: Path) -> dict[str, bytes]:
    folder = store / "log" / "snapshots"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.arrow"))}


def write_lane(store: Path, acknowledge: Callable[[], None]) -> None:
    """Go on where the lane stands."""
    with LaneWriter(store, LANE, observer=lambda _: acknowledge()) as writer:
        writer.catch_up()


@dataclass(frozen=True)
class Part:
    """What is written of a store, and what of it is there.

    Attributes:
        write: Goes on where it stands.
        files: Bytes that are the same however often it was interrupted.
        durable: How much of what ``write`` acknowledges is there.
        whole: All of it.
    """

    write: Callable[[Path, Callable[[], None]], None]
    files: Callable[[Path], dict[str, bytes]]
    durable: Callable[[Path], int]
    whole: int


PARTS = {
    "log": Part(write_log, sealed_files, durable_in_log, 2 + len(commits())),
    "lane": Part(
        write_lane,
        lambda store: lane_files(store, "sep"),
        lambda store: len(list((store / "lanes/sep/commits").glob("*.json"))),
        SNAPSHOTS,
    ),
}
Watched = dict[str, tuple[list[Moment], dict[str, bytes]]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Moments of each part, and its files in the end."""
    found: Watched = {}
    for name, part in PARTS.items():
        store = tmp_path_factory.mktemp(name)
        if name == "lane":
            make_store(store, events=random_events(snapshots=SNAPSHOTS, a_snapshot=12, nodes=10))
        disk = CrashDisk(store)
        with disk.watched():
            part.write(store, disk.acknowledge)
        assert disk.done == part.whole
        assert verify(store).problems == []
        found[name] = disk.moments, part.files(store)
    return found


@sweep
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PARTS)
def test_a_crash_before_any_file_operation_loses_nothing_acknowledged(
    name: str, kind: str, watched: Watched, tmp_path: Path, step: int
) -> None:
    part, (moments, expected) = PARTS[name], watched[name]
    assert len(moments) > 60
    for number, (moment, tree) in enumerate(states(moments[::step], kind)):
        store = put(tree, tmp_path / str(number))
        where = f"{kind} before: {moment.operation}"
        if (store / "log/log.json").exists():
            assert verify(store).problems == [], where
        assert part.durable(store) >= moment.done, where
        end = gone_on(part.write, store, moment if kind == "killed" else None)
        assert part.files(store) == expected, where
        assert verify(store).problems == [], where
        assert not list(store.rglob("*.tmp")), where
        if kind == "killed":  # then without power: what the next start built on must have been durable, too
            after = put(end.powerless(), tmp_path / f"{number}-after")
            assert part.durable(after) == part.whole, where
            assert verify(after).problems == [], where
        shutil.rmtree(store)


def test_a_lane_made_of_a_commit_that_is_not_durable_yet_does_not_outlive_it(
    watched: Watched, tmp_path: Path
) -> None:
    unsynced = [m for m in watched["log"][0] if commits_of(m.killed()) > commits_of(m.powerless())]
    assert len(unsynced) >= len(commits())
    for number, moment in enumerate(unsynced):
        store = put(moment.killed(), tmp_path / str(number))
        end = gone_on(write_lane, store, moment)
        assert verify(put(end.powerless(), tmp_path / f"{number}-after")).problems == []


def commits_of(tree: Tree) -> int:
    return sum(path.startswith("log/commits/") and path.endswith(".json") for path in tree)


def gone_on(
    write: Callable[[Path, Callable[[], None]], None], store: Path, killed_at: Moment | None
) -> Moment:
    """The disk at the end of another run of the job."""
    disk = CrashDisk(store, killed_at)
    with disk.watched():
        write(store, disk.acknowledge)
    return disk.moments[-1]


@sweep
def test_a_disk_that_refuses_any_operation_once_costs_a_second_try_and_nothing_else(
    watched: Watched, tmp_path: Path, step: int
) -> None:
    moments, expected = watched["log"]
    for number in range(0, len(moments), step):
        store = tmp_path / str(number)
        store.mkdir()
        disk = CrashDisk(store)
        disk.refuse(number)
        with disk.watched():
            write_log_again_and_again(store)
        assert sealed_files(store) == expected, disk.refused
        for whole in (store, put(disk.moments[-1].powerless(), tmp_path / f"{number}-after")):
            assert verify(whole).problems == [], disk.refused
            assert durable_in_log(whole) == 2 + len(commits()), disk.refused
            shutil.rmtree(whole)
