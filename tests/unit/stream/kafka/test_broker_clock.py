"""The brokers' clock, as the quorum's leader tells it, and clusters that don't."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import ClusterAuthorizationFailedError, KafkaTimeoutError, UnsupportedVersionError

from freshet_graph.schemas.config import Kafka
from freshet_graph.stream.kafka import broker_clock
from freshet_graph.stream.kafka.broker_clock import BrokerClock

KAFKA = Kafka.model_validate({"bootstrap": "b:1", "topics": [{"name": "edges"}]})


def quorum(*times_ms: int) -> dict[str, Any]:
    voters = [{"replica_id": i, "last_caught_up_timestamp": told} for i, told in enumerate(times_ms)]
    return {"topics": [{"partitions": [{"current_voters": voters}]}]}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What brokers answer to each question."""
    scripted: list[Any] = []

    class Admin:
        def __init__(self, **settings: object) -> None:
            pass

        def describe_metadata_quorum(self) -> dict[str, Any]:
            answer = scripted.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

        def close(self) -> None:
            pass

    monkeypatch.setattr(broker_clock, "KafkaAdminClient", Admin)
    return scripted


def test_the_leaders_time_is_the_newest_and_no_longer_ago_than_the_answer_took(
    answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter([20.0, 21.5])
    monkeypatch.setattr(broker_clock, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    answers.append(quorum(1_800_000_000_000, 1_800_000_000_450, -1))
    # A time in milliseconds may have been cut by up to one of them.
    assert BrokerClock(KAFKA).ask() == (1_800_000_000_450_000, 1_800_000_001_951_000)


@pytest.mark.parametrize(
    "answer",
    [ClusterAuthorizationFailedError(), UnsupportedVersionError(), quorum(-1)],
    ids=["no right", "no quorum", "no times"],
)
def test_a_cluster_that_never_will_is_asked_once(answer: Any, answers: list[Any]) -> None:
    answers.append(answer)
    clock = BrokerClock(KAFKA)
    assert clock.ask() is None
    assert clock.ask() is None
    assert answers == []


def test_brokers_that_are_away_or_have_no_leader_are_asked_again(answers: list[Any]) -> None:
    answers += [KafkaTimeoutError(), ConnectionResetError(), quorum(), quorum(1_800_000_000_000)]
    clock = BrokerClock(KAFKA)
    assert [clock.ask() is None for _ in range(4)] == [True, True, True, False]
