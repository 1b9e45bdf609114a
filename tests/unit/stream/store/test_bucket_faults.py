"""A store in a bucket behind a bad network or a busy service, beside a second writer, and with nothing to go by."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compacted import EVENTS, HEADER, SECOND, labelled, seal
from faulty_s3 import Fault, FaultyS3, faulty
from lane_stream import lane
from log_events import event, poll, stream_config
from other_machine import elsewhere
from s3_server import S3Server

from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.job import open_log
from freshet_graph.stream.job.open_log import RoomForCommits
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.errors import LaneBusyError, StoreError
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places import lease
from freshet_graph.stream.store.places.bucket import ObjectStoreError
from freshet_graph.stream.store.places.place import place_of
from freshet_graph.stream.store.verify.store import verify

SNAPSHOTS = {tau: EVENTS.filter((EVENTS["t"].to_numpy() // SECOND) == tau) for tau in range(6)}


@pytest.fixture(scope="module")
def service(s3: S3Server) -> Iterator[FaultyS3]:
    with faulty(s3.endpoint) as front:
        yield front


@pytest.fixture
def front(service: FaultyS3) -> FaultyS3:
    """The faulty service, without faults so far."""
    service.rule = lambda method, path: None
    return service


@pytest.fixture
def store(s3: S3Server, front: FaultyS3) -> str:
    """A store behind the faulty service, with two commits."""
    store = s3.store(endpoint=front.endpoint, lease_s=60)
    seal(store, 0, 2)  # type: ignore[arg-type]
    return store


def commit(writer: LogWriter, tau: int) -> CommitRecord:
    return writer.commit(seal=[(tau, SNAPSHOTS[tau])], **labelled(tau))


def sealed(store: str) -> list[int]:
    return [snapshot.tau for snapshot in LogReader(store).snapshots]


TROUBLE = [
    Fault(500),
    Fault(500, taken=True),
    Fault(503, code="SlowDown"),
    Fault(0),
    Fault(0, taken=True),
]


@pytest.mark.parametrize(
    ("trouble", "part"),
    [
        *((trouble, "/commits/") for trouble in TROUBLE),
        (Fault(503), "/snapshots/"),
        (Fault(0, taken=True), "/snapshots/"),
    ],
    ids=str,
)
def test_a_put_that_fails_or_whose_answer_is_lost_is_made_once(
    store: str, front: FaultyS3, trouble: Fault, part: str
) -> None:
    with LogWriter.open(store, HEADER) as writer:
        front.once(trouble, "PUT", part, times=2 if not trouble.taken else 1)
        commit(writer, 2)
        commit(writer, 3)
    assert sealed(store) == [0, 1, 2, 3]
    assert verify(store).problems == []


@pytest.mark.parametrize("part", ["/commits/", "/lock"])
def test_a_put_that_meets_another_one_at_work_is_tried_again(store: str, front: FaultyS3, part: str) -> None:
    front.once(Fault(409, code="ConditionalRequestConflict"), "PUT", part, times=2)
    seal(store, 2, 3)  # type: ignore[arg-type]
    assert sealed(store) == [0, 1, 2]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_reading_and_sweeping_go_on_after_trouble(store: str, front: FaultyS3, method: str) -> None:
    front.once(Fault(503, code="SlowDown"), method, "", times=3)
    with LogWriter.open(store, HEADER) as writer:
        commit(writer, 2)
    assert sealed(store) == [0, 1, 2]
    assert verify(store).problems == []


def test_a_slow_service_changes_nothing(store: str, front: FaultyS3) -> None:
    front.rule = lambda method, path: Fault(delay_s=0.02)
    seal(store, 2, 3)  # type: ignore[arg-type]
    assert sealed(store) == [0, 1, 2]


def test_files_that_nobody_takes_fail_the_commit_and_the_next_try_is_whole(
    s3: S3Server, front: FaultyS3
) -> None:
    store = s3.store(endpoint=front.endpoint, lease_s=60, retry_s=0.3)
    with LogWriter.open(store, HEADER) as writer:
        front.rule = lambda method, path: Fault(503) if "/snapshots/" in path else None
        with pytest.raises(ObjectStoreError, match=r"does not answer \(status 503\)"):
            commit(writer, 0)
        front.rule = lambda method, path: None
        commit(writer, 0)
        commit(writer, 1)
    assert sealed(store) == [0, 1]
    assert verify(store).problems == []


def test_the_job_waits_for_a_service_that_does_not_answer(
    s3: S3Server, front: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3.store(endpoint=front.endpoint, lease_s=60, retry_s=0.2)
    retried: list[str] = []
    waiting = RoomForCommits(
        store, stop=lambda: len(retried) > 5, retried=lambda: retried.append(str(waiting.reason))
    )
    monkeypatch.setattr(open_log, "RETRY_S", 0.01)
    config = stream_config(store)
    with LogWriter.open(store, log_header(config)) as writer:
        sink = SnapshotSink(writer, config, refused=waiting.wait)
        front.rule = lambda method, path: Fault(503) if "/snapshots/" in path and len(retried) < 2 else None
        sink.offer(poll("a", 0, [(0, [event(0, 1, 0)])], first=0, end=1))
        assert sink.seal_all() is not None
        assert len(retried) == 2 and "the store takes no commit" in retried[0] and "status 503" in retried[0]
        front.rule = lambda method, path: Fault(503) if "/snapshots/" in path else None
        sink.offer(poll("a", 0, [(1, [event(0, 1, SECOND)])], first=1, end=2))
        for _ in range(2):
            with pytest.raises(Failure, match=r"[Ss]tart again. Nothing is lost"):
                sink.seal_all()
    assert sealed(store) == [0]


@pytest.mark.parametrize("taken", [True, False])
def test_a_record_whose_fate_is_unknown_is_found_out_by_opening_the_log_again(
    s3: S3Server, front: FaultyS3, taken: bool
) -> None:
    store = s3.store(endpoint=front.endpoint, lease_s=60, retry_s=0.3)
    with LogWriter.open(store, HEADER) as writer:
        commit(writer, 0)

        def rule(method: str, path: str) -> Fault | None:
            return Fault(0, taken=taken and method == "PUT") if "/commits/" in path else None

        front.rule = rule
        with pytest.raises(ObjectStoreError, match="does not answer"):
            commit(writer, 1)
        with pytest.raises(StoreError, match="Open the log again"):
            commit(writer, 1)
        front.rule = lambda method, path: None
    with LogWriter.open(store, HEADER) as writer:
        assert len(writer.snapshots) == (2 if taken else 1)
        commit(writer, 2)
    assert sealed(store) == ([0, 1, 2] if taken else [0, 2])
    assert verify(store).problems == []


def test_a_writer_that_was_paused_for_longer_than_its_lease_is_told_and_harms_nothing(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3.store(lease_s=1)
    back = elsewhere(monkeypatch)
    paused = LogWriter.open(store, HEADER, writer_id="paused")
    commit(paused, 0)
    paused.lock.fall_silent()  # type: ignore[attr-defined]
    back()
    second = LogWriter.open(store, HEADER, writer_id="second")
    commit(second, 1)
    time.sleep(0.1)
    now_s = lease.now_s
    monkeypatch.setattr(lease, "now_s", lambda: now_s() + 10)
    with pytest.raises(
        LaneBusyError, match=r"written by second now: paused was silent for longer than its lease"
    ):
        commit(paused, 2)
    # Paused after that look: the record is what stops it.
    monkeypatch.setattr(paused.lock, "require", lambda: None)
    with pytest.raises(
        LaneBusyError, match=r"was made by second while paused held the log's lock: one of them"
    ):
        commit(paused, 2)
    with pytest.raises(StoreError, match="Open the log again"):
        commit(paused, 2)
    commit(second, 3)
    second.close()
    assert sealed(store) == [0, 1, 3]
    assert verify(store).problems == []
    left = [p for p in (place_of(store) / "log/snapshots").iterdir() if p.name.startswith("2_")]
    assert len(left) == 1  # what the paused one put, named by nothing
    time.sleep(1.1)
    seal(store, 4, 5)  # type: ignore[arg-type]
    assert [p for p in (place_of(store) / "log/snapshots").iterdir() if p.name.startswith("2_")] == []


def test_where_the_paused_writer_is_first_after_all_the_second_is_told(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3.store(lease_s=1)
    back = elsewhere(monkeypatch)
    paused = LogWriter.open(store, HEADER, writer_id="paused")
    commit(paused, 0)
    paused.lock.fall_silent()  # type: ignore[attr-defined]
    back()
    second = LogWriter.open(store, HEADER, writer_id="second")
    monkeypatch.setattr(paused.lock, "require", lambda: None)  # it looked at its lease just before
    commit(paused, 1)
    with pytest.raises(LaneBusyError, match="was made by paused while second held"):
        commit(second, 1)
    second.close()
    assert sealed(store) == [0, 1]
    assert verify(store).problems == []


def test_two_writers_of_a_lane_make_every_manifest_once(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3.store(lease_s=1)
    seal(store, 0, 4)  # type: ignore[arg-type]
    back = elsewhere(monkeypatch)
    paused = LaneWriter(store, lane("hash"))
    paused.lock.fall_silent()  # type: ignore[attr-defined]
    monkeypatch.setattr(paused.lock, "require", lambda: None)
    back()
    with LaneWriter(store, lane("hash")) as second:
        asked: list[int] = []
        second.catch_up(stop=lambda: len(asked) == 2 or asked.append(1) is not None)
        monkeypatch.setattr(paused._reader, "refresh", lambda: None)  # paused right after this look
        with pytest.raises(LaneBusyError, match="was made while"):
            paused.catch_up()
        second.catch_up()
    assert len(LaneReader(store, "hash").manifests) == 4
    assert verify(store).problems == []


def test_leases_of_one_silent_process_run_out_together(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby of a job with three lanes waits for one lease, not for four."""
    store = s3.store(lease_s=60)
    seal(store, 0, 1)  # type: ignore[arg-type]
    back = elsewhere(monkeypatch)
    writers = [
        LogWriter.open(store, HEADER),
        LaneWriter(store, lane("hash")),
        LaneWriter(store, lane("ldg")),
    ]
    for writer in writers:
        writer.lock.fall_silent()  # type: ignore[attr-defined]
    elsewhere(monkeypatch)
    third = LaneWriter(store, lane("hdrf"))
    third.lock.fall_silent()  # type: ignore[attr-defined]
    back()
    now_s, waited = lease.now_s, [0.0]
    monkeypatch.setattr(lease, "now_s", lambda: now_s() + waited[0])
    monkeypatch.setattr(lease.time, "sleep", lambda _: waited.__setitem__(0, waited[0] + 10))
    with (
        LogWriter.open(store, HEADER),
        LaneWriter(store, lane("hash")),
        LaneWriter(store, lane("ldg")),
    ):
        assert waited[0] == 60
    LaneWriter(store, lane("hdrf")).close()
    assert waited[0] == 120, "another process may still be there"


