"""Messages out of Kafka's record batches as columns: a kernel replaces the client's record-by-record reading.

The client makes several Python objects of every message, which is most of the cost of polling. Everything else stays
the client's: connections, fetches, checksums, decompression, transactions, positions and errors.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import lz4.frame
import numpy as np
import pyarrow as pa
import snappy
import zstandard
from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, KafkaError
from kafka.protocol.consumer import IsolationLevel

from freshet_graph.schemas.errors import one_line
from freshet_graph.stream.arrays.kinds import Bool, Int64, UInt8
from freshet_graph.stream.kernels import njit, read_only

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
"""Kafka's numbers of the codecs."""

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_BLOCK = struct.Struct(">i")


class DamagedError(ValueError):
    """The bytes are not those of their codec; the text is fit for users."""


class TooLongError(ValueError):
    """The content is longer than the limit."""


def decompressed(codec: int, data: memoryview, limit: int) -> bytes:
    """The decompressed bytes, if there are at most ``limit``; no more are ever made.

    Raises:
        TooLongError: There are more.
        DamagedError: The bytes are damaged, or the codec is unknown.
    """
    try:
        return _READERS[codec](data, limit)
    except KeyError:
        raise DamagedError(f"its codec has number {codec}, which Kafka doesn't have") from None
    except (zlib.error, zstandard.ZstdError, RuntimeError, struct.error, snappy.UncompressError) as error:
        raise DamagedError(f"it can't be decompressed ({one_line(error)})") from error


def _gzip(data: memoryview, limit: int) -> bytes:
    content, left = b"", bytes(data)
    while left:  # one member after the other
        reader = zlib.decompressobj(wbits=31)
        content += _within(reader.decompress(left, limit + 1 - len(content)), limit - len(content))
        if not reader.eof:
            raise DamagedError("it can't be decompressed (its end is missing)")
        left = reader.unused_data
    return content


def _snappy(data: memoryview, limit: int) -> bytes:
    """One block, or the blocks of the Java library: a header, then each block behind its length."""
    if data[: len(_XERIAL)] != _XERIAL:
        return _snappy_block(data, limit)
    blocks: list[bytes] = []
    offset, left = _XERIAL_HEADER, limit
    while offset < len(data):
        (size,) = _BLOCK.unpack_from(data, offset)
        offset += _BLOCK.size
        if not 0 <= size <= len(data) - offset:
            raise DamagedError("it can't be decompressed (a block points outside it)")
        blocks.append(_snappy_block(data[offset : offset + size], left))
        offset, left = offset + size, left - len(blocks[-1])
    return b"".join(blocks)


def _snappy_block(block: memoryview, limit: int) -> bytes:
    length = shift = 0
    for byte in block[:5]:  # its length stands before it, as a varint
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > limit:
        raise TooLongError
    return cast(bytes, snappy.decompress(bytes(block)))


def _lz4(data: memoryview, limit: int) -> bytes:
    reader = lz4.frame.LZ4FrameDecompressor()
    content = _within(cast(bytes, reader.decompress(bytes(data), max_length=limit + 1)), limit)
    if not reader.eof:
        raise DamagedError("it can't be decompressed (its end is missing)")
    return content


def _zstd(data: memoryview, limit: int) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return _within(reader.read(limit + 1), limit)


def _within(content: bytes, limit: int) -> bytes:
    if len(content) > limit:
        raise TooLongError
    return content


_READERS = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}


COLUMNAR_MAGIC = 2
"""The format of record batches that the kernel reads, Kafka's since 0.11; the client reads older ones."""

BATCH_BYTES = 128 << 20
"""Default of ``kafka.max_batch_bytes``."""

_TORN = -1


class BatchTooLongError(KafkaError):  # type: ignore[misc]  # the client has no types
    """A record batch is longer than the configuration allows."""


@dataclass(frozen=True, slots=True)
class Records:
    """Messages of one topic partition, side by side.

    Attributes:
        offsets: int64 [n], ascending.
        values: large_binary [n]; null for a tombstone.
        end_offset: Offset to read next: after the last message and the holes behind it.
        stamped_ms: The newest time that a broker gave to any of them or to a hole, milliseconds; 0: none did.
    """

    offsets: pa.Array
    values: pa.LargeBinaryArray
    end_offset: int
    stamped_ms: int = 0

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def none(cls, end_offset: int, stamped_ms: int = 0) -> "Records":
        """No messages, perhaps after holes."""
        return cls(pa.array([], pa.int64()), pa.array([], pa.large_binary()), end_offset, stamped_ms)

    def split(self, count: int) -> tuple["Records", "Records"]:
        """The first ``count`` messages, fewer than there are, and the rest."""
        rest = Records(self.offsets[count:], self.values[count:], self.end_offset, self.stamped_ms)
        first = Records(self.offsets[:count], self.values[:count], rest.offsets[0].as_py(), self.stamped_ms)
        return first, rest


