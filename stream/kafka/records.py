"""Messages out of Kafka's record batches as columns: a kernel replaces the client's record-by-record reading.

The client makes several Python objects of every message, which is most of the cost of polling. Everything else stays
the client's: connections, fetches, checksums, decompression, transactions, positions and errors.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


class BatchTooLongError(KafkaError):  # type: ignore[misc]  # the client has no types
    """A record batch is longer than the configuration allows."""


Beside = dict[str, pa.Array]
"""Columns of records beside the value, by name."""


@dataclass(frozen=True, slots=True)
class Records:
    """Messages of one topic partition, side by side.

    Attributes:
        offsets: int64 [n], ascending.
        values: large_binary [n]; null for a tombstone.
        end_offset: Offset to read next: after the last message and the holes behind it.
        stamped_ms: The newest time that a broker gave to any of them or to a hole, milliseconds; 0: none did.
        beside: The wanted columns beside the value: ``$timestamp``, timestamp[ms]; ``$key`` and ``$headers.NAME``,
            large_binary, the last of several headers of a name. Null: the record has none.
    """

    offsets: pa.Array
    values: pa.LargeBinaryArray
    end_offset: int
    stamped_ms: int = 0
    beside: Beside = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of what is beside them."""
        return int(self.values.nbytes + sum(column.nbytes for column in self.beside.values()))

    @classmethod
    def none(cls, end_offset: int, stamped_ms: int = 0) -> "Records":
        """No messages, perhaps after holes."""
        return cls(pa.array([], pa.int64()), pa.array([], pa.large_binary()), end_offset, stamped_ms)

    def split(self, count: int) -> tuple["Records", "Records"]:
        """The first ``count`` messages, fewer than there are, and the rest."""
        rest = self[count:]
        return replace(self[:count], end_offset=rest.offsets[0].as_py()), rest

    def __getitem__(self, span: slice) -> "Records":
        """Some of them, with the same end."""
        beside = {name: column[span] for name, column in self.beside.items()}
        return replace(self, offsets=self.offsets[span], values=self.values[span], beside=beside)


def joined(parts: list[Records]) -> Records:
    """Several runs in order, at least one, as one."""
    if len(parts) == 1:
        return parts[0]
    return Records(
        pa.concat_arrays([part.offsets for part in parts]),
        pa.concat_arrays([part.values for part in parts]),
        parts[-1].end_offset,
        max(part.stamped_ms for part in parts),
        {
            name: pa.concat_arrays([part.beside[name] for part in parts if len(part)])
            for name in next((part.beside for part in parts if len(part)), {})
        },
    )


def read_columns(
    consumer: KafkaConsumer,
    limit: int,
    batch_bytes: int = BATCH_BYTES,
    wanted: Mapping[str, frozenset[str]] | None = None,
) -> None:
    """Have a consumer's ``poll`` return columns.

    Each value of its result is then a list of ``Records`` of up to ``limit`` messages, holes without a message included,
    and its ``max_records`` counts those.

    Args:
        consumer: A consumer without deserializers.
        limit: Most messages of one ``Records``.
        batch_bytes: A record batch that is longer, decompressed, is an error of ``poll``. A ``Records`` that has as many
            bytes gets no further batch.
        wanted: By topic, the columns of ``Records.beside``; none by default.
    """
    consumer._fetcher.PartitionRecords = partial(_ColumnarRecords, limit, batch_bytes, wanted=wanted or {})


