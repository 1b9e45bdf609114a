"""Killed before any change of a bucket, refused it, or never answered: what was acknowledged is there, and all else can go on."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal

import pytest
from compacted import catch_up, grown, log_content, seal, seen
from lane_stream import lane
from placed import files_of
from s3_server import S3Server
from sweeps import sweep
from written_log import commits, durable_in_log, write_log, write_log_again_and_again

from freshet_graph.stream.store.compact.store import Keep, compact, remove_lane
from freshet_graph.stream.store.errors import ConfigMissingError, StoreError
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.layout import lane_names
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places import lease as lease_module
from freshet_graph.stream.store.places.bucket import Bucket, ObjectStoreError
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.verify.store import verify

CHANGES = ("put", "put_new", "replace", "remove")
Trouble = Literal["killed", "refused", "unanswered"]


class Killed(BaseException):
    """The end of a process, as far as a bucket can tell."""


class Lives:
    """Processes, one after another, each of which meets trouble at one of its changes of a bucket, leases left out.

    A process that is ``killed`` makes no change from then on. One that is ``refused`` sees a service that nobody reaches for
    longer than ``retry_s``, once; the change that stays ``unanswered`` is made all the same.

    Attributes:
        changes: Changes that the life at hand has asked for.
        met: Whether the trouble came.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes, self.met = 0, False
        self._life = 0
        self._at: int | None = None
        self._trouble: Trouble = "killed"
        self._lock = threading.Lock()
        for name in CHANGES:
            monkeypatch.setattr(Bucket, name, self._troubled(getattr(Bucket, name)))
        # Its leases are those of a process that has ended once the next life begins.
        monkeypatch.setattr(lease_module, "_started", lambda pid: str(self._life))

    def begin(self, at: int | None = None, trouble: Trouble = "killed") -> None:
        """Begin a life with trouble at its change number ``at``; None: never."""
        self._life += 1
        self.changes, self.met, self._at, self._trouble = 0, False, at, trouble

    def _troubled(self, change: Callable[..., object]) -> Callable[..., object]:
        def troubled(bucket: Bucket, *arguments: object) -> object:
            if str(arguments[0]).endswith("lock"):
                return change(bucket, *arguments)
            with self._lock:
                trouble = self._trouble if self.changes == self._at else None
                self.met |= trouble is not None
                if trouble == "killed":
                    raise Killed
                self.changes += 1
            if trouble is None:
                return change(bucket, *arguments)
            if trouble == "unanswered":
                change(bucket, *arguments)
            raise ObjectStoreError("the service does not answer (status 503)", errno.EHOSTUNREACH)

        return troubled


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Lives:
    return Lives(monkeypatch)


def killed_at_each(
    lives: Lives, s3: S3Server, work: Callable[[str], None], made: Callable[[], str], step: int
) -> Iterator[tuple[str, int]]:
    """Stores left by ``work`` that was killed before one of its changes, until it comes to its end."""
    for dies_at in count(0, step):
        lives.begin()
        store = made()
        lives.begin(dies_at)
        try:
            work(store)
        except Killed:
            lives.begin()
            yield store, dies_at
        else:
            assert dies_at - step < lives.changes <= dies_at
            return


@sweep
def test_a_kill_before_any_change_of_the_log_loses_nothing_acknowledged(
    lives: Lives, s3: S3Server, step: int
) -> None:
    lives.begin()
    whole = s3.store(lease_s=60)
    write_log(whole, lambda: None)  # type: ignore[arg-type]
    expected = log_content(whole, 0)
    acknowledged = [0]

    def work(store: str) -> None:
        acknowledged[0] = 0
        write_log(store, lambda: acknowledged.__setitem__(0, acknowledged[0] + 1))  # type: ignore[arg-type]

    points = 0
    for store, dies_at in killed_at_each(lives, s3, work, lambda: s3.store(lease_s=60), step):
        points += step
        where = f"killed before change {dies_at}"
        assert durable_in_log(store) >= acknowledged[0], where  # type: ignore[arg-type]
        write_log(store, lambda: None)  # type: ignore[arg-type]
        assert log_content(store, 0) == expected, where
        assert verify(store).problems == [], where
    assert points > 3 * len(commits())


@sweep
def test_a_kill_before_any_change_of_a_lane_makes_the_same_lane(
    lives: Lives, s3: S3Server, step: int
) -> None:
    lives.begin()
    whole = grown(s3.store(lease_s=60), lane("hdrf"), end=2)  # type: ignore[arg-type]
    expected = seen(whole, "hdrf", 0)

    def work(store: str) -> None:
        with LaneWriter(store, lane("hdrf")) as writer:
            writer.catch_up()

    def made() -> str:
        store = s3.store(lease_s=60)
        seal(store, 0, 2)  # type: ignore[arg-type]
        return store

    points = 0
    for store, dies_at in killed_at_each(lives, s3, work, made, step):
        points += step
        work(store)
        assert verify(store).problems == [], f"killed before change {dies_at}"
        assert seen(store, "hdrf", 0) == expected, f"killed before change {dies_at}"  # type: ignore[arg-type]
    assert points > 8