def test_a_killed_writer_whose_parent_has_not_waited_for_it_is_gone(s3: S3Server) -> None:
    store = s3.store(lease_s=60)
    take = (
        "import os, signal; from freshet_graph.stream.store.places.place import place_of;"
        f"(place_of({store!r}) / 'log').lock('first', 'lock', 'written'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", take]) as first:
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it stays listed
        began_s = time.monotonic()
        (place_of(store) / "log").lock("second", "lock", "written").release()
        assert time.monotonic() - began_s < 60
    assert first.returncode == -signal.SIGKILL


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("use", [lambda store: LogWriter.open(store, HEADER), LogReader, verify])
def test_what_is_not_there_is_told_in_a_sentence(s3: S3Server, use: Callable[[str], object]) -> None:
    silent = s3.store(endpoint=f"http://127.0.0.1:{free_port()}", retry_s=0.2)
    with pytest.raises(
        ObjectStoreError, match=r"does not answer \(Connection refused\). See that the service runs"
    ):
        use(silent)
    nowhere = s3.store(name="x").replace("s3://freshet-tests/", "s3://no-such-bucket/")
    with pytest.raises(ObjectStoreError, match=r"there is no bucket s3://no-such-bucket at http.*\. Make it"):
        use(nowhere)


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_credentials_that_are_refused_are_told_and_never_shown(
    store: str, front: FaultyS3, code: str
) -> None:
    front.rule = lambda method, path: Fault(403, code=code)
    for use in (lambda: LogWriter.open(store, HEADER), lambda: LogReader(store), lambda: verify(store)):
        with pytest.raises(ObjectStoreError) as error:
            use()
        sentence = str(error.value)
        assert "refuses this process's credentials" in sentence
        assert os.environ["AWS_ACCESS_KEY_ID"] not in sentence and "not-a-secret" not in sentence


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(400, code="ExpiredToken"), r"have expired \(ExpiredToken\)\. Give it new ones"),
        (Fault(403, code="InvalidToken"), "have expired"),
        (Fault(403, code="RequestTimeTooSkewed"), "this machine's clock is off"),
    ],
    ids=str,
)
def test_credentials_that_expire_and_clocks_that_are_off_are_told_and_lose_nothing(
    store: str, front: FaultyS3, fault: Fault, words: str
) -> None:
    with LogWriter.open(store, HEADER) as log:
        front.once(fault, "PUT", "/commits/")
        with pytest.raises(ObjectStoreError, match=words):
            log.commit(seal=[(2, SNAPSHOTS[2])], **labelled(2))
    with LogWriter.open(store, HEADER) as log:
        assert [s.tau for s in log.snapshots] == [0, 1]
        log.commit(seal=[(2, SNAPSHOTS[2])], **labelled(2))
    assert verify(store).problems == []


