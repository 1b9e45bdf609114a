"""Exports as messages: every row once, under keys that tell repetitions, as their schemas describe them."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from exported import embeddings, scores, write_export
from fastavro import parse_schema, schemaless_reader
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from typer.testing import CliRunner

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.schemas.written import FIELDS, Written, avro_schema, json_schema
from freshet_graph.stream.cli import app
from freshet_graph.stream.kafka.dead_letters import letters
from freshet_graph.stream.kafka.export_publisher import arrow_messages, avro_messages, json_messages


def test_a_node_is_a_json_message_under_its_id(tmp_path: Path) -> None:
    commit = write_export(tmp_path, "sep")
    found = list(json_messages("sep", "embeddings", commit, embeddings(0, 2)))
    assert [(key, json.loads(value)) for key, value in found] == [
        (
            f"n{node}".encode(),
            {
                "id": f"n{node}",
                "t": node / 2,
                "model_version": "tgn-0",
                "embedding": [4.0 * node + at for at in range(4)],
                "tau": 0,
                "export": 0,
                "exports": "sep",
            },
        )
        for node in range(2)
    ]


def test_a_score_is_a_json_message_under_its_event_and_no_number_is_null(tmp_path: Path) -> None:
    commit, table = write_export(tmp_path, "sep"), scores(0, 3)
    at = table.schema.get_field_index("negative_score")
    table = table.set_column(at, "negative_score", pa.array([-0.5, -0.5, None], pa.float32()))
    found = list(json_messages("sep", "scores", commit, table))
    assert [key for key, _ in found] == [b"0/1", b"e1", b"0/3"]
    assert [json.loads(value)["score"] for _, value in found] == [None, 1.5, 1.5]
    assert [json.loads(value)["negative_score"] for _, value in found] == [-0.5, -0.5, None]
    assert json.loads(found[1][1])["event_id"] == "e1"


def test_arrow_messages_hold_all_rows_and_say_where_they_are_from(tmp_path: Path) -> None:
    commit = write_export(tmp_path, "sep")
    table = embeddings(0, 10_000)
    found = list(arrow_messages("sep", "embeddings", commit, table))
    assert [key for key, _ in found] == [f"sep/embeddings/0/{part}".encode() for part in range(len(found))]
    assert len(found) > 2
    parts = [pa.ipc.open_stream(value).read_all() for _, value in found]
    assert pa.concat_tables(parts).column("embedding").to_pylist() == table["embedding"].to_pylist()
    assert parts[0].schema.metadata == {b"export": b"0", b"tau": b"0", b"model": b"tgn", b"rows": b"10000"}
    (nothing,) = arrow_messages("sep", "embeddings", commit, embeddings(0, 0))
    assert len(pa.ipc.open_stream(nothing[1]).read_all()) == 0


@pytest.mark.parametrize("topic", ["edges", "dead", "vectors"])
def test_a_publication_has_a_topic_of_its_own(topic: str) -> None:
    with pytest.raises(ValidationError, match=f"topic {topic} is used twice"):
        StreamConfig.model_validate(
            {
                "graph": "g",
                "store": "./store",
                "kafka": {"bootstrap": "b:1", "topics": [{"name": "edges"}], "dead_letters": "dead"},
                "snapshots": {"interval_s": 1},
                "publish": [
                    {"exports": "sep", "topic": "vectors"},
                    {"exports": "sep", "kind": "scores", "topic": topic},
                ],
            }
        )


def written_in_json(kind: Written, folder: Path) -> list[dict]:
    """Messages of a kind, with a score that is no number and a refused message without a value among them."""
    if kind == "dead-letters":
        rows = [
            ["edges", 0, 7, None, "not_json", "no JSON", b"{"],
            ["edges", 1, 2**40, 3, "missing_field", "no src", None],
        ]
        table = pa.Table.from_pylist(
            [dict(zip(REJECT_SCHEMA.names, row, strict=True)) for row in rows], REJECT_SCHEMA
        )
        return [json.loads(value) for _, value in letters(table)]
    commit, table = write_export(folder, "sep"), (embeddings if kind == "embeddings" else scores)(0, 3)
    return [json.loads(value) for _, value in json_messages("sep", kind, commit, table)]


@pytest.mark.parametrize("kind", sorted(FIELDS.keys() - {"arrival-scores", "labels"}))
def test_messages_are_as_their_json_schema_says_and_no_others_are(kind: Written, tmp_path: Path) -> None:
    messages = written_in_json(kind, tmp_path)
    schema = json_schema(kind, "string")
    Draft202012Validator.check_schema(schema)
    judge = Draft202012Validator(schema)
    for message in messages:
        judge.validate(message)
        assert list(message) == list(schema["properties"])
        for name, value in message.items():
            assert not judge.is_valid({**message, name: {"wrong": value}}), name
            assert not judge.is_valid({other: message[other] for other in message if other != name}), name
    printed = CliRunner().invoke(app, ["schema", "--of", kind])
    assert json.loads(printed.stdout) == json_schema(kind, None)


@pytest.mark.parametrize(("kind", "made"), [("embeddings", embeddings), ("scores", scores)])
def test_avro_messages_have_what_json_ones_have(
    kind: Written, made: Callable[[int, int], pa.Table], tmp_path: Path
) -> None:
    commit, table = write_export(tmp_path, "sep"), made(0, 3)
    assert kind != "dead-letters"
    schema = avro_schema(kind, "string")
    avro = list(avro_messages("sep", kind, commit, table, schema, 258))
    text = list(json_messages("sep", kind, commit, table))
    assert [key for key, _ in avro] == [key for key, _ in text]
    for (_, value), (_, said) in zip(avro, text, strict=True):
        assert value[:5] == b"\0\0\0\1\2"
        stream = io.BytesIO(value[5:])
        record = schemaless_reader(stream, parse_schema(schema), None)
        assert stream.read() == b""
        assert {**record, "t": record["t"].timestamp()} == json.loads(said)
    printed = CliRunner().invoke(app, ["schema", "--of", kind, "--format", "avro", "--ids", "string"])
    assert json.loads(printed.stdout) == avro_schema(kind, "string")


def test_there_is_no_arrow_schema_of_what_is_written() -> None:
    refused = CliRunner().invoke(app, ["schema", "--of", "scores", "--format", "arrow"])
    assert refused.exit_code == 1
    assert "Give --format json or --format avro" in refused.stderr
