"""Topics by pattern, which come and go under a running job, and topics that begin at a time."""

import re
import threading
import time
import urllib.request
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.errors import TopicAlreadyExistsError
from log_lines import error_of
from running_job import Running, reached
from streaming import (
    T0,
    command,
    configuration,
    edge,
    fresh_topic,
    interactions,
    log_table,
    read_topic,
    result,
    run_job,
    send,
    send_records,
    settings,
    started,
    triples,
    written,
)
from structlog.testing import capture_logs

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.kafka.reader import PartitionReader
from freshet_graph.stream.kafka.topics import ensure_topic
from freshet_graph.stream.microbatch import RawBatch
from freshet_graph.stream.store.errors import OffsetGapError
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

LOOK = {"metadata_refresh_s": 0.3}


@pytest.fixture
def stem() -> str:
    """Begin of the names of a test's topics."""
    return f"pay{uuid.uuid4().hex[:8]}"


def made(kafka: str, name: str, messages: list[bytes | None], partitions: int = 1) -> str:
    ensure_topic(settings(kafka), kafka, name, partitions)
    send(kafka, name, messages)
    return name


def by_topic(store: Path) -> dict[str, int]:
    """Sum of the next offsets of each topic."""
    last = LogReader(store).last if (store / "log" / "log.json").exists() else None
    totals: dict[str, int] = {}
    for position in last.positions if last else []:
        totals[position.topic] = totals.get(position.topic, 0) + position.next
    return totals


def made_again(kafka: str, admin: KafkaAdminClient, topic: str) -> None:
    admin.delete_topics([topic])
    while True:
        try:
            ensure_topic(settings(kafka), kafka, topic, 1)
            return
        except TopicAlreadyExistsError:
            time.sleep(0.02)


def edges(src: int, count: int, t: int = T0) -> list[bytes | None]:
    return [edge(src, i, t + i) for i in range(count)]


def test_topics_join_and_leave_a_running_job_and_the_others_are_read(
    kafka: str, tmp_path: Path, admin: KafkaAdminClient, stem: str
) -> None:
    store = tmp_path / "store"
    a, b, dead, out = f"{stem}.a", f"{stem}.b", f"{stem}.dead", f"{stem}.scores"
    made(kafka, a, [*edges(1, 5), b"{"])
    made(kafka, out, edges(9, 3))
    other = made(kafka, f"{stem}.other", [b'{"from": 4, "dst": 1, "t": 1100000000}'])
    content = configuration(
        store, kafka, {"pattern": rf"{stem}\..*"}, {"name": other, "fields": {"src": "from", "dst": "dst", "t": "t"}},
        kafka=LOOK | {"dead_letters": dead, "start": "latest"},
        publish=[{"exports": "scores", "topic": out}],
    )  # fmt: skip
    content["kafka"]["topics"][0]["start"] = "earliest"
    content["kafka"]["topics"][1]["start"] = "earliest"
    running = Running(StreamConfig(**content))
    try:
        with capture_logs() as logs:
            reached(lambda: by_topic(store) == {a: 6, other: 1})
            made(kafka, b, edges(2, 4), partitions=2)
            joined_s = time.monotonic()
            reached(lambda: by_topic(store) == {a: 6, other: 1, b: 4})
            assert time.monotonic() - joined_s < 60
            send(kafka, a, edges(1, 2, T0 + 10))
            reached(lambda: by_topic(store)[a] == 8)
            lag = f'freshet_stream_consumer_lag_messages{{graph="test",partition="0",topic="{b}"}} 0.0'
            reached(lambda: lag in scraped(running))

            admin.delete_topics([b])
            reached(lambda: "a topic is gone, the others are read" in [line["event"] for line in logs])
            send(kafka, a, edges(1, 2, T0 + 20))
            reached(lambda: by_topic(store)[a] == 10)
            reached(lambda: running.ready() == (200, "ready"))
            reached(lambda: f'lag_messages{{graph="test",partition="0",topic="{b}"' not in scraped(running))
    finally:
        running.close()
    gone = next(line for line in logs if line["event"].startswith("a topic is gone"))
    assert re.search(
        rf"topic {re.escape(b)} at \S+ was deleted\. The messages read are in the log", gone["reason"]
    )
    assert [ran.events for ran in running.ran] == [14]
    assert by_topic(store) == {a: 10, other: 1, b: 4}, "neither dead letters nor exports"
    assert len(read_topic(kafka, dead)) == 1
    assert run_job(content)[0].events == 0


