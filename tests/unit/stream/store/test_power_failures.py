"""Killed or without power before any file operation, with any write torn: what was acknowledged is there, all else can go on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crash_disk import KINDS, CrashDisk, Moment, Tree, put, states
from lane_stream import lane, lane_files, make_store, random_events
from sweeps import sweep
from written_log import commits, durable_in_log, write_log, write_log_again_and_again

from stream.store.lane.writer import LaneWriter
from stream.store.verify.store import verify


def sealed_files(store: Path) -> dict[str, bytes]:
    folder = store / "log" / "snapshots"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.arrow"))}


@pytest.fixture(scope="module")
def log_moments(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Moment], dict[str, bytes]]:
    store = tmp_path_factory.mktemp("log")
    disk = CrashDisk(store)
    with disk.watched():
        write_log(store, disk.acknowledge)
    assert disk.done == 2 + len(commits())
    assert verify(store).problems == []
    return disk.moments, sealed_files(store)


@sweep
@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_before_any_file_operation_of_the_log_loses_nothing_acknowledged(
    kind: str, log_moments: tuple[list[Moment], dict[str, bytes]], scratch: Path, step: int
) -> None:
    moments, expected = log_moments
    assert len(moments) > 60
    for number, (moment, tree) in enumerate(states(moments[::step], kind)):
        store = put(tree, scratch / str(number))
        where = f"{kind} before: {moment.operation}"
        if (store / "log/log.json").exists():
            assert verify(store).problems == [], where
        assert durable_in_log(store) >= moment.done, where
        end = gone_on(write_log, store, moment if kind == "killed" else None)
        assert sealed_files(store) == expected, where
        assert verify(store).problems == [], where
        assert not list(store.rglob("*.tmp")), where
        if (
            kind == "killed"
        ):  # a power failure after the next start: what it built on must have been durable, too
            after = put(end.powerless(), scratch / f"{number}-after")
            assert durable_in_log(after) == 2 + len(commits()), where
            assert verify(after).problems == [], where
        shutil.rmtree(store)


LANE = lane("sep", edge_life=2, base_every=2)
SNAPSHOTS = 3


def write_lane(store: Path, acknowledge: Callable[[], None]) -> None:
    """Go on where the lane stands."""
    with LaneWriter(store, LANE, observer=lambda _: acknowledge()) as writer:
        writer.catch_up()


def manifests_of(tree: Tree) -> int:
    return sum(path.startswith("lanes/sep/commits/") and path.endswith(".json") for path in tree)


@pytest.fixture(scope="module")
def lane_moments(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Moment], dict[str, bytes]]:
    events = random_events(snapshots=SNAPSHOTS, a_snapshot=12, nodes=10)
    store = make_store(tmp_path_factory.mktemp("lane"), events=events)
    disk = CrashDisk(store)
    with disk.watched():
        write_lane(store, disk.acknowledge)
    assert disk.done == SNAPSHOTS
    return disk.moments, lane_files(store, "sep")


@sweep
@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_before_any_file_operation_of_a_lane_loses_nothing_acknowledged(
    kind: str, lane_moments: tuple[list[Moment], dict[str, bytes]], scratch: Path, step: int
) -> None:
    moments, expected = lane_moments
    assert len(moments) > 60
    for number, (moment, tree) in enumerate(states(moments[::step], kind)):
        store = put(tree, scratch / str(number))
        where = f"{kind} before: {moment.operation}"
        assert verify(store).problems == [], where
        assert manifests_of(tree) >= moment.done, where
        end = gone_on(write_lane, store, moment if kind == "killed" else None)
        assert lane_files(store, "sep") == expected, where
        assert verify(store).problems == [], where
        assert not list(store.rglob("*.tmp")), where
        if kind == "killed":
            assert manifests_of(end.powerless()) == SNAPSHOTS, where
            assert verify(put(end.powerless(), scratch / f"{number}-after")).problems == [], where
        shutil.rmtree(store)


def test_a_lane_made_of_a_commit_that_is_not_durable_yet_does_not_outlive_it(
    log_moments: tuple[list[Moment], dict[str, bytes]], scratch: Path
) -> None:
    unsynced = [m for m in log_moments[0] if commits_of(m.killed()) > commits_of(m.powerless())]
    assert len(unsynced) >= len(commits())
    for number, moment in enumerate(unsynced):
        store = put(moment.killed(), scratch / str(number))
        end = gone_on(write_lane, store, moment)
        assert verify(put(end.powerless(), scratch / f"{number}-after")).problems == []


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
    log_moments: tuple[list[Moment], dict[str, bytes]], scratch: Path, step: int
) -> None:
    moments, expected = log_moments
    for number in range(0, len(moments), step):
        store = scratch / str(number)
        store.mkdir()
        disk = CrashDisk(store)
        disk.refuse(number)
        with disk.watched():
            write_log_again_and_again(store)
        assert sealed_files(store) == expected, disk.refused
        for whole in (store, put(disk.moments[-1].powerless(), scratch / f"{number}-after")):
            assert verify(whole).problems == [], disk.refused
            assert durable_in_log(whole) == 2 + len(commits()), disk.refused
            shutil.rmtree(whole)
