"""A topic that exists has its partitions counted only once brokers know them."""

from typing import Any

import pytest
from kafka.errors import TopicAlreadyExistsError

from freshet_graph.stream.kafka import topics
from freshet_graph.stream.kafka.topics import ensure_topic
from freshet_graph.stream.service.failure import Failure


class Admin:
    """A cluster that was told of a topic a moment ago."""

    unknown_for = 0

    def __init__(self, **_: Any) -> None:
        self.left = self.unknown_for

    def create_topics(self, _: Any) -> None:
        raise TopicAlreadyExistsError  # made by another one just now

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        self.left -= 1
        known = self.left < 0
        return [
            {
                "name": names[0],
                "error_code": 0 if known else 3,
                "partitions": [{}, {}, {}, {}] if known else [],
            }
        ]

    def close(self) -> None: ...


def test_a_topic_made_a_moment_ago_is_asked_for_until_its_partitions_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "KafkaAdminClient", Admin)
    monkeypatch.setattr(topics, "METADATA_LOOK_S", 0.001)
    monkeypatch.setattr(Admin, "unknown_for", 3)
    assert ensure_topic({"bootstrap_servers": "b:1"}, "b:1", "edges", 4) == 4
    monkeypatch.setattr(Admin, "unknown_for", 1 << 30)
    monkeypatch.setattr(topics, "METADATA_WAIT_S", 0.01)
    with pytest.raises(Failure, match="creating topic edges: the topic doesn't exist at b:1"):
        ensure_topic({"bootstrap_servers": "b:1"}, "b:1", "edges", 4)
