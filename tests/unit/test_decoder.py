"""What the decoder takes, what it refuses and what it says about it."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from schemas.config import StreamConfig, Topic
from schemas.events import REJECT_SCHEMA, event_schema
from stream.decode.decoder import RAW_LIMIT_BYTES, Decoder
from stream.decode.encode import encode_arrow
from stream.decode.json_message import MAX_DEPTH
from stream.microbatch import MicroBatch, Quiet, RawBatch

NOW_US = 1_800_000_000_000_000
GOOD = b'{"src":1,"dst":2,"t":1082040961}'


def decoder(
    *, topic: dict[str, object] | None = None, max_message_rows: int = 1 << 20, **more: object
) -> Decoder:
    limits = {"max_message_bytes": 100_000, "max_message_rows": max_message_rows}
    config = StreamConfig(
        graph="g",
        store="unused",
        kafka={"bootstrap": "unused", "topics": [{"name": "edges"}], **limits},
        snapshots={"interval_s": 86_400},
        **more,
    )
    return Decoder(Topic(name="edges", **(topic or {})), config, now_us=lambda: NOW_US)


def poll(values: list[bytes | None], first: int = 100) -> RawBatch:
    """Messages at every second offset: holes are normal."""
    offsets = pa.array([first + 2 * i for i in range(len(values))], pa.int64())
    end = first + 2 * len(values)
    return RawBatch("edges", 3, first, end, end + 7, offsets, pa.array(values, pa.large_binary()))


def decode(*values: bytes | None, topic: dict[str, object] | None = None, **more: object) -> MicroBatch:
    return decoder(topic=topic, **more).decode(poll(list(values)))


def reasons(batch: MicroBatch) -> list[str]:
    return batch.rejects["reason"].to_pylist()


def test_good_messages_around_bad_ones_go_through_in_order_with_their_offsets():
    batch = decode(
        GOOD,
        b"{",
        b'{"node":7,"t":1e9,"features":[1,2]}',
        None,
        b'{"dst":2,"t":1}',
        GOOD,
        features={"node": 2},
    )
    assert batch.events["offset"].to_pylist() == [100, 104, 110]
    assert batch.events["op"].to_pylist() == [1, 0, 1]
    assert batch.rejects["offset"].to_pylist() == [102, 108]
    assert reasons(batch) == ["not_json", "missing_field"]
    assert batch.tombstones == 1
    assert (batch.first_offset, batch.end_offset, batch.high_watermark) == (100, 112, 119)
    assert batch.wall_time_us == NOW_US
    assert batch.events.schema.equals(
        event_schema("int").append(pa.field("offset", pa.int64(), nullable=False))
    )
    assert batch.rejects.schema.equals(REJECT_SCHEMA)
    batch.events.validate(full=True)


@pytest.mark.parametrize("format_", ["json", "arrow"])
@pytest.mark.parametrize("values", [[], [None, None], [b"bad"]])
def test_a_poll_without_events_has_the_schemas_of_any_other(format_, values):
    batch = decode(*values, topic={"format": format_})
    assert batch.events.num_rows == 0
    assert batch.events.schema.names[-1] == "offset"
    assert batch.rejects.num_rows == len([v for v in values if v is not None])
    assert batch.tombstones == values.count(None)


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        (b"", "not_json", "empty"),
        (b"   ", "not_json", "not JSON"),
        (b"hello", "not_json", "not JSON"),
        (b'{"src":1,"dst":2,"t":3', "not_json", "not JSON"),
        (b'\xff{"src":1}', "not_json", "UTF-8 at byte 0"),
        (b'\xef\xbb\xbf{"src":1,"dst":2,"t":3}', "not_json", "BOM"),
        (b"[1,2]", "not_json", "array instead of an object"),
        (b'"x"', "not_json", "string instead"),
        (b"null", "not_json", "null instead"),
        (GOOD + GOOD, "not_json", "Extra data"),
        (GOOD + b"\n" + GOOD, "not_json", "Extra data"),
        (b'{"src":1,"src":1,"dst":2,"t":3}', "not_json", "src stands twice"),
        (b'{"src":1,"dst":2,"t":3,"x":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "not_json", "deeper than 64"),
        (b'{"x":' * 20_000, "not_json", "deeper than 64"),
        (b"{}", "missing_field", "src"),
        (b'{"src":1,"t":3}', "missing_field", "dst"),
        (b'{"src":1,"dst":2}', "missing_field", "t is"),
        (b'{"src":null,"dst":2,"t":3}', "missing_field", "src"),
        (b'{"src":1,"dst":2,"t":null}', "missing_field", "t is"),
        (b'{"src":"a","dst":2,"t":3}', "bad_id", "src is the string 'a'"),
        (b'{"src":5.5,"dst":2,"t":3}', "bad_id", "src is 5.5, expected an int64"),
        (b'{"src":9223372036854775808,"dst":2,"t":3}', "bad_id", "int64"),
        (b'{"src":1e999999999,"dst":2,"t":3}', "bad_id", "int64"),
        (b'{"src":' + b"9" * 50_000 + b',"dst":2,"t":3}', "bad_id", "int64"),
        (b'{"src":true,"dst":2,"t":3}', "wrong_type", "src is true, expected a number"),
        (b'{"src":[1],"dst":2,"t":3}', "wrong_type", "src is an array"),
        (b'{"src":1,"dst":{"id":2},"t":3}', "wrong_type", "dst is an object"),
        (b'{"src":1,"dst":2,"t":"3"}', "wrong_type", "t is the string '3', expected a number"),
        (b'{"src":1,"dst":2,"t":false}', "wrong_type", "t is false"),
        (b'{"src":1,"dst":2,"t":NaN}', "not_finite", "t is NaN"),
        (b'{"src":1,"dst":2,"t":-1}', "time_out_of_bounds", "1969-12-31T23:59:59Z, outside 1990"),
        (b'{"src":1,"dst":2,"t":1800000301}', "time_out_of_bounds", "time_skew_s"),
        (b'{"src":1,"dst":2,"t":1e300}', "time_out_of_bounds", "time_unit"),
        (b'{"src":1,"dst":2,"t":1e9,"op":"upsert"}', "unknown_op", '"insert" or "delete"'),
        (b'{"src":1,"dst":2,"t":1e9,"op":1}', "wrong_type", "op is the number 1"),
        (b'{"src":1,"dst":2,"t":1e9,"weight":"2"}', "wrong_type", "weight"),
        (b'{"src":1,"dst":2,"t":1e9,"weight":NaN}', "not_finite", "weight"),
        (b'{"src":1,"dst":2,"t":1e9,"weight":1e39}', "not_finite", "weight"),
        (b'{"src":1,"dst":2,"t":1e9,"label":0.5}', "wrong_type", "label is 0.5, expected an int32"),
        (b'{"src":1,"dst":2,"t":1e9,"label":2147483648}', "wrong_type", "int32"),
        (b'{"src":1,"dst":2,"t":1e9,"features":[1,2]}', "feature_width", "config key features.edge is 3"),
        (b'{"src":1,"dst":2,"t":1e9,"features":[1,2,NaN]}', "not_finite", "features"),
        (b'{"src":1,"dst":2,"t":1e9,"features":[1,2,1e300]}', "not_finite", "features"),
        (b'{"src":1,"dst":2,"t":1e9,"features":[1,2,true]}', "wrong_type", "features[2] is true"),
        (b'{"src":1,"dst":2,"t":1e9,"features":[1,2,null]}', "wrong_type", "features[2] is null"),
        (b'{"src":1,"dst":2,"t":1e9,"features":"1,2,3"}', "wrong_type", "features is the string"),
        (b'{"src":1,"dst":2,"t":1e9,"event_id":[]}', "wrong_type", "event_id"),
        (b'{"src":1,"dst":2,"t":1e9,"event_id":""}', "bad_id", "event_id is an empty"),
        (b'{"node":1,"t":1e9}', "missing_field", "features"),
        (b'{"node":1,"src":2,"t":1e9,"label":1}', "wrong_type", "both node and src"),
        (b'{"node":1,"t":1e9,"op":"delete","label":1}', "unknown_op", "edges only"),
        (b'{"node":1,"t":1e9,"features":[1]}', "feature_width", "config key features.node is 4"),
        (b'{"node":1,"t":1e9,"offset":3,"values":[1,2]}', "feature_width", "2 values from position 3 on"),
        (b'{"node":1,"t":1e9,"offset":-1,"values":[1,2]}', "feature_width", "position -1"),
        (b'{"node":1,"t":1e9,"offset":0,"values":[]}', "feature_width", "0 values"),
        (b'{"node":1,"t":1e9,"values":[1,2]}', "missing_field", "without offset"),
        (b'{"node":1,"t":1e9,"offset":1,"label":2}', "missing_field", "without values"),
        (b'{"node":1,"t":1e9,"features":[1,2,3,4],"offset":1}', "wrong_type", "full vector or a piece"),
        (b'{"src":1,"dst":2,"t":1e9,"x":"' + b"y" * 100_000 + b'"}', "too_large", "max_message_bytes is 100000"),
    ],
)  # fmt: skip
def test_a_refused_message_has_its_reason_and_a_sentence_that_names_the_field(message, reason, words):
    batch = decode(GOOD, message, GOOD, features={"node": 4, "edge": 3})
    (reject,) = batch.rejects.to_pylist()
    assert (reject["reason"], reject["offset"], reject["topic"], reject["partition"]) == (
        reason,
        102,
        "edges",
        3,
    )
    assert words in reject["sentence"]
    assert reject["raw"] == message[:RAW_LIMIT_BYTES]
    assert reject["row"] is None
    assert batch.events["offset"].to_pylist() == [100, 104]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b' {\n"src" : 1 ,\r\n"dst":2,"t":1082040961}\t', {}),
        (b'{"src":1.0,"dst":2e0,"t":1082040961}', {}),
        (b'{"t":1082040961,"dst":2,"src":1,"op":null,"weight":null,"features":null,"label":null}', {}),
        (b'{"src":1,"dst":2,"t":1082040961,"x":{"src":[{"t":"\\u00e9\\"}"}]},"y":NaN,"offset":"ignored"}', {}),
        (b'{"\\u0073rc":1,"dst":2,"t":1082040961}', {}),
        (b'{"src":1,"dst":2,"t":1082040961.123456}', {"t": 1_082_040_961_123_456}),
        (b'{"src":1,"dst":2,"t":1082040961.1234565}', {"t": 1_082_040_961_123_457}),
        (b'{"src":1,"dst":2,"t":1.082040961e9}', {}),
        (b'{"src":1,"dst":2,"t":1082040961,"op":"delete","weight":0.1,"label":-3}', {"op": -1, "weight": 0.1, "label": -3}),
        (b'{"src":1,"dst":2,"t":1082040961,"event_id":7}', {"event_id": "7"}),
        (b'{"src":1,"dst":2,"t":1082040961,"event_id":"a\\nb"}', {"event_id": "a\nb"}),
        (b'{"src":1,"dst":2,"t":1082040961,"features":[1,2.5,-3e-1]}', {"features": [1, 2.5, -0.3]}),
        (b'{"node":1,"t":1082040961,"features":[1,2,3,4]}', {"op": 0, "dst": None, "features": [1, 2, 3, 4]}),
        (b'{"node":1,"t":1082040961,"offset":2,"values":[9,8]}', {"op": 0, "dst": None, "features": [9, 8], "feature_offset": 2}),
        (b'{"node":1,"t":1082040961,"label":5}', {"op": 0, "dst": None, "label": 5}),
    ],
)  # fmt: skip
def test_an_event_may_be_written_in_any_way_that_json_allows(message, expected):
    batch = decode(message, features={"node": 4, "edge": 3})
    assert reasons(batch) == []
    plain = {"op": 1, "src": 1, "dst": 2, "t": 1_082_040_961_000_000, "weight": 1.0, "features": None}
    plain |= {"feature_offset": None, "label": None, "event_id": None, "offset": 100}
    (event,) = batch.events.to_pylist()
    for name, value in (plain | expected).items():
        assert event[name] == (value if not isinstance(value, float | list) else pytest.approx(value)), name


@pytest.mark.parametrize(
    ("unit", "written"),
    [
        ("s", b"1082040961.5"),
        ("ms", b"1082040961500"),
        ("us", b"1082040961500000"),
        ("rfc3339", b'"2004-04-15T14:56:01.5Z"'),
        ("rfc3339", b'"2004-04-15t16:56:01.500000+02:00"'),
        ("rfc3339", b'"2004-04-15 12:56:01.5-02:00"'),
    ],
)
def test_every_time_unit_gives_the_same_microseconds(unit, written):
    batch = decode(b'{"src":1,"dst":2,"t":' + written + b"}", topic={"time_unit": unit})
    assert batch.events["t"].to_pylist() == [1_082_040_961_500_000]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (b'"2004-04-15T14:56:01"', "no zone"),
        (b'"2004-02-30T14:56:01Z"', "a day that does not exist"),
        (b'"2004-02-20T24:56:01Z"', "a time of day"),
        (b'"2004-02-20T22:56:01+24:00"', "an offset that does not exist"),
        (b'"yesterday"', "RFC 3339"),
        (b"1082040961", "RFC 3339 string"),
    ],
)
def test_a_wrong_rfc3339_time_is_told_what_is_wrong(written, words):
    batch = decode(b'{"src":1,"dst":2,"t":' + written + b"}", topic={"time_unit": "rfc3339"})
    assert reasons(batch) == ["wrong_type"]
    assert words in batch.rejects["sentence"][0].as_py()


def test_string_ids_keep_their_bytes_and_have_a_limit():
    def message(src: str) -> bytes:
        return json.dumps({"src": src, "dst": "b", "t": 1e9}, ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )

    ids = ["é", "a" * 256, "é" * 128, "\x00", 'q"\\', "日本"]
    batch = decode(*map(message, [*ids, "", "a" * 257, "é" * 129]), ids="string")
    assert batch.events["src"].to_pylist() == ids
    assert reasons(batch) == ["bad_id", "id_too_long", "id_too_long"]
    batch = decode(b'{"src":1,"dst":"b","t":1e9}', b'{"src":"\\ud800","dst":"b","t":1e9}', ids="string")
    assert reasons(batch) == ["bad_id", "bad_id"]
    assert "ids are strings (config key ids)" in batch.rejects["sentence"][0].as_py()


def test_time_bounds_of_the_configuration_replace_the_defaults():
    early, late = b'{"src":1,"dst":2,"t":0}', b'{"src":1,"dst":2,"t":11}'
    assert reasons(decode(early, late, time_bounds=(0, 10))) == ["time_out_of_bounds"]
    assert reasons(decode(early, late, time_bounds=(0, None))) == []


def test_features_on_a_graph_without_them_name_the_key_to_set():
    batch = decode(b'{"src":1,"dst":2,"t":1e9,"features":[1]}', b'{"node":1,"t":1e9,"features":[1]}')
    assert reasons(batch) == ["feature_width", "feature_width"]
    first, second = batch.rejects["sentence"].to_pylist()
    assert "features.edge is 0" in first
    assert "features.node is 0" in second


def message(**columns: object) -> bytes:
    table = {"src": [1, 2, 3], "dst": [4, 5, 6], "t": [10**15] * 3} | columns
    return next(encode_arrow(pa.table({name: value for name, value in table.items() if value is not None})))


def arrow(*values: bytes, **more: object) -> MicroBatch:
    return decode(*values, topic={"format": "arrow"} | more.pop("topic", {}), **more)


def test_an_arrow_message_needs_only_three_columns():
    batch = arrow(message())
    assert batch.events.drop_columns(["offset"]).to_pylist()[0] == {
        "op": 1, "src": 1, "dst": 4, "t": 10**15, "weight": 1.0,
        "features": None, "feature_offset": None, "label": None, "event_id": None,
    }  # fmt: skip
    assert batch.events["offset"].to_pylist() == [100] * 3


@pytest.mark.parametrize(
    "columns",
    [
        {"src": pa.array([1, 2, 3], pa.int32()), "dst": pa.array([4, 5, 6], pa.uint8())},
        {"src": pa.array([1, 2, 3], pa.uint64()), "dst": pa.array([4.0, 5.0, 6.0])},
        {"src": pa.array([1, 2, 3]).dictionary_encode()},
        {"t": pa.array([10**9] * 3, pa.timestamp("s"))},
        {"t": pa.array([10**18] * 3, pa.timestamp("ns", "Europe/Berlin"))},
        {"t": pa.array([1e15] * 3)},
        {"weight": pa.array([1, None, 1]), "label": pa.array([None, None, None], pa.int8())},
        {"weight": pa.array([1.0] * 3, pa.float16()), "op": pa.array([1, None, 1], pa.int64())},
        {"other": pa.array(["x", None, "y"]), "features": pa.nulls(3)},
    ],
)
def test_arrow_columns_of_compatible_types_are_the_same_events(columns):
    assert arrow(message(**columns)).events.equals(arrow(message()).events)


def test_arrow_strings_of_any_width_are_ids():
    texts = ["a", "é", "c" * 256]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        batch = arrow(message(src=pa.array(texts).cast(kind), dst=pa.array(["b", "b", "b"])), ids="string")
        assert batch.events["src"].to_pylist() == texts


def test_features_of_any_list_type_become_float32():
    rows = [[0.5, 1.5], None, [2.5, 3.5]]
    for kind in (
        pa.list_(pa.float64()),
        pa.large_list(pa.float32()),
        pa.list_(pa.float32(), 2),
        pa.list_(pa.float16()),
    ):
        batch = arrow(
            message(features=pa.array(rows, pa.list_(pa.float64())).cast(kind)), features={"edge": 2}
        )
        assert batch.events["features"].to_pylist() == rows


def test_wrong_arrow_rows_are_refused_one_by_one():
    bad = message(
        src=pa.array([1, None, 3]),
        t=pa.array([10**15, 10**15, -1]),
        features=pa.array([[1.0, float("inf")], None, None], pa.list_(pa.float32())),
    )
    batch = arrow(message(), bad, message(), features={"edge": 2})
    assert batch.rejects.select(["offset", "row", "reason"]).to_pylist() == [
        {"offset": 102, "row": 0, "reason": "not_finite"},
        {"offset": 102, "row": 1, "reason": "missing_field"},
        {"offset": 102, "row": 2, "reason": "time_out_of_bounds"},
    ]
    assert batch.events["offset"].to_pylist() == [100] * 3 + [104] * 3
    assert json.loads(batch.rejects["raw"][1].as_py())["dst"] == 5


def test_rows_of_several_batches_in_a_message_count_on():
    batches = pa.table({"src": [1, 2, None], "dst": [1, 2, 3], "t": [10**15] * 3}).to_batches(max_chunksize=2)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    decoded = arrow(sink.getvalue().to_pybytes())
    assert decoded.rejects["row"].to_pylist() == [2]
    assert decoded.events["src"].to_pylist() == [1, 2]


def ipc(columns: dict[str, object], compression: str | None = None) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def empty_batch() -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"src": [1], "dst": [2], "t": [10**15]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(0, 0))
    return sink.getvalue().to_pybytes()


def ipc_file() -> bytes:
    table = pa.table({"src": [1], "dst": [2], "t": [10**15]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (b"", "not_arrow", "not an Arrow"),
        (b"nonsense", "not_arrow", "no frame begins at byte 0"),
        (GOOD, "not_arrow", "no frame"),
        (ipc_file(), "not_arrow", "Arrow file, expected an Arrow stream"),
        (ipc({"src": [1], "dst": [2], "t": [10**15]})[:-40], "not_arrow", "not an Arrow"),
        (ipc({"src": [1] * 99, "dst": [2] * 99, "t": [10**15] * 99}, "zstd"), "not_arrow", "compressed"),
        (message() + message(), "not_arrow", "after the end of its stream"),
        (pa.schema([("src", pa.int64())]).serialize().to_pybytes(), "not_arrow", "without a record batch"),
        (empty_batch(), "not_arrow", "without a row"),
        (ipc({"src": [1], "t": [1]}), "missing_field", "column dst is missing"),
        (ipc({"src": ["a"], "dst": ["b"], "t": [1]}), "bad_id", "column src is string"),
        (ipc({"src": [True], "dst": [1], "t": [1]}), "wrong_type", "column src is bool"),
        (ipc({"src": [1], "dst": [1], "t": ["now"]}), "wrong_type", "column t is string"),
        (ipc({"src": [1], "dst": [1], "t": [1], "weight": ["1"]}), "wrong_type", "column weight is string"),
        (
            ipc({"src": [1], "dst": [1], "t": [1], "features": [["a"]]}),
            "wrong_type",
            "column features is list",
        ),
        (ipc({"src": [1], "dst": [1], "t": [1], "op": ["insert"]}), "wrong_type", "column op is string"),
    ],
)
def test_an_arrow_message_that_cannot_be_read_is_refused_whole(value, reason, words):
    batch = arrow(message(), value, message())
    (reject,) = batch.rejects.to_pylist()
    assert (reject["reason"], reject["row"], reject["offset"]) == (reason, None, 102)
    assert words in reject["sentence"]
    assert batch.events.num_rows == 6


@pytest.mark.parametrize(
    ("columns", "reason", "words"),
    [
        ({"op": [1, 2, 1]}, "unknown_op", "op is 2"),
        ({"op": [1, 0, 1]}, "unknown_op", "dst is given"),
        ({"op": [1, -1, 1], "dst": [4, None, 6]}, "missing_field", "dst"),
        ({"src": pa.array([1, 2**63, 3], pa.uint64())}, "bad_id", "9223372036854775808"),
        ({"src": [1.0, 2.5, 3.0]}, "bad_id", "2.5"),
        ({"t": [1e15, float("nan"), 1e15]}, "not_finite", "t is nan"),
        ({"weight": [1.0, 1e300, 1.0]}, "not_finite", "weight"),
        ({"label": [1, 2**31, 3]}, "wrong_type", "label"),
        ({"features": [None, [1.0, None], None]}, "wrong_type", "null"),
        ({"feature_offset": [None, 1, None]}, "wrong_type", "feature_offset"),
    ],
)
def test_a_wrong_value_in_an_arrow_column_names_it(columns, reason, words):
    batch = arrow(message(**columns), features={"edge": 2})
    (reject,) = batch.rejects.to_pylist()
    assert (reject["reason"], reject["row"]) == (reason, 1)
    assert words in reject["sentence"]


def test_a_timestamp_column_brings_its_own_unit_to_a_topic_of_texts():
    column = pa.array([10**15] * 3, pa.timestamp("us"))
    assert arrow(message(t=column), topic={"time_unit": "rfc3339"}).events["t"].to_pylist() == [10**15] * 3
    assert reasons(arrow(message(), topic={"time_unit": "rfc3339"})) == ["wrong_type"]


def test_finer_or_huge_arrow_times_are_rounded_or_out_of_bounds():
    ns = pa.array([10**18 + 499, 10**18 + 500, 10**18 + 1500], pa.timestamp("ns"))
    assert arrow(message(t=ns)).events["t"].to_pylist() == [10**15, 10**15 + 1, 10**15 + 2]
    before = pa.array([-499, -500, -1500], pa.timestamp("ns"))
    assert arrow(message(t=before), time_bounds=(-1, None)).events["t"].to_pylist() == [0, -1, -2]
    huge = arrow(message(t=[2**62, -(2**62), 2**63 - 1]), topic={"time_unit": "s"})
    assert reasons(huge) == ["time_out_of_bounds"] * 3


def test_a_few_bytes_cannot_claim_billions_of_rows():
    nulls = pa.record_batch({"src": pa.nulls(3), "dst": pa.nulls(3), "t": pa.nulls(3)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, nulls.schema) as writer:
        writer.write_batch(nulls)
    raw = sink.getvalue().to_pybytes()
    three = (3).to_bytes(8, "little")
    claimed = raw.replace(three, (2**40).to_bytes(8, "little"))
    assert claimed != raw
    assert reasons(arrow(claimed)) == ["too_large"]


def test_a_dictionary_of_long_words_is_not_spelled_out():
    word = "x" * 30_000
    indices = pa.array([0] * 90, pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array([word]))
    raw = ipc({"src": column, "dst": column, "t": [10**15] * 90})
    most = pa.default_memory_pool().max_memory() + (1 << 20)
    assert reasons(arrow(raw, ids="string")) == ["id_too_long"] * 90
    assert pa.default_memory_pool().max_memory() < most


def test_many_rows_that_name_one_long_word_are_refused_before_their_text_is_made():
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int8()), pa.array(["x" * 250]))
    raw = ipc({"src": column, "dst": column, "t": [10**15] * 3000})
    (reject,) = arrow(raw, ids="string").rejects.to_pylist()
    assert (reject["reason"], reject["row"]) == ("too_large", None)
    assert "column src written out" in reject["sentence"]


def test_more_rows_than_the_limit_or_than_bytes_are_refused_whole_over_all_batches():
    half = pa.record_batch({"src": [1] * 60, "dst": [2] * 60, "t": [10**15] * 60})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, half.schema) as writer:
        writer.write_batch(half)
        writer.write_batch(half)
    (reject,) = arrow(sink.getvalue().to_pybytes(), max_message_rows=100).rejects.to_pylist()
    assert (reject["reason"], reject["row"]) == ("too_large", None)
    assert "120 rows, but config key kafka.max_message_rows is 100" in reject["sentence"]
    nothing = ipc({"src": pa.nulls(90_000), "dst": pa.nulls(90_000), "t": pa.nulls(90_000)})
    (reject,) = arrow(nothing).rejects.to_pylist()
    assert (reject["reason"], reject["row"]) == ("not_arrow", None)
    assert "claims 90000 rows" in reject["sentence"]


def dictionary_message(rows: int, word: str) -> bytes:
    """Few bytes: every row names the one word of the dictionary."""
    ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([word]))
    t = pa.array(np.full(rows, 1_100_000_000_000_000))
    return next(encode_arrow(pa.record_batch({"src": ids, "dst": ids, "t": t})))


def assert_together_as_whole(batches: list[MicroBatch], whole: MicroBatch) -> None:
    """Neighbouring batches hold what one of the whole poll holds."""
    ends = [whole.first_offset, *(batch.end_offset for batch in batches)]
    assert [batch.first_offset for batch in batches] == ends[:-1]
    assert ends[-1] == whole.end_offset
    assert pa.Table.from_batches([b.events for b in batches]).equals(pa.Table.from_batches([whole.events]))
    assert pa.Table.from_batches([b.rejects for b in batches]).equals(pa.Table.from_batches([whole.rejects]))
    assert sum(batch.tombstones for batch in batches) == whole.tombstones
    assert sum(batch.skipped for batch in batches) == whole.skipped


def test_a_poll_of_small_messages_with_dictionaries_is_written_out_a_bounded_part_at_a_time():
    small = dictionary_message(100, "w" * 200)  # 40 kB written out; the limit is 100 kB
    values = [small, None, small, b"bad", small, b"x" * 100_001, small, small, None]
    given = decoder(topic={"format": "arrow"}, ids="string")
    raw = replace(poll(values), skipped=7, quiet=Quiet(3.0, 1.0))
    batches = list(given.batches(raw))
    assert [batch.events.num_rows for batch in batches] == [200, 200, 100]
    assert [batch.quiet for batch in batches] == [None, None, Quiet(3.0, 1.0)]
    assert_together_as_whole(batches, given.decode(raw))


def test_one_message_that_is_all_that_may_be_decoded_at_a_time_is_decoded():
    values = [dictionary_message(250, "w" * 199)] * 3
    batches = list(decoder(topic={"format": "arrow"}, ids="string").batches(poll(values)))
    assert [batch.events.num_rows for batch in batches] == [250, 250, 250]


@pytest.mark.parametrize("t", [1_100_000_000_000_000, 5])
def test_rows_of_many_messages_are_decoded_a_bounded_number_at_a_time_refused_ones_too(t: int):
    one = next(encode_arrow(pa.record_batch({"src": [1] * 40, "dst": [2] * 40, "t": [t] * 40})))
    given = decoder(topic={"format": "arrow"}, max_message_rows=100)
    batches = list(given.batches(poll([one] * 5)))
    assert [batch.events.num_rows + batch.rejects.num_rows for batch in batches] == [80, 80, 40]
    assert_together_as_whole(batches, given.decode(poll([one] * 5)))


def test_polls_of_json_and_empty_ones_are_one_batch():
    assert len(list(decoder().batches(poll([GOOD] * 50)))) == 1
    assert len(list(decoder(topic={"format": "arrow"}).batches(poll([])))) == 1
