"""UTF-8 ids to dense ones, in an open-addressing hash table over one arena of bytes."""

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from freshet_graph.stream.arrays.kinds import Bool, Int32, Int64, UInt8, UInt64
from freshet_graph.stream.kernels import intrinsic, njit, read_only

_V0, _V1 = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D)
_V2, _V3 = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)
_WIDE_1, _WIDE_2 = np.uint64(0xEE), np.uint64(0xDD)
_FINAL_ROUNDS = 3


def new_key() -> UInt64:
    """A secret key: uint64 [2]."""
    return np.frombuffer(secrets.token_bytes(16), np.uint64).copy()


@intrinsic
def load_word(_typing: Any, data: Any, offset: Any) -> Any:
    """The eight bytes of a uint8 array from ``offset`` on, as a little-endian uint64; the caller checks the bounds."""
    from numba import types
    from numba.core import cgutils

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        word = context.get_value_type(types.uint64).as_pointer()
        place = cgutils.pointer_add(builder, array.data, arguments[1], word)
        return builder.load(place, align=1)

    return types.uint64(data, types.intp), build


@njit(cache=True, nogil=True, inline="always")
def _rotated(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@njit(cache=True, nogil=True, inline="always")
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    return v0, v1, _rotated(v2, 32), v3


@njit(cache=True, nogil=True)
def siphash(data: UInt8, start: int, size: int, key: UInt64) -> tuple[np.uint64, np.uint64]:
    """The 128-bit SipHash-1-3 of ``data[start:start + size]`` (Aumasson, Bernstein 2012), as two words."""
    v0, v1 = _V0 ^ key[0], _V1 ^ key[1] ^ _WIDE_1
    v2, v3 = _V2 ^ key[0], _V3 ^ key[1]
    offset = start
    for _ in range(size >> 3):
        word = load_word(data, offset)
        offset += 8
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    word = np.uint64(size & 0xFF) << np.uint64(56)
    rest = size & 7
    if size >= 8 and rest > 0:  # the last eight bytes, without those read already
        word |= load_word(data, start + size - 8) >> np.uint64(64 - 8 * rest)
    else:
        for k in range(rest):
            word |= np.uint64(data[offset + k]) << np.uint64(8 * k)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _WIDE_1
    for _ in range(_FINAL_ROUNDS):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _WIDE_2
    for _ in range(_FINAL_ROUNDS):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@njit(cache=True, nogil=True)
def same_bytes(one: UInt8, i: int, other: UInt8, j: int, size: int) -> bool:
    """Whether ``size`` bytes of one array from i on equal those of the other from j on."""
    if size < 8:
        same = True
        for k in range(size):
            same &= one[i + k] == other[j + k]
        return same
    for k in range(0, size - 7, 8):
        if load_word(one, i + k) != load_word(other, j + k):
            return False
    return load_word(one, i + size - 8) == load_word(other, j + size - 8)


_FIRST_SLOTS = 1 << 10
_FIRST_BYTES = 1 << 14
_ROWS = 1 << 20
"""Rows numbered at a time: 2 · 256 bytes per row stay far below the 2 GiB of an Arrow string array."""


class StringDictionary:
    """String ids; see ``dictionary.IdDictionary``.

    Linear probing, at most half full: 32 to 64 bytes per id with its place, and its text once, in an arena that doubles. A slot
    keeps 64 bits of the text's hash, so that a probe seldom reads another id's text, and growing reads none.
    """

    def __init__(self) -> None:
        self._key = new_key()
        self._slots = _empty_slots(_FIRST_SLOTS)
        self._starts = np.zeros(_FIRST_SLOTS // 2 + 1, np.int64)
        self._arena = np.empty(_FIRST_BYTES, np.uint8)
        self._size = 0

    @property
    def size(self) -> int:
        """See ``IdDictionary.size``."""
        return self._size

    def encode(self, src: pa.ChunkedArray, dst: pa.ChunkedArray) -> tuple[Int64, Int64]:
        """See ``IdDictionary.encode``."""
        dense = np.empty((2, len(src)), np.int64)
        for start in range(0, len(src), _ROWS):
            piece = slice(start, start + _ROWS)
            both = pa.concat_arrays([*src.slice(start, _ROWS).chunks, *dst.slice(start, _ROWS).chunks])
            dense[:, piece] = self._add(both, columns=2).reshape(2, -1)
        return dense[0], dense[1]

    def ids(self, start: int = 0) -> pa.Array | pa.ChunkedArray:
        """See ``IdDictionary.ids``."""
        starts = self._starts[min(start, self._size) : self._size + 1]
        text = self._arena[starts[0] : starts[-1]].copy()
        buffers = [None, pa.py_buffer(starts - starts[0]), pa.py_buffer(text)]
        array = pa.Array.from_buffers(pa.large_string(), len(starts) - 1, buffers)
        # More than 2 GiB become several chunks.
        pieces = [array.slice(first, rows).cast(pa.string()) for first, rows in _pieces(starts)]
        return pieces[0] if len(pieces) == 1 else pa.chunked_array(pieces, pa.string())

    def of(self, dense: Int64) -> pa.Array:
        """See ``IdDictionary.of``."""
        starts, ends = self._starts[dense].tolist(), self._starts[dense + 1].tolist()
        texts = [bytes(self._arena[start:end]).decode() for start, end in zip(starts, ends, strict=True)]
        return pa.array(texts, pa.string())

    def extend(self, ids: pa.Array | pa.ChunkedArray) -> None:
        """See ``IdDictionary.extend``."""
        before = self._size
        for chunk in ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]:
            self._add(chunk, columns=1)
        if self._size < before + len(ids):
            raise ValueError("an id appears twice in the dictionary")

    def truncate(self, size: int) -> None:
        """See ``IdDictionary.truncate``."""
        _remove_newest(self._slots, self._key, self._starts, self._arena, size, self._size)
        self._size = size

    def _add(self, texts: pa.Array, *, columns: int) -> Int64:
        """Dense ids of concatenated columns of texts, numbered row by row."""
        ends, text, valid = *text_buffers(texts), is_valid(texts)
        dense = np.full(len(texts), -1, np.int64)
        done = 0
        while True:
            done, self._size = _densify(
                ends,
                text,
                valid,
                columns,
                done,
                self._key,
                self._slots,
                self._starts,
                self._arena,
                self._size,
                dense,
            )
            if done == len(texts):
                return dense
            self._grow()

    def _grow(self) -> None:
        """Double the table or the arena, whichever is full."""
        capacity = len(self._starts) - 1
        if self._size == capacity:
            starts = np.zeros(2 * capacity + 1, np.int64)
            starts[: self._size + 1] = self._starts[: self._size + 1]
            self._starts = starts
            slots = _empty_slots(2 * len(self._slots))
            _rehash(self._slots, slots, self._size)
            self._slots = slots
        else:
            arena = np.empty(2 * len(self._arena), np.uint8)
            used = self._starts[self._size]
            arena[:used] = self._arena[:used]
            self._arena = arena


def _pieces(starts: Int64) -> Iterator[tuple[int, int]]:
    """First row and number of rows of pieces below 2 GiB of text each; at least one piece."""
    first, last = 0, len(starts) - 1
    while True:
        end = int(np.searchsorted(starts, starts[first] + 2**31 - 1, side="right")) - 1
        end = min(end, last)
        yield first, end - first
        if end == last:
            return
        first = end


def text_buffers(column: pa.Array) -> tuple[Int32, UInt8]:
    """Ends (int32 [n + 1]) and bytes of a string array."""
    _, ends, text = column.buffers()
    offsets = read_only(ends if ends is not None and ends.size else bytes(4), np.int32)
    return offsets[column.offset : column.offset + len(column) + 1], read_only(text or b"", np.uint8)


def is_valid(column: pa.Array) -> Bool:
    """Mask of the values that aren't null."""
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _empty_slots(count: int) -> UInt64:
    return np.zeros((count, 2), np.uint64)  # a row: hash, dense id + 1 (0: free)


@njit(cache=True, nogil=True)
def _densify(
    ends: Int32,
    text: UInt8,
    valid: Bool,
    columns: int,
    done: int,
    key: UInt64,
    slots: UInt64,
    starts: Int64,
    arena: UInt8,
    size: int,
    dense: Int64,
) -> tuple[int, int]:
    """Number texts from the ``done``-th in row order on, until all are numbered or one doesn't fit; returns (done, size).

    One loop does everything, because a call with arrays costs more than a probe.
    """
    rows = len(dense) // columns
    mask = np.uint64(len(slots) - 1)
    capacity = len(starts) - 1
    while done < len(dense):
        i = done // columns + (done % columns) * rows
        if valid[i]:
            first = np.int64(ends[i])
            length = np.int64(ends[i + 1]) - first
            mixed, _ = siphash(text, first, length, key)
            slot = mixed & mask
            while slots[slot, 1] != 0:
                if slots[slot, 0] == mixed:
                    known = np.int64(slots[slot, 1]) - 1
                    begin = starts[known]
                    if starts[known + 1] - begin == length and same_bytes(arena, begin, text, first, length):
                        break
                slot = (slot + np.uint64(1)) & mask
            if slots[slot, 1] == 0:
                begin = starts[size]
                if size == capacity or begin + length > len(arena):
                    break
                for k in range(length):
                    arena[begin + k] = text[first + k]
                size += 1
                starts[size] = begin + length
                slots[slot, 0], slots[slot, 1] = mixed, np.uint64(size)
            dense[i] = np.int64(slots[slot, 1]) - 1
        done += 1
    return done, size


@njit(cache=True, nogil=True)
def _rehash(old: UInt64, new: UInt64, size: int) -> None:
    """Move all ids into a larger table, oldest first, because no id may be probed past a newer one (``_remove_newest``)."""
    mixed = np.empty(size, np.uint64)
    for slot in range(len(old)):
        if old[slot, 1] != 0:
            mixed[np.int64(old[slot, 1]) - 1] = old[slot, 0]
    mask = np.uint64(len(new) - 1)
    for dense in range(size):
        slot_of = mixed[dense] & mask
        while new[slot_of, 1] != 0:
            slot_of = (slot_of + np.uint64(1)) & mask
        new[slot_of, 0], new[slot_of, 1] = mixed[dense], np.uint64(dense + 1)


@njit(cache=True, nogil=True)
def _remove_newest(slots: UInt64, key: UInt64, starts: Int64, arena: UInt8, start: int, stop: int) -> None:
    """Free the slots of ids [start, stop), newest first, because no older id was probed past a newer one."""
    mask = np.uint64(len(slots) - 1)
    for dense in range(stop - 1, start - 1, -1):
        mixed, _ = siphash(arena, starts[dense], starts[dense + 1] - starts[dense], key)
        slot = mixed & mask
        while slots[slot, 1] != np.uint64(dense + 1):
            slot = (slot + np.uint64(1)) & mask
        slots[slot, 1] = np.uint64(0)
