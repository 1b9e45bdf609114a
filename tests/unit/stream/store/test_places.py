"""What a folder of this machine and a prefix of a bucket have in common: the contract that the store is built on."""

import os
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from data_files import write_table
from other_machine import elsewhere
from s3_server import S3Server

from freshet_graph.schemas.store import LogHeader
from freshet_graph.schemas.store_address import Address, parse_address
from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError, LaneBusyError, MissingError
from freshet_graph.stream.store.files.data import open_table, read_table
from freshet_graph.stream.store.files.records import put_record, read_record
from freshet_graph.stream.store.files.sweep import lock_folder, remove
from freshet_graph.stream.store.places import lease as lease_module
from freshet_graph.stream.store.places.bucket import Bucket, ObjectStoreError
from freshet_graph.stream.store.places.interface import plain, token_of, with_token
from freshet_graph.stream.store.places.object_path import ObjectPath, cache_of
from freshet_graph.stream.store.places.place import Place, place_of

TABLE = pa.table({"x": [1, 2, 3]})


def header(graph: str) -> LogHeader:
    return LogHeader(graph=graph, interval_us=10, ids="int")


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return place_of(tmp_path / "store")
    s3: S3Server = request.getfixturevalue("s3")
    return place_of(s3.store(cache=tmp_path / "cache"))


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path) -> ObjectPath:
    place = place_of(s3.store(cache=tmp_path / "cache", cache_gib=0.001))
    assert isinstance(place, ObjectPath)
    return place


def names(paths: object) -> list[str]:
    return sorted(path.name for path in paths)  # type: ignore[attr-defined]


