"""What is read is the topic that the log has read: its id is known before the first message."""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from freshet_graph.schemas.config import Kafka, StreamConfig
from freshet_graph.stream.kafka import discovery
from freshet_graph.stream.kafka.discovery import UNKNOWN_TOPIC_OR_PARTITION, TopicWatch
from freshet_graph.stream.kafka.greeting import NoBrokerError
from freshet_graph.stream.store.errors import OffsetGapError

KAFKA = Kafka.model_validate({"bootstrap": "b:1", "topics": [{"name": "edges"}], "metadata_refresh_s": 3_600})


def told(topic_id: str | None, code: int = 0) -> list[dict[str, Any]]:
    parts = [{"partition_index": 0, "leader_id": 1}]
    return [{"name": "edges", "error_code": code, "topic_id": topic_id, "partitions": parts}]


def refused() -> list[dict[str, Any]]:
    raise KafkaConnectionError("hung up")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], list[dict[str, Any]]]]:
    """What brokers answer, look by look; the last one stays."""
    scripted: list[Callable[[], list[dict[str, Any]]]] = []

    class Admin:
        def __init__(self, **settings: object) -> None:
            pass

        def list_topics(self) -> list[str]:
            return ["edges", "dead", "__internal"]

        def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
            return (scripted.pop(0) if len(scripted) > 1 else scripted[0])()

        def close(self) -> None:
            pass

    monkeypatch.setattr(discovery, "KafkaAdminClient", Admin)
    monkeypatch.setattr(discovery, "LOOK_AGAIN_S", 0.0)
    return scripted


@pytest.mark.parametrize(
    "first",
    [refused, lambda: told(None, UNKNOWN_TOPIC_OR_PARTITION), lambda: told(None, 5)],
    ids=["no answer", "the topic isn't known yet", "it has no leader yet"],
)
@pytest.mark.parametrize("known", [{}, {"edges": "old"}], ids=["a new log", "the log has its id"])
def test_a_topic_made_again_is_noticed_when_the_first_looks_fail(
    first: Callable[[], list[dict[str, Any]]], known: dict[str, str], answers: list[Any]
) -> None:
    answers += [first, first, first, lambda: told("old"), lambda: told("new")]
    watch = TopicWatch(KAFKA, known)
    watch.reading([("edges", 0)])
    assert watch.ids == {"edges": "old"}
    assert watch.lost is None
    watch._try()
    watch.close()
    assert isinstance(watch.lost, OffsetGapError)
    assert "was deleted and made again" in str(watch.lost)


def test_what_was_made_again_before_is_known_before_anything_is_read(answers: list[Any]) -> None:
    answers += [refused, lambda: told("new")]
    watch = TopicWatch(KAFKA, {"edges": "old"})
    watch.reading([("edges", 0)])
    watch.close()
    assert isinstance(watch.lost, OffsetGapError)


def test_brokers_without_topic_ids_are_read_from(answers: list[Any]) -> None:
    answers.append(lambda: told(None))
    watch = TopicWatch(KAFKA)
    watch.reading([("edges", 0)])
    watch.close()
    assert (watch.ids, watch.lost) == ({}, None)


def test_brokers_that_never_tell_the_id_are_named_and_nothing_is_read(
    answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "FIRST_LOOK_S", 0.0)
    answers.append(refused)
    with pytest.raises(
        NoBrokerError, match=r"at b:1 don't report the ids of topics edges \(.*hung up.*\)\. Start again"
    ):
        TopicWatch(KAFKA).reading([("edges", 0)])


