"""The stream job on a real broker: a step behind a commit's record is refused, and each message is in the store once."""

import errno
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from forked import Commands
from s3_server import S3Server
from streaming import T0, configuration, edge, fresh_topic, log_table, read_topic, run_job, send, written
from structlog.testing import capture_logs
from sweeps import sweep

from freshet_graph.stream.job import open_log
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.bucket import Bucket, ObjectStoreError
from freshet_graph.stream.store.verify.store import verify

pytestmark = pytest.mark.integration

EVENTS, REFUSED = 12, (3, 8)
LANES = [{"name": "hash", "algorithm": "hash", "parts": 2}]
WHERE = ["folder", pytest.param("bucket", marks=pytest.mark.slow)]
CLEANING = ("unlink", "remove", "below", "folder")


class Refusals:
    """Refuses one step of the log's clean-up, behind the first record of a process.

    Attributes:
        met: Whether it came.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.met, self._left, self._begun = False, -1, False
        for owner, names in ((os, ("link", "unlink")), (Bucket, ("put_new", "remove", "below", "folder"))):
            for name in names:
                patch.setattr(owner, name, self._refusing(name, getattr(owner, name)))

    def begin(self, at: int) -> None:
        """Refuse the step of this number from now on."""
        self.met, self._left, self._begun = False, at, False

    def _refusing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **more: Any) -> Any:
            commits = threading.current_thread().name.startswith(
                "commit"
            )  # lanes read the log from threads of their own
            if commits and name in CLEANING and self._begun and not self.met:
                self._left -= 1
                if self._left < 0:
                    self.met = True
                    raise self._refusal(in_bucket=isinstance(arguments[0], Bucket))
            made = real(*arguments, **more)
            self._begun |= commits and name in ("link", "put_new")
            return made

        return operation

    @staticmethod
    def _refusal(*, in_bucket: bool) -> OSError:
        if in_bucket:
            return ObjectStoreError("the service does not answer (status 503)", errno.EHOSTUNREACH)
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusals]:
    monkeypatch.setattr(open_log, "RETRY_S", 0.0)
    with monkeypatch.context() as patch:
        yield Refusals(patch)


def content(store: str) -> tuple[list[int], dict[str, int], list[int]]:
    log = LogReader(store)
    assert log.last is not None
    return sorted(log_table(store)["src"].to_pylist()), log.last.refused, [p.next for p in log.last.positions]  # type: ignore[arg-type]


@sweep
@pytest.mark.parametrize("where", WHERE)
def test_each_message_is_in_the_store_and_the_dead_letters_once(
    kafka: str, s3: S3Server, tmp_path: Path, refusals: Refusals, where: str, step: int
) -> None:
    topic = fresh_topic(kafka)
    # The first ten lie in one day, so that tail files are absorbed before it is sealed.
    days = [0 if i < 10 else 2 for i in range(EVENTS)]
    send(
        kafka,
        topic,
        [b"{" if i in REFUSED else edge(i, 1, T0 + 86_400 * day + i) for i, day in enumerate(days)],
    )
    expected = sorted(set(range(EVENTS)) - set(REFUSED))
    for at in count(0, step):
        letters = fresh_topic(kafka, stem="dead")
        store = s3.store(lease_s=60) if where == "bucket" else str(tmp_path / str(at))
        more = {
            "kafka": {"dead_letters": letters, "max_poll_records": 1},
            "snapshots": {"commit_every_s": 1e-6},
        }
        refusals.begin(at)
        with capture_logs() as logs:
            run_job(configuration(tmp_path, kafka, topic, lanes=LANES, **more) | {"store": store})
        assert content(store) == (expected, {"not_json": len(REFUSED)}, [EVENTS]), at
        assert verify(store).problems == [], at
        offsets = Counter(json.loads(value or b"")["offset"] for _, value in read_topic(kafka, letters))
        assert offsets == Counter(REFUSED), at
        if not refusals.met:
            break
        assert [line["event"] for line in logs].count("the store takes no commit, waiting for it") == 0
    assert at > 5


POINTS = ["record.written:2", "record.named:1", "record.named:2", "commit.done:1", "commit.done:2"]


@pytest.mark.parametrize("where", WHERE)
def test_a_job_that_is_killed_around_a_record_has_each_message_once(
    kafka: str, s3: S3Server, tmp_path: Path, commands: Commands, where: str
) -> None:
    topic = fresh_topic(kafka)
    store = s3.store(lease_s=1) if where == "bucket" else str(tmp_path / "store")
    keys = {"kafka": {"max_poll_records": 1}, "snapshots": {"commit_every_s": 1e-6}}
    path = written(tmp_path, configuration(tmp_path, kafka, topic, lanes=LANES, **keys) | {"store": store})
    log = tmp_path / "job.log"
    for k, point in enumerate([*POINTS, ""]):
        send(kafka, topic, [edge(4 * k + i, 1, T0 + 86_400 * k + i) for i in range(4)])
        ended = commands.run("run", "--config", path, "--until-idle", "0.3", log=log, crash_at=point)
        assert ended == (-signal.SIGKILL if point else 0), f"{point}: {log.read_text()}"
        assert verify(store).problems == [], point
    events = 4 * (len(POINTS) + 1)
    assert content(store) == (list(range(events)), {}, [events])