def test_a_record_is_put_once_by_whoever_comes_first(place: Place) -> None:
    path = place / "commits/0.json"
    won: list[str] = []

    def put(graph: str) -> None:
        try:
            put_record(path, header(graph))
        except FileExistsError:
            return
        won.append(graph)

    if isinstance(place, ObjectPath):
        threads = [threading.Thread(target=put, args=(f"g{i}",)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:  # a folder's lock keeps others out
        put("g0")
        put("g1")
    assert len(won) == 1
    assert read_record(path, LogHeader).graph == won[0]


def test_a_record_that_is_put_again_is_its_own(place: Place) -> None:
    """The answer to a put may be lost: in a bucket the same record under its name is not another writer's."""
    path = place / "log.json"
    put_record(path, header("g"))
    if isinstance(place, ObjectPath):
        put_record(path, header("g"))
    with pytest.raises(FileExistsError):
        put_record(path, header("other"))
    assert read_record(path, LogHeader).graph == "g"


def test_a_record_is_replaced_whole(place: Place) -> None:
    path = place / "log.json"
    put_record(path, header("g"))
    put_record(path, header("other"), replace=True)
    assert read_record(path, LogHeader).graph == "other"


def test_what_is_not_there_is_missing(place: Place) -> None:
    with pytest.raises(ConfigMissingError, match=r"log\.json does not exist"):
        read_record(place / "log.json", LogHeader)
    with place_of(place).stage() as staging:
        reference = staging.add_table("tail/0.arrow", TABLE)
        staging.finish()
    (place / reference.path).unlink()
    if isinstance(place, ObjectPath):
        assert cache_of(place).forget(place / reference.path, reference.checksum)
    with pytest.raises(MissingError, match="is missing, though a record names it"):
        open_table(place, reference)
    with pytest.raises(FileNotFoundError):
        (place / reference.path).unlink()
    (place / reference.path).unlink(missing_ok=True)


def test_staged_files_are_there_once_finished(place: Place) -> None:
    with place_of(place).stage() as staging:
        first = staging.add_table("tail/0.arrow", TABLE)
        second = staging.add_table("snapshots/7/events.arrow", TABLE, compressed=True)
        assert not (place / first.path).exists()
        staging.finish()
    assert read_table(place, first).equals(TABLE)
    assert read_table(place, second, schema=TABLE.schema).equals(TABLE)
    assert (place / first.path).stat().st_size == first.bytes
    assert (plain(first.path), plain(second.path)) == ("tail/0.arrow", "snapshots/7/events.arrow")
    assert bool(token_of(first.path)) == isinstance(place, ObjectPath)


def test_a_commit_that_fails_leaves_nothing_that_is_named(place: Place) -> None:
    with pytest.raises(RuntimeError, match="no"), place_of(place).stage() as staging:
        staging.add_table("tail/0.arrow", TABLE)
        raise RuntimeError("no")
    assert names(place.rglob("*.arrow")) == []
    if isinstance(place, ObjectPath):
        assert list(cache_of(place).folder.iterdir()) == []


def test_other_bytes_are_found_out(place: Place) -> None:
    reference = write_table(place, "exports/x.arrow", TABLE)
    assert reference.path == "exports/x.arrow"
    content = bytearray((place / reference.path).read_bytes())
    content[len(content) // 2] ^= 1
    _overwrite(place / reference.path, bytes(content))
    if isinstance(place, ObjectPath):
        assert open_table(
            place, reference
        )  # the copy is right, and what it is a copy of is for verify to find
        cache_of(place).forget(place / reference.path, reference.checksum)
    with pytest.raises(CorruptError, match="does not match the checksum"):
        open_table(place, reference)
    _overwrite(place / reference.path, bytes(content[:-1]))
    with pytest.raises(CorruptError, match=f"has {reference.bytes - 1} bytes"):
        open_table(place, reference)


def _overwrite(path: Place, content: bytes) -> None:
    path.put(content) if isinstance(path, ObjectPath) else path.write_bytes(content)


def test_folders_are_listed_and_removed(place: Place) -> None:
    for name in ("a/1.json", "a/2.json", "a/b/3.arrow", "c/lane.json", "d/x"):
        (place / name).parent.make()
        _overwrite(place / name, b"content")
    assert names(place.iterdir()) == ["a", "c", "d"]
    assert names((place / "a").iterdir()) == ["1.json", "2.json", "b"]
    files = [path for path in place.rglob("*") if not path.is_dir()]
    assert names(files) == ["1.json", "2.json", "3.arrow", "lane.json", "x"]
    assert {path.stat().st_size for path in files} == {7}
    assert (place / "a").is_dir() and not (place / "a/1.json").is_dir() and not (place / "e").is_dir()
    assert (place / "a/1.json").exists() and not (place / "a/4.json").exists()
    assert (place / "e").names() == []
    remove([place / "a", *(place / "d").iterdir(), place / "not-there"])
    assert names(path for path in place.rglob("*") if not path.is_dir()) == ["lane.json"]


def test_one_writer_a_folder(place: Place) -> None:
    place.make()
    lock = lock_folder(place, "first")
    lock.require()
    with pytest.raises(LaneBusyError, match=r"is being written by first\. Stop it, or choose another store"):
        lock_folder(place, "second")
    with pytest.raises(LaneBusyError, match="compacted by"):
        lock_folder(place, "third", "compaction.lock") and lock_folder(place, "fourth", "compaction.lock")
    lock.release()
    lock.release()
    lock_folder(place, "second").release()


def test_the_name_of_a_data_file_has_one_token() -> None:
    for path in ("tail/3.arrow", "snapshots/-7/event_parts.arrow", "index/ids-0-12.arrow"):
        named = with_token(path, "0123456789ab")
        assert (plain(named), token_of(named), token_of(path)) == (path, "0123456789ab", "")


# Buckets alone.


def patient(bucket: ObjectPath) -> ObjectPath:
    """The same place for one who waits a minute for the next beat, however slow the service is."""
    address = bucket.bucket.address
    return ObjectPath(Bucket(replace(address, lease_s=60)), bucket.key)


def test_a_lease_of_a_holder_that_fell_silent_is_taken_over(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = elsewhere(monkeypatch)
    silent = lock_folder(bucket, "silent")
    back()
    with pytest.raises(LaneBusyError, match="written by silent"):  # it still beats
        lock_folder(patient(bucket), "second")
    silent.fall_silent()  # type: ignore[attr-defined]
    second = lock_folder(bucket, "second")
    time.sleep(1.1)
    with pytest.raises(LaneBusyError, match=r"written by second now: silent was silent for longer"):
        silent.require()
    second.require()
    second.release()


def test_a_lease_of_a_process_of_this_machine_that_has_ended_is_taken_at_once(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_folder(bucket, "killed")
    lock.fall_silent()  # type: ignore[attr-defined]
    monkeypatch.setattr(
        lease_module, "_started", lambda pid: "later"
    )  # its number is another process's by now
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waited"))
    lock_folder(bucket, "second")


def test_a_holder_that_this_user_may_not_see_is_not_taken_for_one_that_has_ended(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = lock_folder(bucket, "hidden")
    monkeypatch.setattr(lease_module, "_started", lambda pid: None)  # /proc shows one's own processes only
    with pytest.raises(LaneBusyError, match="written by hidden"):  # it beats
        lock_folder(patient(bucket), "second")
    hidden.release()


def test_a_lease_runs_out_while_the_machine_is_suspended(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_folder(patient(bucket), "asleep")
    lock.fall_silent()  # type: ignore[attr-defined]
    (bucket / "lock").put(b"another holder's")
    lock.require()  # within the lease it need not ask
    real = time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: real(clock) + 600 * (clock == time.CLOCK_BOOTTIME)
    )
    with pytest.raises(LaneBusyError, match="asleep was silent"):
        lock.require()


def test_a_lease_that_nobody_renewed_for_long_is_asked_for_before_it_is_relied_on(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_folder(bucket, "paused")
    now_s = lease_module.now_s
    monkeypatch.setattr(lease_module, "now_s", lambda: now_s() + 10)
    before = (bucket / "lock").read_bytes()
    lock.require()
    assert (bucket / "lock").read_bytes() != before
    lock.release()


@pytest.mark.parametrize("damage", ["other bytes", "cut short"])
def test_a_file_is_fetched_once_and_anew_when_its_copy_is_damaged(damage: str, bucket: ObjectPath) -> None:
    with place_of(bucket).stage() as staging:
        reference = staging.add_table("tail/0.arrow", TABLE)
        staging.finish()
    fetched: list[str] = []
    fetch = bucket.bucket.fetch
    bucket.bucket.fetch = lambda key, path: (fetched.append(key), fetch(key, path))[1]  # type: ignore[method-assign]
    read_table(bucket, reference)
    assert fetched == []  # what was written here is here
    (copy,) = cache_of(bucket).folder.iterdir()
    copy.write_bytes(b"?" * reference.bytes if damage == "other bytes" else copy.read_bytes()[:-1])
    assert read_table(bucket, reference).equals(TABLE)
    read_table(bucket, reference)
    assert fetched == [f"{bucket.key}/{reference.path}"]


def test_the_cache_keeps_what_was_used_last_within_its_bound(bucket: ObjectPath) -> None:
    cache = cache_of(bucket)
    assert cache.limit_bytes == 1_073_741
    table = pa.table({"x": list(range(20_000))})
    references = [write_table(bucket, f"exports/{i}.arrow", table) for i in range(6)]
    for i in range(6):
        os.utime(cache.copy_path(bucket / references[i].path, references[i].checksum), (i, i))
    mapped = read_table(bucket, references[0])  # used last, and in use
    for i in range(6, 9):
        write_table(bucket, f"exports/{i}.arrow", table)
    sizes = [path.stat().st_size for path in cache.folder.iterdir()]
    assert sum(sizes) <= cache.limit_bytes * (1 + 1 / 16)
    assert cache.copy_path(bucket / references[0].path, references[0].checksum).exists()
    assert not cache.copy_path(bucket / references[1].path, references[1].checksum).exists()
    assert mapped.equals(table)
    assert read_table(bucket, references[1]).equals(table)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b", Address("b")),
        ("s3://b/", Address("b")),
        ("s3://b/p/q/", Address("b", "p/q")),
        (
            "s3://b/p?region=eu-west-1&endpoint=http://h:9&cache=/c&cache_gib=2&retry_s=3&lease_s=4",
            Address("b", "p", "eu-west-1", "http://h:9", Path("/c"), 2.0, 3.0, 4.0),
        ),
    ],
)
def test_addresses_say_where_a_bucket_is(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3://", "no address"),
        ("s3://key:hunter2@b/p", "must not have credentials"),
        ("s3://b/p?secret_access_key=hunter2", "no key 'secret_access_key'"),
        ("s3://b/p/../q", "a step that is . or .."),
        ("s3://b?lease_s=0", "a number of at least 1, found '0'"),
        ("s3://b?retry_s=nan", "a number of at least 0.1"),
        ("s3://b?region=", "no key 'region'"),
        ("s3://b?region=a b", "no name of a region"),
        ("s3://b b/p", "no name of a bucket"),
        (
            "s3://b?endpoint=::",
            "a URL such as https://storage.example.org:9000, without credentials, found '::'",
        ),
        ("s3://b?endpoint=ftp://h", "found 'ftp://h'"),
        ("s3://b?endpoint=http://", "found 'http://'"),
        ("s3://b?endpoint=http://h:99999", "found 'http://h:99999'"),
        ("s3://b?endpoint=http://h h", "found 'http://h h'"),
        ("s3://b?endpoint=http://key:hunter2@h", "without credentials"),
    ],
)
def test_what_is_no_address_is_told_without_its_secrets(text: str, told: str) -> None:
    with pytest.raises(ConfigMissingError) as error:
        place_of(text)
    assert told in str(error.value)
    assert "hunter2" not in str(error.value)


def test_an_endpoint_of_the_environment_that_is_none_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "::")
    with pytest.raises(
        ObjectStoreError, match="AWS_ENDPOINT_URL: the endpoint of a store's address is a URL"
    ):
        (place_of(f"s3://of-the-environment/p?cache={tmp_path}") / "x").exists()


@pytest.mark.parametrize("prefix", ["", "/a b", "/ünï", "/50%", "/a+b&c", "/x/y/z"])
def test_any_prefix_is_a_place(s3: S3Server, prefix: str) -> None:
    place = place_of(s3.store(name=quote(f"any/{secrets.token_hex(4)}{prefix}")))
    put_record(place / "log/commits/0.json", header("g"))
    with place_of(place).stage() as staging:
        reference = staging.add_table("tail/0.arrow", TABLE)
        staging.finish()
    assert read_table(place, reference).equals(TABLE)
    assert cache_of(place).forget(place / reference.path, reference.checksum)  # type: ignore[arg-type]
    assert read_table(place, reference).equals(TABLE)
    assert names(place.rglob("*")) == ["0.json", reference.path.removeprefix("tail/")]
    assert [read_record(path, LogHeader).graph for path in (place / "log/commits").iterdir()] == ["g"]
    remove([place / "log", place / "tail"])
    assert names(place.rglob("*")) == []
