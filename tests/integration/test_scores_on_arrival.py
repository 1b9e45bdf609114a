"""``freshet-trainer score`` beside a stream and a trainer: every event has its score, and it can be computed again."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import small_trainers
import yaml
from fastavro import schemaless_reader
from kafka import KafkaConsumer, TopicPartition
from registry_server import serving
from running_job import ended_by, endpoint, get, reached
from streaming import (
    T0,
    configuration,
    edge,
    fresh_topic,
    read_topic,
    send,
    settings,
    started,
    written,
)
from trainer_invoked import invoke
from trainer_streams import make_lane, meetings
from warm_popen import WarmPopen

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.store import from_file
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.arrivals import Arrivals
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify
from freshet_graph.trainer.arrival.memory import ArrivalMemory
from freshet_graph.trainer.arrival.messages import label_probability
from freshet_graph.trainer.arrival.messages import number as finite
from freshet_graph.trainer.arrival.snapshots import SnapshotMemory
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import newest_checkpoint

pytestmark = pytest.mark.integration

CHUNKS, A_CHUNK = 12, 30
SCORES = {"score", "event_id", "src", "dst", "t", "commit", "row"}


def start(command: str, config: Path, log: Path) -> Any:
    with log.open("ab") as output:
        return WarmPopen(
            ["freshet-trainer", command, "--config", str(config)],
            stdout=output,
            stderr=output,
            env=dict(os.environ),
        )


def keys(folder: Path, kafka: str, topic: str, **more: Any) -> dict[str, Any]:
    scoring = {"topic": topic, "kafka": {"bootstrap": kafka}, **more.pop("scoring", {})}
    return {
        "store": str(folder / "store"), "lane": "hash", "checkpoint": str(folder / "checkpoints"), "checkpoint_every": 1,
        "keep_checkpoints": 1000, "model_params": {"memory": 8, "time_width": 8}, "metrics": {"port": 0},
        "scoring": scoring, **more,
    }  # fmt: skip


def file_of(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "trainer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def messages(kafka: str, topic: str) -> list[dict[str, Any]]:
    consumer = KafkaConsumer(**settings(kafka), auto_offset_reset="earliest")
    one = TopicPartition(topic, 0)
    consumer.assign([one])
    end, rows = consumer.end_offsets([one])[one], []
    while consumer.position(one) < end:
        for records in consumer.poll(timeout_ms=500).values():
            rows += [json.loads(record.value) for record in records]
    consumer.close()
    return rows


def sent(random: Random, chunk: int) -> list[bytes]:
    """Events of a second, some of them late or of equal times."""
    rows = []
    for number in range(A_CHUNK):
        t = T0 + chunk + random.choice([0.0, 0.25, 0.5, 0.75, -1.5])
        rows.append(
            edge(random.randrange(40), random.randrange(40), max(t, T0), event_id=f"e{chunk}-{number}")
        )
    return rows


def computed_again(config: TrainerConfig, messages: list[dict[str, Any]]) -> dict[tuple[int, int], list[Any]]:
    """All scores and probabilities by commit and row that the checkpoint and memory of some messages give, as these say."""
    lane, message = LaneReader(config.store, config.lane), messages[0]
    found = newest_checkpoint(config, lane, message["checkpoint"])
    assert found is not None and int(found[1]["sequence"]) == message["checkpoint"]
    own = message["memory"] == "checkpoint"
    event_model = config.model == "tgn-history"
    memory = (ArrivalMemory if event_model else SnapshotMemory)(config, lane, Ranks(), found[1], learned=own)
    snapshots = {message["commit"]: message["snapshot"] for message in messages}
    scores = {}
    for arrived in Arrivals(LogReader(config.store), message["checkpoint"] if own else -1).new():
        if isinstance(memory, SnapshotMemory) and arrived.commit in snapshots:
            until = snapshots[arrived.commit]
            memory.before(arrived.commit, -1 if until is None else until)
        if memory.labels is not None:
            memory.labels.before(arrived.commit)
        scored = memory.take(arrived.events)
        assert scored is not None
        for place, row in enumerate(scored.rows.tolist()):
            scores[arrived.commit, row] = [finite(scored.score[place]), label_probability(scored, place)]
    return scores


def assert_computed_again(config: TrainerConfig, messages: list[dict[str, Any]]) -> None:
    """Every score comes again from the log and the checkpoint that its message names."""
    by_memory: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for message in messages:
        by_memory.setdefault((message["checkpoint"], message["memory"]), []).append(message)
    for some in by_memory.values():
        again = computed_again(config, some)
        for message in some:
            found = [message["score"], message["label_probability"]]
            assert again[message["commit"], message["row"]] == found


MODELS: dict[str, dict[str, Any]] = {
    "tgn-history": {},
    "labels": {"task": "edge-classification", "task_params": {"first": 40, "negative_after_s": 4.0}},
    "sage-linear": {
        "model": "sage-linear",
        "strategy": "vertex",
        "model_params": {"hidden": 8, "signature": 8},
    },
}


@pytest.mark.parametrize("model", MODELS)
def test_every_event_has_a_score_that_can_be_computed_again(kafka: str, tmp_path: Path, model: str) -> None:
    """Through two kills of the scorer, out of order events, sealing and new checkpoints."""
    topic, scored_topic, random = fresh_topic(kafka), f"scored-{uuid.uuid4().hex[:8]}", Random(3)
    snapshots = {"interval_s": 1.0, "commit_every_s": 0.2, "lateness_s": 1.0, "idle_timeout_s": 0.5}
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2}]
    topics: list[Any] = [topic]
    if model == "labels":
        topics.append({"name": fresh_topic(kafka, stem="labels"), "kind": "labels"})
    content = configuration(tmp_path / "store", kafka, *topics, snapshots=snapshots, lanes=lanes)
    config = file_of(tmp_path, {**keys(tmp_path, kafka, scored_topic), **MODELS[model]})
    newer_topic, newer = fresh_topic(kafka, stem="newer"), None
    (tmp_path / "newer").mkdir()
    latest = keys(tmp_path, kafka, newer_topic, scoring={"start": "latest"})
    from_now = file_of(tmp_path / "newer", {**latest, **MODELS[model]})
    stream = started("run", "--config", written(tmp_path, content), log=tmp_path / "stream.log")
    trainer = start("run", config, tmp_path / "trainer.log")
    scorer = start("score", config, tmp_path / "score0.log")
    ids: set[str] = set()

    def probabilities() -> set[float]:
        return {row["label_probability"] for row in messages(kafka, scored_topic)} - {None}

    try:
        for chunk in range(5 * CHUNKS):
            if chunk >= CHUNKS and (model != "labels" or len(probabilities()) > 20):
                break  # a trainer that is slow has learned labels by then
            rows = sent(random, chunk)
            ids |= {json.loads(row)["event_id"] for row in rows}
            send(kafka, topic, rows)
            if model == "labels" and chunk:  # of a part of the chunk before
                said = [
                    {"event_id": f"e{chunk - 1}-{one}", "label": one % 2, "t": T0 + chunk}
                    for one in range(0, A_CHUNK, 2 + chunk % 2)
                ]
                send(kafka, topics[1]["name"], [json.dumps(one).encode() for one in said])
            if chunk in (5, 8):
                reached(lambda: len(messages(kafka, scored_topic)) > 0)
                scorer.send_signal(signal.SIGKILL)
                scorer.wait()
                time.sleep(1.0)
                scorer = start("score", config, tmp_path / f"score{chunk}.log")
            time.sleep(0.5)
        reached(lambda: {row["event_id"] for row in messages(kafka, scored_topic)} == ids)
        assert get(f"{endpoint(tmp_path / 'score8.log')}/readyz") == "ready\n"
        series = f"{endpoint(tmp_path / 'score8.log')}/metrics"
        assert 'freshet_scorer_events_total{graph="test"} 0.0' not in get(series)
        reached(lambda: 'freshet_scorer_takeovers{graph="test"} 0.0' not in get(series))
        newer = start("score", from_now, tmp_path / "newer.log")
        reached(lambda: '"after_commit"' in (tmp_path / "newer.log").read_text())
        last = [edge(1, 2, T0 + chunk + 5, event_id="last")]
        send(kafka, topic, last)
        reached(lambda: messages(kafka, scored_topic)[-1]["event_id"] == "last")
        reached(lambda: [row["event_id"] for row in messages(kafka, newer_topic)] == ["last"])
    finally:
        if newer is not None:
            ended_by(newer, tmp_path / "newer.log")
        ended_by(scorer, tmp_path / "score8.log")
        ended_by(trainer, tmp_path / "trainer.log")
        ended_by(stream, tmp_path / "stream.log")
    rows = messages(kafka, scored_topic)
    repeated = len(rows) - len({(row["commit"], row["row"]) for row in rows})
    assert 0 <= repeated <= 2 * max(sum(one["commit"] == row["commit"] for one in rows) for row in rows)
    assert len({row["checkpoint"] for row in rows}) > 1, "checkpoints took over"
    loaded = TrainerConfig.model_validate(yaml.safe_load(config.read_text()))
    last_sent = {(row["commit"], row["row"]): row for row in rows}
    assert_computed_again(loaded, list(last_sent.values()))
    assert (len(probabilities()) > 20) == (model == "labels")
    if model == "sage-linear":
        assert len({row["snapshot"] for row in rows}) > 1, "snapshots were sealed meanwhile"
    assert verify(tmp_path / "store").problems == []
    assert all(
        row["learned_until"] < row["t"] or row["memory"] == "log" or row["t"] < T0 + chunk for row in rows
    )


HOSTILE = (
    b"POST /score HTTP/1.1\r\nContent-Length: 5\r\n\r\n{bad}", b"\x16\x03\x01\r\n\r\n",
    b"POST /rank HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000, b"POST /score HTTP/1.1\r\nContent-Le",
    b"GET /../../etc/passwd HTTP/1.0\r\n\r\n", b"GET /version HTTP/1.1\r\n\r\n" * 200,
)  # fmt: skip


def question(url: str, path: str, content: Any, token: str = "a-token") -> tuple[int, Any]:
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(f"{url}{path}", body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_question_has_the_score_that_the_topic_gets(kafka: str, tmp_path: Path) -> None:
    """Bit for bit, if nothing was committed in between; among hostile clients, and through a rotation of the token."""
    topic, scored_topic, random = fresh_topic(kafka), f"scored-{uuid.uuid4().hex[:8]}", Random(4)
    snapshots = {"interval_s": 5.0, "commit_every_s": 0.1, "lateness_s": 1.0, "idle_timeout_s": 0.5}
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2}]
    content = configuration(tmp_path / "store", kafka, topic, snapshots=snapshots, lanes=lanes)
    token, log = tmp_path / "token", tmp_path / "score.log"
    token.write_text("a-token")
    serve = {"port": 0, "token_file": str(token)}
    config = file_of(tmp_path, keys(tmp_path, kafka, scored_topic, serve=serve))
    stream = started("run", "--config", written(tmp_path, content), log=tmp_path / "stream.log")
    trainer = start("run", config, tmp_path / "trainer.log")
    scorer = start("score", config, log)
    bad: list[socket.socket] = []
    try:
        url = reached_line(log, "questions")["url"]
        assert question(url, "/version", None) == (503, {"error": question(url, "/readyz", None)[1]["error"]})
        ids: set[str] = set()
        for chunk in range(CHUNKS):
            rows = sent(random, chunk)
            ids |= {json.loads(row)["event_id"] for row in rows}
            send(kafka, topic, rows)
        reached(lambda: {row["event_id"] for row in messages(kafka, scored_topic)} == ids)
        assert question(url, "/version", None, "another")[0] == 401
        status, version = question(url, "/version", None)
        assert (status, version["graph"], version["known_rows"]) == (200, "test", None)
        page = (Path(__file__).parents[2] / "docs/arrival.md").read_text(encoding="utf-8")
        ((command, example),) = re.findall(r"```sh\n(curl .*?)```\s+```json\n(.*?)```", page, re.DOTALL)
        command = command.replace("http://127.0.0.1:9120", url)
        shown = subprocess.run(
            ["bash", "-c", command], env={**os.environ, "TOKEN": "a-token"}, check=True, capture_output=True
        )
        assert shape(json.loads(shown.stdout)) == shape(json.loads(example))
        same = 0
        for number in range(12):
            for request in HOSTILE:
                client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30)
                client.sendall(request)
                bad.append(client)
            src, dst = random.randrange(44), random.randrange(44)
            event = {"src": src, "dst": dst, "t": T0 + CHUNKS + number / 4, "event_id": f"asked-{number}"}
            status, answer = question(url, "/score", event)
            assert status == 200
            assert question(url, "/rank", {"src": src, "t": event["t"], "k": 5})[0] == 200
            send(kafka, topic, [edge(src, dst, event["t"], event_id=event["event_id"])])
            reached(lambda event=event: messages(kafka, scored_topic)[-1]["event_id"] == event["event_id"])  # type: ignore[misc]
            message = messages(kafka, scored_topic)[-1]
            assert (
                answer["known_commit"] < message["commit"]
                and answer["known_until"] < T0 + CHUNKS + number / 4 + 1
            )
            named = (
                "checkpoint",
                "memory",
            )  # a takeover in between may keep the weights and change the memory
            if [message[name] for name in named] == [answer[name] for name in named]:
                same += 1
                (scored,) = answer["scores"]
                assert {name: message[name] for name in scored} == scored
                assert message["model_version"] == answer["model_version"]
            if number == 5:
                token.write_text("another")
                assert question(url, "/version", None)[0] == 401
                token.write_text("a-token")
        assert same > 6
        series = get(f"{endpoint(log)}/metrics")
        assert 'freshet_scorer_requests_total{graph="test",path="/score",status="200"} 13.0' in series
        assert get(f"{endpoint(log)}/readyz") == "ready\n"
        token.unlink()
        assert get(f"{endpoint(log)}/readyz").startswith("questions are not answered: key serve.token_file")
        token.write_text("a-token")
    finally:
        for client in bad:
            client.close()
        ended_by(scorer, log)
        ended_by(trainer, tmp_path / "trainer.log")
        ended_by(stream, tmp_path / "stream.log")
    rows = messages(kafka, scored_topic)
    loaded = TrainerConfig.model_validate(yaml.safe_load(config.read_text()))
    assert_computed_again(loaded, rows)


def shape(content: Any) -> Any:
    """The keys of a JSON object, those inside it included."""
    if isinstance(content, dict):
        return {key: shape(value) for key, value in content.items()}
    return [shape(value) for value in content] if isinstance(content, list) else None


def reached_line(log: Path, event: str) -> dict[str, Any]:
    def line() -> dict[str, Any] | None:
        lines = [json.loads(one) for one in log.read_text().splitlines()] if log.exists() else []
        return next((one for one in lines if one["event"] == event), None)

    reached(lambda: line() is not None)
    found = line()
    assert found is not None
    return found


def test_a_start_resumes_with_a_topic_of_any_format(kafka: str, tmp_path: Path) -> None:
    """Each of three starts sends in another format, and sends the newest commit of the one before again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(from_file, "SNAPSHOTS_A_COMMIT", 1)
        make_lane(tmp_path / "store", events=meetings(nodes=60, features=False))
    topic = fresh_topic(kafka, stem="scored")
    every, scores = list[bytes](), list[list[float]]()
    with serving() as registry:
        registered = {"bootstrap": kafka, "schema_registry": {"url": registry.url}}
        for form in ("avro", "arrow", "json"):
            scoring = {"kafka": registered, "format": form, "vectors": form != "json"}
            values = keys(tmp_path, kafka, topic, scoring=scoring, strategy="sequential")
            file = file_of(tmp_path, values)
            if form == "avro":
                small_trainers.run(TrainerConfig.model_validate(values))
            status, _, errors = invoke("score", "--config", str(file), "--until-idle", "0.5")
            assert status == 0, errors
            before, every = len(every), [value for _, value in read_topic(kafka, topic)]
            sent = every[before:]
            if form == "avro":
                _, content = registry.answer(f"/subjects/{topic}-value/versions/1", None)
                schema = json.loads(content["schema"])
                rows = [schemaless_reader(BytesIO(value[5:]), schema, None) for value in sent]
                assert {row["commit"] for row in rows} == set(range(6))
                newest = [(row["commit"], row["row"]) for row in rows if row["commit"] == 5]
                continue
            rows = (
                pa.ipc.open_stream(sent[0]).read_all().to_pylist()
                if form == "arrow"
                else [json.loads(value) for value in sent]
            )
            assert [(row["commit"], row["row"]) for row in rows] == newest
            assert {row["vector"] is None for row in rows} == {form == "json"}
            scores.append([row["score"] for row in rows])
    assert scores[0] == scores[1]


def test_bad_topics_are_refused_by_name(kafka: str, tmp_path: Path) -> None:
    file = file_of(tmp_path, {**keys(tmp_path, kafka, "x"), "scoring": {"sample": 200}})
    status, _, errors = invoke("score", "--config", str(file), "--until-idle", "1")
    assert status == 1
    assert "keys scoring.topic and scoring.kafka are missing" in errors