class _ColumnarRecords(Fetcher.PartitionRecords):  # type: ignore[misc]  # the client has no types
    """The fetcher's part of one answer for one partition, handed out in columns."""

    def __init__(
        self,
        limit: int,
        batch_bytes: int,
        *arguments: Any,
        wanted: Mapping[str, frozenset[str]] | None = None,
        **options: Any,
    ) -> None:
        self._limit, self._batch_bytes, self._wanted_of = limit, batch_bytes, wanted or {}
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
            held_bytes += waiting[-1].nbytes
            while count > self._limit:
                first, rest = joined(waiting).split(self._limit)
                self.next_fetch_offset = first.end_offset
                yield first
                waiting, count, held_bytes = [rest], len(rest), rest.nbytes
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
        wanted = self._wanted_of.get(self.topic_partition.topic, frozenset())
        try:
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError("its checksum differs")
            if batch.magic < COLUMNAR_MAGIC:
                records = _one_by_one(batch, self.check_crcs, wanted)
            elif self._is_for_readers(batch):
                records = _columns(batch, self._batch_bytes, wanted)
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
        return records[before:] if before else records

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


def _one_by_one(batch: Any, check_crcs: bool, wanted: frozenset[str]) -> Records:
    singles = list(batch)
    if check_crcs and not all(record.validate_crc() for record in singles):
        raise CorruptRecordError("a message's checksum differs")
    offsets = pa.array([record.offset for record in singles], pa.int64())
    values = pa.array([record.value for record in singles], pa.large_binary())
    return Records(offsets, values, singles[-1].offset + 1, beside=beside(singles, wanted))


_STAMP = pa.timestamp("ms")
_HEADER = "$headers."


def beside(records: Sequence[Any], wanted: Iterable[str]) -> Beside:
    """Columns beside the value of the client's single records; see ``Records.beside``."""
    columns: Beside = {}
    for name in wanted:
        if name == "$timestamp":
            stamps = [None if r.timestamp is None or r.timestamp < 0 else r.timestamp for r in records]
            columns[name] = pa.array(stamps, pa.int64()).cast(_STAMP)
        elif name == "$key":
            columns[name] = pa.array([record.key for record in records], pa.large_binary())
        else:
            header = name.removeprefix(_HEADER)
            columns[name] = pa.array(
                [dict(record.headers).get(header) for record in records], pa.large_binary()
            )
    return columns


def _columns(batch: Any, limit: int, wanted: frozenset[str]) -> Records:
    data = memoryview(batch._buffer)[batch._pos :]
    if batch.compression_type:
        try:
            data = memoryview(decompressed(batch.compression_type, data, limit))
        except DamagedError as error:
            raise CorruptRecordError(str(error)) from error
    columns = parse(read_only(data, np.uint8), batch.records_count, batch.base_offset, wanted)
    if "$timestamp" in columns:
        deltas = columns["$timestamp"]
        # A broker's time is one for the whole batch.
        stamps = (
            np.full(len(deltas), batch.max_timestamp)
            if batch.timestamp_type
            else deltas + batch.first_timestamp
        )
        columns["$timestamp"] = pa.array(stamps, mask=stamps < 0).cast(_STAMP)
    offsets, values = columns.pop("offset"), columns.pop("value")
    return Records(offsets, values, batch.next_offset, _stamped_ms(batch), columns)


def _stamped_ms(batch: Any) -> int:
    """The newest time in a batch that is a broker's; 0: its producer chose them (CreateTime).

    Brokers refuse LogAppendTime and control batches from producers.
    """
    return int(batch.max_timestamp) if batch.timestamp_type or batch.is_control_batch else 0


