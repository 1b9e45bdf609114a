"""Files of a bucket are fetched ahead of their check: in order, several at a time, a bounded amount."""

import threading
from functools import partial
from pathlib import Path

import pytest
from compacted import grown
from lane_stream import lane
from s3_server import S3Server

from freshet_graph.schemas.store_address import parse_address
from freshet_graph.stream.store.places.bucket import Bucket
from freshet_graph.stream.store.places.object_path import ObjectPath
from freshet_graph.stream.store.places.place import place_of
from freshet_graph.stream.store.verify import ahead
from freshet_graph.stream.store.verify.store import verify


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """A place in a bucket that nobody asks for anything, with a large cache."""
    monkeypatch.setattr(ObjectPath, "ahead_bytes", lambda _: 1 << 40)
    return ObjectPath(Bucket(parse_address("s3://bucket/store")), "store")


def test_outcomes_come_in_order_and_each_raises_its_own(root: ObjectPath, tmp_path: Path) -> None:
    def work(number: int) -> int:
        if number % 3 == 1:
            raise ValueError(str(number))
        return number * 2

    for place in (root, place_of(tmp_path)):
        found = []
        for read in ahead.results_ahead(place, range(200), work, lambda _: 1):
            try:
                found.append(read())
            except ValueError as error:
                found.append(-int(str(error)))
        assert found == [-n if n % 3 == 1 else 2 * n for n in range(200)]


def test_several_are_at_work_at_a_time(root: ObjectPath) -> None:
    together = threading.Barrier(ahead.READ_THREADS)
    outcomes = ahead.results_ahead(root, range(ahead.READ_THREADS), lambda _: together.wait(20), lambda _: 1)
    assert sorted(read() for read in outcomes) == list(range(ahead.READ_THREADS))


@pytest.mark.parametrize("size", [1, 10, 40, 1000])
def test_no_more_bytes_are_ahead_than_the_bound(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(ahead, "MOST_AHEAD_BYTES", 100)
    begun, lock, looked = [0], threading.Lock(), 0

    def work(_: int) -> None:
        with lock:
            begun[0] += 1

    for read in ahead.results_ahead(root, range(300), work, lambda _: size):
        read()
        with lock:
            assert (begun[0] - looked) * size <= max(100, size)
            assert begun[0] - looked <= ahead.MOST_AHEAD
        looked += 1
    assert looked == 300


def test_who_looks_no_further_leaves_no_thread_and_waits_for_none(root: ObjectPath) -> None:
    held = threading.Event()

    def work(number: int) -> int:
        if number:
            assert held.wait(60)
        return number

    outcomes = ahead.results_ahead(root, range(1000), work, lambda _: 1)
    assert next(outcomes)() == 0
    closing = threading.Thread(target=outcomes.close)
    closing.start()
    closing.join(20)
    waited = closing.is_alive()
    held.set()
    assert not waited
    for thread in threading.enumerate():
        if thread.name.startswith("verify"):
            thread.join(20)
            assert not thread.is_alive()


def test_damage_is_told_by_the_same_sentences_in_the_same_order_as_file_by_file(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3.store()
    grown(store, lane("hash"), end=5)
    for number, folder in enumerate(("log/snapshots", "log/commits", "lanes/hash/commits")):
        for path in sorted((place_of(store) / folder).rglob("*"))[number::4]:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.put(bytes(content))
    told = verify(store)
    monkeypatch.setattr(
        ahead, "results_ahead", lambda _root, items, work, _size: (partial(work, item) for item in items)
    )
    one_by_one = verify(store)
    assert len(told.problems) > 4
    assert (told.problems, told.files, told.bytes) == (
        one_by_one.problems,
        one_by_one.files,
        one_by_one.bytes,
    )