def test_a_profile_gives_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    shared = tmp_path / "credentials"
    shared.write_text(
        "[of-tests]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = x\n", encoding="utf-8"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    monkeypatch.setenv("AWS_PROFILE", "of-tests")
    store = s3.store()
    seal(store, 0, 1)  # type: ignore[arg-type]
    assert sealed(store) == [0]
    monkeypatch.setenv("AWS_PROFILE", "not-there")
    with pytest.raises(ObjectStoreError, match="profile"):
        LogReader(s3.store())


def test_without_credentials_it_says_where_they_come_from(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ObjectStoreError, match="no credentials for s3://freshet-tests"):
        LogReader(s3.store(retry_s=0.2))


def test_a_service_without_conditional_puts_is_refused(s3: S3Server, front: FaultyS3) -> None:
    store = s3.store(endpoint=front.endpoint, retry_s=0.2)
    front.rule = lambda method, path: Fault(501, code="NotImplemented") if method == "PUT" else None
    with pytest.raises(ObjectStoreError, match=r"status 501 \(NotImplemented\).*conditional puts"):
        LogWriter.open(store, HEADER)


def test_a_service_that_ignores_conditions_is_found_out(store: str, front: FaultyS3) -> None:
    front.rule = lambda method, path: Fault(unconditional=True)
    with pytest.raises(ObjectStoreError, match="ignores If-None-Match on PUT"):
        LogWriter.open(store, HEADER)
