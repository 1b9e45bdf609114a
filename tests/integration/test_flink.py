"""The pipeline on Flink, from a real broker: the log that the local run makes, also when workers are killed."""

import json
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from apache_beam.runners.worker.data_plane import GrpcClientDataChannelFactory
from flink_server import flink, worker_pool  # noqa: F401  a fixture
from kafka import KafkaProducer
from on_flink import on_flink
from streaming import (
    T0,
    configuration,
    edge,
    fresh_topic,
    interactions,
    log_table,
    result,
    run_job,
    send,
    settings,
    started,
    written,
)

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.cluster.job import ClusterJob
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.inspect import inspect as inspect_store
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify as verify_store

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EVENTS = 30_000
SNAPSHOTS = {"lateness_s": 20 * 86_400.0, "commit_every_s": 0.5}
"""Events come in any order of their times over the partitions: none is late."""
LANES = [{"name": "hashed", "algorithm": "hash", "parts": 2}]


def taken(store: Path) -> int:
    """Offsets in the log."""
    try:
        return sum(position.next for position in LogReader(store).positions.values())
    except ConfigMissingError:
        return 0


def until(store: Path, offsets: int, job: "subprocess.Popen[bytes] | None", log: Path) -> None:
    """Wait for the log to have so many offsets."""
    deadline = time.monotonic() + 240
    while taken(store) < offsets:
        assert job is None or job.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.1)


def workers(pool: psutil.Process) -> list[psutil.Process]:
    """The pool's worker processes, once there are some."""
    deadline = time.monotonic() + 240
    while not (found := pool.children()):
        assert time.monotonic() < deadline, "Flink asked for no worker"
        time.sleep(0.1)
    return found


def assert_same_as_local(folder: Path, store: Path, bootstrap: str, topic: str, events: int) -> None:
    """The log and its lane are those of the local run, byte for byte."""
    content = configuration(folder / "local", bootstrap, topic, lanes=LANES, snapshots=SNAPSHOTS)
    ran, _ = run_job(content)
    assert ran.events == events
    assert log_table(store).equals(log_table(folder / "local"))
    ours, locals_ = LogReader(store), LogReader(folder / "local")
    assert [s.events.checksum for s in ours.snapshots] == [s.events.checksum for s in locals_.snapshots]
    assert ours.external_ids().equals(locals_.external_ids())
    there, here = inspect_store(store), inspect_store(folder / "local")
    assert there["offsets"] == here["offsets"]
    assert there["lanes"]["hashed"]["snapshots"] == here["lanes"]["hashed"]["snapshots"] == ran.snapshots
    assert verify_store(store).problems == []


class Feeder:
    """Writes events into a topic, a few hundred a second over its partitions, from construction to ``end``."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.sent = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap, topic, partitions), daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Stop; returns how many events there are."""
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.sent

    def _run(self, bootstrap: str, topic: str, partitions: int) -> None:
        producer = KafkaProducer(**settings(bootstrap), linger_ms=20)
        rng = np.random.default_rng(5)
        while not self._over.wait(0.1):
            rows = rng.integers(0, 200, (50, 2)).tolist(), rng.integers(0, 10 * 86_400, 50).tolist()
            for (src, dst), seconds in zip(*rows, strict=True):
                producer.send(topic, edge(src, dst, T0 + seconds), partition=self.sent % partitions)
                self.sent += 1
        producer.flush(timeout=30)
        producer.close()


