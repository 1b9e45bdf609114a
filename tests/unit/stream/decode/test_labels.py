"""Labels of label topics, in every format: paths, sources by rank, refusals with the names of a label's fields."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.written import json_schema
from freshet_graph.stream.decode.decoder import Decoder
from freshet_graph.stream.decode.encode import LabelMessages, ipc_stream
from freshet_graph.stream.decode.history_file import label_drafts, label_polls, label_rows
from freshet_graph.stream.decode.validate import Rules
from freshet_graph.stream.microbatch import MicroBatch, RawBatch
from freshet_graph.stream.service.failure import Failure

US = 1_000_000
T = 1_700_000_000
OF_EVENTS = {"event_id": "payment.id", "label": "fraud", "t": "decided_at", "source": "by"}


def config(topic: dict[str, Any], **more: Any) -> StreamConfig:
    kafka = {"bootstrap": "nowhere:9092", "topics": [{"name": "l", "kind": "labels", **topic}]}
    return StreamConfig.model_validate(
        {"graph": "g", "store": "s", "kafka": kafka | more.pop("kafka", {}), **more}
    )


def decoded(topic: dict[str, Any], *values: Any, **more: Any) -> MicroBatch:
    made = config(topic, **more)
    raw = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    batch = RawBatch(
        topic="l",
        partition=0,
        first_offset=0,
        end_offset=len(raw),
        high_watermark=len(raw),
        offsets=pa.array(range(len(raw)), pa.int64()),
        values=pa.array(raw, pa.large_binary()),
    )
    (known,) = made.kafka.topics
    return Decoder(known, made).decode(batch)


def rows(batch: MicroBatch) -> list[tuple[Any, ...]]:
    assert batch.labels is not None and batch.events.num_rows == 0
    return [tuple(row.values()) for row in batch.labels.drop_columns(["visible_us"]).to_pylist()]


def refused(batch: MicroBatch) -> list[tuple[str, str]]:
    return [(reject["reason"], reject["sentence"]) for reject in batch.rejects.to_pylist()]


def message(of: Any, t: Any = T, fraud: Any = 1, by: str | None = None) -> dict[str, Any]:
    return {"payment": {"id": of}, "fraud": fraud, "decided_at": t, "by": by}


def test_labels_of_events_come_with_the_rank_of_their_source() -> None:
    topic = {"fields": OF_EVENTS, "sources": ["analyst", "model"]}
    batch = decoded(
        topic,
        message("p1", by="model"),
        message(17, "2023-11-14T22:13:20Z", fraud=True, by="analyst"),
        message("p2", fraud=False, by="rumour"),
        message("p3", fraud=-5),
    )
    assert rows(batch) == [
        ("p1", None, 1, T * US, "model", 1, 0),
        ("17", None, 1, T * US, "analyst", 2, 1),
        ("p2", None, 0, T * US, "rumour", 0, 2),
        ("p3", None, -5, T * US, None, 0, 3),
    ]
    assert (batch.converted, refused(batch)) == (0, [])


def test_ids_of_nodes_are_of_the_graphs_kind() -> None:
    topic = {"fields": {"node": "card", "label": "l", "t": "t"}}
    assert rows(decoded(topic, {"card": 5, "l": 2, "t": T})) == [(None, 5, 2, T * US, None, 0, 0)]
    prefixed = topic | {"id_prefix": {"node": "card:"}}
    assert rows(decoded(prefixed, {"card": 5, "l": 2, "t": T}, ids="string"))[0][1] == "card:5"
    assert refused(decoded(topic, {"card": "x", "l": 2, "t": T}))[0][0] == "bad_id"


def test_without_fields_a_label_has_those_of_its_own_names() -> None:
    assert rows(decoded({}, {"event_id": "a", "label": 0, "t": T}))[0][:4] == ("a", None, 0, T * US)
    ranked = decoded({"sources": ["x"]}, {"event_id": "a", "label": 0, "t": T, "source": "x"})
    assert rows(ranked)[0][4:6] == ("x", 1)


def test_refusals_name_the_fields_of_a_label() -> None:
    batch = decoded(
        {"fields": OF_EVENTS},
        message(None),
        message(""),
        message("x" * 257),
        message("p", t=None),
        message("p", t=0),
        message("p", fraud=None),
        message("p", fraud="yes"),
        message("p", fraud=2**31),
        b"{",
    )
    assert rows(batch) == []
    reasons = [
        "missing_field", "bad_id", "id_too_long", "missing_field", "time_out_of_bounds", "missing_field", "wrong_type",
        "wrong_type", "not_json",
    ]  # fmt: skip
    assert [reason for reason, _ in refused(batch)] == reasons
    names = ["event_id (payment.id)"] * 3 + ["t (decided_at)"] * 2 + ["label (fraud)"] * 3
    for (_, sentence), name in zip(refused(batch), names, strict=False):
        assert sentence.startswith(name), sentence


def test_a_time_weeks_ago_and_far_from_all_events_is_no_fault() -> None:
    assert rows(decoded({}, {"event_id": "a", "label": 1, "t": 700_000_000}))[0][3] == 700_000_000 * US


def test_columns_of_arrow_and_their_rows() -> None:
    table = pa.table({"event_id": ["a", None, "c"], "label": [True, True, False], "t": [T * US] * 3})
    batch = decoded({"format": "arrow"}, ipc_stream(table).to_pybytes())
    assert [(row[0], row[2]) for row in rows(batch)] == [("a", 1), ("c", 0)]
    (reject,) = batch.rejects.to_pylist()
    assert (reject["row"], reject["sentence"]) == (1, "event_id is missing")
    assert json.loads(reject["raw"]) == {"event_id": None, "label": 1, "t": T * US, "source": None}


def test_elements_of_a_message_keep_their_source() -> None:
    topic = {"many": "all", "fields": {"event_id": "all.id", "label": "all.l", "t": "t", "source": "by"}}
    batch = decoded(topic, {"t": T, "by": "bank", "all": [{"id": "a", "l": 1}, {"id": "b", "l": 0}]})
    assert [(row[0], row[4], row[6]) for row in rows(batch)] == [("a", "bank", 0), ("b", "bank", 0)]


def test_a_row_of_debezium_is_a_label_and_its_deletion_none() -> None:
    fields = {"event_id": "after.payment", "label": "after.fraud", "t": "after.at", "source": "after.by"}
    row = {"payment": "p", "fraud": True, "at": T * 1000, "by": "bank"}
    batch = decoded(
        {"format": "debezium", "fields": fields},
        {"op": "c", "before": None, "after": row},
        {"op": "u", "before": row, "after": row | {"fraud": False}},
        {"op": "d", "before": row, "after": None},
    )
    assert [row[:5] for row in rows(batch)] == [
        ("p", None, 1, T * US, "bank"),
        ("p", None, 0, T * US, "bank"),
    ]
    assert refused(batch) == [("unknown_op", "op is d, which is known for edges only")]


def test_records_of_avro(tmp_path: Path) -> None:
    names = {
        "payment": "string",
        "fraud": "boolean",
        "at": {"type": "long", "logicalType": "timestamp-millis"},
    }
    schema = {"type": "record", "name": "L", "fields": [{"name": n, "type": t} for n, t in names.items()]}
    (tmp_path / "l.avsc").write_text(json.dumps(schema))
    value = BytesIO(b"\0\0\0\0\7")
    value.seek(5)
    record = {"payment": "p", "fraud": True, "at": T * 1000}
    fastavro.schemaless_writer(value, fastavro.parse_schema(schema), record)
    topic = {"format": "avro", "fields": {"event_id": "payment", "label": "fraud", "t": "at"}}
    registry = {"schema_registry": {"files": {"7": str(tmp_path / "l.avsc")}}}
    assert rows(decoded(topic, value.getvalue(), kafka=registry))[0][:4] == ("p", None, 1, T * US)


def test_fields_beside_the_message() -> None:
    topic = {"fields": {"event_id": "id", "label": "l", "t": "t", "source": "$topic"}, "sources": ["l"]}
    assert rows(decoded(topic, {"id": "a", "l": 1, "t": T}))[0][4:6] == ("l", 1)


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        ({"fields": {"src": "a", "dst": "b", "t": "t"}}, "Its fields are event_id or node, label and t"),
        (
            {"fields": {"event_id": "e", "node": "n", "label": "l", "t": "t"}},
            "Its fields are event_id or node",
        ),
        ({"sources": ["a", "a"]}, "sources has one twice"),
        ({"sources": ["a"], "fields": {"node": "n", "label": "l", "t": "t"}}, "Name source in fields"),
        ({"id_prefix": {"node": "x:"}}, "Leave id_prefix out"),
        ({"kind": "events", "sources": ["a"]}, "or set kind: labels"),
        ({"kind": "events", "fields": {"event_id": "e", "label": "l", "t": "t"}}, "Set kind: labels"),
        (
            {"kind": "events", "fields": {"node": "n", "label": "l", "t": "t", "source": "s"}},
            "Set kind: labels",
        ),
    ],
)
def test_a_topic_that_cannot_be_meant_is_refused(topic: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        config(topic)


@pytest.mark.parametrize("message_format", ["json", "arrow"])
def test_labels_that_are_written_are_read_again(message_format: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    table = pa.table(
        {"event_id": ['a"', "7"], "label": [1, -2], "t": [T + 0.25, 800_000_000.0], "source": ["x", None]}
    )
    pq.write_table(table, path)
    (one,) = label_drafts(path, "string", Rules("string", offline=True))
    messages = [
        value
        for value, _ in LabelMessages(message_format, of_events=one.made.of_events).encode(one.draft.events())
    ]
    if message_format == "json":
        for message in map(json.loads, messages):
            Draft202012Validator(json_schema("labels", None)).validate(message)
    fields = {name: name for name in table.schema.names}
    batch = decoded({"format": message_format, "fields": fields}, *messages)
    assert one.row == 0
    assert [row[:5] for row in rows(batch)] == [
        ('a"', None, 1, T * US + US // 4, "x"),
        ("7", None, -2, 800_000_000 * US, None),
    ]


def test_a_file_of_labels_is_read_from_any_row_up_to_a_time(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    lines = [f"{i:03},{'' if i == 3 else i},2023-01-{i + 1:02}T00:00:00Z,bank" for i in range(8)]
    path.write_text("\n".join(["event_id,label,t,source", *lines]))
    made = config({})
    until_us = 1_672_531_200 * US + 6 * 86_400 * US
    polls = label_polls(
        path,
        made,
        Rules.of(made, T * US),
        key=("f", 0),
        first=10,
        start=2,
        until_us=until_us,
        sources=["bank"],
    )
    (batch,) = polls
    assert label_rows(path) == 8
    assert (batch.first_offset, batch.end_offset) == (12, 18)
    assert [(row[0], row[5], row[6]) for row in rows(batch)] == [
        ("002", 1, 12),
        ("004", 1, 14),
        ("005", 1, 15),
    ]
    assert refused(batch) == [("missing_field", "label is missing")]
    path.write_text(
        "event_id,label,t,visible\na,1,2023-01-01T00:00:00Z,2023-01-03T00:00:00Z\nb,1,2023-01-01T00:00:00Z,\nc,1,x,\nd,1,2023-01-01T00:00:00Z,2023-01-02T00:00:00Z\n"
    )
    (batch,) = label_polls(
        path, made, Rules.of(made, T * US), key=("f", 0), first=0, start=0, until_us=None, sources=None
    )
    assert batch.labels is not None
    new_year = 1_672_531_200 * US
    assert batch.labels.select(["event_id", "visible_us"]).to_pylist() == [
        {"event_id": "a", "visible_us": new_year + 2 * 86_400 * US},
        {"event_id": "b", "visible_us": None},
        {"event_id": "d", "visible_us": new_year + 86_400 * US},
    ]
    path.write_text("event_id,node,label,t\n")
    with pytest.raises(Failure, match="Labels have event_id or node, label, t"):
        label_rows(path)
