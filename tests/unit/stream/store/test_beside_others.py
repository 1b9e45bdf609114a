"""Readers and writers while other processes compact, commit, remove lanes and prune exports, at the worst moments."""

import fcntl
import re
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from compacted import HEADER, catch_up, grown, indexed, seal
from exported import add
from lane_stream import lane
from meanwhile import dropping, once, with_after, with_before
from placed import problems_of, write

import freshet_graph.stream.store.compact.store
import freshet_graph.stream.store.exports
import freshet_graph.stream.store.files.data
import freshet_graph.stream.store.files.sweep
import freshet_graph.stream.store.lane.reader
import freshet_graph.stream.store.log.ids
import freshet_graph.stream.store.log.writer
from freshet_graph.stream.store.compact.store import Keep, compact, remove_lane
from freshet_graph.stream.store.errors import (
    ConfigMissingError,
    CorruptError,
    LaneBusyError,
    MissingError,
    RetainedError,
)
from freshet_graph.stream.store.exports import ExportReader, ExportWriter
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.durable import FolderLock
from freshet_graph.stream.store.places.folder import FolderPath
from freshet_graph.stream.store.places.object_path import cache_of
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.verify import lane as verify_lane
from freshet_graph.stream.store.window.view import WindowView
from freshet_graph.trainer.exports.embeddings import load_embeddings

LANES = (lane("distdy"), lane("sep", edge_life=2))
LATER = lane("hash")
SNAPSHOTS, KEPT = 12, 9


@pytest.fixture(scope="module")
def compacted(places):
    return indexed(places.new(), *LANES, end=SNAPSHOTS, kept=KEPT)


@pytest.fixture
def store(compacted, places):
    return places.copy(compacted)


def export(writer: ExportWriter) -> None:
    """One more commit, with the embedding of one node: that of its own number."""
    number = len(writer.reader.commits)
    table = pa.table({"node": pa.array([number]), "embedding": pa.array([[0.0]], pa.list_(pa.float32(), 1))})
    add(writer, {"embeddings": table}, lane="distdy")


@pytest.fixture
def exported(places):
    """Exports 0 to 5, and their writer."""
    writer = ExportWriter(places.new(), "model")
    for _ in range(6):
        export(writer)
    return writer


def test_the_log_is_opened_for_writing_though_snapshots_with_new_ids_go_meanwhile(store, monkeypatch):
    seal(store, SNAPSHOTS, SNAPSHOTS + 4)
    catch_up(store, *LANES)
    with monkeypatch.context() as patch:
        calls = with_before(patch, freshet_graph.stream.store.log.ids, "indexed_ids", dropping(store, 2))
        with LogWriter.open(store, HEADER) as log:
            assert len(log.snapshots) == SNAPSHOTS + 4
    assert calls
    seal(store, SNAPSHOTS + 4, SNAPSHOTS + 5)
    assert problems_of(store) == []


def test_events_of_snapshots_that_are_dropped_meanwhile_are_passed_over(store, monkeypatch):
    with LogWriter.open(store, HEADER) as log:
        with_before(monkeypatch, freshet_graph.stream.store.log.writer, "read_table", dropping(store, 4))
        assert sum(table.num_rows > 0 for table in log.events_since(0)) >= 4


def test_a_file_that_goes_between_two_looks_at_it_is_missing_and_not_damaged(tmp_path, monkeypatch):
    grown(tmp_path, end=2)
    snapshot = LogReader(tmp_path).snapshots[0]
    path = tmp_path / "log" / snapshot.events.path
    with_before(monkeypatch, freshet_graph.stream.store.files.data, "_content", path.unlink)
    with pytest.raises(MissingError, match=r"events.arrow is missing, though a record names it"):
        freshet_graph.stream.store.files.data.read_table(tmp_path / "log", snapshot.events)


def test_a_window_that_falls_behind_while_it_is_built_is_built_of_what_is_kept(store, monkeypatch):
    reader = LaneReader(store, "distdy")
    newest = reader.manifests[-1]
    view = WindowView(reader, 6)
    with monkeypatch.context() as patch:
        with_before(patch, LaneReader, "changes", dropping(store, 4))
        view.advance(newest)
    assert view.taus[-1] == newest.tau
    other = WindowView(LaneReader(store, "distdy"), 1)
    other.advance(newest)
    assert [part.tobytes() for part in view.pairs(newest.tau)] == [
        part.tobytes() for part in other.pairs(newest.tau)
    ]


def test_whoever_sees_a_snapshot_of_a_lane_finds_it_in_the_log(store, monkeypatch):
    reader = LaneReader(store, "distdy")

    def more() -> None:
        seal(store, SNAPSHOTS, SNAPSHOTS + 3)
        catch_up(store, *LANES)
        compact(store, Keep(snapshots=KEPT), always=True)

    with_before(monkeypatch, freshet_graph.stream.store.lane.reader, "newest_index", once(more))
    reader.refresh()
    assert len(reader.manifests) == len(reader.log.snapshots) == SNAPSHOTS + 3
    assert reader.log.events(reader.manifests[-1].tau).num_rows


