"""What is read is the topic that the log has read: its id is known before the first message."""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from freshet_graph.schemas.config import Kafka
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