@sweep
def test_a_kill_before_any_change_of_a_compaction_leaves_a_store_that_can_be_compacted(
    lives: Lives, s3: S3Server, step: int
) -> None:
    lives.begin()
    store = s3.store(lease_s=60)
    grown(store, lane("hash"), end=8)  # type: ignore[arg-type]
    expected = seen(store, "hash", 4)  # type: ignore[arg-type]
    for dies_at in count(0, step):
        lives.begin(dies_at)
        try:
            compact(store, Keep(snapshots=4), always=True)
        except Killed:
            lives.begin()
            assert verify(store).problems == [], f"killed before change {dies_at}"
        else:
            break
    assert dies_at > 8
    lives.begin()
    assert inspect(store)["kept"] == 4
    assert seen(store, "hash", 4) == expected  # type: ignore[arg-type]
    time.sleep(1.1)  # a bucket knows whole seconds
    compact(store, Keep(snapshots=4), always=True)
    left = [path.name for path in (place_of(store) / "log/index").iterdir()]
    assert len(left) == len({name.split("_")[0].removesuffix(".json") for name in left}) + 2, left


@sweep
def test_a_kill_before_any_change_of_a_removal_leaves_a_lane_or_none(
    lives: Lives, s3: S3Server, step: int
) -> None:
    def made() -> str:
        return grown(s3.store(lease_s=60), lane("hash"), lane("hdrf"), end=2)  # type: ignore[arg-type,return-value]

    for store, _ in killed_at_each(lives, s3, lambda store: remove_lane(store, "hdrf"), made, step):
        assert verify(store).problems == []
        if "hdrf" in lane_names(store):
            remove_lane(store, "hdrf")
        compact(store)
        assert [path for path in place_of(store).rglob("*") if "hdrf" in str(path)] == []


def go_on(store: str, end: int) -> None:
    """Have the log and a lane so many snapshots, from wherever they stand."""
    try:
        begun = len(LogReader(store).snapshots)
    except ConfigMissingError:
        begun = 0
    seal(store, begun, end)  # type: ignore[arg-type]
    catch_up(store, lane("hash"))  # type: ignore[arg-type]


def test_what_kills_left_is_swept(lives: Lives, s3: S3Server) -> None:
    lives.begin()
    store = s3.store(lease_s=60)
    for dies_at in (3, 3, 2, 3, 6, 3):
        lives.begin(dies_at)
        with pytest.raises(Killed):
            go_on(store, 4)
    time.sleep(1.1)  # a bucket knows whole seconds
    lives.begin()
    go_on(store, 6)
    log, reader = LogReader(store), LaneReader(store, "hash")
    named = {file.path for s in log.snapshots for file in s.files}
    found = {str(path).removeprefix(f"{log.root}/") for path in (log.root / "snapshots").rglob("*")}
    assert found == named
    assert len(list((reader.root / "snapshots").iterdir())) == len(reader.manifests)


LANE = lane("hdrf", window=2, base_every=1)
unkilled = pytest.mark.parametrize(("trouble", "first"), [("refused", 0), ("unanswered", 1)])
"""With the first of the points that a sweep visits, so that the two visit different ones."""


@sweep
@unkilled
def test_any_change_of_the_log_that_is_refused_or_never_answered_costs_a_second_try(
    lives: Lives, s3: S3Server, trouble: Trouble, first: int, step: int
) -> None:
    whole = place_of(s3.store(lease_s=60))
    write_log_again_and_again(whole)
    expected = log_content(whole, 0)
    for at in range(first, 1000, step):
        store = place_of(s3.store(lease_s=60))
        lives.begin(at, trouble)
        write_log_again_and_again(store)
        if not lives.met:
            break
        assert log_content(store, 0) == expected, at
        assert durable_in_log(store) == 2 + len(commits()), at
        assert LogReader(store).history is not None
        assert verify(store).problems == [], at
    assert at > 4 * len(commits())


@sweep
@unkilled
def test_any_change_of_a_lane_and_of_compaction_that_is_refused_or_never_answered_can_be_made_again(
    lives: Lives, s3: S3Server, trouble: Trouble, first: int, step: int
) -> None:
    def again(work: Callable[[Place], object], store: Place) -> None:
        try:
            work(store)
        except (ObjectStoreError, StoreError):
            assert lives.met
            work(store)

    whole = grown(place_of(s3.store(lease_s=60)), LANE, end=3)
    expected = seen(whole, "hdrf", 1, window=2)
    for at in range(first, 1000, 4 * step):
        store = place_of(s3.store(lease_s=60))
        seal(store, 0, 3)
        lives.begin(at, trouble)
        again(lambda store: catch_up(store, LANE), store)
        again(lambda store: compact(store, Keep(snapshots=2), always=True), store)
        if not lives.met:
            break
        assert inspect(store)["kept"] == 2, at
        assert seen(store, "hdrf", 1, window=2) == expected, at
        assert verify(store).problems == [], at
    assert at > len(files_of(whole))
