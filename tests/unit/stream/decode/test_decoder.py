"""What the decoder takes of JSON and of any topic, what it refuses and what it says about it."""

import json

import pyarrow as pa
import pytest
from decoding import GOOD, NOW_US, decode, reasons

from freshet_graph.schemas.events import REJECT_SCHEMA, event_schema
from freshet_graph.stream.decode.decoder import RAW_LIMIT_BYTES
from freshet_graph.stream.decode.json_messages import MAX_DEPTH


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
    places = ["offset", "row"] if format_ == "arrow" else ["offset"]
    assert batch.events.schema.names == [*event_schema("int").names, *places]
    assert batch.rejects.num_rows == len([v for v in values if v is not None])
    assert batch.tombstones == values.count(None)


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        (b"", "not_json", "empty"),
        (b"   ", "not_json", "not JSON"),
        (b"hello", "not_json", "not JSON"),
        (b'{"src":1,"dst":2,"t":3', "not_json", "not JSON: cut off at byte 22"),
        (b'\xff{"src":1}', "not_json", "UTF-8 at byte 0"),
        (b'\xef\xbb\xbf{"src":1,"dst":2,"t":3}', "not_json", "BOM"),
        (b"[1,2]", "not_json", "array instead of an object"),
        (b'"x"', "not_json", "string instead"),
        (b"null", "not_json", "null instead"),
        (GOOD + GOOD, "not_json", "trailing characters at byte 33"),
        (GOOD + b"\n" + GOOD, "not_json", "trailing characters at byte 34"),
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
        (b'{"src":1,"dst":2,"t":"3a"}', "wrong_type", "t is '3a', which is not a time as RFC 3339 writes it"),
        (b'{"src":1,"dst":2,"t":[]}', "wrong_type", "a number in s or an RFC 3339 string (the topic has no time_unit)"),
        (b'{"src":1,"dst":2,"t":false}', "wrong_type", "t is false"),
        (b'{"src":1,"dst":2,"t":NaN}', "not_finite", "t is NaN"),
        (b'{"src":1,"dst":2,"t":-1}', "time_out_of_bounds", "1969-12-31T23:59:59Z, outside 1990"),
        (b'{"src":1,"dst":2,"t":1800000301}', "time_out_of_bounds", "time_skew_s"),
        (
            b'{"src":1,"dst":2,"t":1700000000123}',
            "time_out_of_bounds",
            "t is 1700000000123 s, outside 1990-01-01T00:00:00Z to 2027-01-15T08:05:00Z (config keys time_bounds and "
            "time_skew_s). Divided by 1,000 it would be 2023-11-14T22:13:20.123000Z: check the topic's time_unit",
        ),
        (b'{"src":1,"dst":2,"t":1700000.5}', "time_out_of_bounds", ". Times 1,000 it would be 2023-11-14T22:21:40Z: check"),
        (b'{"src":1,"dst":2,"t":1e300}', "time_out_of_bounds", "time_unit"),
        (b'{"src":1,"dst":2,"t":1e9,"op":"upsert"}', "unknown_op", '"insert" or "delete"'),
        (b'{"src":1,"dst":2,"t":1e9,"op":1}', "wrong_type", "op is the number 1"),
        (b'{"src":1,"dst":2,"t":1e9,"weight":"2a"}', "wrong_type", "weight"),
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
        (b'{"src":1,"dst":2,"t":1e9,"event_id":5.5}', "bad_id", "event_id is 5.5, expected a string or an int64"),
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
        ("ns", b"1082040961500000000"),
        ("ns", b"1082040961500000499"),
        (None, b"1082040961.5"),
        (None, b'"2004-04-15T14:56:01.5Z"'),
        (None, b'"2004-04-15T14:56:01.5\\u005a"'),  # not known to the scanner
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


def test_a_unit_that_is_named_takes_no_texts():
    batch = decode(b'{"src":1,"dst":2,"t":"2004-04-15T14:56:01Z"}', topic={"time_unit": "s"})
    assert batch.rejects["sentence"].to_pylist() == [
        "t is the string '2004-04-15T14:56:01Z', expected a number (the topic's time_unit is s)"
    ]


def test_json_behind_confluents_header_is_read_and_what_is_no_json_there_is_named():
    header = b"\0\0\0\0\2"
    batch = decode(header + GOOD, GOOD, header + b"\x02\x04", header, header + b'{"src":1}', b"\0\0\0\0")
    assert batch.events["offset"].to_pylist() == [100, 102]
    named = "not JSON: invalid character at byte 0, after Confluent's header. If it is Avro, the topic's format is avro"
    assert batch.rejects["sentence"].to_pylist() == [
        named,
        "the message is empty, after Confluent's header. If it is Avro, the topic's format is avro",
        "dst is missing",
        "not JSON: invalid character at byte 0",
    ]
    assert batch.rejects["raw"][0].as_py() == header + b"\x02\x04"


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
    assert batch.events["src"].to_pylist() == ["1"], "a whole number is its text"
    assert reasons(batch) == ["bad_id"]


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
