"""``try`` reads a topic of a real broker, says what would become of it, and leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaAdminClient
from streaming import T0, configuration, edge, fresh_topic, send, settings
from typer.testing import CliRunner

from freshet_graph.stream.cli import app

pytestmark = pytest.mark.integration


def trial(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["try", *map(str, arguments), "--json"])
    assert done.stdout, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (0 if result["events"] else 1), done.output
    return result


def test_newest_messages_are_read_and_nothing_is_left_behind(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka, partitions=2)
    send(kafka, topic, [edge(i, i + 1, T0 + i) for i in range(30)])
    send(kafka, topic, [b"no JSON", None, edge(7, "x", T0), edge(7, 8, T0 * 1000)], partition=1)
    admin = KafkaAdminClient(**settings(kafka))
    before = admin.list_groups()
    result = trial("--topic", topic, "--bootstrap", kafka, "--messages", 20)
    assert result["messages"] == 10 + 4  # half of them, and all there are
    assert result["events"] == 10
    assert result["refused"] == {"not_json": 1, "bad_id": 1, "time_out_of_bounds": 1}
    assert result["fields"] == {"src": "src", "dst": "dst", "t": "t"}
    first, *_ = result["examples"]
    assert first == {"partition": 0, "offset": 20, "event": {"src": 20, "dst": 21, "t": T0 + 20}}
    refused = {example["reason"]: example for example in result["examples"] if "reason" in example}
    assert (refused["not_json"]["partition"], refused["not_json"]["offset"]) == (1, 0)
    assert "Divided by 1,000" in refused["time_out_of_bounds"]["sentence"]
    assert admin.list_groups() == before
    admin.close()

    content = configuration(tmp_path / "store", kafka, {"name": topic}, ids="string")
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(content))
    configured = trial("--topic", topic, "--config", tmp_path / "stream.yaml")
    assert configured["events"] == 31, "whole numbers are their texts"
    assert configured["refused"] == {"not_json": 1, "time_out_of_bounds": 1}
    assert not (tmp_path / "store").exists()


def test_fields_of_a_topic_that_knows_no_graphs_are_proposed(kafka: str) -> None:
    topic = fresh_topic(kafka, stem="payments")
    payment = {
        "id": 7,
        "card": {"id": "c1"},
        "merchant": "m7",
        "created_at": "2024-01-01T00:00:00Z",
        "amount": 2.5,
    }
    send(kafka, topic, [json.dumps(payment).encode()] * 3)
    result = trial("--topic", topic, "--bootstrap", kafka)
    assert result["events"] == 3
    fields = {"src": "card.id", "dst": "merchant", "t": "created_at", "weight": "amount", "event_id": "id"}
    assert result["fields"] == fields
    event = {"src": "c1", "dst": "m7", "t": 1704067200, "weight": 2.5, "event_id": "7"}
    assert result["examples"][0]["event"] == event
    assert result["proposal"] == {
        "ids": "string",
        "kafka": {"topics": [{"name": topic, "fields": result["fields"]}]},
    }


@pytest.mark.parametrize(
    ("message", "proposed", "reason", "sentence"),
    [
        ({"user": {"id": 17}, "page": "m0", "at": 1704110400123}, {"time_unit": "ms"}, None, ""),
        ({"user": {"id": 17}, "page": "m0", "at": "2026-01-01 10:00:00"}, {}, "wrong_type", "has no zone"),
    ],
)
def test_what_is_wrong_with_a_proposal_is_shown_and_units_of_times_are_tried(
    kafka: str, message: dict[str, Any], proposed: dict[str, str], reason: str | None, sentence: str
) -> None:
    topic = fresh_topic(kafka, stem="clicks")
    send(kafka, topic, [json.dumps(message).encode()] * 3)
    result = trial("--topic", topic, "--bootstrap", kafka)
    fields = {"src": "user.id", "dst": "page", "t": "at"}
    assert result["proposal"] == {
        "ids": "string",
        "kafka": {"topics": [{"name": topic, "fields": fields} | proposed]},
    }
    assert result["events"] == (3 if reason is None else 0)
    assert [example.get("reason") for example in result["examples"]] == [reason] * 3
    assert all(sentence in example.get("sentence", "") for example in result["examples"])
    shown = CliRunner().invoke(app, ["try", "--topic", topic, "--bootstrap", kafka])
    _, _, block = shown.stdout.partition("ids: ")
    assert yaml.safe_load(f"ids: {block}") == result["proposal"]


def test_what_no_key_looks_like_is_said(kafka: str) -> None:
    topic = fresh_topic(kafka, stem="clicks")
    send(kafka, topic, [b'{"user": 7, "zzz": 3, "at": 1704110400}'])
    shown = CliRunner().invoke(app, ["try", "--topic", topic, "--bootstrap", kafka])
    assert "No key of the messages looks like dst. Name its path in fields." in shown.stderr
    assert "kafka:" not in shown.stdout


def test_an_empty_topic_and_a_missing_one_are_sentences(kafka: str) -> None:
    for topic, words in ((fresh_topic(kafka), "has no messages"), ("absent-topic", "doesn't exist")):
        done = CliRunner().invoke(app, ["try", "--topic", topic, "--bootstrap", kafka])
        assert done.exit_code == 1
        assert words in done.stderr
