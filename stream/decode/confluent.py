"""Confluent's header before a message, a zero byte and the id of its schema in a registry; and other headers as this one."""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.kafka_config import SCHEMA_IDS
from freshet_graph.stream.arrays.kinds import Bool, Int64, UInt8
from freshet_graph.stream.kernels import read_only

HEADER_BYTES = 5
MOST_UNPACKED = 64
"""Most bytes that a byte of a compressed message may stand for; zlib could make a thousand of it."""

HEADLESS = {
    "confluent": "does not begin with Confluent's header: a zero byte and four of a schema id",
    "record": "has no GUID in a header of its record, and does not begin with Confluent's header",
    "apicurio": "does not begin with Apicurio's header: a zero byte and eight of a schema id below 2^32",
    "glue": "does not begin with Glue's header: 3, 0 or 5, and a UUID; or its content cannot be unpacked",
}
"""What is wrong with a message without a header, by ``kafka.schema_registry.header``."""

_APICURIO_BYTES, _GLUE_BYTES, _GUID_BYTES = 9, 18, 17
_GLUE, _STORED, _ZLIB = 3, 0, 5
"""Glue's version byte, and its two bytes of compression."""
_FIRST_OF_GUIDS = 1 << 31
"""Registries number schemas by positive int32, so numbers from here on stand for GUIDs."""
_GUIDS = 1 << 16
"""GUIDs with a number; the least recently used goes first. Random ones must not fill the memory."""