def joined(parts: list[Records]) -> Records:
    """Several runs in order, at least one, as one."""
    if len(parts) == 1:
        return parts[0]
    return Records(
        pa.concat_arrays([part.offsets for part in parts]),
        pa.concat_arrays([part.values for part in parts]),
        parts[-1].end_offset,
        max(part.stamped_ms for part in parts),
    )


def read_columns(consumer: KafkaConsumer, limit: int, batch_bytes: int = BATCH_BYTES) -> None:
    """Have a consumer's ``poll`` return columns.

    Each value of its result is then a list of ``Records`` of up to ``limit`` messages, holes without a message included,
    and its ``max_records`` counts those.

    Args:
        consumer: A consumer without deserializers.
        limit: Most messages of one ``Records``.
        batch_bytes: A record batch that is longer, decompressed, is an error of ``poll``. A ``Records`` that has as many
            bytes gets no further batch.
    """
    consumer._fetcher.PartitionRecords = partial(_ColumnarRecords, limit, batch_bytes)


class _ColumnarRecords(Fetcher.PartitionRecords):  # type: ignore[misc]  # the client has no types
    """The fetcher's part of one answer for one partition, handed out in columns."""

    def __init__(self, limit: int, batch_bytes: int, *arguments: Any, **options: Any) -> None:
        self._limit, self._batch_bytes = limit, batch_bytes
        super().__init__(*arguments, **options)

    def _maybe_skip_record(self, record: Any) -> bool:
        return False  # messages before the fetched offset are cut off below

    def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Records]:
        """Runs of messages; the position behind each is set when it is handed out."""
        waiting: list[Records] = []
        count = held_bytes = 0
        for batch in iter(records.next_batch, None):
            waiting.append(self._read(batch))
            count += len(waiting[-1])
            held_bytes += waiting[-1].values.nbytes
            while count > self._limit:
                first, rest = joined(waiting).split(self._limit)
                self.next_fetch_offset = first.end_offset
                yield first
                waiting, count, held_bytes = [rest], len(rest), rest.values.nbytes
            if held_bytes >= self._batch_bytes:
                whole = joined(waiting)
                self.next_fetch_offset = whole.end_offset
                yield whole
                waiting, count, held_bytes = [], 0, 0
        self.drain()
        if waiting:
            last = joined(waiting)
            self.next_fetch_offset = last.end_offset
            yield last

    def _read(self, batch: Any) -> Records:
        """The messages of a batch from the fetched offset on: brokers answer with whole batches."""
        try:
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError("its checksum differs")
            if batch.magic < COLUMNAR_MAGIC:
                records = _one_by_one(batch, self.check_crcs)
            elif self._is_for_readers(batch):
                records = _columns(batch, self._batch_bytes)
            else:
                records = Records.none(batch.next_offset, _stamped_ms(batch))
        except CorruptRecordError as error:
            self.drain()  # or the client would look for more for ever
            tp = self.topic_partition
            raise CorruptRecordError(
                f"the record batch at offset {batch.base_offset} of topic {tp.topic} partition {tp.partition} is "
                f"damaged: {error.args[0]}"
            ) from error
        except TooLongError as error:
            self.drain()
            tp = self.topic_partition
            raise BatchTooLongError(
                f"the record batch at offset {batch.base_offset} of topic {tp.topic} partition {tp.partition} has more "
                f"than {self._batch_bytes} bytes once it is decompressed. Raise config key kafka.max_batch_bytes if the "
                "machine has the memory. To skip the batch, have Kafka delete the records up to the next one and set "
                "kafka.on_gap: skip"
            ) from error
        before = int(np.searchsorted(records.offsets.to_numpy(), self.fetch_offset))
        return (
            replace(records, offsets=records.offsets[before:], values=records.values[before:])
            if before
            else records
        )

    def _is_for_readers(self, batch: Any) -> bool:
        """Whether a batch holds messages, and those of no aborted transaction."""
        self.leader_epoch = batch.leader_epoch
        if self.isolation_level == IsolationLevel.READ_COMMITTED and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
                return False
            if self._is_batch_aborted(batch):
                return False
        return not batch.is_control_batch


