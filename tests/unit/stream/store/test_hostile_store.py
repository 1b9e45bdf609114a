"""A store made to lead astray: nothing outside its folder is read as data, written, or removed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from forge import reforged
from lane_stream import lane, make_store, random_events
from placed import problems_of

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.store.errors import CorruptError, StoreError
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place

LOG_FOLDERS = ("log/commits", "log/tail", "log/rejects", "log/snapshots")
LANE_FOLDERS = ("lanes/hash/commits", "lanes/hash/snapshots", "lanes/hash/state")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(str(make_store(tmp_path / "store", lane("hash"), events=random_events(snapshots=3))))


def treasure(folder: Path) -> Path:
    """Files outside a store, named like those that a sweep removes."""
    folder.mkdir(parents=True)
    for name in ("1.arrow", "77.arrow", "x.tmp", "0000000000000099.json.tmp"):
        (folder / name).write_text("years of work")
    (folder / "5").mkdir()
    (folder / "5" / "events.arrow").write_text("years of work")
    return folder


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def in_place_of(folder: Path, target: Path) -> None:
    """A symbolic link to ``target`` where ``folder`` was, its own content brought along."""
    target.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        shutil.copytree(folder, target, dirs_exist_ok=True)
        shutil.rmtree(folder)
    folder.symlink_to(target)


@pytest.mark.parametrize("folder", LOG_FOLDERS + LANE_FOLDERS)
def test_a_writer_removes_nothing_where_a_folder_is_a_link_out_of_the_store(
    store: Path, tmp_path: Path, folder: str
) -> None:
    outside = treasure(tmp_path / "outside")
    in_place_of(store / folder, outside)
    before = listing(outside)
    with pytest.raises(CorruptError, match=f"{folder} is a symbolic link"):
        LogWriter.open(store, LogReader(store).header).close()
        LaneWriter(store, lane("hash"))
    assert listing(outside) == before


def test_a_link_that_a_sweep_meets_is_removed_and_what_it_points_to_is_not(
    store: Path, tmp_path: Path
) -> None:
    outside = treasure(tmp_path / "outside")
    (store / "log" / "snapshots" / "99").symlink_to(outside)
    (store / "log" / "tail").mkdir(exist_ok=True)
    (store / "log" / "tail" / "99.arrow").symlink_to(outside / "1.arrow")
    before = listing(outside)
    LogWriter.open(store, LogReader(store).header).close()
    assert listing(outside) == before
    assert not (store / "log" / "snapshots" / "99").is_symlink()


@pytest.mark.parametrize(
    "path", ["../../outside/1.arrow", "/etc/passwd", "tail/../../../outside/1.arrow", ".x/1.arrow"]
)
def test_a_record_that_names_a_file_outside_is_refused_by_readers_writers_and_verify(
    place: Place, tmp_path: Path, path: str
) -> None:
    store = make_store(place, lane("hash"), events=random_events(snapshots=2))
    outside = treasure(tmp_path / "outside")
    before = listing(outside)
    last = LogReader(store).last
    assert last is not None
    record = store / f"log/commits/{last.n:016d}.json"
    reference = {"path": path, "bytes": 13, "checksum": "0" * 16}
    reforged(record, tail=[reference], tail_events=1)
    assert CommitRecord.model_validate(json.loads(record.read_bytes())).tail[0].path == path
    with pytest.raises(StoreError, match="isn't a plain path inside the store"):
        LogWriter.open(store, LogReader(store).header)
    assert any("isn't a plain path inside the store" in problem for problem in problems_of(store))
    assert listing(outside) == before


def test_a_manifest_that_names_a_file_outside_is_refused(place: Place) -> None:
    store = make_store(place, lane("hash"), events=random_events(snapshots=2))
    reader = LaneReader(store, "hash")
    manifest = reader.root / f"commits/{reader.manifests[-1].tau}.json"
    reference = json.loads(manifest.read_bytes())["edges"] | {"path": "../../log/log.json"}
    reforged(manifest, edges=reference)
    assert any("isn't a plain path inside the store" in problem for problem in problems_of(store))
    with pytest.raises(CorruptError, match="isn't a plain path inside the store"):
        LaneReader(store, "hash").changes(LaneReader(store, "hash").manifests[-1], [0])


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc", ".hidden", "", "a" * 64, "a\0b", "ä"])
def test_names_that_could_leave_their_folder_are_no_graphs_lanes_or_topics(name: str) -> None:
    good: dict[str, Any] = {
        "graph": "g",
        "store": "unused",
        "kafka": {"bootstrap": "unused:9092", "topics": [{"name": "edges"}]},
        "snapshots": {"interval_s": 1},
        "lanes": [{"name": "l", "algorithm": "hash", "parts": 2}],
    }
    StreamConfig.model_validate(good)
    with pytest.raises(ValueError, match="graph"):
        StreamConfig.model_validate(good | {"graph": name})
    with pytest.raises(ValueError, match="lanes"):
        StreamConfig.model_validate(good | {"lanes": [{"name": name, "algorithm": "hash", "parts": 2}]})
    if name not in (".hidden", "a" * 64):  # Kafka takes these, and no file is named after a topic
        with pytest.raises(ValueError, match="topics"):
            StreamConfig.model_validate(
                good | {"kafka": {"bootstrap": "unused:9092", "topics": [{"name": name}]}}
            )
