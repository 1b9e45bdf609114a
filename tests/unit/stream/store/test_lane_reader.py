"""Readers of a lane, in a folder or a bucket: other processes' commits as they come, and damage by name."""

import os

import pytest
from lane_stream import lane, make_store, random_events
from placed import Changes, copied, flipped
from warm_popen import server

from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.places.place import place_of


@pytest.fixture(scope="module")
def store(places):
    """A store that every test leaves as it was."""
    return make_store(places.new(), lane("distdy"), lane("sep"))


def catch_up(store: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with LaneWriter(store, lane("hash")) as writer:
        writer.catch_up()


def test_a_missing_lane_is_told_with_those_there_are(store):
    with pytest.raises(ConfigMissingError, match=r"no lane 'typo'\. It has distdy, sep"):
        LaneReader(store, "typo")
    with pytest.raises(ConfigMissingError, match=r"log\.json"):
        LaneReader(store / "nowhere", "distdy")


def test_it_follows_what_another_process_commits(places):
    address = places.shared_address()
    store = make_store(place_of(address))
    LaneWriter(store, lane("hash")).close()
    reader = LaneReader(store, "hash")
    writer = server().Process(target=catch_up, args=(address, dict(os.environ)))
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


def manifest_path(store, name: str, sequence: int):
    return store / f"lanes/{name}/commits/{LaneReader(store, name).manifests[sequence].tau}.json"


def test_a_missing_manifest_in_between_is_named(store, change):
    path = manifest_path(store, "sep", 3)
    change.remove(path)
    with pytest.raises(
        CorruptError, match=rf"{path.name} is missing, though snapshot {int(path.name[:-5]) + 1} exists"
    ):
        LaneReader(store, "sep")


def test_a_manifest_of_another_lane_is_refused(store, change):
    path = manifest_path(store, "sep", 3)
    change.write(path, (store / f"lanes/distdy/commits/{path.name}").read_bytes())
    with pytest.raises(CorruptError, match=r"manifest of another lane \(distdy\)"):
        LaneReader(store, "sep")


def test_a_swapped_manifest_is_refused(store, change):
    first, second = (manifest_path(store, "sep", sequence) for sequence in (3, 4))
    change.write(second, first.read_bytes())
    with pytest.raises(CorruptError, match="says it is number 3 after"):
        LaneReader(store, "sep")


def test_a_lane_of_another_log_is_refused(store, places):
    other = make_store(places.new(), events=random_events(seed=5))
    copied(store / "lanes", other / "lanes")
    with pytest.raises(CorruptError, match="made from other events"):
        LaneReader(other, "sep")


def test_a_renamed_lane_is_refused(store, change: Changes):
    change.write(store / "lanes/other/lane.json", (store / "lanes/sep/lane.json").read_bytes())
    with pytest.raises(CorruptError, match="header of lane 'sep', not of 'other'"):
        LaneReader(store, "other")


def test_a_copy_of_this_machine_goes_on_where_the_bucket_is_damaged_and_one_that_is_damaged_is_never_served(
    s3, tmp_path
):
    """What a folder can't have: a reader that has a good copy reads that, whatever became of the object, and no other."""
    store = make_store(
        place_of(s3.store(cache=tmp_path / "cache")), lane("hash"), events=random_events(snapshots=2)
    )
    manifest = LaneReader(store, "hash").manifests[1]
    path = store / "lanes/hash" / manifest.edges.path
    good = path.read_bytes()
    expected = LaneReader(store, "hash").changes(manifest, [0]).keys.tolist()
    (copy,) = (tmp_path / "cache").glob(f"*-{manifest.edges.checksum}")
    for damaged in (flipped(good, len(good) // 2), good[:-8], b""):
        copy.unlink(missing_ok=True)
        copy.write_bytes(damaged)
        assert LaneReader(store, "hash").changes(manifest, [0]).keys.tolist() == expected  # fetched anew
        assert copy.read_bytes() == good
        path.put(damaged)
        assert LaneReader(store, "hash").changes(manifest, [0]).keys.tolist() == expected  # from the copy
        copy.unlink(missing_ok=True)
        copy.write_bytes(damaged)
        with pytest.raises(CorruptError, match=r"edges\.arrow"):
            LaneReader(store, "hash").changes(manifest, [0])
        path.put(good)
    assert LaneReader(store, "hash").changes(manifest, [0]).keys.tolist() == expected
