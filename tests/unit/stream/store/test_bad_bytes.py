"""Bad bytes anywhere in a store, in a folder or a bucket: each is found and named, whatever kind of file it is in."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from every_kind import LANES, make_every_kind, missed_flips
from forge import reforged
from placed import Places, anew, files_of, problems_of, write

from freshet_graph.schemas.store import (
    CommitRecord,
    HistoryRecord,
    LaneHeader,
    LaneManifest,
    LogHeader,
    Record,
)
from freshet_graph.stream.store.errors import CorruptError, FormatVersionError, StoreError
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.files.sweep import NAME
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.object_path import ObjectPath
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.window.view import WindowView

LOG_RECORDS = ["log/log.json", "log/history.json", "log/commits/0000000000000000.json"]
LOG_DATA = [
    *(f"snapshots/1/{name}.arrow" for name in ("events", "nodes", "arrivals")),
    "tail/0.arrow",
    "rejects/0.arrow",
]
LANE_DATA = [
    "snapshots/1/assignment",
    "snapshots/1/edges",
    "snapshots/1/segments",
    "snapshots/1/base",
    "state/1",
]


WRITERS = ("log/tail", "log/rejects")
"""What only a writer of the log reads."""


LANE_RECORDS = [f"lanes/{name}/{record}" for name in LANES for record in ("lane.json", "commits/0.json")]
RECORDS = LOG_RECORDS + LANE_RECORDS
DATA = [
    *(f"log/{name}" for name in LOG_DATA),
    *(f"lanes/{lane}/{name}.arrow" for lane in LANES for name in LANE_DATA),
    "lanes/hdrf/snapshots/1/event_parts.arrow",
]


@pytest.fixture(scope="module")
def whole(places: Places) -> Place:
    return make_every_kind(places.new(), *LANES)


@pytest.fixture(scope="module")
def foreign(places: Places) -> dict[str, bytes]:
    """Files of another store."""
    made = files_of(make_every_kind(places.new(), *LANES, src=5))
    return {name: path.read_bytes() for name, path in made.items()}


@pytest.fixture(scope="module")
def store(whole: Place, places: Places) -> Place:
    """A store that every test leaves as it was."""
    return places.copy(whole)


def read_all(store: Place, *lanes: str) -> None:
    """All that readers read: the log with its history, each lane's every snapshot from base and differences."""
    with anew(store) as place:
        log = LogReader(place)
        _ = log.history
        log.base()
        for snapshot in log.snapshots:
            log.events(snapshot.tau)
            log.arrivals(snapshot.tau)
        log.external_ids()
        for name in lanes or LANES:
            lane = LaneReader(place, name)
            for manifest in lane.manifests:
                lane.changes(manifest, [0])
                WindowView(lane, 1).advance(manifest)  # from the newest base
                lane.event_parts(manifest)


def open_to_write(store: Place) -> None:
    """All that a writer of the log reads."""
    with anew(store) as place, LogWriter.open(place, LogReader(place).header) as log:
        list(log.unpublished_rejects())


def test_every_kind_of_file_is_there_and_nothing_else(whole: Place) -> None:
    assert problems_of(whole) == []
    assert files_of(whole).keys() >= {*RECORDS, *DATA}
    locks = list(whole.rglob(NAME))
    assert len(locks) == 1 + len(LANES)
    given_back = b"{}\n" if isinstance(whole, ObjectPath) else b""
    assert all(lock.read_bytes() == given_back for lock in locks), "a lock given back names nobody"


@pytest.mark.parametrize("compacted", [False, True])
def test_flipped_bytes_are_found_wherever_they_are(places: Places, compacted: bool) -> None:
    store = make_every_kind(places.new(), "hash", compacted=compacted)
    assert list(missed_flips(store, every=421, together=True)) == []
    assert problems_of(store) == []


