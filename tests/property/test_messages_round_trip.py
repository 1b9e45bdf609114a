"""Events become messages and come back the same."""

from itertools import pairwise

import pyarrow as pa
import pytest
from decoding import decode
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.decode.encode import BYTES_A_MESSAGE, EventTooLongError, encode_arrow, encode_json

WIDTHS = {"node": 5, "edge": 2}


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def events(draw: st.DrawFn, ids: str) -> dict[str, object]:
    an_id = st.integers(-(2**63), 2**63 - 1) if ids == "int" else st.text(min_size=1, max_size=8)
    row = {
        "src": draw(an_id),
        "t": draw(
            st.one_of(st.integers(-(10**15), 10**16), st.integers(-(10**9), 10**9).map(lambda s: s * 10**6))
        ),
        "weight": draw(st.one_of(st.just(1.0), FLOATS)),
        "label": draw(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))),
        "event_id": draw(st.one_of(st.none(), st.text(min_size=1, max_size=8))),
    }
    if draw(st.booleans()):
        vector = st.one_of(st.none(), st.lists(FLOATS, min_size=2, max_size=2))
        return row | {"op": draw(st.sampled_from([1, -1])), "dst": draw(an_id), "features": draw(vector)}
    row |= {"op": 0, "features": draw(st.lists(FLOATS, min_size=5, max_size=5))}
    if draw(st.booleans()):
        first = draw(st.integers(0, 4))
        row |= {"feature_offset": first, "features": draw(st.lists(FLOATS, min_size=1, max_size=5 - first))}
    return row


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["int", "string"]), st.sampled_from(["s", "ms", "us", "ns", "rfc3339"]))
def test_events_survive_the_way_through_messages(data, ids, unit):
    rows = data.draw(st.lists(events(ids), max_size=6))
    batch = pa.RecordBatch.from_pylist(rows, event_schema(ids))
    messages = encode_json(batch, time_unit=unit)
    assert len(messages) == len(rows)
    ways = [("json", unit, messages), ("arrow", None, list(encode_arrow(batch, rows=5)))]
    if unit in ("s", "rfc3339"):  # numbers and texts of a topic without a unit
        ways.append(("json", None, messages))
    for format_, named, values in ways:
        topic = {"format": format_, "time_unit": named}
        decoded = decode(*values, topic=topic, ids=ids, features=WIDTHS, time_bounds=(-1e9, 1e10))
        assert decoded.rejects.to_pylist() == []
        assert decoded.events.select(batch.schema.names).equals(batch)


def test_an_empty_table_is_no_messages():
    empty = event_schema("int").empty_table()
    assert encode_json(empty) == []
    assert list(encode_arrow(empty)) == []


def test_arrow_messages_hold_at_most_the_rows_asked_for():
    rows = [{"op": 1, "src": 1, "dst": 2, "t": i, "weight": 1.0} for i in range(10)]
    table = pa.Table.from_pylist(rows, event_schema("int"))
    sizes = [pa.ipc.open_stream(message).read_all().num_rows for message in encode_arrow(table, rows=4)]
    assert sizes == [4, 4, 2]


def node_events(*widths: int) -> pa.Table:
    rows = [
        {"op": 0, "src": i, "t": i, "weight": 1.0, "features": [float(i)] * width}
        for i, width in enumerate(widths)
    ]
    return pa.Table.from_pylist(rows, schema=event_schema("int"))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(3_500, 20_000))
def test_arrow_messages_hold_at_most_the_bytes_asked_for_however_uneven_the_rows(widths, limit):
    table = node_events(*widths)
    messages = list(encode_arrow(table, max_bytes=limit))
    assert max(map(len, messages)) <= limit
    batches = [pa.ipc.open_stream(message).read_all() for message in messages]
    assert pa.concat_tables(batches).equals(table)
    assert all(len(one) + len(next_one) > limit for one, next_one in pairwise(messages)), "each is full"


def test_wide_rows_fit_a_broker_that_has_kafkas_default_limit():
    messages = list(encode_arrow(node_events(*[2_000] * 1_000)))
    assert max(map(len, messages)) <= BYTES_A_MESSAGE < 1_048_588
    assert len(messages) == 10


def test_an_event_longer_than_a_message_is_named_after_those_before_it():
    messages = encode_arrow(node_events(*[1] * 70, 400_000, 1), rows=32)
    with pytest.raises(EventTooLongError) as error:
        sent = [pa.ipc.open_stream(message).read_all().num_rows for message in messages]
        pytest.fail(f"all were sent: {sent}")
    assert error.value.row == 70
    assert error.value.num_bytes > 1_600_000
