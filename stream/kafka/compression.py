"""Record batches decompressed up to a limit, because a few kilobytes may stand for gigabytes."""

import struct
import zlib
from typing import cast

import lz4.frame
import snappy
import zstandard

from schemas.errors import one_line

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
