"""What a sweep of a bucket may take: what was put before the record that shut its writer out, and nothing younger."""

from collections.abc import Callable

import pytest
from compacted import HEADER, catch_up, grown, seal
from lane_stream import lane
from placed import Places

from freshet_graph.schemas.store import Position
from freshet_graph.schemas.store_address import Address
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.bucket import Bucket, Found
from freshet_graph.stream.store.places.interface import with_token
from freshet_graph.stream.store.places.object_path import ObjectPath
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.store import verify

BEFORE, AFTER = "0123456789ab", "ba9876543210"
LANE = lane("hash")
in_bucket = pytest.mark.parametrize("places", ["bucket"], indirect=True, scope="module")
"""A folder's lock keeps others out."""


def listed(name: str, modified_s: float) -> ObjectPath:
    """A file as a listing tells of it."""
    return ObjectPath(Bucket(Address("b")), name, Found(name, 1, "e", modified_s))


def test_what_is_of_the_records_second_or_younger_is_not_outdated() -> None:
    """A bucket knows whole seconds: what is of the same one may have been put after the record."""
    record = listed("commits/7.json", 100.0)
    files = [listed(f"tail/{second}.arrow", float(second)) for second in (98, 99, 100, 101)]
    assert [path.name for path in record.outdated(files)] == ["98.arrow", "99.arrow"]


@in_bucket
def test_a_file_in_a_folder_is_judged_by_its_own_time(places: Places) -> None:
    place = places.new()
    for name in ("snapshots/1/events.arrow", "commits/7.json", "snapshots/1/nodes.arrow"):
        (place / name).put(b"x")  # type: ignore[union-attr]
    found = (place / "commits/7.json").outdated([place / "snapshots/1"])
    assert [path.name for path in found] == ["events.arrow"]


def first_commit(store: Place) -> None:
    """The first commit of a new writer, which shuts out whoever wrote before."""
    with LogWriter.open(store, HEADER) as writer:
        reached = writer.positions.get(("labels", 0), Position(topic="labels", partition=0, next=0))
        read = reached.model_copy(update={"next": reached.next + 1})
        writer.commit(late=1, positions={("labels", 0): read})


def first_manifest(store: Place) -> None:
    """As the first commit, of a lane."""
    seal(store, 12, 13)  # type: ignore[arg-type]
    catch_up(store, LANE)  # type: ignore[arg-type]


def two_manifests(store: Place) -> None:
    """The second one sweeps states alone."""
    seal(store, 12, 14)  # type: ignore[arg-type]
    catch_up(store, LANE)  # type: ignore[arg-type]


def compaction(store: Place) -> None:
    compact(store, Keep(snapshots=4), always=True)


@in_bucket
@pytest.mark.parametrize(
    ("work", "record", "left"),
    [
        (first_commit, "log/commits/", ["tail/99", "rejects/99", "snapshots/99/events"]),
        (first_manifest, "lanes/hash/commits/", ["snapshots/99/edges", "state/1"]),
        (two_manifests, "lanes/hash/commits/", ["state/1"]),
        (compaction, "log/index/", ["index/1", "index/base-3", "index/ids-0-1"]),
        (compaction, "lanes/hash/index/", ["index/1", "index/base-3"]),
    ],
    ids=["log", "lane", "states of a lane", "index of the log", "index of a lane"],
)
def test_what_another_writer_puts_after_the_record_stays_until_the_next_one(
    work: Callable[[Place], None],
    record: str,
    left: list[str],
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be of a writer that has taken over and will name it."""
    store = grown(places.new(), LANE, end=12)  # type: ignore[arg-type]
    put_new = Bucket.put_new
    folder = store / record.rstrip("/").rpartition("/")[0]
    records: list[str] = []

    def strays(token: str) -> None:
        for name in left:
            path = folder / with_token(f"{name}.arrow", token)
            path.put(b"x")  # type: ignore[attr-defined]

    def and_another(bucket: Bucket, key: str, content: bytes) -> str:
        etag = put_new(bucket, key, content)
        if record in key:
            records.append(key)
            strays(AFTER)
        return etag

    monkeypatch.setattr(Bucket, "put_new", and_another)
    strays(BEFORE)
    work(store)
    monkeypatch.undo()
    assert records
    found = {path.key for path in store.rglob("*.arrow")}  # type: ignore[attr-defined]
    assert not [key for key in found if BEFORE in key]
    assert len([key for key in found if AFTER in key]) == len(left)
    assert verify(store).problems == []