class _Guids:
    """Numbers for GUIDs, in place of the ids of Confluent's header. No number is given twice."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._guids: dict[int, bytes] = {}
        self._next = _FIRST_OF_GUIDS
        self._lock = Lock()

    def number(self, guid: bytes) -> int:
        """The number of a GUID of 16 bytes."""
        with self._lock:
            if guid not in self._numbers:
                self._numbers[guid], self._guids[self._next] = self._next, guid
                self._next += 1
                if len(self._numbers) > _GUIDS:
                    del self._guids[self._numbers.popitem(last=False)[1]]
            self._numbers.move_to_end(guid)
            return self._numbers[guid]

    def name(self, number: int) -> str:
        """What a registry or a person calls the schema of a number: its id, or its GUID."""
        guid = self._guids.get(number)
        return str(number) if guid is None else str(UUID(bytes=guid))


GUIDS = _Guids()


def is_guid(number: int) -> bool:
    """Whether the number of a schema stands for a GUID."""
    return number >= _FIRST_OF_GUIDS


def schema_ids(values: pa.LargeBinaryArray) -> Int64:
    """The schema id of each message, int64; −1: no header (null messages too)."""
    starts, data = _starts(values, HEADER_BYTES)
    numbers = np.full(len(values), -1, np.int64)
    whole = np.flatnonzero(starts >= 0)
    starts = starts[whole]
    framed = data[starts] == 0
    starts = starts[framed]
    numbers[whole[framed]] = sum(data[starts + 1 + k].astype(np.int64) << (24 - 8 * k) for k in range(4))
    return numbers


def _starts(values: pa.LargeBinaryArray, least: int) -> tuple[Int64, UInt8]:
    """Where each message of at least so many bytes begins in the data (int64; −1: another one, or null), and the data."""
    _, ends_buffer, data_buffer = values.buffers()
    if len(values) == 0 or data_buffer is None:
        return np.full(len(values), -1, np.int64), np.empty(0, np.uint8)
    ends = read_only(ends_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    whole = (np.diff(ends) >= least) & values.is_valid().to_numpy(zero_copy_only=False)
    return np.where(whole, ends[:-1], -1), read_only(data_buffer, np.uint8)


def without_header(values: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Bool]:
    """Messages without the header, and which had one; a JSON text never begins with a zero byte."""
    framed = schema_ids(values) >= 0
    return _changed(values, framed, lambda some: _without(some, HEADER_BYTES)), framed


def _without(values: pa.LargeBinaryArray, size: int) -> pa.LargeBinaryArray:
    """Messages without their first bytes."""
    return pc.binary_slice(
        values, size, np.iinfo(np.int32).max
    )  # without an end Arrow 25 fails if they are even in number


def _changed(
    values: pa.LargeBinaryArray, which: Bool, change: Callable[[pa.LargeBinaryArray], pa.LargeBinaryArray]
) -> pa.LargeBinaryArray:
    """Messages of which some are changed."""
    if not which.any():
        return values
    if which.all():
        return change(values)
    mask = pa.array(which)
    return pc.replace_with_mask(values, mask, change(values.filter(mask)))


def recognised(values: pa.LargeBinaryArray, beside: Mapping[str, pa.Array]) -> str | None:
    """The kind of header that most of some messages have, as ``kafka.schema_registry.header`` names it; None: they have none."""
    if f"$headers.{SCHEMA_IDS['value']}" in beside:
        return "record"
    first = [value[:HEADER_BYTES] for value in values.to_pylist() if value]
    counts = {
        "apicurio": sum(begin == b"\0" * HEADER_BYTES for begin in first),
        "confluent": sum(begin[0] == 0 for begin in first),
        "glue": sum(begin[0] == _GLUE and begin[1:2] in (b"\0", b"\5") for begin in first),
    }
    return next((kind for kind, count in counts.items() if 2 * count > len(first)), None)


class SchemaHeader:
    """Where messages have the id of their schema, so that formats need to know Confluent's header only.

    Args:
        kafka: The schema registry.
        part: The values of records, or their keys.
    """

    def __init__(self, kafka: Kafka, part: Literal["value", "key"]) -> None:
        self._kind = "confluent" if kafka.schema_registry is None else kafka.schema_registry.header
        self._column = f"$headers.{SCHEMA_IDS[part]}"
        self._most_bytes = kafka.max_message_bytes

    def as_confluent(
        self, values: pa.LargeBinaryArray, beside: Mapping[str, pa.Array], places: Int64 | None = None
    ) -> pa.LargeBinaryArray:
        """Messages with Confluent's header in place of theirs; those without theirs stay as they are.

        Args:
            values: The messages, or keys.
            beside: The columns beside them; see ``RawBatch``.
            places: int64, their records among those of the columns; None: they are of all records, in order.
        """
        if self._kind == "record":
            headers = beside.get(self._column)
            if headers is None:
                return values
            return _of_record(values, headers if places is None else headers.take(pa.array(places)))
        change = {"apicurio": _of_apicurio, "glue": self._of_glue}.get(self._kind)
        return values if change is None else change(values)

    def _of_glue(self, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        starts, data = _starts(values, _GLUE_BYTES)
        framed = starts >= 0
        framed[framed] = (data[starts[framed]] == _GLUE) & np.isin(data[starts[framed] + 1], (_STORED, _ZLIB))
        return _changed(values, framed, self._of_framed)

    def _of_framed(self, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        starts, data = _starts(values, _GLUE_BYTES)
        contents = _without(values, _GLUE_BYTES)
        contents = _changed(
            contents,
            data[starts + 1] == _ZLIB,
            lambda some: pa.array(map(self._unpacked, some.to_pylist()), some.type),
        )
        prefixes = _encoded(pc.binary_slice(values, 2, _GLUE_BYTES), _prefix)
        whole = pc.binary_join_element_wise(prefixes, contents, pa.scalar(b"", contents.type))
        return pc.coalesce(whole, values)  # what cannot be unpacked has no header, and is refused as such

    def _unpacked(self, packed: bytes) -> bytes | None:
        most = min(self._most_bytes, MOST_UNPACKED * len(packed))
        unpacker = zlib.decompressobj()
        try:
            unpacked = unpacker.decompress(packed, most)
        except zlib.error:
            return None
        return unpacked if unpacker.eof and not unpacker.unused_data else None


def _of_record(values: pa.LargeBinaryArray, headers: pa.Array) -> pa.LargeBinaryArray:
    """Messages behind the id in their record's header; of Protobuf that has the indexes of the message type, too."""
    prefixes = _encoded(headers, _of_header)
    if prefixes.null_count == len(prefixes):
        return values
    whole = pc.binary_join_element_wise(prefixes, values, pa.scalar(b"", values.type))
    return pc.coalesce(whole, values)


def _of_header(header: bytes) -> bytes | None:
    if len(header) < _GUID_BYTES or header[0] != 1:
        return None
    return _prefix(header[1:_GUID_BYTES]) + header[_GUID_BYTES:]


def _prefix(guid: bytes) -> bytes:
    return b"\0" + GUIDS.number(guid).to_bytes(4, "big")


def _encoded(column: pa.Array, encode: Callable[[bytes], bytes | None]) -> pa.Array:
    """A column of bytes with another value for each of its values, of which few differ."""
    words = column.dictionary_encode()
    encoded = [encode(word) for word in words.dictionary.to_pylist()]
    return pa.array(encoded, pa.large_binary()).take(words.indices)


def _of_apicurio(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Ids are below 2^32, so the first four of their eight bytes are zero; a Confluent header has no such id."""
    starts, data = _starts(values, _APICURIO_BYTES)
    framed = starts >= 0
    for byte in range(HEADER_BYTES):
        framed[framed] = data[starts[framed] + byte] == 0
    # The last of the zeros begins Confluent's header.
    return _changed(values, framed, lambda some: _without(some, HEADER_BYTES - 1))
