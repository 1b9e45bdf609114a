"""A check of an Arrow IPC stream's frames before anything is allocated for them.

A few bytes can claim 2^60 rows, or compressed buffers of terabytes. Both are refused by reading only the FlatBuffers
headers (Arrow's Message.fbs and Schema.fbs).
"""

import struct

from schemas.events import Reason
from stream.decode.confluent import HEADER_BYTES
from stream.decode.reading import Limits, RefusedError

NOT_ARROW = "not_arrow"
"""Reason of a message that is no Arrow IPC stream of rows."""

_CONTINUATION = 0xFFFFFFFF
_FRAME = struct.Struct("<Ii")
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
# Positions of the fields in their tables' vtables.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_DICTIONARY_DATA = 1
_LENGTH, _COMPRESSION = 0, 3


def inspect_frames(value: bytes | memoryview, limits: Limits) -> None:
    """Check every frame of a stream up to its end.

    Raises:
        RefusedError: Not framed as a stream, compressed, or with too many rows.
    """
    try:
        _inspect(value, limits)
    except (struct.error, IndexError) as error:
        raise RefusedError(NOT_ARROW, "not an Arrow IPC stream: a header points outside it") from error


def _inspect(value: bytes | memoryview, limits: Limits) -> None:
    if value[:6] == b"ARROW1":
        raise RefusedError(
            NOT_ARROW,
            "an Arrow file, expected an Arrow stream. Write messages with a stream writer",
        )
    begin = bytes(value[: HEADER_BYTES + 4])
    if begin[:1] == b"\0" and begin[HEADER_BYTES:] == b"\xff" * 4:
        raise RefusedError(
            NOT_ARROW,
            "an Arrow stream behind Confluent's header. Write messages as bytes, without that serializer",
        )
    at = 0
    rows = {_DICTIONARY_BATCH: 0, _RECORD_BATCH: 0}
    while at < len(value):
        mark, size = _FRAME.unpack_from(value, at)
        if mark != _CONTINUATION or size < 0:
            raise RefusedError(NOT_ARROW, f"not an Arrow IPC stream: no frame begins at byte {at}")
        at += _FRAME.size
        if size == 0:
            if at < len(value):
                raise RefusedError(
                    NOT_ARROW,
                    f"{len(value) - at} bytes after the end of its stream. Write one stream per message",
                )
            return
        kind, more, body = _check_message(bytes(value[at : at + size]))
        at += size + body
        if more:
            rows[kind] += more
            _check_rows(rows[kind], len(value), limits)


def _check_rows(rows: int, size: int, limits: Limits) -> None:
    if rows > limits.rows:
        raise RefusedError(
            Reason.TOO_LARGE, f"{rows} rows, but config key kafka.max_message_rows is {limits.rows}"
        )
    if rows > size:  # src and t alone take a byte each: only columns of nothing, or of runs, have so many
        raise RefusedError(NOT_ARROW, f"claims {rows} rows in {size} bytes, fewer than a row can take")


def _check_message(metadata: bytes) -> tuple[int, int, int]:
    """Check one message's header; returns its kind, its rows and the bytes of its body."""
    message = _root(metadata)
    kind_at = _field(metadata, message, _HEADER_TYPE)
    header_at = _field(metadata, message, _HEADER)
    body_at = _field(metadata, message, _BODY_LENGTH)
    body = _signed(metadata, body_at, 8) if body_at else 0
    if body < 0:
        raise RefusedError(NOT_ARROW, "not an Arrow IPC stream: a body of negative length")
    if not kind_at or not header_at:
        return 0, 0, body
    kind = metadata[kind_at]
    table = _follow(metadata, header_at)
    if kind == _DICTIONARY_BATCH:
        data_at = _field(metadata, table, _DICTIONARY_DATA)
        if not data_at:
            return kind, 0, body
        table = _follow(metadata, data_at)
    rows = 0
    if kind in (_DICTIONARY_BATCH, _RECORD_BATCH):
        length_at = _field(metadata, table, _LENGTH)
        rows = _signed(metadata, length_at, 8) if length_at else 0
        if rows < 0:
            raise RefusedError(NOT_ARROW, "not an Arrow IPC stream: a negative number of rows")
        if _field(metadata, table, _COMPRESSION):
            raise RefusedError(
                NOT_ARROW, "its buffers are compressed. Leave compression to the Kafka producer"
            )
    return kind, rows, body


def _root(metadata: bytes) -> int:
    return _follow(metadata, 0)


def _follow(metadata: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _field(metadata: bytes, table: int, position: int) -> int:
    """Position of a field of a FlatBuffers table; 0 if it is absent."""
    vtable = table - _signed(metadata, table, 4)
    size = int(struct.unpack_from("<H", metadata, vtable)[0]) if vtable >= 0 else 0
    entry = 4 + 2 * position
    if entry + 2 > size:
        return 0
    offset = int(struct.unpack_from("<H", metadata, vtable + entry)[0])
    return table + offset if offset else 0


def _signed(metadata: bytes, at: int, width: int) -> int:
    return int(struct.unpack_from("<i" if width == 4 else "<q", metadata, at)[0])
