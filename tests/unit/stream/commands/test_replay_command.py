"""``freshet-stream replay`` sends a topic nothing that the configuration naming it would read as something else."""

from pathlib import Path

import pytest

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.stream.commands.replay import _require_readable
from freshet_graph.stream.service.failure import Failure


def refused(topic: Topic, message_format: str) -> str | None:
    kafka = Kafka(bootstrap="b:1", topics=[Topic(name="other", format="arrow"), topic])
    try:
        _require_readable(kafka, "edges", message_format, Path("stream.yaml"), labels=False)
    except Failure as failure:
        return str(failure)
    return None


@pytest.mark.parametrize("message_format", ["json", "arrow"])
def test_a_topic_in_freshets_own_form_takes_a_file(message_format: str) -> None:
    assert refused(Topic(name="edges", format=message_format), message_format) is None
    unit = "s" if message_format == "json" else "us"
    assert refused(Topic(name="edges", format=message_format, time_unit=unit), message_format) is None


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        ({"format": "arrow"}, "has format arrow. Give --format arrow"),
        ({"time_unit": "ms"}, "a time_unit of its own"),
        ({"fields": {"src": "a", "dst": "b", "t": "t"}}, "has fields"),
    ],
)
def test_a_topic_in_another_form_is_refused_before_anything_is_sent(topic: dict, sentence: str) -> None:
    found = refused(Topic(name="edges", **topic), "json")
    assert found is not None
    assert sentence in found
    assert "stream.yaml" in found
