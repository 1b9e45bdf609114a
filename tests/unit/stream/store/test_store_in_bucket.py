"""A store in a bucket is what the same store in a folder is: content, checks, compaction, following, removal."""

import time
from pathlib import Path

import pytest
from compacted import catch_up, grown, log_content, seal, seen
from lane_stream import lane
from s3_server import S3Server

from freshet_graph.stream.cluster.plan import announce, is_current, withdraw
from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.compact.store import Keep, compact, remove_lane
from freshet_graph.stream.store.errors import ConfigMissingError, LaneBusyError, RetainedError
from freshet_graph.stream.store.graph import read_graph
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.layout import lane_names
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.interface import with_token
from freshet_graph.stream.store.places.place import place_of
from freshet_graph.stream.store.verify.store import verify

LANES = [lane("hash"), lane("hdrf")]
DAYS = 10
"""Snapshots of a store here."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store: Path = grown(tmp_path_factory.mktemp("local"), *LANES, end=DAYS)
    return store


@pytest.fixture
def store(s3: S3Server) -> str:
    return s3.store()


def described(store: object) -> dict[str, object]:
    """What ``inspect`` says, without times and file lengths."""
    found = inspect(store)  # type: ignore[arg-type]
    found["committed"] = None
    lanes = {
        name: {key: value for key, value in about.items() if key not in {"update_s", "disk_bytes"}}
        for name, about in found["lanes"].items()
    }
    return {**found, "lanes": lanes}


def test_it_holds_what_a_folder_holds_from_its_begin_to_its_compaction(local: Path, store: str) -> None:
    grown(store, *LANES, end=DAYS)
    assert verify(store).problems == []
    assert described(store) == described(local)
    for name in ("hash", "hdrf"):
        assert seen(store, name, 0) == seen(local, name, 0)
    half = AsOf.parse(str(DAYS // 2))
    assert read_graph(store, as_of=half).src.tolist() == read_graph(local, as_of=half).src.tolist()

    behind = LogReader(store)
    assert compact(store, Keep(snapshots=4), always=True).first == DAYS - 4
    assert verify(store).problems == []
    assert seen(store, "hash", DAYS - 4) == seen(local, "hash", DAYS - 4)
    assert log_content(store, DAYS - 4) == log_content(local, DAYS - 4)
    behind.refresh()
    with pytest.raises(RetainedError, match=f"can start from {DAYS - 4}"):
        behind.events(0)
    log = [path.key for path in (place_of(store) / "log").rglob("*")]  # type: ignore[union-attr]
    assert sum("/snapshots/" in key for key in log) == 3 * 4
    assert sum("/commits/" in key for key in log) == 1


def test_a_reader_follows_what_is_committed(store: str) -> None:
    seal(store, 0, 2)  # type: ignore[arg-type]
    log = LogReader(store)
    followed = log.follow(timeout_s=10)
    assert [next(followed).tau for _ in range(2)] == [0, 1]
    seal(store, 2, 3)  # type: ignore[arg-type]
    assert next(followed).tau == 2
    assert [s.tau for s in log.follow(2, timeout_s=0.1)] == []


def test_a_lane_that_is_removed_is_gone_with_its_files(store: str) -> None:
    grown(store, *LANES, end=3)  # type: ignore[arg-type]
    remove_lane(store, "hdrf")
    assert lane_names(store) == ["hash"]
    assert [path for path in place_of(store).rglob("*") if "hdrf" in str(path)] == []
    catch_up(store, LANES[1])  # type: ignore[arg-type]
    assert verify(store).problems == []


def test_a_removal_that_was_cut_short_is_ended_by_the_next_compaction(store: str) -> None:
    grown(store, *LANES, end=3)  # type: ignore[arg-type]
    (place_of(store) / "lanes/hdrf.removed").put(b"")  # type: ignore[union-attr]
    assert lane_names(store) == ["hash"]
    assert verify(store).problems == []
    with pytest.raises(LaneBusyError, match=r"is being removed\. Run freshet-stream compact"):
        LaneWriter(store, LANES[1])
    compact(store)
    assert [path for path in place_of(store).rglob("*") if "hdrf" in str(path)] == []
    catch_up(store, LANES[1])  # type: ignore[arg-type]
    assert len(LaneReader(store, "hdrf").manifests) == 3


def test_a_store_that_is_not_there_is_told(store: str) -> None:
    for look in (LogReader, verify, inspect):
        with pytest.raises(ConfigMissingError, match="does not exist"):
            look(store)


def test_a_copy_of_a_bucket_in_a_folder_is_a_store(store: str, tmp_path: Path, local: Path) -> None:
    grown(store, LANES[0], end=DAYS - 2)  # type: ignore[arg-type]
    compact(store, Keep(snapshots=6), always=True)
    root = place_of(store)
    for path in root.rglob("*"):
        copy = tmp_path / str(path).removeprefix(f"{root}/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    assert verify(tmp_path).problems == []
    seal(tmp_path, DAYS - 2, DAYS)
    catch_up(tmp_path, LANES[0])
    compact(tmp_path, Keep(snapshots=4), always=True)
    assert verify(tmp_path).problems == []
    assert seen(tmp_path, "hash", DAYS - 4) == seen(local, "hash", DAYS - 4)


def test_what_a_writer_that_was_shut_out_left_is_swept_after_the_next_commit(store: str) -> None:
    seal(store, 0, 2)  # type: ignore[arg-type]
    root = place_of(store) / "log"
    token = "0123456789ab"
    for name in ("tail/9", "rejects/9", "snapshots/9/events", "snapshots/1/events", "index/base-3"):
        (root / with_token(f"{name}.arrow", token)).put(b"left")  # type: ignore[union-attr]
    time.sleep(1.1)  # a bucket knows whole seconds
    seal(store, 2, 3)  # type: ignore[arg-type]
    assert [p.name for p in root.rglob("*") if token in str(p)] == [f"base-3_{token}.arrow"]
    compact(store, always=True)
    time.sleep(1.1)
    compact(store, always=True)
    assert [p.name for p in root.rglob("*") if token in str(p)] == []
    assert verify(store).problems == []


def test_a_cluster_is_told_which_submission_reads(store: str) -> None:
    assert not is_current(store, "a")
    announce(store, "a")
    announce(store, "b")
    withdraw(store, "a")
    assert is_current(store, "b") and not is_current(store, "a")
    withdraw(store, "b")
    assert not is_current(store, "b")


def test_verify_reads_the_bucket_and_not_the_copies(store: str) -> None:
    grown(store, LANES[0], end=3)  # type: ignore[arg-type]
    events = LogReader(store).snapshots[1].events
    path = place_of(store) / "log" / events.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.put(bytes(content))  # type: ignore[union-attr]
    assert seen(store, "hash", 0)  # type: ignore[arg-type]  # from the copy that its writer left
    assert any(events.path in problem and "checksum" in problem for problem in verify(store).problems)
    path.unlink()
    assert any(events.path in problem and "is missing" in problem for problem in verify(store).problems)