def _one_by_one(batch: Any, check_crcs: bool) -> Records:
    singles = list(batch)
    if check_crcs and not all(record.validate_crc() for record in singles):
        raise CorruptRecordError("a message's checksum differs")
    offsets = pa.array([record.offset for record in singles], pa.int64())
    values = pa.array([record.value for record in singles], pa.large_binary())
    return Records(offsets, values, singles[-1].offset + 1)


def _columns(batch: Any, limit: int) -> Records:
    data = memoryview(batch._buffer)[batch._pos :]
    if batch.compression_type:
        try:
            data = memoryview(decompressed(batch.compression_type, data, limit))
        except DamagedError as error:
            raise CorruptRecordError(str(error)) from error
    offsets, values = parse(read_only(data, np.uint8), batch.records_count, batch.base_offset)
    return Records(offsets, values, batch.next_offset, _stamped_ms(batch))


def _stamped_ms(batch: Any) -> int:
    """The newest time in a batch that is a broker's; 0: its producer chose them (CreateTime).

    Brokers refuse LogAppendTime and control batches from producers.
    """
    return int(batch.max_timestamp) if batch.timestamp_type or batch.is_control_batch else 0


def parse(data: UInt8, count: int, base_offset: int) -> tuple[pa.Array, pa.LargeBinaryArray]:
    """The decompressed records of one batch of format 2 as columns.

    Args:
        data: uint8, exactly the records.
        count: Number of records.
        base_offset: Of the batch.

    Returns:
        Offsets, int64, and values, large_binary with nulls for tombstones.

    Raises:
        CorruptRecordError: The bytes are not such records.
    """
    offsets = np.empty(count, np.int64)
    spans = np.empty((count, 2), np.int64)
    size = int(_scan(data, base_offset, offsets, spans)) if count <= len(data) else _TORN
    if size == _TORN:
        raise CorruptRecordError(f"it doesn't hold the {count} records of its header")
    ends = np.empty(count + 1, np.int64)
    values = np.empty(size, np.uint8)
    valid = np.ones(count, np.bool_)
    nulls = int(_gather(data, spans, ends, values, valid))
    validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(values)]
    packed = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers, nulls)
    return pa.array(offsets), cast(pa.LargeBinaryArray, packed)


_Varint = tuple[np.int64, int]


@njit(cache=True, nogil=True)
def _varint(data: UInt8, position: int) -> _Varint:
    """A zigzag varint and the position after it; position −1: it ends nowhere."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        raw |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), -1


@njit(cache=True, nogil=True)
def _scan(data: UInt8, base_offset: int, offsets: Int64, spans: Int64) -> int:
    """Offset, and start and length of the value, of each record; returns the bytes of all values, −1 if torn.

    Record => length, attributes (a byte), timestamp delta, offset delta, key, value, headers; a length of −1 is null.
    """
    position = 0
    total = 0
    for i in range(len(offsets)):
        length, position = _varint(data, position)
        if position < 0 or length < 1 or length > len(data) - position:
            return -1
        end = position + length
        _, position = _varint(data, position + 1)
        if position < 0:
            return -1
        delta, position = _varint(data, position)
        if position < 0:
            return -1
        offsets[i] = base_offset + delta
        size, position = _varint(data, position)  # the key
        if position < 0 or size > end - position:
            return -1
        position += max(size, 0)
        size, position = _varint(data, position)
        if position < 0 or size > end - position:
            return -1
        spans[i, 0], spans[i, 1] = position, size
        total += max(size, 0)
        position += max(size, 0)
        headers, position = _varint(data, position)
        if position < 0 or headers < 0:
            return -1
        for _ in range(2 * headers):  # name and value
            size, position = _varint(data, position)
            if position < 0 or size > end - position:
                return -1
            position += max(size, 0)
        if position != end:
            return -1
    return total if position == len(data) else -1


@njit(cache=True, nogil=True)
def _gather(data: UInt8, spans: Int64, ends: Int64, values: UInt8, valid: Bool) -> int:
    """Copy the values side by side; returns the number of nulls."""
    position = 0
    nulls = 0
    ends[0] = 0
    for i in range(len(spans)):
        start, size = spans[i, 0], spans[i, 1]
        if size < 0:
            valid[i] = False
            nulls += 1
        else:
            values[position : position + size] = data[start : start + size]
            position += size
        ends[i + 1] = position
    return nulls
