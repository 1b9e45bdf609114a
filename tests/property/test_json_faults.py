"""Why a message is refused, found by kernels: the same reason and sentence that the reference reader gives."""

import json

import numpy as np
import pyarrow as pa
import pytest
from drawn_json import MESSAGES
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stream.decode import json_events, json_fault
from stream.decode.json_message import read_message
from stream.decode.reading import RefusedError

NEARLY = st.lists(
    st.sampled_from(
        [*'{}[]":,\\ \n', "n", "null", "true", "NaN", "Infinity", "-", "0", "1", ".", "e", "+", "u00e9"]
    )
    | st.characters(codec="utf-8"),
    max_size=14,
).map("".join)


def python_says(text: str) -> tuple[str, int]:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg, error.pos
    return "", 0


def kernel_says(text: str) -> tuple[str, int]:
    data = np.frombuffer(text.encode(), np.uint8)
    fault, place = json_fault.json_fault(data, 0, len(data))
    return json_fault.MESSAGES[fault], json_fault.count_characters(data, 0, place) if fault else 0


@settings(max_examples=200, deadline=None)
@given(st.one_of(NEARLY, NEARLY, MESSAGES.map(lambda m: m.decode("utf-8", "ignore"))))
@example('{"a":1,}')
@example('["\\u12')
@example('["\\ud800\\u12x4"]')
@example('["é\\')
@example("[1,]")
@example("[01]")
@example("[-]")
@example('{"a" 1}')
@example('{"a":}')
@example('{"a":1 "b"}')
@example("")
@example("[")
@example("nul")
@example("-Infinityx")
@example("1.e5")
def test_the_fault_in_a_text_is_the_one_that_python_names(text):
    if text.startswith("\ufeff") or text.count("[") + text.count("{") > 64:
        return
    assert kernel_says(text) == python_says(text)


COMMON = {
    "int": [
        b"",
        b"hello",
        b"\xff\xfe",
        b'{"src":1,"dst":2,"t":17000',
        b'{"src":1,"dst":2,"t":1,}',
        b"[1]",
        b"5",
        b'"text"',
        b"null",
        b"{}",
        b'{"dst":2,"t":1}',
        b'{"src":1,"dst":null,"t":1}',
        b'{"src":1,"dst":2}',
        b'{"src":"a","dst":2,"t":1}',
        b'{"src":"a\\u00e9\'","dst":2,"t":1}',
        b'{"src":{"id":1},"dst":2,"t":1}',
        b'{"src":1,"dst":2,"t":"2024-01-01T00:00:00Z"}',
        b'{"src":1,"dst":2,"t":[1]}',
        b'{"src":1,"dst":2,"t":1,"op":"upsert"}',
        b'{"src":1,"dst":2,"t":1,"op":3}',
        b'{"src":1,"dst":2,"t":1,"weight":"1"}',
        b'{"src":1,"dst":2,"t":1,"label":true}',
        b'{"src":1,"dst":2,"t":1,"features":{"a":1}}',
        b'{"src":1,"dst":2,"t":1,"event_id":false}',
        b'{"src":1,"src":2,"t":1}',
    ],
    "string": [
        b'{"src":1,"dst":"b","t":1}',
        b'{"src":"a","dst":2.5,"t":1}',
        b'{"src":"a","dst":"b","t":"x"}',
    ],
}


@pytest.mark.parametrize("ids", ["int", "string"])
def test_what_producers_get_wrong_is_named_without_reading_messages_one_by_one(ids, monkeypatch):
    monkeypatch.setattr(json_events, "read_message", None)
    _, refusals = json_events.read_json(pa.array(COMMON[ids], pa.large_binary()), ids, "s")
    got = {r["message"]: (r["reason"], r["sentence"]) for table in refusals for r in table.to_pylist()}
    for i, message in enumerate(COMMON[ids]):
        with pytest.raises(RefusedError) as caught:
            read_message(message, ids, "s")
        assert got[i] == (caught.value.reason, str(caught.value)), message


def test_times_without_a_zone_are_named_without_reading_messages_one_by_one(monkeypatch):
    monkeypatch.setattr(json_events, "read_message", None)
    messages = [b'{"src":1,"dst":2,"t":"2024-01-01T00:00:00"}', b'{"src":1,"dst":2,"t":1700000000}']
    _, refusals = json_events.read_json(pa.array(messages, pa.large_binary()), "int", "rfc3339")
    sentences = [sentence for table in refusals for sentence in table["sentence"].to_pylist()]
    assert sorted(sentences) == [
        "t is '2024-01-01T00:00:00', which has no zone. End it with Z or an offset such as +02:00",
        "t is the number 1700000000, expected an RFC 3339 string (the topic's time_unit)",
    ]
