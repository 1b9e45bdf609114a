"""A host whose clock is wrong reads nothing, says so, and goes on when the clock is right; nothing is refused for it."""

import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from flink_server import flink  # noqa: F401  a fixture
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from running_job import Running, reached, read_of
from streaming import configuration, edge, fresh_topic, log_table, run_job, send, settings
from structlog.testing import capture_logs

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.cluster import worker as worker_module
from freshet_graph.stream.cluster.job import ClusterJob
from freshet_graph.stream.job.backfill import backfill
from freshet_graph.stream.kafka.broker_clock import BrokerClock
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

RIGHT_NS = time.time_ns
IN_2001, IN_2024, IN_2050 = 1_000_000_000, 1_720_000_000, 2_530_000_000
LIVE = {"time_bounds": None}
"""The default bounds: from 1990 to the present."""


class HostClock:
    """This host's wall clock, as a test sets it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._off_ns = 0
        patch.setattr(time, "time_ns", lambda: RIGHT_NS() + self._off_ns)

    def set(self, seconds: float) -> None:
        self._off_ns = round(seconds * 1e9) - RIGHT_NS()

    def mend(self) -> None:
        self._off_ns = 0


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    return HostClock(monkeypatch)


@pytest.fixture
def silent_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those before Kafka 3.4 are, or those that this user may not ask."""
    monkeypatch.setattr(BrokerClock, "ask", lambda self: None)


def live(count: int, first: int = 0) -> list[bytes | None]:
    now_s = RIGHT_NS() / 1e9
    return [edge(0, first + i, now_s - 1 + i / 1000) for i in range(count)]


def taken_in(running: Running, topic: str) -> int:
    """Committed or not."""
    log = getattr(running.job, "log", None)
    return 0 if log is None else log.sink.next_offset((topic, 0)) or 0


def error_s(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        (line,) = [each for each in answer.read().decode().splitlines() if "clock_error_seconds{" in each]
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize(("seconds", "said"), [(IN_2001, "2001-09-09T"), (IN_2050, "2050-03-")])
def test_a_new_store_on_a_host_with_a_wrong_clock(
    kafka: str, tmp_path: Path, host: HostClock, seconds: float, said: str
) -> None:
    """The topic has its producers' times (CreateTime), as topics do by default."""
    topic, store = fresh_topic(kafka), tmp_path / "store"
    send(kafka, topic, live(5))
    host.set(seconds)
    running = Running(StreamConfig(**configuration(store, kafka, topic) | LIVE))
    try:
        reached(lambda: f"this host's clock says {said}" in running.ready()[1])
        assert running.ready()[0] == 503
        assert "the brokers' clock (20" in running.ready()[1]
        off_s = seconds - RIGHT_NS() / 1e9
        assert error_s(running.endpoint.url) == pytest.approx(off_s, rel=0.01)
        assert set(read_of(store).values()) <= {0}
        host.mend()
        reached(lambda: read_of(store) == {0: 5} and running.ready() == (200, "ready"))
        assert error_s(running.endpoint.url) == 0
    finally:
        running.close()
    assert [(ran.events, ran.refused) for ran in running.ran] == [(5, 0)]


def test_a_clock_that_goes_wrong_in_mid_run_stops_reading_and_what_was_read_is_committed(
    kafka: str, tmp_path: Path, host: HostClock
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    content = configuration(store, kafka, topic, snapshots={"commit_every_s": 1.5}) | LIVE
    running = Running(StreamConfig(**content))
    with capture_logs() as logs:
        try:
            send(kafka, topic, live(5))
            reached(lambda: taken_in(running, topic) == 5)
            host.set(IN_2001)
            reached(lambda: "this host's clock says 2001-" in running.ready()[1])
            send(kafka, topic, live(7, first=5))
            reached(lambda: read_of(store) == {0: 5})
            assert running.ready()[0] == 503
        finally:
            running.close()  # SIGTERM: it ends, and takes nothing of the rest in
    assert read_of(store) == {0: 5}
    assert [(ran.events, ran.refused) for ran in running.ran] == [(5, 0)]
    assert (
        len([each for each in logs if each["event"] == "nothing is read by a clock that can't be right"]) == 1
    )
    host.mend()
    ran, _ = run_job(content)
    assert (ran.events, ran.refused, read_of(store)) == (7, 0, {0: 12})


def test_the_last_commit_is_a_witness_where_brokers_are_silent(
    kafka: str, tmp_path: Path, host: HostClock, silent_brokers: None
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    content = configuration(store, kafka, topic) | LIVE
    send(kafka, topic, live(2))
    run_job(content)
    send(kafka, topic, live(3, first=2))
    host.set(IN_2024)
    with pytest.raises(
        Failure, match=r"says 2024-07-03T.* days behind the log's last commit \(20.*time_skew_s \(300 s\)"
    ):
        run_job(content)
    assert read_of(store) == {0: 2}
    host.mend()
    assert run_job(content)[0].events == 3


def test_records_that_brokers_gave_their_time_are_witnesses_of_a_new_store(
    kafka: str, tmp_path: Path, host: HostClock, silent_brokers: None, admin: KafkaAdminClient
) -> None:
    topic = f"{fresh_topic(kafka)}-stamped"
    by_broker = {"message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs=by_broker)])
    send(kafka, topic, live(3))
    host.set(IN_2024)
    content = configuration(tmp_path / "store", kafka, topic) | LIVE
    with pytest.raises(Failure, match="behind a record that a broker gave its time"):
        run_job(content)
    assert set(read_of(tmp_path / "store").values()) <= {0}


def test_producers_times_neither_lift_the_bound_nor_stop_the_job(
    kafka: str, tmp_path: Path, silent_brokers: None, admin: KafkaAdminClient
) -> None:
    topic, store = f"{fresh_topic(kafka)}-hostile", tmp_path / "store"
    any_time = {"message.timestamp.after.max.ms": str(2**62)}
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs=any_time)])
    producer = KafkaProducer(**settings(kafka))
    producer.send(topic, edge(0, 1, IN_2050), timestamp_ms=(IN_2050 + 86_400) * 1000).get(timeout=30)
    producer.close()
    send(kafka, topic, live(1))
    ran, _ = run_job(configuration(store, kafka, topic) | LIVE)
    assert (ran.events, ran.refused) == (1, 1)
    assert log_table(store)["dst"].to_pylist() == [0]
    assert LogReader(store).last.refused == {"time_out_of_bounds": 1}  # type: ignore[union-attr]


def test_markers_of_transactions_are_the_brokers(
    kafka: str, tmp_path: Path, host: HostClock, silent_brokers: None
) -> None:
    """What they end may have its producer's times; the marker has the broker's."""
    topic = fresh_topic(kafka)
    producer = KafkaProducer(**settings(kafka), transactional_id=f"{topic}-writer")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, live(1)[0])
    producer.commit_transaction()
    producer.close()
    host.set(IN_2024)
    with pytest.raises(Failure, match="behind a record that a broker gave its time"):
        run_job(configuration(tmp_path / "store", kafka, topic) | LIVE)