def test_a_lane_that_is_begun_during_a_compaction_holds_the_log(store, monkeypatch):
    first = LogReader(store).snapshots.first

    def begun() -> None:
        with LaneWriter(store, LATER) as writer:
            writer.catch_up(stop=lambda: len(writer.manifests) > first)

    with_before(monkeypatch, freshet_graph.stream.store.compact.store, "index_log", once(begun))
    assert compact(store, Keep(snapshots=4), always=True).held_by == ["hash"]
    catch_up(store, LATER)
    assert LaneReader(store, "hash").manifests.first == first
    assert problems_of(store) == []


@pytest.mark.parametrize("step", ["_replayed", "_stage"])
def test_a_lane_begins_later_where_a_compaction_knew_nothing_of_it(store, monkeypatch, step):
    def blind() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                freshet_graph.stream.store.compact.store, "lane_names", lambda store: ["distdy", "sep"]
            )
            compact(store, Keep(snapshots=4), always=True)

    with monkeypatch.context() as patch:
        with_before(patch, LaneWriter, step, once(blind))
        with LaneWriter(store, LATER) as writer:
            assert writer.catch_up() == 4
    assert LaneReader(store, "hash").manifests.first == SNAPSHOTS - 4
    assert problems_of(store) == []


@pytest.mark.parametrize("what", ["log", "lane"])
def test_who_follows_from_the_oldest_begins_with_the_one_that_is_the_oldest_by_then(store, monkeypatch, what):
    reader = LogReader(store) if what == "log" else LaneReader(store, "sep")
    following = reader.follow(timeout_s=0)
    compact(store, Keep(snapshots=4), always=True)
    assert [found.tau for found in following] == list(range(SNAPSHOTS - 4, SNAPSHOTS))


@pytest.mark.parametrize("anew", [False, True])
def test_who_follows_a_lane_that_is_removed_is_told(store, anew):
    reader = LaneReader(store, "distdy")
    following = reader.follow(len(reader.manifests) - 1, timeout_s=10)
    remove_lane(store, "distdy")
    seal(store, SNAPSHOTS, SNAPSHOTS + 1)
    if anew:
        catch_up(store, lane("distdy"))
    with pytest.raises(ConfigMissingError, match="was removed since it was opened, or built again"):
        next(following)
    with pytest.raises(ConfigMissingError, match="was removed since it was opened, or built again"):
        reader.changes(reader.manifests[reader.manifests.first], [0], base=True)
        reader.manifests[
            reader.manifests.first + 1
        ]  # a bucket's files that were fetched before stay readable


def test_verify_has_nothing_to_say_of_a_lane_that_is_removed_meanwhile(places, monkeypatch):
    store = grown(places.new(), *LANES, end=3)  # without an index that would tell
    calls = with_after(
        monkeypatch, verify_lane, "_manifests", once(lambda: [remove_lane(store, one.name) for one in LANES])
    )
    assert problems_of(store) == []
    assert calls


def test_a_lane_that_was_made_anew_is_checked_and_removed_though_the_former_is_not_all_gone(tmp_path):
    store = grown(tmp_path, *LANES, end=3)
    shutil.copytree(store / "lanes/sep", store / "lanes/sep.removed")  # its removal was cut off
    (store / "lanes/sep/commits/1.json").unlink()
    assert any("lanes/sep/commits" in problem for problem in problems_of(store))
    assert compact(store, remove=["sep"]).removed == ["sep"]
    assert [folder.name for folder in (store / "lanes").iterdir()] == ["distdy"]


def test_who_reads_a_lane_of_a_bucket_is_told_as_soon_as_its_removal_began(store, places):
    if not places.in_bucket:
        return
    reader = LaneReader(store, "sep")
    (store / "lanes/sep.removed").put(b"")
    (store / "lanes/sep/commits/5.json").unlink()
    with pytest.raises(ConfigMissingError, match="was removed since it was opened, or built again"):
        reader.manifests[5]
    assert problems_of(store) == []


def test_a_store_is_described_though_a_lane_goes_under_it(tmp_path, monkeypatch):
    store = grown(tmp_path, *LANES, end=3)
    names = FolderPath.names

    def names_of(folder: FolderPath) -> list[str]:
        if str(folder).endswith("distdy/snapshots/1"):
            shutil.rmtree(folder)
        return names(folder)

    monkeypatch.setattr(FolderPath, "names", names_of)
    assert inspect(store)["lanes"]["distdy"]["snapshots"] == 3


