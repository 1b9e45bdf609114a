"""Once means once: whatever fails behind a commit's record, and wherever a process ends, each message is in the log once."""

from collections.abc import Iterator

import pytest
from once import Trouble, drive_to_the_end, twice_or_lost
from placed import Places

from stream.store.verify.store import verify


@pytest.fixture
def trouble(places: Places, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    with monkeypatch.context() as patch:
        yield Trouble(patch, in_bucket=places.in_bucket)


def require_once(trouble: Trouble, store: str, where: object) -> None:
    trouble.begin()
    assert twice_or_lost(store) == {}, where
    assert verify(store).problems == [], where


def behind_record(trouble: Trouble, n: int) -> int:
    """Number of the first operation after commit ``n``'s record has its name."""
    record = f"{n:016d}.json"
    if trouble._in_bucket:
        return (
            next(
                k
                for k, what in enumerate(trouble.operations)
                if what.startswith("put_new") and record in what
            )
            + 1
        )
    linked = next(
        k for k, what in enumerate(trouble.operations) if what.startswith("link") and what.endswith(record)
    )
    return (
        next(k for k, what in enumerate(trouble.operations[linked:], linked) if what.startswith("fsync")) + 1
    )


@pytest.mark.parametrize("commit", [0, 7, 10], ids=["first", "tail files absorbed", "sealed"])
@pytest.mark.parametrize("lasts", [1, 4])
def test_a_store_that_goes_away_behind_a_record_has_its_events_once(
    places: Places, trouble: Trouble, commit: int, lasts: int
) -> None:
    whole = places.address()
    assert drive_to_the_end(whole) == 0
    first, end = behind_record(trouble, commit), behind_record(trouble, commit + 1)
    for gone in range(first, end):
        store = places.address()
        trouble.begin(lambda number, what, gone=gone: gone <= number < gone + lasts)  # type: ignore[misc]
        drive_to_the_end(store)
        assert trouble.met >= lasts
        require_once(trouble, store, (commit, gone - first))
