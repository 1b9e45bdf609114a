"""Bad bytes anywhere in a store: each is found and named, whatever kind of file it is in."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from every_kind import LANES, files_of, make_every_kind, missed_flips
from forge import reforged

from schemas.store import CommitRecord, History, LaneHeader, LaneManifest, LogHeader, Record
from stream.store.errors import CorruptError, FormatVersionError, StoreError
from stream.store.files.records import read_record
from stream.store.lane.reader import LaneReader
from stream.store.lane.writer import LaneWriter
from stream.store.log.reader import LogReader
from stream.store.log.writer import LogWriter
from stream.store.verify.store import verify
from stream.store.window.view import WindowView

LOG_RECORDS = ["log/log.json", "log/history.json", "log/commits/0000000000000000.json"]
LANE_RECORDS = [f"lanes/{name}/{record}" for name in LANES for record in ("lane.json", "commits/0.json")]
RECORDS = LOG_RECORDS + LANE_RECORDS
LOG_DATA = ["snapshots/1/events.arrow", "snapshots/1/nodes.arrow", "tail/0.arrow", "rejects/0.arrow"]
LANE_DATA = [
    "snapshots/1/assignment",
    "snapshots/1/edges",
    "snapshots/1/segments",
    "snapshots/1/base",
    "state/1",
]
DATA = [
    *(f"log/{name}" for name in LOG_DATA),
    *(f"lanes/{lane}/{name}.arrow" for lane in LANES for name in LANE_DATA),
    "lanes/hdrf/snapshots/1/event_parts.arrow",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_every_kind(tmp_path_factory.mktemp("whole"), *LANES)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_every_kind(tmp_path_factory.mktemp("foreign"), *LANES, src=5)


@pytest.fixture(scope="module")
def copied(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(whole, tmp_path_factory.mktemp("copied") / "store"))


@pytest.fixture
def store(copied: Path) -> Path:
    """A store that a test leaves as it was."""
    return copied


def read_all(store: Path) -> None:
    """All that readers read: the log with its history, each lane's every snapshot from base and differences."""
    log = LogReader(store)
    _ = log.history
    log.base()
    for snapshot in log.snapshots:
        log.events(snapshot.tau)
    log.external_ids()
    for name in LANES:
        lane = LaneReader(store, name)
        for manifest in lane.manifests:
            lane.changes(manifest, [0])
            WindowView(lane, 1).advance(manifest)  # from the newest base
            lane.event_parts(manifest)


def open_to_write(store: Path) -> None:
    """All that a writer of the log reads."""
    with LogWriter.open(store, LogReader(store).header) as log:
        list(log.unpublished_rejects())


def test_every_kind_of_file_is_there_and_nothing_else(whole: Path) -> None:
    assert verify(whole).problems == []
    assert {str(path.relative_to(whole)) for path in files_of(whole)} >= {*RECORDS, *DATA}
    locks = list(whole.rglob("lock"))
    assert len(locks) == 3
    assert all(lock.read_bytes() == b"" for lock in locks), "a lock given back names nobody"


@pytest.mark.parametrize("compacted", [False, True])
def test_flipped_bytes_are_found_wherever_they_are(tmp_path: Path, compacted: bool) -> None:
    store = make_every_kind(tmp_path, "hash", compacted=compacted)
    assert list(missed_flips(store, every=211)) == []
    assert verify(store).problems == []


