"""Messages of scores on arrival, and what a start reads from their topic."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from registry_server import serving

from freshet_graph.schemas.kafka_config import Brokers
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.schemas.written import arrow_schema, avro_schema, json_schema
from freshet_graph.stream.kafka import scored_topic
from freshet_graph.stream.kafka.trial import NoMessagesError
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.log.arrivals import Arrived
from freshet_graph.trainer.arrival.memory import Scored
from freshet_graph.trainer.arrival.messages import FEWEST, Percentiles, messages
from freshet_graph.trainer.arrival.service import resumed


def test_a_percentile_is_among_the_scores_before() -> None:
    percentiles = Percentiles(200)
    assert np.isnan(percentiles.of(np.arange(FEWEST - 1, dtype=np.float32))).all()
    assert np.isnan(percentiles.of(np.array([99.0], np.float32))).all()
    assert percentiles.of(np.array([-1.0, 0.0, 49.0, 99.0], np.float32)).tolist() == [0, 1, 50, 100]
    percentiles.of(np.full(200, 1000, np.float32))
    assert percentiles.of(np.array([999.0], np.float32)).tolist() == [0], "older ones are forgotten"


def two(vectors: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """Messages of two events, the first with as few figures as there can be."""
    columns = {"src": ["a", "b"], "dst": ["c", "d"], "t": [1_500_000, 2_000_000], "event_id": ["x", None]}
    encounters = np.zeros((2, 12), np.float32)
    encounters[:, 0] = [np.inf, 4.0]
    encounters[:, 6] = [0, 3]
    scored = Scored(
        np.array([0, 1]), np.array([-2.0, np.nan], np.float32), encounters, np.array([np.nan, 0.5], np.float32),
        np.array([[0.5, 1.5], [2.5, 3.5]], np.float32) if vectors else None,
    )  # fmt: skip
    said = {"graph": "g", "model_version": "tgn-1", "checkpoint": 3, "memory": "log", "learned_until": 0.25}
    return list(
        messages(Arrived(7, pa.table(columns)), scored, np.array([np.nan, 10.0], np.float32), said, 4.0)
    )


def test_a_message_has_its_event_and_no_number_that_json_lacks() -> None:
    sent = two()
    assert [key for key, _ in sent] == ["x", "7/1"]
    first, second = (json.loads(value) for _, value in scored_topic.json_messages(sent))
    assert (first["src"], first["t"], first["commit"], first["row"], first["checkpoint"]) == (
        "a",
        1.5,
        7,
        0,
        3,
    )
    assert (first["score"], second["score"], first["percentile"], second["percentile"]) == (
        -2.0,
        None,
        None,
        10.0,
    )
    assert (first["latency_s"], second["reasons"]["recent_share"]) == (2.5, 0.5)
    assert first["reasons"]["pair_age_s"] is None
    assert (second["reasons"]["pair_events"], second["reasons"]["pair_age_s"]) == (3, 4.0)


@pytest.mark.parametrize("vectors", [False, True])
def test_messages_are_as_their_schemas_say_in_every_format(
    vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = two(vectors)
    schema = json_schema("arrival-scores", "string")
    Draft202012Validator.check_schema(schema)
    judge = Draft202012Validator(schema)
    for _, value in scored_topic.json_messages(rows):
        message = json.loads(value)
        judge.validate(message)
        assert list(message) == list(schema["properties"])
        for name, content in message.items():
            assert not judge.is_valid({**message, name: {"wrong": content}}), name
            assert not judge.is_valid({other: message[other] for other in message if other != name}), name
    monkeypatch.setattr(scored_topic, "producer_to", lambda *_, **__: None)
    with serving() as registry:
        brokers = Brokers(bootstrap="b:1", schema_registry={"url": registry.url})
        avro, arrow, other = (
            scored_topic.ScoredTopic(brokers, "scored", form, "string", lambda: True)
            for form in ("avro", "arrow", "json")
        )
        status, found = registry.answer("/subjects/scored-value/versions/1", None)
        assert (status, json.loads(found["schema"])) == (200, avro_schema("arrival-scores", "string"))
        encoded = list(avro._encoded(rows))
        assert [key for key, _ in encoded] == [b"x", b"7/1"]
        read = [other._record(value) for _, value in encoded]
        ((key, stream),) = arrow._encoded(rows)
        table = pa.ipc.open_stream(stream).read_all()
        assert (key, table.schema) == (b"7/0", arrow_schema("arrival-scores", "string"))
        assert [row for _, value in encoded for row in other._rows_of(value)] == read
        assert [row["commit"] for row in other._rows_of(stream)] == [7, 7]
    for records in (read, table.to_pylist()):
        for record, (_, row) in zip(records, rows, strict=True):
            times = {name: record[name].timestamp() for name in scored_topic.TIMES}
            assert {**record, **times} == row
    assert list(arrow._encoded([])) == []


def test_a_start_resumes_with_the_newest_commit_of_the_topic() -> None:
    newest = [{"commit": 4, "graph": "g"}, {"commit": 6, "graph": "g"}, {"other": 1}]
    assert resumed(newest, "g", "t", 8) == 5
    assert resumed([{"other": 1}], "g", "t", 8) is None
    with pytest.raises(
        Failure, match=r"topic t has scores of graph g, and the store is of h. Choose another topic"
    ):
        resumed(newest, "h", "t", 8)
    with pytest.raises(Failure, match=r"topic t has scores of commit 6, and the log ends with 5"):
        resumed(newest, "g", "t", 5)


@pytest.mark.parametrize(
    ("polls", "refused"), [(NoMessagesError("empty"), None), ([], "did not send them in time. Start again")]
)
def test_only_an_empty_topic_counts_as_one(
    polls: Any, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are slow would otherwise have all events scored again, or some left out."""

    def newest(*_: object) -> list[object]:
        if isinstance(polls, Exception):
            raise polls
        return list(polls)

    monkeypatch.setattr(scored_topic, "newest", newest)
    monkeypatch.setattr(scored_topic, "producer_to", lambda *_, **__: None)
    topic = scored_topic.ScoredTopic(Brokers(bootstrap="b:1"), "scored", "json", "int", lambda: True)
    if refused is None:
        assert topic.newest(10) == []
        return
    with pytest.raises(Failure, match=refused):
        topic.newest(10)


def test_avro_without_a_registry_is_refused() -> None:
    scoring = {"topic": "s", "kafka": {"bootstrap": "b:1"}, "format": "avro"}
    with pytest.raises(ValidationError, match=r"Give its address in scoring.kafka.schema_registry.url"):
        TrainerConfig.model_validate({"scoring": scoring})
