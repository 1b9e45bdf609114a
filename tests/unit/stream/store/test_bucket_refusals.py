"""A bucket that refuses a change once, or makes it and never answers: a second try, and nothing lost or made twice."""

import errno
import threading
from collections.abc import Callable

import pytest
from compacted import catch_up, grown, seal, seen
from lane_stream import lane
from placed import files_of
from s3_server import S3Server
from sweeps import sweep
from written_log import HISTORY, commits, durable_in_log, write_log_again_and_again

from stream.store.compact.store import Keep, compact
from stream.store.errors import StoreError
from stream.store.inspect import inspect
from stream.store.log.reader import LogReader
from stream.store.places.bucket import Bucket, ObjectStoreError
from stream.store.places.place import Place, place_of
from stream.store.verify.store import verify

CHANGES = ("put", "put_new", "replace", "remove")
LANE = lane("hdrf", window=2, base_every=1)


class Trouble:
    """Refuses one change of a bucket, leases left out: as a service that nobody reaches for longer than ``retry_s``.

    Attributes:
        made: Changes that were asked for since ``next``.
        met: Whether the trouble came.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.met = 0, True
        self._at, self._lost = -1, False
        self._lock = threading.Lock()
        for name in CHANGES:
            monkeypatch.setattr(Bucket, name, self._refusing(getattr(Bucket, name)))

    def next(self, at: int, *, lost: bool) -> None:
        """Refuse the change of this number from now on; lost: it is made, and its answer is lost."""
        self.made, self.met, self._at, self._lost = 0, False, at, lost

    def _refusing(self, change: Callable[..., object]) -> Callable[..., object]:
        def refusing(bucket: Bucket, *arguments: object) -> object:
            if str(arguments[0]).endswith("lock"):
                return change(bucket, *arguments)
            with self._lock:
                refused = not self.met and self.made == self._at
                self.made += 1
                self.met |= refused
            if not refused:
                return change(bucket, *arguments)
            if self._lost:
                change(bucket, *arguments)
            raise ObjectStoreError("the service does not answer (status 503)", errno.EHOSTUNREACH)

        return refusing


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


def log_content(store: Place) -> list[object]:
    log = LogReader(store)
    return [log.external_ids().to_pylist(), *(log.events(s.tau).to_pylist() for s in log.snapshots)]


@sweep
@pytest.mark.parametrize("lost", [False, True])
def test_any_change_of_the_log_that_is_refused_or_never_answered_costs_a_second_try(
    trouble: Trouble, s3: S3Server, lost: bool, step: int
) -> None:
    whole = place_of(s3.store(lease_s=60))
    write_log_again_and_again(whole)
    expected = log_content(whole)
    for at in range(lost, 1000, step):
        store = place_of(s3.store(lease_s=60))
        trouble.next(at, lost=lost)
        write_log_again_and_again(store)
        if not trouble.met:
            break
        assert log_content(store) == expected, at
        assert durable_in_log(store) == 2 + len(commits()), at
        assert LogReader(store).history is not None and HISTORY.rows == 0
        assert verify(store).problems == [], at
    assert at > 4 * len(commits())


@sweep
@pytest.mark.parametrize("lost", [False, True])
def test_any_change_of_a_lane_and_of_compaction_that_is_refused_or_never_answered_can_be_made_again(
    trouble: Trouble, s3: S3Server, lost: bool, step: int
) -> None:
    def again(work: Callable[[Place], object], store: Place) -> None:
        try:
            work(store)
        except (ObjectStoreError, StoreError):
            assert trouble.met
            work(store)

    whole = grown(place_of(s3.store(lease_s=60)), LANE, end=3)
    expected = seen(whole, "hdrf", 1, window=2)
    for at in range(lost, 1000, 4 * step):
        store = place_of(s3.store(lease_s=60))
        seal(store, 0, 3)
        trouble.next(at, lost=lost)
        again(lambda store: catch_up(store, LANE), store)
        again(lambda store: compact(store, Keep(snapshots=2), always=True), store)
        if not trouble.met:
            break
        assert inspect(store)["kept"] == 2, at
        assert seen(store, "hdrf", 1, window=2) == expected, at
        assert verify(store).problems == [], at
    assert at > len(files_of(whole))
