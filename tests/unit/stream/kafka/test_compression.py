"""Record batches of every codec: whole up to the limit, refused beyond it without being made, damaged ones told."""

import gzip
import struct

import lz4.frame
import pytest
import snappy
import zstandard
from kafka.codec import snappy_encode

from freshet_graph.stream.kafka.records import (
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    DamagedError,
    TooLongError,
    decompressed,
)

TEXT = b"a stream of bytes, " * 5_000
COMPRESSED = {
    "gzip": (GZIP, gzip.compress(TEXT)),
    "gzip, two members": (GZIP, gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
    "snappy": (SNAPPY, snappy.compress(TEXT)),
    "snappy as Java writes it": (SNAPPY, snappy_encode(TEXT)),
    "lz4": (LZ4, lz4.frame.compress(TEXT)),
    "lz4, unknown length": (LZ4, lz4.frame.compress(TEXT, store_size=False, block_linked=False)),
    "zstd": (ZSTD, zstandard.compress(TEXT)),
    "zstd, two frames": (ZSTD, zstandard.compress(TEXT[:100]) + zstandard.compress(TEXT[100:])),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_what_was_compressed_is_had_back_up_to_the_limit(name: str) -> None:
    codec, data = COMPRESSED[name]
    assert decompressed(codec, memoryview(data), len(TEXT)) == TEXT
    with pytest.raises(TooLongError):
        decompressed(codec, memoryview(data), len(TEXT) - 1)


@pytest.mark.parametrize("name", COMPRESSED)
def test_damaged_bytes_are_an_error_of_one_kind(name: str) -> None:
    codec, data = COMPRESSED[name]
    for damaged in (data[: len(data) // 2], b"\xff" * 40, data[:20] + b"\xff" * 8 + data[28:]):
        try:
            assert decompressed(codec, memoryview(damaged), len(TEXT)) != TEXT
        except (DamagedError, TooLongError):
            continue


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(DamagedError, match="number 7"):
        decompressed(7, memoryview(b""), 10)
    with pytest.raises(DamagedError, match="points outside"):
        decompressed(SNAPPY, memoryview(b"\x82SNAPPY\x00" + bytes(8) + struct.pack(">i", 99)), 10)