def parse(data: UInt8, count: int, base_offset: int, wanted: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The decompressed records of one batch of format 2 as columns.

    Args:
        data: uint8, exactly the records.
        count: Number of records.
        base_offset: Of the batch.
        wanted: Columns beside the value.

    Returns:
        ``offset``, int64; ``value``, large_binary with nulls for tombstones; and the wanted columns as in ``Records.beside``,
        but ``$timestamp`` as milliseconds after the batch's first (NumPy int64).

    Raises:
        CorruptRecordError: The bytes are not such records.
    """
    headers = [
        name.removeprefix(_HEADER).encode("utf-8", "surrogatepass")
        for name in sorted(wanted)
        if name.startswith(_HEADER)
    ]
    name_ends = np.cumsum([0, *map(len, headers)]).astype(np.int64)
    names = np.frombuffer(b"".join(headers), np.uint8)
    offsets = np.empty(count, np.int64)
    stamps = np.empty(count, np.int64)
    spans = np.empty((2 + len(headers), count, 2), np.int64)
    whole = count <= len(data) and _scan(data, base_offset, names, name_ends, offsets, stamps, spans)
    if not whole:
        raise CorruptRecordError(f"it doesn't hold the {count} records of its header")
    columns: dict[str, Any] = {"offset": pa.array(offsets), "value": _packed(data, spans[0])}
    if "$timestamp" in wanted:
        columns["$timestamp"] = stamps
    if "$key" in wanted:
        columns["$key"] = _packed(data, spans[1])
    for place, header in enumerate(headers):
        columns[_HEADER + header.decode("utf-8", "surrogatepass")] = _packed(data, spans[2 + place])
    return columns


def _packed(data: UInt8, spans: Int64) -> pa.LargeBinaryArray:
    """The bytes at spans [n, 2] of start and length, side by side; a length of −1 is null."""
    count = len(spans)
    ends = np.empty(count + 1, np.int64)
    values = np.empty(int(np.maximum(spans[:, 1], 0).sum()), np.uint8)
    valid = np.ones(count, np.bool_)
    nulls = int(_gather(data, spans, ends, values, valid))
    validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(values)]
    return cast(
        pa.LargeBinaryArray, pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers, nulls)
    )


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
def _span(data: UInt8, position: int, end: int, spans: Int64) -> int:
    """Write the start and length of the bytes at a position to ``spans`` [2], and return the position after them; −1: torn."""
    size, position = _varint(data, position)
    if position < 0 or size > end - position:
        return -1
    spans[0], spans[1] = position, max(size, -1)
    return int(position + max(size, 0))


@njit(cache=True, nogil=True)
def _scan(
    data: UInt8,
    base_offset: int,
    names: UInt8,
    name_ends: Int64,
    offsets: Int64,
    stamps: Int64,
    spans: Int64,
) -> bool:
    """Offset, milliseconds after the batch's first time, and start and length of value, key and named headers of each record.

    Record => length, attributes (a byte), timestamp delta, offset delta, key, value, headers; a length of −1 is null. Returns
    False if they are torn.
    """
    position = 0
    name, ignored = np.zeros(2, np.int64), np.zeros(2, np.int64)
    for i in range(len(offsets)):
        length, position = _varint(data, position)
        if position < 0 or length < 1 or length > len(data) - position:
            return False
        end = position + length
        stamps[i], position = _varint(data, position + 1)
        if position < 0:
            return False
        delta, position = _varint(data, position)
        if position < 0:
            return False
        offsets[i] = base_offset + delta
        position = _span(data, position, end, spans[1, i])
        if position < 0:
            return False
        position = _span(data, position, end, spans[0, i])
        if position < 0:
            return False
        for place in range(2, len(spans)):
            spans[place, i, 1] = -1
        headers, position = _varint(data, position)
        if position < 0 or headers < 0:
            return False
        for _ in range(headers):
            position = _span(data, position, end, name)
            if position < 0:
                return False
            place = _named(data, name, names, name_ends)
            position = _span(data, position, end, ignored if place < 0 else spans[2 + place, i])
            if position < 0:
                return False
        if position != end:
            return False
    return position == len(data)


@njit(cache=True, nogil=True)
def _named(data: UInt8, span: Int64, names: UInt8, name_ends: Int64) -> int:
    """The place of the name at a span [2] among names side by side; −1: it is none of them."""
    for place in range(len(name_ends) - 1):
        start = name_ends[place]
        if name_ends[place + 1] - start == span[1]:
            k = 0
            while k < span[1] and names[start + k] == data[span[0] + k]:
                k += 1
            if k == span[1]:
                return place
    return -1


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