def scraped(running: Running) -> str:
    with urllib.request.urlopen(f"{running.endpoint.url}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def test_a_topic_made_again_is_left_out_with_a_sentence_and_the_others_are_read(
    kafka: str, tmp_path: Path, admin: KafkaAdminClient, stem: str
) -> None:
    store, path = tmp_path / "store", tmp_path
    a, b = made(kafka, f"{stem}.a", edges(1, 5)), made(kafka, f"{stem}.b", edges(2, 5))
    content = configuration(store, kafka, {"pattern": rf"{stem}\.[ab]"}, kafka=LOOK)
    running = Running(StreamConfig(**content))
    sentence = rf"topic {re.escape(b)} at \S+ was deleted and made again since the log read it"
    try:
        reached(lambda: by_topic(store) == {a: 5, b: 5})
        made_again(kafka, admin, b)
        reached(lambda: re.search(sentence, running.ready()[1]))
        send(kafka, a, edges(1, 2, T0 + 10))
        reached(lambda: by_topic(store) == {a: 7, b: 5})
    finally:
        running.close()
    send(kafka, a, edges(1, 2, T0 + 20))
    send(kafka, b, edges(9, 20))  # longer than what was read of the first
    done = command("run", "--config", written(path, content), "--until-idle", "0.5", "--json")
    assert done.returncode == 1
    assert re.search(f"{sentence}.*Choose a new store, or a topic of another name", error_of(done.stderr))
    assert by_topic(store) == {a: 9, b: 5}
    assert 9 not in {src for _, src, _, _ in triples(log_table(store))}


