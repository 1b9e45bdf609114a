"""Numbers as they come: texts of numbers, ids of the other kind, and operations that are no words."""

import pytest
from decoding import decode, ipc, reasons

T = 1_100_000_000


def test_texts_of_numbers_in_json_are_numbers_where_numbers_are_needed() -> None:
    good = b'{"src":"1","dst":"-2","t":"1100000000.5","weight":"0.25","label":"7","features":["1","2e0"]}'
    bad = [
        b'{"src":"1a","dst":2,"t":1}',
        b'{"src":1,"dst":2,"t":1,"weight":"high"}',
        b'{"src":1,"dst":"05","t":1}',
    ]
    batch = decode(good, *bad, features={"edge": 2})
    (event,) = batch.events.drop_columns(["offset"]).to_pylist()
    assert (event["src"], event["dst"], event["t"]) == (1, -2, T * 10**6 + 500_000)
    assert (event["weight"], event["label"], event["features"]) == (0.25, 7, [1.0, 2.0])
    assert batch.rejects["sentence"].to_pylist() == [
        "src is the string '1a', but ids are int64 (config key ids)",
        "weight is the string 'high', expected a number",
        "dst is the string '05', but ids are int64 (config key ids)",
    ]


def test_ids_of_the_other_kind_are_converted_and_counted() -> None:
    values = [b'{"src":1,"dst":"b","t":1100000000}', b'{"src":"a","dst":"b","t":1100000000}']
    batch = decode(*values, b'{"src":"a","dst":"\\u0062","t":1100000000}', ids="string")
    assert batch.events["src"].to_pylist() == ["1", "a", "a"]
    assert batch.converted == 1
    batch = decode(b'{"src":"1","dst":2,"t":1100000000}', b'{"src":1,"dst":2,"t":1100000000}')
    assert (batch.events["src"].to_pylist(), batch.converted) == ([1, 1], 1)
    table = {"src": ["1", "2"], "dst": [3, 4], "t": [T * 10**6] * 2}
    batch = decode(ipc(table), topic={"format": "arrow"})
    assert (batch.events["src"].to_pylist(), batch.converted) == ([1, 2], 2)


@pytest.mark.parametrize("format_", ["json", "arrow"])
def test_booleans_numbers_and_null_are_words_of_op(format_: str) -> None:
    topic = {
        "format": format_,
        "time_unit": "s",
        "fields": {"src": "a", "dst": "b", "t": "t", "op": "gone"},
        "ops": {True: "delete", False: "insert", None: "delete"},
    }
    rows = [b'{"a":1,"b":2,"t":1100000000,"gone":%b}' % word for word in (b"true", b"false", b"null", b"2")]
    if format_ == "arrow":
        table = {"a": [1] * 3, "b": [2] * 3, "t": [T] * 3, "gone": [True, False, None]}
        rows = [ipc(table), ipc(table | {"gone": [2, 2, 2]})]
    batch = decode(*rows, topic=topic)
    assert batch.events["op"].to_pylist() == [-1, 1, -1]
    assert set(reasons(batch)) == {"unknown_op" if format_ == "arrow" else "wrong_type"}
    if format_ == "json":
        assert decode(b'{"a":1,"b":2,"t":1100000000}', topic=topic).events["op"].to_pylist() == [1]
