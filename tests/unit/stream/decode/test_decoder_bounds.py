"""What a message may cost: rows, bytes and text are bounded before they are made."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from decoding import GOOD, arrow, decoder, ipc, poll, reasons

from freshet_graph.stream.decode.encode import encode_arrow
from freshet_graph.stream.microbatch import MicroBatch, Quiet


def test_a_few_bytes_cannot_claim_billions_of_rows():
    raw = ipc({"src": pa.nulls(3), "dst": pa.nulls(3), "t": pa.nulls(3)})
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
    (reject,) = arrow(ipc([half, half]), max_message_rows=100).rejects.to_pylist()
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