def test_nothing_of_a_topic_made_again_is_committed_and_the_next_start_leaves_it_out(
    kafka: str, tmp_path: Path, admin: KafkaAdminClient, stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new messages are read before anybody looks at the topics."""
    store, event, take = tmp_path / "store", threading.Event(), PartitionReader.take
    a, b = made(kafka, f"{stem}.a", edges(1, 5)), made(kafka, f"{stem}.b", edges(2, 5))

    def wait(self: PartitionReader, topic: str, partition: int) -> RawBatch:
        while event.is_set():
            time.sleep(0.02)
        return take(self, topic, partition)

    def longer() -> None:
        reached(lambda: by_topic(store) == {a: 5, b: 5})
        event.set()
        time.sleep(0.6)  # a fetch that is under way comes back
        made_again(kafka, admin, b)
        send(kafka, b, edges(9, 20))
        event.clear()

    monkeypatch.setattr(PartitionReader, "take", wait)
    content = configuration(store, kafka, {"pattern": rf"{stem}\.[ab]"}, kafka={"metadata_refresh_s": 3_600})
    thread = threading.Thread(target=longer)
    thread.start()
    sentence = rf"topic {re.escape(b)} at \S+ was deleted and made again since the log read it"
    try:
        with pytest.raises(OffsetGapError, match=sentence):
            run_job(content, until_idle_s=10)
    finally:
        event.clear()
        thread.join()
    assert by_topic(store) == {a: 5, b: 5}
    send(kafka, a, edges(1, 2, T0 + 10))
    ran, _ = run_job(content)
    assert (ran.events, by_topic(store)) == (2, {a: 7, b: 5})
    assert [bool(re.search(sentence, reason)) for reason in ran.held_topics] == [True]


def test_a_job_killed_around_a_join_has_each_message_once(kafka: str, tmp_path: Path, stem: str) -> None:
    store = tmp_path / "store"
    a = made(kafka, f"{stem}.a", edges(1, 50))
    topic = {"pattern": rf"{stem}\..*", "start": "latest"}
    path = written(
        tmp_path, configuration(store, kafka, topic, kafka=LOOK, snapshots={"commit_every_s": 0.05})
    )
    expected = {a: 50}
    for turn in range(4):
        job = started("run", "--config", path, log=tmp_path / "out")
        try:
            reached(lambda: by_topic(store).get(a) == expected[a])
            name = made(kafka, f"{stem}.n{turn}", edges(10 + turn, 30))
            expected[name] = 30
            if turn % 2:
                reached(lambda name=name: by_topic(store).get(name, 0) > 0)  # type: ignore[misc]  # bound here
            else:
                time.sleep(0.2 * turn)
        finally:
            job.kill()
            job.wait()
        send(kafka, a, edges(1, 5, T0 + 100 * (turn + 1)))
        expected[a] += 5
        if turn == 0:
            expected[made(kafka, f"{stem}.meanwhile", edges(8, 7))] = 7
    result("run", "--config", path, "--until-idle", "1")
    assert by_topic(store) == expected
    rows = [(src, dst) for _, src, dst, _ in triples(log_table(store)) if src != 1]
    wanted = [(10 + turn, i) for turn in range(4) for i in range(30)] + [(8, i) for i in range(7)]
    assert sorted(rows) == sorted(wanted), "a topic that joins is read from its first message"


def test_each_topic_begins_where_its_start_says(kafka: str, tmp_path: Path) -> None:
    store, moment = tmp_path / "store", datetime(2026, 1, 1, tzinfo=UTC)
    at_ms = int(moment.timestamp() * 1000)
    topics = [fresh_topic(kafka, stem=f"from{i}") for i in range(5)]
    for number, topic in enumerate(topics):
        times = [at_ms - 2000, at_ms - 1, at_ms, at_ms + 5]
        send_records(
            kafka, topic,
            [{"value": edge(number, i, T0 + i), "timestamp_ms": t} for i, t in enumerate(times)],
        )  # fmt: skip
    starts = ["earliest", "latest", "2026-01-01T01:00:00+01:00", "2026-01-02T00:00:00Z", None]
    entries = [
        {"name": name, **({"start": start} if start else {})}
        for name, start in zip(topics, starts, strict=True)
    ]
    content = configuration(store, kafka, *entries, kafka={"start": moment})  # as YAML reads it
    ran = result("run", "--config", written(tmp_path, content), "--until-idle", "0.5")
    rows = [(src, dst) for _, src, dst, _ in triples(log_table(store))]
    assert sorted(rows) == [*((0, i) for i in range(4)), (2, 2), (2, 3), (4, 2), (4, 3)]
    assert ran["events"] == 8
    for topic in topics:
        send(kafka, topic, edges(7, 1, T0 + 100))
    assert result("run", "--config", written(tmp_path, content), "--until-idle", "0.5")["events"] == 5


def test_commands_know_the_topics_of_a_pattern(kafka: str, tmp_path: Path, stem: str) -> None:
    store, fields = tmp_path / "store", {"src": "from", "dst": "to", "t": "at"}
    topic = made(kafka, f"{stem}.a", [b'{"from": 1, "to": 2, "at": 1100000000}', b'{"from": 1}'])
    content = configuration(store, kafka, {"pattern": rf"{stem}\..*", "fields": fields})
    path = written(tmp_path, content)
    tried = result("try", "--topic", topic, "--config", path)
    assert (tried["events"], tried["fields"]) == (1, fields)
    interactions(tmp_path / "e.parquet", events=10)
    refused = command("replay", tmp_path / "e.parquet", "--config", path, "--topic", f"{stem}.b")
    assert "reads it has fields, ops, id_prefix" in error_of(refused.stderr)
    assert result("run", "--config", path, "--until-idle", "0.5")["refused"] == 1
    assert result("inspect", store)["offsets"] == {topic: {"0": 2}}
    assert result("resend", "--config", path)["sent"] == 1
    plain = configuration(tmp_path / "filled", kafka, {"pattern": rf"{stem}\..*", "fields": fields})
    begun = result(
        "backfill", tmp_path / "e.parquet", "--config", written(tmp_path, plain), "--offset", f"{topic}/0=2"
    )
    assert begun["events"] == 10
    send(kafka, topic, [b'{"from": 3, "to": 2, "at": 1100000000}'])
    again = result("run", "--config", written(tmp_path, plain), "--until-idle", "0.5")
    assert (again["events"], again["refused"]) == (1, 1)


def test_no_topic_for_a_pattern_is_an_error_that_names_it(kafka: str, tmp_path: Path) -> None:
    content = configuration(tmp_path / "store", kafka, {"pattern": "nothing-of-this-.*"})
    done = command("run", "--config", written(tmp_path, content))
    assert done.returncode == 1
    assert re.search(
        r"kafka\.topics: no topic at \S+ matches pattern nothing-of-this-\.\* \(existing: .*\)\. Create one or correct",
        error_of(done.stderr),
    )
