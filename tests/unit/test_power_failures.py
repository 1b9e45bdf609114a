"""Killed or without power before any file operation, with any write torn: what was acknowledged is there, all else can go on."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crash_disk import KINDS, CrashDisk, Moment, Tree, put, states
from lane_stream import lane, lane_files, make_store, random_events
from log_events import SECOND, event, stream_config

from schemas.events import REJECT_SCHEMA, event_schema
from schemas.store import History, HistoryFile, Position
from stream.sink.snapshot_sink import log_header
from stream.store.errors import ConfigMissingError, StoreError
from stream.store.lane.writer import LaneWriter
from stream.store.log.reader import LogReader
from stream.store.log.tail import tail_schema
from stream.store.log.writer import LogWriter
from stream.store.verify.store import verify

HISTORY = History(
    files=[HistoryFile(name="past.parquet", rows=0, bytes=0, checksum="")],
    until_us=0, rows=0, after=0, disorder_us=0, ends=[],
)  # fmt: skip


def commits() -> list[dict[str, Any]]:
    """What each commit is given: open events, refused messages, snapshots sealed one and two at a time."""
    config = stream_config("unused")
    assert config.ids == "int"

    def rows(tau: int, count: int) -> list[dict[str, Any]]:
        return [
            event(tau + i, 2 * i, tau * SECOND + i, features=[float(i)] if i else None) for i in range(count)
        ]

    def tail(tau: int, count: int) -> pa.Table:
        origin = {"topic": "a", "partition": 0, "offset": tau, "tau": tau}
        return pa.Table.from_pylist(
            [{**row, **origin} for row in rows(tau, count)], schema=tail_schema("int")
        )

    def sealed(tau: int, count: int) -> tuple[int, pa.Table]:
        return tau, pa.Table.from_pylist(rows(tau, count), schema=event_schema("int"))

    refused = {
        "topic": "a", "partition": 0, "offset": 2, "row": None, "reason": "not_json", "sentence": "no", "raw": b"{",
    }  # fmt: skip
    at = {"topic": "a", "partition": 0}
    return [
        {"tail": tail(1, 3), "positions": {("a", 0): Position(**at, next=2, max_t_us=SECOND)}},
        {
            "tail": tail(2, 2),
            "rejects": pa.Table.from_pylist([refused], schema=REJECT_SCHEMA),
            "refused": {"not_json": 1},
            "positions": {("a", 0): Position(**at, next=3, max_t_us=2 * SECOND)},
        },
        {"seal": [sealed(1, 3)]},
        {
            "seal": [sealed(2, 2), sealed(4, 2)],
            "tail": tail(5, 2),
            "positions": {("a", 0): Position(**at, next=6, max_t_us=5 * SECOND)},
        },
    ]


def write_log(store: Path, acknowledge: Callable[[], None]) -> None:
    """Go on where the log stands: a history first, then all commits."""
    with LogWriter.open(store, log_header(stream_config(str(store)))) as writer:
        acknowledge()
        if writer.last is None and writer.history is None:
            writer.begin_with(HISTORY)
            acknowledge()
        begun = 0 if writer.last is None else writer.last.n + 1
        for arguments in commits()[begun:]:
            writer.commit(**arguments)
            acknowledge()


def sealed_files(store: Path) -> dict[str, bytes]:
    folder = store / "log" / "snapshots"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.arrow"))}


def durable_in_log(store: Path) -> int:
    """How much of what ``write_log`` acknowledges is there."""
    try:
        log = LogReader(store)
    except ConfigMissingError:
        return 0
    return 1 + (log.history is not None) + (0 if log.last is None else log.last.n + 1)


@pytest.fixture(scope="module")
def log_moments(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Moment], dict[str, bytes]]:
    store = tmp_path_factory.mktemp("log")
    disk = CrashDisk(store)
    with disk.watched():
        write_log(store, disk.acknowledge)
    assert disk.done == 2 + len(commits())
    assert verify(store).problems == []
    return disk.moments, sealed_files(store)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_before_any_file_operation_of_the_log_loses_nothing_acknowledged(
    kind: str, log_moments: tuple[list[Moment], dict[str, bytes]], scratch: Path
) -> None:
    moments, expected = log_moments
    assert len(moments) > 60
    for number, (moment, tree) in enumerate(states(moments, kind)):
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_before_any_file_operation_of_a_lane_loses_nothing_acknowledged(
    kind: str, lane_moments: tuple[list[Moment], dict[str, bytes]], scratch: Path
) -> None:
    moments, expected = lane_moments
    assert len(moments) > 60
    every = (
        1 if kind in ("killed", "powerless") else 2
    )  # the same code as the log's, which is looked at all over
    for number, (moment, tree) in enumerate(states(moments[::every], kind)):
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


def test_a_disk_that_refuses_any_operation_once_costs_a_second_try_and_nothing_else(
    log_moments: tuple[list[Moment], dict[str, bytes]], scratch: Path
) -> None:
    moments, expected = log_moments
    for number in range(len(moments)):
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


def write_log_again_and_again(store: Path) -> None:
    """As ``write_log``, with each commit tried again by the same writer while it can, else by a new one."""
    while True:
        with (
            suppress(OSError, StoreError),
            LogWriter.open(store, log_header(stream_config(str(store)))) as writer,
        ):
            if writer.last is None and writer.history is None:
                writer.begin_with(HISTORY)
            while (n := 0 if writer.last is None else writer.last.n + 1) < len(commits()):
                with suppress(OSError):
                    writer.commit(**commits()[n])
            return
