"""Exports as messages: every row once, under keys that tell repetitions."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from exported import embeddings, scores, write_export
from pydantic import ValidationError

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.kafka.export_publisher import arrow_messages, json_messages


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
