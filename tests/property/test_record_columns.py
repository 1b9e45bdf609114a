"""Records read as columns are what the client reads one by one; torn batches are refused."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from freshet_graph.stream.kafka.client import kafka_failures
from freshet_graph.stream.kafka.records import BATCH_BYTES, _ColumnarRecords, parse
from freshet_graph.stream.service.failure import Failure

TP = TopicPartition("edges", 3)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
texts = st.binary(max_size=300)
WANTED = {
    "$timestamp": lambda record: record.timestamp,
    "$key": lambda record: record.key,
    "$headers.a": lambda record: dict(record.headers).get("a"),
    "$headers.é.b": lambda record: dict(record.headers).get("é.b"),
}
messages = st.lists(
    st.tuples(
        st.none() | texts,  # key
        st.none() | texts,  # value
        st.lists(
            st.tuples(st.sampled_from(["a", "é.b", "b", ""]) | st.text(max_size=5), st.none() | texts),
            max_size=3,
        ),  # headers
        st.integers(0, 3),  # offsets left out before it, as compaction does
        st.integers(0, 2**42),  # timestamp
    ),
    min_size=1,
    max_size=12,
)


def batch(content, first, *, magic=2, compression=NONE):
    """A record batch from an offset on, and the offset after it."""
    own = first if magic < 2 else 0  # the offset of a batch of format 2 is written into it by the broker
    builder = MemoryRecordsBuilder(magic, compression if magic == 2 else NONE, 1 << 20, offset=own)
    for key, value, headers, skipped, time_ms in content:
        builder.skip(skipped)
        builder.append(time_ms, key, value, headers if magic == 2 else [])
    end = first - own + builder.next_offset()
    builder.close()
    data = bytes(builder.buffer())
    return (struct.pack(">q", first) + data[8:] if magic == 2 else data), end


def taken(part, size):
    """Everything a fetched answer holds, and the position after each piece."""
    found = []
    while part:
        found += [(piece, part.next_fetch_offset) for piece in part.take(size)]
    return found, part.next_fetch_offset


def pairs(records):
    return list(zip(records.offsets.to_pylist(), records.values.to_pylist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(messages, st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD])), min_size=1, max_size=4),
    st.integers(0, 2**40),
    st.integers(0, 30),
    st.integers(1, 15),
    st.sampled_from([2, 2, 2, 1]),
    st.sampled_from([20_000, BATCH_BYTES]),
)
def test_columns_hold_what_the_client_reads_one_by_one(batches, first, skip, limit, magic, batch_bytes):
    data, at = b"", first
    for content, compression in batches:
        more, at = batch(content, at, magic=magic, compression=compression)
        data += more
    plain, plain_end = taken(Fetcher.PartitionRecords(first + skip, TP, MemoryRecords(data)), 1000)
    wanted = {"edges": frozenset(WANTED)}
    part = _ColumnarRecords(limit, batch_bytes, first + skip, TP, MemoryRecords(data), wanted=wanted)
    pieces, end = taken(part, 1)
    for name, cell in WANTED.items():
        columns = [piece.beside[name] for piece, _ in pieces if len(piece)]
        cells = [
            cell
            for column in columns
            for cell in (column.cast("int64") if name == "$timestamp" else column).to_pylist()
        ]
        assert cells == [cell(record) for record, _ in plain]
    assert [pair for piece, _ in pieces for pair in pairs(piece)] == [(r.offset, r.value) for r, _ in plain]
    assert end == plain_end
    for piece, position in pieces:
        assert len(piece) <= limit
        assert piece.end_offset == position
        piece.offsets.validate(full=True)
        piece.values.validate(full=True)


@settings(max_examples=200, deadline=None)
@given(messages, st.data())
def test_torn_records_are_refused_and_never_read_beyond_their_bytes(content, data):
    whole, _ = batch(content, 0)
    body = np.frombuffer(whole, np.uint8)[61:]
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(CorruptRecordError, match="records of its header"):
        parse(body[:cut], len(content), 0)
    noise = body.copy()
    noise[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(CorruptRecordError):
        columns = parse(noise, len(content), 0, frozenset(WANTED))
        for name in ("offset", "value", "$key", "$headers.a", "$headers.é.b"):
            columns[name].validate(full=True)
    with pytest.raises(CorruptRecordError):
        parse(body, len(body) + 1, 0)


def test_times_are_the_brokers_if_it_gives_them_and_null_if_nobody_does():
    builder = MemoryRecordsBuilder(2, NONE, 1 << 20)
    for time_ms in (5_000, 9_000):
        builder.append(time_ms, None, b"x", [])
    builder.close()
    data = bytearray(builder.buffer())
    wanted = {"edges": frozenset(["$timestamp"])}

    def stamps(change):
        part = _ColumnarRecords(10, BATCH_BYTES, 0, TP, MemoryRecords(bytes(change)), wanted=wanted)
        part.check_crcs = False
        return part.take(1)[0].beside["$timestamp"].cast("int64").to_pylist()

    assert stamps(data) == [5_000, 9_000]
    data[22] |= 0x08  # attributes: log-append time
    assert stamps(data) == [9_000, 9_000]
    data[22] &= ~0x08
    data[27:35] = struct.pack(">q", -1)
    assert stamps(data)[0] is None


def test_a_batch_with_another_checksum_is_named_and_not_read_for_ever():
    good, end = batch([(None, b"a", [], 0, 0)], 0)
    bad, _ = batch([(None, b"b", [], 0, 0)], end)
    part = _ColumnarRecords(10, BATCH_BYTES, 0, TP, MemoryRecords(good + bad[:-1] + b"\x7f"))
    with pytest.raises(CorruptRecordError, match="offset 1 of topic edges partition 3 is damaged"):
        part.take(1)
    assert not part


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_that_is_too_long_once_it_is_decompressed_is_named(compression):
    data, _ = batch([(None, b"x" * 5_000, [], 0, 0)], 7, compression=compression)
    assert len(data) < 1_000
    part = _ColumnarRecords(10, 5_000, 7, TP, MemoryRecords(data))
    told = r"reading from Kafka at host:9092: BatchTooLongError: the record batch at offset 7 of topic edges partition 3 .* "
    told += r"kafka\.max_batch_bytes .* kafka\.on_gap: skip$"
    with pytest.raises(Failure, match=told), kafka_failures("host:9092", "reading from Kafka"):
        part.take(1)
    assert not part
    (whole,) = _ColumnarRecords(10, 5_100, 7, TP, MemoryRecords(data)).take(1)
    assert pairs(whole) == [(7, b"x" * 5_000)]


def test_batches_are_put_together_up_to_so_many_bytes():
    data, at = b"", 0
    for _ in range(6):
        more, at = batch([(None, b"x" * 400, [], 0, 0)], at)
        data += more
    pieces, end = taken(_ColumnarRecords(100, 1_000, 0, TP, MemoryRecords(data)), 1)
    assert [len(piece) for piece, _ in pieces] == [3, 3]
    assert end == 6


def test_a_batch_that_cannot_be_decompressed_is_damaged():
    data, _ = batch([(None, b"x" * 500, [], 0, 0)], 0, compression=ZSTD)
    torn = data[:61] + b"\0" * (len(data) - 61)
    part = _ColumnarRecords(10, BATCH_BYTES, 0, TP, MemoryRecords(torn))
    part.check_crcs = False  # a producer's own bytes, with a checksum that fits
    with pytest.raises(CorruptRecordError, match="is damaged: it can't be decompressed"):
        part.take(1)