def test_a_commit_asks_for_the_ids_and_waits_for_an_answer_but_not_for_ever(
    answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers += [lambda: told("old"), refused, refused, lambda: told("old"), lambda: told("new")]
    watch = TopicWatch(KAFKA)
    watch.reading([("edges", 0)])
    watch.confirm()
    with pytest.raises(OffsetGapError, match="was deleted and made again"):
        watch.confirm()
    watch.close()
    monkeypatch.setattr(discovery, "CONFIRM_S", 0.05)
    answers[:] = [lambda: told("old"), refused]
    silent = TopicWatch(KAFKA)
    silent.reading([("edges", 0)])
    silent.confirm()  # in an outage nothing is read, so what is read is of the topic that was there before
    silent.close()
    assert silent.lost is None


PATTERN = Kafka.model_validate(
    {"bootstrap": "b:1", "topics": [{"pattern": ".*"}], "dead_letters": "dead", "metadata_refresh_s": 3_600}
)


def test_a_topic_of_a_pattern_that_is_deleted_or_made_again_is_left_and_ends_nothing(
    answers: list[Any],
) -> None:
    answers += [lambda: told("old")]
    watch = TopicWatch(PATTERN)
    watch.reading([("edges", 0)])
    assert not watch.changed
    answers[:] = [lambda: told(None, UNKNOWN_TOPIC_OR_PARTITION)]
    watch._try()
    assert not watch.changed, "brokers that just started may not know it yet"
    watch._try()
    assert (watch.changed, watch.lost) == (True, None)
    watch.reading([])
    assert not watch.changed
    answers[:] = [lambda: told("new")]
    watch._try()
    assert (watch.changed, watch.added, list(watch.left)) == (False, set(), ["edges"]), (
        "not read, so nothing changes"
    )
    watch.reading([("edges", 0)])
    assert watch.changed
    watch.close()
    watch.confirm(["others"])
    with pytest.raises(OffsetGapError, match="edges at b:1 was deleted and made again"):
        watch.confirm(["edges"])
    assert watch.ids == {"edges": "old"}


def test_a_name_comes_before_patterns_and_what_the_stream_writes_matches_none() -> None:
    topics = [{"pattern": r"pay\..*", "hold": False}, {"name": "pay.b", "format": "arrow"}, {"pattern": ".*"}]
    kafka = Kafka.model_validate({"bootstrap": "b:1", "topics": topics, "dead_letters": "pay.dead"})
    existing = ["pay.a", "pay.b", "pay.dead", "__consumer_offsets", "other", "payments"]
    assert kafka.topics_among(existing) == ["pay.b", "other", "pay.a", "payments"]
    entries = {name: kafka.topic_of(name) for name in existing}
    patterns = [entry and entry.pattern for entry in entries.values()]
    assert patterns == [r"pay\..*", None, None, None, ".*", ".*"]
    assert [entry and entry.name for entry in entries.values()] == [
        "pay.a",
        "pay.b",
        None,
        None,
        "other",
        "payments",
    ]


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        (
            {"pattern": "pay(.*"},
            r"'pay(.*' is no regular expression: missing ), unterminated subpattern at position 3. A dot of a",
        ),
        ({"name": "a", "pattern": "b"}, "a topic has either name or pattern. Give one of them"),
        ({}, "a topic has either name or pattern"),
        (
            {"name": "a", "start": "2026-01-01T00:00:00"},
            "or a time with its zone, such as 2026-01-01T00:00:00Z",
        ),
        ({"name": "a", "start": 1767225600}, "must be earliest, latest, or a time with its zone"),
        ({"name": "a", "start": "first"}, "must be earliest, latest, or a time with its zone"),
    ],
)
def test_a_topic_that_names_nothing_to_read_is_refused(topic: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="1 validation error") as error:
        Kafka.model_validate({"bootstrap": "b:1", "topics": [topic]})
    assert sentence in str(error.value)


def test_patterns_are_refused_on_flink_and_exports_match_none() -> None:
    content = {"graph": "g", "store": "s", "kafka": {"bootstrap": "b:1", "topics": [{"pattern": ".*"}]}}
    config = StreamConfig.model_validate({**content, "publish": [{"exports": "e", "topic": "scores"}]})
    assert config.kafka.topics_among(["scores", "edges"]) == ["edges"]
    with pytest.raises(ValueError, match=r"pattern needs runner.name local. Name the topics for Flink"):
        StreamConfig.model_validate({**content, "runner": {"name": "flink", "job_server": "h:1"}})