def test_what_two_remove_at_once_is_gone(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    with_before(monkeypatch, FolderPath, "names", once(lambda: shutil.rmtree(folder)))
    assert freshet_graph.stream.store.files.sweep.remove([place_of(folder)]) == 0


def test_the_lock_of_a_folder_that_is_removed_this_moment_is_nobodys(tmp_path, monkeypatch):
    folder = tmp_path / "lane"
    folder.mkdir()
    with monkeypatch.context() as patch:
        with_before(patch, fcntl, "flock", lambda: folder.rename(tmp_path / "lane.removed"))
        with pytest.raises(LaneBusyError, match="was removed by another process just now"):
            FolderLock(folder, "a writer")


def test_a_compaction_that_has_lost_its_lease_says_so(store, places, monkeypatch):
    if not places.in_bucket:
        return  # the kernel takes no lock away

    def taken() -> None:
        write(store / "log/compaction.lock", b'{"writer": "another", "beat": "1"}\n')
        time.sleep(0.6)  # until the next renewal of a lease of one second

    with_before(monkeypatch, freshet_graph.stream.store.compact.store, "index_log", taken)
    before = LogReader(store).index
    with pytest.raises(LaneBusyError, match="is being compacted by another now"):
        compact(store, Keep(snapshots=4), always=True)
    assert LogReader(store).index == before


def test_a_commit_of_a_former_writer_ends_the_opening_of_the_next(tmp_path, monkeypatch):
    grown(tmp_path, end=2)
    with LogWriter.open(tmp_path, HEADER) as former:
        tail = pa.table(
            {"tau": [2], "topic": ["t"], "partition": [0], "offset": [0], "t": [2_000_001], "op": [1]}
        )
        schema = former.open_tail().schema
        former.commit(tail=pa.table([
            tail[f.name].cast(f.type) if f.name in tail.column_names
            else pa.array([1], f.type) if not f.nullable else pa.nulls(1, f.type) for f in schema
        ], schema=schema))  # fmt: skip
        with_before(
            monkeypatch,
            freshet_graph.stream.store.log.writer,
            "load_tail_file",
            once(lambda: former.commit(sealed_through=2)),
        )
        with pytest.raises(
            LaneBusyError, match=r"commit 3 of .* was made while the next held the log's lock"
        ):
            LogWriter(place_of(tmp_path) / "log", former.header, former.lock, "the next")


def test_what_a_topic_has_is_noted_the_first_time_as_well(exported):
    reader = exported.reader
    for following in (3, 4):
        reader.mark_published("vectors", "embeddings", following)
        assert reader.published("vectors", "embeddings") == following


def test_exports_that_are_removed_while_they_are_listed_leave_no_gap(exported, monkeypatch):
    kind = type(exported.reader.root)
    listed = kind.names
    looks: list[int] = []

    def names(folder: Place) -> list[str]:
        looks.append(1)
        found = listed(folder)
        return [name for name in found if "2.json" not in name] if len(looks) == 1 else found

    monkeypatch.setattr(kind, "names", names)
    assert len(ExportReader(exported.reader.root.parent.parent, "model").commits) == 6


def test_a_reader_of_exports_knows_where_it_can_start_once_some_were_removed(exported):
    reader = ExportReader(exported.reader.root.parent.parent, "model")
    commit = reader.commits[1]
    exported.retain(2)
    with pytest.raises(
        RetainedError, match=r"export 0 .* is no longer kept. A reader can start from number 4"
    ):
        reader.commits[0]
    assert reader.commits.first == 4
    assert [found.number for found in reader.follow(4, timeout_s=0)] == [4, 5]
    if isinstance(reader.root, Path):  # a bucket's files that were fetched before stay readable
        with pytest.raises(RetainedError):
            reader.table(commit, "embeddings")


def test_an_export_that_is_lost_between_others_is_missing(exported):
    reader = ExportReader(exported.reader.root.parent.parent, "model")
    (reader.root / "commits" / f"{3:016d}.json").unlink()
    with pytest.raises(CorruptError, match=r"3.json is missing, though export 0 is kept"):
        reader.commits[3]


def test_embeddings_are_put_together_of_what_is_kept_in_the_end(exported, monkeypatch):
    with monkeypatch.context() as patch:
        calls = with_before(
            patch, ExportReader, "table", lambda: exported.retain(2) if len(calls) == 3 else None
        )
        found = load_embeddings(exported.reader.root.parent.parent, "model")["node"].to_pylist()
    assert found[:2] == [5, 4]
    assert len(found) == 2 or not isinstance(exported.reader.root, Path)


def test_a_bucket_is_read_with_a_cache_smaller_than_a_file_and_with_one_that_was_removed(
    places, tmp_path, monkeypatch
):
    if not places.in_bucket:
        return
    address = places.address()
    grown(place_of(address), end=2)
    small = place_of(re.sub("cache=[^&]+", f"cache={tmp_path}/small", address))
    monkeypatch.setattr(cache_of(small), "limit_bytes", 10)
    log = LogReader(small)
    for snapshot in log.snapshots:
        assert log.events(snapshot.tau).num_rows == snapshot.num_events
    shutil.rmtree(tmp_path / "small")
    assert LogReader(small).events(0).num_rows