def test_killed_workers_and_submitters_lose_nothing_and_the_log_is_the_local_runs(
    kafka: str,
    flink: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    store, log = tmp_path / "store", tmp_path / "run.log"
    topic = fresh_topic(kafka, partitions=3)
    feeder = Feeder(kafka, topic, 3)
    with worker_pool(tmp_path / "pool.log") as (address, pool):
        runner = on_flink(flink, environment=f"external:{address}")
        content = configuration(store, kafka, topic, lanes=LANES, snapshots=SNAPSHOTS, runner=runner)
        command = ("run", "--config", written(tmp_path, content), "--json")
        job = started(*command, log=log)
        try:
            before = 0
            for _ in range(2):  # the second time those that took over
                until(store, before + 1, job, log)
                killed, before = workers(pool), taken(store)
                for process in killed:  # with events that they have not committed
                    process.kill()
                psutil.wait_procs(killed, timeout=10)
            until(store, before + 1, job, log)
            assert log.read_text().count("submitted") == 1  # it was Flink that started them again
            job.kill()
            job.wait()
            before = taken(store)
            until(store, before + 1, None, log)  # nobody follows the pipeline, and it goes on
            job = started(*command, "--until-idle", "1.5", log=log)
            events = feeder.end()  # before it can have found any pause
            assert job.wait(240) == 0, log.read_text()[-4000:]
        finally:
            job.kill()
            job.wait()
    assert log.read_text().count("submitted") == 2
    assert '"ended": "idle"' in log.read_text()
    assert_same_as_local(tmp_path, store, kafka, topic, events)


def test_labels_come_through_the_same_pipeline(kafka: str, flink: str, tmp_path: Path) -> None:  # noqa: F811
    store, log = tmp_path / "store", tmp_path / "run.log"
    topic, labels = fresh_topic(kafka), fresh_topic(kafka, partitions=2, stem="labels")
    send(kafka, topic, [edge(1, i, T0 + i * 86_400) for i in range(3)])
    for partition in range(2):
        decided = [{"event_id": f"{partition}/{i}", "label": i, "t": T0 - i} for i in range(50)]
        send(kafka, labels, [json.dumps(label).encode() for label in decided], partition=partition)
    with worker_pool(tmp_path / "pool.log") as (address, _):
        runner = on_flink(flink, environment=f"external:{address}")
        topics = topic, {"name": labels, "kind": "labels"}
        content = configuration(store, kafka, *topics, snapshots=SNAPSHOTS, runner=runner)
        job = started("run", "--config", written(tmp_path, content), "--until-idle", "1.5", log=log)
        assert job.wait(240) == 0, log.read_text()[-4000:]
    taken = LogReader(store).labels()["event_id"].to_pylist()
    assert sorted(taken) == sorted(f"{partition}/{i}" for partition in range(2) for i in range(50))
    assert len(log_table(store)) == 3
    assert verify_store(store).problems == []


def test_sigterm_commits_what_was_read_and_the_next_run_goes_on(
    kafka: str,
    flink: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    store, log = tmp_path / "store", tmp_path / "run.log"
    topic = fresh_topic(kafka, partitions=2)
    interactions(tmp_path / "events.parquet", events=EVENTS)
    result("replay", tmp_path / "events.parquet", "--bootstrap", kafka, "--topic", topic)
    content = configuration(
        store,
        kafka,
        topic,
        lanes=LANES,
        snapshots=SNAPSHOTS,
        runner=on_flink(flink),
        kafka={"max_poll_records": 500},
    )
    job = started("run", "--config", written(tmp_path, content), log=log)
    try:
        until(store, 1, job, log)
        job.send_signal(signal.SIGTERM)
        assert job.wait(180) == 0, log.read_text()[-4000:]
    finally:
        job.kill()
        job.wait()
    stopped_at = taken(store)
    assert stopped_at > 0
    ran = result("run", "--config", written(tmp_path, content), "--until-idle", "1")
    assert ran["events"] == EVENTS - stopped_at
    assert_same_as_local(tmp_path, store, kafka, topic, EVENTS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Beam's, as in life
def test_a_connection_that_breaks_while_beam_ends_leaves_no_log_held(
    kafka: str,
    flink: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: GrpcClientDataChannelFactory) -> None:
        raise ConnectionError("Multiplexer hanging up")

    monkeypatch.setattr(GrpcClientDataChannelFactory, "close", broken)  # before stages are torn down
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, 2, T0), edge(2, 3, T0 + 1)])
    content = configuration(tmp_path / "store", kafka, topic, runner=on_flink(flink))
    ran = ClusterJob(StreamConfig(**content), until_idle_s=1).run()
    assert (ran.events, ran.snapshots) == (2, 1)


def test_a_job_server_that_does_not_answer_is_named(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshet_graph.stream.cluster.job.SUBMIT_TIMEOUT_S", 1)
    topic = fresh_topic(kafka)
    content = configuration(tmp_path / "store", kafka, topic, runner=on_flink("127.0.0.1:9"))
    with pytest.raises(Failure, match=r"to runner\.job_server 127\.0\.0\.1:9: no answer in 1 s"):
        ClusterJob(StreamConfig(**content)).run()
    assert not (tmp_path / "store" / "job" / "current").exists()


def test_a_job_whose_workers_cannot_be_had_fails_with_flinks_reason(
    kafka: str,
    flink: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    runner = on_flink(flink, environment="external:127.0.0.1:9", restarts=0)
    content = configuration(tmp_path / "store", kafka, fresh_topic(kafka), runner=runner)
    with pytest.raises(Failure, match=r"Flink gave the job up: .*refused. The log is whole"):
        ClusterJob(StreamConfig(**content)).run()