def test_files_are_not_read_by_a_wrong_clock(kafka: str, tmp_path: Path, host: HostClock) -> None:
    """Rows of the years since 2001 would be refused for good."""
    past, store = tmp_path / "past.csv", tmp_path / "store"
    past.write_text("src,dst,t\n1,2,1500000000\n")
    config = StreamConfig(**configuration(store, kafka, fresh_topic(kafka)) | LIVE)
    host.set(IN_2001)
    with pytest.raises(Failure, match="this host's clock says 2001-"):
        backfill(config, [past])
    assert LogReader(store).last is None, "only that there will be a history is known"
    host.mend()
    assert backfill(config, [past]).events == 1


@pytest.mark.slow
def test_on_flink_a_worker_with_a_wrong_clock_waits_and_says_so(
    kafka: str,
    tmp_path: Path,
    host: HostClock,
    flink: str,  # noqa: F811
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    send(kafka, topic, live(20))
    content = configuration(store, kafka, topic) | LIVE
    content["runner"] = {"name": "flink", "job_server": flink, "parallelism": 1, "restart_delay_s": 0.2}
    host.set(IN_2001)
    job, ran = ClusterJob(StreamConfig(**content), until_idle_s=3), []
    thread = threading.Thread(target=lambda: ran.append(job.run()))
    thread.start()
    try:
        reached(lambda: any(each.not_ready() for each in list(worker_module.workers.values())), 180)
        (worker,) = worker_module.workers.values()
        assert "this host's clock says 2001-" in (worker.not_ready() or "")
        reached(lambda: worker.endpoint is not None)
        assert worker.endpoint is not None
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{worker.endpoint.url}/readyz")
        assert error_s(worker.endpoint.url) < 0
        assert set(read_of(store).values()) <= {0}
        host.mend()
    finally:
        host.mend()
        thread.join(timeout=240)
    assert [(each.events, each.refused) for each in ran] == [(20, 0)]
    assert read_of(store) == {0: 20}
