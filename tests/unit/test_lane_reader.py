"""Readers of a lane: other processes' commits as they come, and damage by name."""

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
from lane_stream import lane, make_store, random_events

from stream.store.errors import ConfigMissingError, CorruptError, FormatVersionError
from stream.store.lane.reader import LaneReader
from stream.store.lane.writer import LaneWriter


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("whole"), lane("distdy"), lane("sep"))


@pytest.fixture
def store(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "store"))


def catch_up(store: Path) -> None:
    with LaneWriter(store, lane("hash")) as writer:
        writer.catch_up()


def test_a_missing_lane_is_told_with_those_there_are(store):
    with pytest.raises(ConfigMissingError, match="no lane 'typo'; it has distdy, sep"):
        LaneReader(store, "typo")
    with pytest.raises(ConfigMissingError, match=r"log\.json"):
        LaneReader(store / "nowhere", "distdy")


def test_it_follows_what_another_process_commits(store):
    LaneWriter(store, lane("hash")).close()
    reader = LaneReader(store, "hash")
    writer = multiprocessing.get_context("spawn").Process(target=catch_up, args=(store,))
    writer.start()
    seen = []
    for manifest in reader.follow(timeout_s=60):
        seen.append(manifest.sequence)
        if len(seen) == 8:
            break
    writer.join()
    assert seen == list(range(8))


def test_following_begins_where_asked_and_ends_when_nothing_comes_or_it_is_told_to(store):
    reader = LaneReader(store, "sep")
    assert [m.sequence for m in reader.follow(after_sequence=4, timeout_s=0)] == [5, 6, 7]
    assert [m.sequence for m in reader.follow(after_sequence=7, stop=lambda: True)] == []


def test_a_missing_manifest_in_between_is_named(store):
    tau = LaneReader(store, "sep").manifests[3].tau
    (store / f"lanes/sep/commits/{tau}.json").unlink()
    with pytest.raises(CorruptError, match=rf"{tau}\.json is missing, though snapshot {tau + 1} exists"):
        LaneReader(store, "sep")


def test_a_manifest_of_another_lane_is_refused(store):
    tau = LaneReader(store, "sep").manifests[3].tau
    shutil.copy(store / f"lanes/distdy/commits/{tau}.json", store / f"lanes/sep/commits/{tau}.json")
    with pytest.raises(CorruptError, match=r"manifest of another lane \(distdy\)"):
        LaneReader(store, "sep")


def test_a_swapped_manifest_is_refused(store):
    first, second = (m.tau for m in LaneReader(store, "sep").manifests[3:5])
    shutil.copy(store / f"lanes/sep/commits/{first}.json", store / f"lanes/sep/commits/{second}.json")
    with pytest.raises(CorruptError, match="says it is number 3 after"):
        LaneReader(store, "sep")


def test_a_lane_of_another_log_is_refused(store, tmp_path):
    other = make_store(tmp_path / "other", events=random_events(seed=5))
    shutil.copytree(store / "lanes", other / "lanes")
    with pytest.raises(CorruptError, match="made from other events"):
        LaneReader(other, "sep")


def test_a_renamed_lane_is_refused(store):
    (store / "lanes/sep").rename(store / "lanes/other")
    with pytest.raises(CorruptError, match="header of lane 'sep', not of 'other'"):
        LaneReader(store, "other")


def test_a_newer_format_is_refused_with_both_versions(store):
    path = store / "lanes/sep/lane.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 2}))
    with pytest.raises(FormatVersionError, match="format version 2, this release reads version 1"):
        LaneReader(store, "sep")


@pytest.mark.parametrize("what", ["assignment", "edges", "segments"])
def test_a_damaged_file_is_named_when_it_is_read(store, what):
    reader = LaneReader(store, "distdy")
    manifest = reader.manifests[2]
    path = reader.root / getattr(manifest, what).path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=rf"{what}\.arrow does not match"):
        reader.changes(manifest, [0])
    path.write_bytes(content[:-8])
    with pytest.raises(CorruptError, match=rf"{what}\.arrow has {len(content) - 8} bytes"):
        reader.changes(manifest, [0])
    path.unlink()
    with pytest.raises(CorruptError, match=rf"{what}\.arrow is missing"):
        reader.changes(manifest, [0])
