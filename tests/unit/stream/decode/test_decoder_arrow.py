"""What the decoder takes of Arrow messages, what it refuses and what it says about it."""

import json

import numpy as np
import pyarrow as pa
import pytest
from decoding import GOOD, arrow, ipc, message, reasons


def test_an_arrow_message_needs_only_three_columns():
    batch = arrow(message())
    assert batch.events.drop_columns(["offset", "row"]).to_pylist()[0] == {
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
    decoded = arrow(ipc(batches))
    assert decoded.rejects["row"].to_pylist() == [2]
    assert decoded.events["src"].to_pylist() == [1, 2]


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
        (
            ipc([pa.record_batch({"src": [1], "dst": [2], "t": [10**15]}).slice(0, 0)]),
            "not_arrow",
            "without a row",
        ),
        (ipc({"src": [1], "t": [1]}), "missing_field", "column dst is missing"),
        (ipc({"src": [True], "dst": [1], "t": [1]}), "wrong_type", "column src is bool"),
        (ipc({"src": [1], "dst": [1], "t": [True]}), "wrong_type", "column t is bool"),
        (ipc({"src": [1], "dst": [1], "t": [1], "weight": [True]}), "wrong_type", "column weight is bool"),
        (
            ipc({"src": [1], "dst": [1], "t": [1], "features": [["a"]]}),
            "wrong_type",
            "column features is list",
        ),
        (ipc({"src": [1], "dst": [1], "t": [1], "op": [[1]]}), "wrong_type", "column op is list"),
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
        ({"op": [1, 0, 1]}, "unknown_op", "dst is not null"),
        ({"op": [1, -1, 1], "dst": [4, None, 6]}, "missing_field", "dst"),
        ({"src": pa.array([1, 2**63, 3], pa.uint64())}, "bad_id", "9223372036854775808"),
        ({"src": [1.0, 2.5, 3.0]}, "bad_id", "2.5"),
        ({"t": [1e15, float("nan"), 1e15]}, "not_finite", "t is nan"),
        ({"weight": [1.0, 1e39, 1.0]}, "not_finite", "weight is infinite or beyond float32 (±3.4e38)"),
        ({"weight": [1.0, float("nan"), 1.0]}, "not_finite", "weight is nan"),
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


@pytest.mark.parametrize("unit", [None, "rfc3339"])
def test_a_column_of_texts_is_read_as_rfc_3339(unit):
    batch = arrow(message(t=["2001-09-09T01:46:40Z", None, "soon"]), topic={"time_unit": unit})
    assert batch.events["t"].to_pylist() == [10**15]
    assert batch.rejects["sentence"].to_pylist() == [
        "t is missing",
        "column t has 'soon', which is not a time as RFC 3339 writes it, such as 2024-01-01T12:00:00.5Z",
    ]
    named = arrow(message(t=["2001-09-09T01:46:40Z"] * 3), topic={"time_unit": "us"})
    assert reasons(named) == ["wrong_type"] * 3


def test_texts_of_numbers_are_numbers_where_numbers_are_needed():
    texts = {
        "src": ["1", "-2", "x"],
        "dst": ["9223372036854775807", "5.0", "3"],
        "t": ["1000000000000000", "1e15", "1000000000000000.5"],
        "weight": ["0.25", "1e400", "2"],
        "label": ["7", "8", "9"],
    }
    batch = arrow(message(**texts))
    assert batch.events.drop_columns(
        ["features", "feature_offset", "event_id", "offset", "row"]
    ).to_pylist() == [{"op": 1, "src": 1, "dst": 2**63 - 1, "t": 10**15, "weight": 0.25, "label": 7}]
    assert batch.rejects["sentence"].to_pylist() == [
        "weight is infinite or beyond float32 (±3.4e38)",
        "src is the string 'x', but ids are int64 (config key ids)",
    ]
    number = arrow(message(src=[1, 2, 3], dst=["a", "b", "c"]), ids="string")
    assert number.events["src"].to_pylist() == ["1", "2", "3"]


def test_numbers_of_nanoseconds_are_rounded_to_the_microsecond():
    whole = [10**18 + 499, 10**18 + 500, 10**18 + 1500]
    for column in (pa.array(whole), pa.array(np.array([10**18, 10**18 + 1024, 10**18 + 2048], np.float64))):
        batch = arrow(message(t=column), topic={"time_unit": "ns"})
        assert batch.events["t"].to_pylist() == [10**15, 10**15 + 1, 10**15 + 2]


def test_arrow_behind_confluents_header_is_named():
    batch = arrow(b"\0\0\0\0\2" + message())
    assert reasons(batch) == ["not_arrow"]
    assert "behind Confluent's header" in batch.rejects["sentence"][0].as_py()


def test_finer_or_huge_arrow_times_are_rounded_or_out_of_bounds():
    ns = pa.array([10**18 + 499, 10**18 + 500, 10**18 + 1500], pa.timestamp("ns"))
    assert arrow(message(t=ns)).events["t"].to_pylist() == [10**15, 10**15 + 1, 10**15 + 2]
    before = pa.array([-499, -500, -1500], pa.timestamp("ns"))
    assert arrow(message(t=before), time_bounds=(-1, None)).events["t"].to_pylist() == [0, -1, -2]
    huge = arrow(message(t=[2**62, -(2**62), 2**63 - 1]), topic={"time_unit": "s"})
    assert reasons(huge) == ["time_out_of_bounds"] * 3


def test_words_of_operations_are_read_in_columns():
    batch = arrow(
        ipc({"src": [1, 2, 3], "dst": [2, 3, 4], "t": [10**15] * 3, "op": ["insert", "delete", "upsert"]})
    )
    assert batch.events["op"].to_pylist() == [1, -1]
    assert reasons(batch) == ["unknown_op"]