def truncated(path: Place, other: bytes) -> None:
    content = path.read_bytes()
    write(path, content[: len(content) // 2])


def emptied(path: Place, other: bytes) -> None:
    write(path, b"")


def longer(path: Place, other: bytes) -> None:
    write(path, path.read_bytes() + b"\0")


def missing(path: Place, other: bytes) -> None:
    path.unlink()


def a_folder(path: Place, other: bytes) -> None:
    path.unlink()
    path.mkdir() if isinstance(path, Path) else write(path / "x", b"")


def of_another_store(path: Place, other: bytes) -> None:
    assert path.read_bytes() != other, path
    write(path, other)


DAMAGES = [truncated, emptied, longer, missing, a_folder, of_another_store]
Damage = Callable[[Place, bytes], None]


def is_gone(path: Place, damage: Damage) -> bool:
    """Whether nothing is there after the damage: a bucket has no folders that could lie in the way."""
    return damage is missing or (damage is a_folder and isinstance(path, ObjectPath))


def restored(path: Place, content: bytes) -> None:
    if path.is_dir():
        path.rmdir() if isinstance(path, Path) else (path / "x").unlink()
    write(path, content)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_any_kind_to_any_kind_of_record_is_a_typed_error_that_names_it(
    store: Place, foreign: dict[str, bytes], places: Places, damage: Damage
) -> None:
    for name in RECORDS:
        path = store / name
        content = path.read_bytes()
        if damage is of_another_store and content == foreign[name]:
            continue  # the same record in both
        damage(path, foreign[name])
        told = str(path.parent if is_gone(path, damage) else path)  # of a chain, the next one is named
        problems = problems_of(store)
        assert any(told in problem for problem in problems), (name, problems)
        if (store / "log/history.json").exists():  # a reader doesn't know that there was one, verify does
            with pytest.raises(CorruptError, match=re.escape(told.rpartition("/")[2])):
                read_all(store)
        restored(path, content)
    assert problems_of(store) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_any_kind_to_all_data_files_is_told_of_each_and_by_those_who_read_it(
    store: Place, foreign: dict[str, bytes], damage: Damage
) -> None:
    files = {name: path for name, path in files_of(store).items() if name in DATA}
    contents = {name: path.read_bytes() for name, path in files.items()}
    damaged = [name for name in files if damage is not of_another_store or contents[name] != foreign[name]]
    for name in damaged:
        damage(files[name], foreign[name])
    problems = problems_of(store)
    for name in damaged:
        assert any(str(files[name]) in problem for problem in problems), (name, problems)

    def restore(name: str) -> None:
        restored(files[name], contents[name])
        damaged.remove(name)

    def read_by(read: Callable[[], None], names: Callable[[str], bool]) -> None:
        """Each is told by its name, one after another, until there is none."""
        while left := [name for name in damaged if names(name)]:
            with pytest.raises(CorruptError) as error:
                read()
            (found,) = (name for name in left if str(files[name]) in str(error.value))
            restore(found)
        read()

    read_by(lambda: read_all(store), lambda name: not name.startswith(WRITERS) and "/state/" not in name)
    read_by(lambda: open_to_write(store), lambda name: name.startswith(WRITERS))
    for name in list(damaged):  # only a writer reads it, and it can do without
        with anew(store) as place, LaneWriter(place, LANES[name.split("/")[1]]) as writer:
            assert writer.catch_up() == 0
        restore(name)
    assert problems_of(store) == []


@pytest.fixture(scope="module")
def compacted(places: Places) -> list[Place]:
    """Two stores without their older snapshots; every test leaves them as they were."""
    return [make_every_kind(places.new(), "hdrf", src=src, snapshots=3, compacted=True) for src in (1, 5)]


@pytest.mark.parametrize("damage", [truncated, missing, a_folder, of_another_store])
def test_damage_to_what_stands_for_dropped_snapshots_is_found_and_half_of_an_index_is_enough(
    compacted: list[Place], damage: Damage
) -> None:
    store, foreign = compacted
    files = {name: path for name, path in files_of(store).items() if path.parent.name == "index"}
    others = files_of(foreign)
    assert len(files) == 6 + 5
    for name, path in files.items():
        content, other = path.read_bytes(), others[name].read_bytes()
        if damage is of_another_store and content == other:
            continue
        damage(path, other)
        problems = problems_of(store)
        if not (
            is_gone(path, damage) and name.endswith(".json")
        ):  # the other copy is an index without this one
            # What is of another store may be what the file names that differs.
            named = path.parent if damage is of_another_store else path
            assert any(str(named) in problem for problem in problems), (path, problems)
        if Path(name).stem.isdigit():
            read_all(store, "hdrf")
        elif not name.startswith("lanes"):  # a lane's snapshot has a base of its own here
            with pytest.raises(CorruptError, match=path.name):
                read_all(store, "hdrf")
        restored(path, content)
    assert problems_of(store) == []


PLACES = [
    ("log/commits/0000000000000000.json", "log/commits/0000000000000001.json"),
    ("log/snapshots/0/events.arrow", "log/snapshots/1/events.arrow"),
    ("log/snapshots/0/nodes.arrow", "log/snapshots/1/nodes.arrow"),
    ("log/snapshots/0/events.arrow", "log/snapshots/0/nodes.arrow"),
    ("lanes/hash/lane.json", "lanes/hdrf/lane.json"),
    ("lanes/hash/commits/0.json", "lanes/hash/commits/1.json"),
    ("lanes/hash/commits/1.json", "lanes/hdrf/commits/1.json"),
    ("lanes/hdrf/snapshots/0/assignment.arrow", "lanes/hdrf/snapshots/1/assignment.arrow"),
    ("lanes/hdrf/snapshots/0/edges.arrow", "lanes/hdrf/snapshots/1/edges.arrow"),
    ("lanes/hash/snapshots/1/base.arrow", "lanes/hdrf/snapshots/1/base.arrow"),
    ("lanes/hash/snapshots/1/edges.arrow", "lanes/hash/snapshots/1/segments.arrow"),
]


@pytest.mark.parametrize(("one", "other"), PLACES)
def test_files_that_changed_places_are_found_by_verify_and_by_readers(
    store: Place, one: str, other: str
) -> None:
    files = files_of(store)
    first, second = files[one].read_bytes(), files[other].read_bytes()
    assert first != second
    write(files[one], second)
    write(files[other], first)
    assert any(str(files[one]) in p or str(files[other]) in p for p in problems_of(store))
    with pytest.raises(CorruptError):
        read_all(store)
    write(files[one], first)
    write(files[other], second)


def test_records_of_a_future_version_are_refused_with_both_versions(store: Place) -> None:
    for name in RECORDS:
        path = store / name
        raw = path.read_bytes()
        reforged(path, format_version=9)
        sentence = "format version 9, this release reads version 1"
        assert any(sentence in problem and str(path) in problem for problem in problems_of(store))
        with pytest.raises(FormatVersionError, match=sentence):
            read_all(store)
        write(path, raw)


def kind_of(name: str) -> type[Record]:
    kinds: dict[str, type[Record]] = {
        "log.json": LogHeader,
        "history.json": HistoryRecord,
        "lane.json": LaneHeader,
    }
    return kinds.get(Path(name).name, CommitRecord if name.startswith("log") else LaneManifest)


NO_VALUES = (None, -1, 2**70, 1e300, "x", [], {}, [{}], "\ud800")


def test_keys_with_values_that_no_release_writes_are_typed_errors_though_the_checksum_fits(
    store: Place, places: Places
) -> None:
    for name in RECORDS:
        path = store / name
        raw = path.read_bytes()
        for key in json.loads(raw):
            for value in NO_VALUES[:2] if places.in_bucket else NO_VALUES:
                if key in ("checksum", "format_version") or json.loads(raw)[key] == value:
                    continue
                try:
                    reforged(path, **{key: value})
                except UnicodeEncodeError:
                    continue
                with suppress(StoreError):
                    read_record(path, kind_of(name))
                    problems_of(store)
                    read_all(store)
            write(path, raw)
    assert problems_of(store) == []
