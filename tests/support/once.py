"""A sink driven as a job drives it, over a store that refuses operations or a process that ends, and what is in the log then."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from log_events import SECOND, Clock, event, poll, stream_config
from placed import Places

from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.stream.job import open_log
from freshet_graph.stream.job.open_log import RoomForCommits
from freshet_graph.stream.observer import SinkObserver
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.log.layout import commit_name
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.bucket import Bucket, ObjectStoreError
from freshet_graph.stream.store.verify.store import verify

KEY = ("a", 0)
MESSAGES = 12
REFUSED = (4, 9)
"""Offsets whose messages the decoder refuses."""

FOLDER = ("mkdir", "rmdir", "rename", "replace", "link", "unlink", "remove", "fsync", "listdir", "scandir")
BUCKET = ("stat", "read", "fetch", "below", "folder", "put", "put_new", "replace", "remove")

NOT_CLEANED_UP = "the store is not cleaned up, trying again with the next commit"

Rule = Callable[[int, str], bool]
"""Given the number of an operation since ``begin`` and what it is, whether it is met."""


class Killed(BaseException):
    """The end of a process."""


class Trouble:
    """Refuses operations of a folder or a bucket, or ends the process before one; leases and locks are left out.

    Attributes:
        in_bucket: Whether it is a bucket.
        operations: What was asked for since ``begin``.
        met: How many of them were refused.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, in_bucket: bool) -> None:
        monkeypatch.setattr(open_log, "RETRY_S", 0.0)
        self.in_bucket = in_bucket
        self._lock = threading.RLock()
        self._within = threading.local()
        self.begin()
        for name in BUCKET if in_bucket else FOLDER:
            owner: Any = Bucket if in_bucket else os
            monkeypatch.setattr(owner, name, self._meeting(name, getattr(owner, name)))

    def begin(
        self, rule: Rule = lambda number, what: False, *, lost: bool = False, kills: bool = False
    ) -> None:
        """From now on refuse what the rule says.

        Args:
            rule: Which operations.
            lost: They are made, and only their answer is lost.
            kills: The process ends instead, before the first of them.
        """
        self.operations: list[str] = []
        self.met = 0
        self._rule, self._lost, self._kills = rule, lost, kills

    def _meeting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **more: Any) -> Any:
            told = " ".join(str(argument) for argument in arguments[1 if self.in_bucket else 0 :][:2])
            if told.split()[0].endswith("lock"):
                return real(*arguments, **more)
            with self._lock:
                what = f"{name} {told}"
                met = (self._kills and self.met > 0) or self._rule(len(self.operations), what)
                self.operations.append(what)
                self.met += met
            if met and self._kills:
                raise Killed
            if met and not self._lost:
                raise self._refusal()
            done = real(*arguments, **more)
            if met:
                raise self._refusal()
            return done

        return operation

    def _refusal(self) -> OSError:
        if self.in_bucket:
            return ObjectStoreError("the service does not answer (status 503)", errno.EHOSTUNREACH)
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def messages(first: int, end: int) -> list[tuple[int, list[dict[str, Any]] | None]]:
    """A topic partition's content: ten messages in one snapshot, two in a later one; some have two events."""
    return [
        (
            offset,
            None
            if offset in REFUSED
            else [
                event(offset, row, offset * SECOND // 10 + 9 * SECOND * (offset > 9))
                for row in range(1 + offset % 2)
            ],
        )
        for offset in range(first, end)
    ]


def drive(store: str, observer: SinkObserver | None = None, *, at_once: int = 1) -> None:
    """What a job does from its start to its end: read on where the log is, a commit a poll, and seal all."""
    config = stream_config(store, commit_every_s=1.0)
    clock = Clock()
    waits = RoomForCommits(store, stop=lambda: False, retried=lambda: None)
    with LogWriter.open(store, log_header(config)) as writer:
        sink = SnapshotSink(writer, config, clock=clock, observer=observer, refused=waits.wait)
        try:
            while (first := sink.next_offset(KEY) or 0) < MESSAGES:
                end = min(first + at_once, MESSAGES)
                sink.offer(
                    poll(*KEY, messages(first, end), first=first, end=end, high_watermark=MESSAGES + 1)
                )
                clock.now += 2
                sink.advance()
            sink.seal_all()
        finally:
            sink.close()


def drive_to_the_end(store: str) -> int:
    """Start the job again until it comes to its end, as a supervisor does; returns how often it failed."""
    for failures in range(100):
        try:
            drive(store)
        except (OSError, StoreError):
            continue
        return failures
    raise AssertionError("the job fails at every start")


def twice_or_lost(store: str) -> dict[str, Counter[Any]]:
    """What the log and its rejects have too much and too little."""
    log = LogReader(store)
    found = Counter(
        (row["src"], row["dst"])
        for s in log.snapshots
        for row in log.events(s.tau).select(["src", "dst"]).to_pylist()
    )
    expected = Counter((row["src"], row["dst"]) for _, rows in messages(0, MESSAGES) for row in rows or ())
    refused: Counter[Any] = Counter()
    for n in log.with_rejects:
        record = read_record(log.root / commit_name(n), type(log.last))  # type: ignore[arg-type]
        assert record is not None and record.rejects is not None
        refused.update(read_table(log.root, record.rejects, schema=REJECT_SCHEMA)["offset"].to_pylist())
    wanted = Counter(REFUSED)
    wrong = {
        "events twice": found - expected,
        "events lost": expected - found,
        "rejects twice": refused - wanted,
        "rejects lost": wanted - refused,
    }
    return {what: counts for what, counts in wrong.items() if counts}


@pytest.fixture
def trouble(places: Places, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    with monkeypatch.context() as patch:
        yield Trouble(patch, in_bucket=places.in_bucket)


def require_once(trouble: Trouble, store: str, where: object) -> None:
    trouble.begin()
    assert twice_or_lost(store) == {}, where
    assert verify(store).problems == [], where


def behind_record(trouble: Trouble, n: int) -> int:
    """Number of the first operation after commit ``n``'s record is durable."""
    record, seen = f"{n:016d}.json", list(enumerate(trouble.operations))
    if trouble.in_bucket:
        return next(k for k, what in seen if what.startswith("put_new") and record in what) + 1
    linked = next(k for k, what in seen if what.startswith("link") and what.endswith(record))
    return next(k for k, what in seen[linked:] if what.startswith("fsync")) + 1
