"""Exports into a real Kafka: exactly what is committed, in order, again after kills and never less."""

import json
import signal
import time
from collections import Counter
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from exported import embeddings, write_export
from fastavro import schemaless_reader
from forked import Commands
from kafka import KafkaAdminClient
from log_lines import error_of
from pydantic import ValidationError
from registry_server import serving
from running_job import reached
from streaming import (
    T0,
    command,
    configuration,
    edge,
    fresh_topic,
    read_topic,
    result,
    run_job,
    send,
    settings,
    written,
)

from freshet_graph.schemas.config import Kafka, Publication, StreamConfig, Topic
from freshet_graph.stream.kafka.export_publisher import ExportPublisher
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.store.exports import ExportReader

pytestmark = pytest.mark.integration
EXPORTS = 4


def wanted(store: Path, kafka: str, **publish: object) -> tuple[dict, str, str]:
    """A configuration with a topic to read and one to publish to."""
    edges, vectors = fresh_topic(kafka), fresh_topic(kafka, stem="vectors")
    send(kafka, edges, [edge(1, 2, T0)])
    return (
        configuration(store, kafka, edges, publish=[{"exports": "hash", "topic": vectors, **publish}]),
        edges,
        vectors,
    )


def test_what_is_committed_is_published_also_after_kills_with_keys_that_tell_repetitions(
    kafka: str, tmp_path: Path, commands: Commands
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    content, _, topic = wanted(store, kafka)
    config = written(tmp_path, content)
    for _ in range(EXPORTS):
        write_export(store, "hash")
    for crash_at, position in (("publish.sent:2", 1), ("publish.marked:2", 3)):
        code = commands.run("run", "--config", config, log=log, crash_at=crash_at)
        assert code == -signal.SIGKILL, log.read_text()
        assert ExportReader(store, "hash").published(topic, "embeddings") == position
    write_export(store, "hash")
    ran = result("run", "--config", config, "--until-idle", "1")
    assert ran["ended"] == "idle"
    assert ExportReader(store, "hash").published(topic, "embeddings") == EXPORTS + 1

    found = [(key, json.loads(value)) for key, value in read_topic(kafka, topic)]
    assert all(message["id"].encode() == key for key, message in found)
    times = Counter((message["id"], message["export"]) for _, message in found)
    nodes = [f"n{node}" for node in range(3)]
    assert times == {
        (node, number): 2 if number == 1 else 1 for node in nodes for number in range(EXPORTS + 1)
    }
    order = [message["export"] for _, message in found]
    assert order == sorted(order)
    newest = {message["id"]: message["embedding"] for _, message in found}
    expected = embeddings(EXPORTS, 3)
    assert newest == dict(zip(expected["id"].to_pylist(), expected["embedding"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("graph", "clicks"),
        ("snapshots", {"interval_s": 3_600, "commit_every_s": 0.3}),
        ("lanes", [{"name": "h", "algorithm": "hash", "parts": 3}]),
    ],
)
def test_a_run_that_is_refused_has_published_and_made_and_written_nothing(
    kafka: str, tmp_path: Path, key: str, other: object
) -> None:
    store = tmp_path / "store"
    content, _, topic = wanted(store, kafka)
    content["lanes"] = [{"name": "h", "algorithm": "hash", "parts": 2}]
    run_job(content)
    write_export(store, "hash")

    def files() -> dict[str, bytes | None]:
        return {str(path): path.read_bytes() if path.is_file() else None for path in store.rglob("*")}

    before, dead = files(), f"dead-{topic}"
    content["kafka"]["dead_letters"] = dead
    done = command("run", "--config", written(tmp_path, content | {key: other}), "--until-idle", "0.5")
    assert done.returncode == 1
    assert key.removesuffix("s") in error_of(done.stderr)
    assert files() == before
    assert read_topic(kafka, topic) == []
    admin = KafkaAdminClient(**settings(kafka))
    assert dead not in admin.list_topics()
    admin.close()


def test_a_publisher_follows_and_a_second_one_waits_until_it_is_gone(kafka: str, tmp_path: Path) -> None:
    content, _, topic = wanted(tmp_path, kafka)
    settings = Kafka(bootstrap=kafka, topics=[Topic(name="any")])
    to = Publication(exports="hash", kind="scores", topic=topic, format="arrow")
    metrics = StreamMetrics(StreamConfig(**content))
    first, second = (ExportPublisher(str(tmp_path), to, settings, metrics) for _ in range(2))
    first.start()
    assert first.drain(30)  # of nothing: the folder isn't there yet
    second.start()
    write_export(tmp_path, "hash")
    assert first.drain(30)
    assert not second.drain(0.5)
    first.close()
    write_export(tmp_path, "hash")
    assert second.drain(30)
    second.close()
    found = read_topic(kafka, topic)
    assert [key for key, _ in found] == [b"hash/scores/0/0", b"hash/scores/1/0"]
    assert pa.ipc.open_stream(found[0][1]).read_all()["event_id"].to_pylist() == [None, "e1", None]


def test_an_outage_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshet_graph.stream.kafka.greeting.PATIENCE_S", 0.5)
    settings = Kafka(bootstrap="127.0.0.1:9", topics=[Topic(name="any")])
    to = Publication(exports="hash", topic="vectors")
    write_export(tmp_path, "hash")
    config = configuration(tmp_path, "127.0.0.1:9", "edges")
    publisher = ExportPublisher(str(tmp_path), to, settings, StreamMetrics(StreamConfig(**config))).start()
    deadline = time.monotonic() + 90
    while publisher.error is None and time.monotonic() < deadline:
        time.sleep(0.05)
    publisher.close()
    assert publisher.error is not None
    assert "no broker" in publisher.error
    assert ExportReader(tmp_path, "hash").published("vectors", "embeddings") == 0


def test_schemas_of_what_is_written_are_registered_and_a_registry_that_is_away_stops_only_avro(
    kafka: str, tmp_path: Path, commands: Commands
) -> None:
    with serving() as registry:
        content, edges, vectors = wanted(tmp_path / "store", kafka, format="avro")
        scores, dead = fresh_topic(kafka, stem="scores"), fresh_topic(kafka, stem="dead")
        content["publish"].append({"exports": "hash", "topic": scores, "kind": "scores"})
        content["kafka"] |= {"dead_letters": dead, "schema_registry": {"url": registry.url, "timeout_s": 1}}
        write_export(tmp_path / "store", "hash")
        send(kafka, edges, [b"{"])
        registry.status = 503
        config, log = written(tmp_path, content), tmp_path / "log"
        job = commands.start("run", "--config", config, log=log)
        try:
            reached(lambda: len(read_topic(kafka, scores)) == 3 and len(read_topic(kafka, dead)) == 1)
            assert read_topic(kafka, vectors) == []
            registry.status = None
            reached(lambda: len(read_topic(kafka, vectors)) == 3)
        finally:
            job.terminate()
            job.join(60)
        assert job.exitcode == 0, log.read_text()
        write_export(tmp_path / "store", "hash")
        send(kafka, edges, [b"{", edge(2, 3, T0)])
        assert commands.run("run", "--config", config, "--until-idle", "1", log=log) == 0  # it asks again
        assert [len(read_topic(kafka, topic)) for topic in (vectors, scores, dead)] == [6, 6, 2]
        for topic, kind in ((scores, "scores"), (dead, "dead-letters")):
            status, found = registry.answer(f"/subjects/{topic}-value/versions/1", None)
            assert (status, found["schemaType"], json.loads(found["schema"])["title"]) == (200, "JSON", kind)
        status, found = registry.answer(f"/subjects/{vectors}-value/versions/1", None)
        values = [value for _, value in read_topic(kafka, vectors)]
        assert {int.from_bytes(value[1:5], "big") for value in values} == {found["id"]}
        records = [
            schemaless_reader(BytesIO(value[5:]), json.loads(found["schema"]), None) for value in values
        ]
        assert [record["id"] for record in records] == embeddings(0, 3)["id"].to_pylist() * 2


def test_avro_without_a_registry_is_refused(tmp_path: Path) -> None:
    content = configuration(
        tmp_path, "127.0.0.1:9", "edges", publish=[{"exports": "h", "topic": "v", "format": "avro"}]
    )
    with pytest.raises(
        ValidationError, match=r"format avro needs a registry. Give its address in kafka.schema_registry.url"
    ):
        StreamConfig(**content)
