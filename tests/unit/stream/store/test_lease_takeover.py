"""When a lease may be taken over: once it was seen unchanged for as long as it holds, by the watcher's own clock."""

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from placed import Places

from freshet_graph.stream.store.errors import LaneBusyError
from freshet_graph.stream.store.files.sweep import lock_folder
from freshet_graph.stream.store.places import lease
from freshet_graph.stream.store.places.bucket import Bucket
from freshet_graph.stream.store.places.object_path import ObjectPath

pytestmark = pytest.mark.parametrize("places", ["bucket"], indirect=True, scope="module")

LEASE_S = 16.0


class Slept:
    """A clock that only sleeping moves; ``then`` is called after each sleep with the seconds slept so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s = 0.0
        self.then: Callable[[float], None] = lambda slept_s: None
        monkeypatch.setattr(lease, "_silent", {})  # each holder is another one
        monkeypatch.setattr(time, "clock_gettime", lambda clock: self.s)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.s += seconds
        self.then(self.s)


@pytest.fixture
def folder(places: Places) -> ObjectPath:
    place = places.new()
    assert isinstance(place, ObjectPath)
    return ObjectPath(Bucket(replace(place.bucket.address, lease_s=LEASE_S)), place.key)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Slept:
    return Slept(monkeypatch)


def beat(folder: ObjectPath, number: int, **more: object) -> None:
    """What a holder on another machine puts again and again."""
    said = {"writer": "holder", "beat": str(number), "boot": "another machine", "pid": 1, "started": "1"}
    (folder / "lock").put(json.dumps(said | more).encode())


def test_a_silent_holder_keeps_its_lease_for_all_of_its_time(folder: ObjectPath, slept: Slept) -> None:
    beat(folder, 0)
    lock_folder(folder, "next").release()
    assert LEASE_S <= slept.s <= LEASE_S + 1


@pytest.mark.parametrize(
    ("held_s", "own_s", "lasts_s"),
    [(60, 1, 60), (1, 60, 60), ("60", 5, 5), (float("inf"), 5, 5), (float("nan"), 5, 5)],
    ids=["the holder's", "the taker's", "a word", "for ever", "no number"],
)
def test_of_two_lease_times_the_longer_holds(
    held_s: object, own_s: float, lasts_s: float, folder: ObjectPath, slept: Slept
) -> None:
    """Without one, as an earlier release puts it, the taker's holds: that is the test above."""
    beat(folder, 0, lease_s=held_s)
    taker = Bucket(replace(folder.bucket.address, lease_s=own_s))
    lock = lock_folder(ObjectPath(taker, folder.key), "next")
    assert lasts_s <= slept.s < lasts_s + 2
    assert json.loads((folder / "lock").read_bytes())["lease_s"] == own_s
    lock.release()


def test_a_beat_at_the_last_moment_keeps_the_lease(folder: ObjectPath, slept: Slept) -> None:
    beat(folder, 0)
    slept.then = lambda slept_s: beat(folder, 1) if slept_s >= LEASE_S else None
    with pytest.raises(LaneBusyError, match=r"written by holder\. Stop it"):
        lock_folder(folder, "next")


@pytest.mark.parametrize("request_of", ["the first put", "a takeover", "a renewal"])
def test_a_lease_counts_from_its_request_however_late_the_answer_is(
    request_of: str, folder: ObjectPath, slept: Slept, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = "put_new" if request_of == "the first put" else "replace"
    made = getattr(Bucket, put)

    def slow(*arguments: object) -> object:
        etag = made(*arguments)
        slept.s += LEASE_S - 1
        return etag

    if request_of == "a takeover":
        (folder / "lock").put(b"{}\n")  # given back
    if request_of == "a renewal":
        lock = lock_folder(folder, "holder")
        slept.s += LEASE_S + 1
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, put, slow)
        if request_of == "a renewal":
            lock.require()
        else:
            lock = lock_folder(folder, "holder")
    lock.fall_silent()  # type: ignore[attr-defined]
    before = (folder / "lock").read_bytes()
    lock.require()
    assert (folder / "lock").read_bytes() == before, "it has a second left"
    slept.s += 2
    lock.require()
    assert (folder / "lock").read_bytes() != before, "it was asked for again"
    lock.release()