def truncated(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def longer(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def missing(path: Path, other: Path) -> None:
    path.unlink()


def a_folder(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def of_another_store(path: Path, other: Path) -> None:
    assert path.read_bytes() != other.read_bytes(), path
    shutil.copy(other, path)


DAMAGES = [truncated, emptied, longer, missing, a_folder, of_another_store]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_any_kind_to_any_kind_of_file_is_a_typed_error_that_names_it(
    store: Path, foreign: Path, damage: Callable[[Path, Path], None]
) -> None:
    for name in [*RECORDS, *DATA]:
        path = store / name
        content = path.read_bytes()
        if damage is of_another_store and content == (foreign / name).read_bytes():
            continue  # the same file in both
        damage(path, foreign / name)
        # Where a record of a chain is missing, the next one is named.
        expect_told(store, name, path.parent if damage is missing else path)
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)
    assert verify(store).problems == []


def expect_told(store: Path, name: str, path: Path) -> None:
    problems = verify(store).problems
    assert any(str(path) in problem for problem in problems), (name, problems)
    if name.startswith(("log/tail", "log/rejects")):
        with pytest.raises(CorruptError, match=path.name):
            open_to_write(store)
    elif "/state/" in name:  # only a writer reads it, and it can do without
        with LaneWriter(store, LANES[name.split("/")[1]]) as writer:
            assert writer.catch_up() == 0
    elif (store / "log/history.json").exists():  # a reader doesn't know that there was one, verify does
        with pytest.raises(CorruptError, match=path.name):
            read_all(store)


@pytest.mark.parametrize("damage", [truncated, missing, a_folder, of_another_store])
def test_damage_to_what_stands_for_dropped_snapshots_is_found_and_half_of_an_index_is_enough(
    tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    store, foreign = (
        make_every_kind(tmp_path / str(src), *LANES, src=src, snapshots=3, compacted=True) for src in (1, 5)
    )
    files = [path for path in files_of(store) if path.parent.name == "index"]
    assert len(files) == 6 + 2 * 5
    for path in files:
        content = path.read_bytes()
        other = foreign / path.relative_to(store)
        if damage is of_another_store and content == other.read_bytes():
            continue
        damage(path, other)
        problems = verify(store).problems
        if not (damage is missing and path.suffix == ".json"):  # the other copy is an index without this one
            named = (
                path.parent if damage is of_another_store else path
            )  # it may be what the file names that differs
            assert any(str(named) in problem for problem in problems), (path, problems)
        if path.stem.isdigit():
            read_all(store)
        elif "lanes" not in path.parts:  # a lane's snapshot has a base of its own here
            with pytest.raises(CorruptError, match=path.name):
                read_all(store)
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)
    assert verify(store).problems == []


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
    store: Path, one: str, other: str
) -> None:
    first, second = (store / one).read_bytes(), (store / other).read_bytes()
    assert first != second
    (store / one).write_bytes(second)
    (store / other).write_bytes(first)
    assert any(str(store / one) in p or str(store / other) in p for p in verify(store).problems)
    with pytest.raises(CorruptError):
        read_all(store)
    (store / one).write_bytes(first)
    (store / other).write_bytes(second)


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_a_future_version_are_refused_with_both_versions(store: Path, name: str) -> None:
    raw = (store / name).read_bytes()
    reforged(store / name, format_version=2)
    sentence = "format version 2, this release reads version 1"
    assert any(sentence in problem for problem in verify(store).problems)
    with pytest.raises(FormatVersionError, match=sentence):
        read_all(store)
    (store / name).write_bytes(raw)


def kind_of(name: str) -> type[Record]:
    kinds: dict[str, type[Record]] = {"log.json": LogHeader, "history.json": History, "lane.json": LaneHeader}
    return kinds.get(Path(name).name, CommitRecord if name.startswith("log") else LaneManifest)


@pytest.mark.parametrize("name", RECORDS)
def test_keys_with_values_that_no_release_writes_are_typed_errors_though_the_checksum_fits(
    store: Path, name: str
) -> None:
    path = store / name
    raw = path.read_bytes()
    for key in json.loads(raw):
        for value in (None, -1, 2**70, 1e300, "x", [], {}, [{}], "\ud800"):
            if key in ("checksum", "format_version") or json.loads(raw)[key] == value:
                continue
            try:
                reforged(path, **{key: value})
            except UnicodeEncodeError:
                continue
            with suppress(StoreError):
                read_record(path, kind_of(name))
                verify(store)
                read_all(store)
        path.write_bytes(raw)
    assert verify(store).problems == []
