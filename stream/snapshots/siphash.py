"""SipHash-1-3 over UTF-8 bytes, 128 bits wide, with a key per process, so that colliding texts can't be prepared.

Hashes are used within the process only, so the key may differ from run to run.
"""

import secrets
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stream.arrays.kinds import UInt8, UInt64
from stream.kernels import njit

_V0, _V1 = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D)
_V2, _V3 = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)
_WIDE_1, _WIDE_2 = np.uint64(0xEE), np.uint64(0xDD)
_FINAL_ROUNDS = 3


def new_key() -> UInt64:
    """A secret key: uint64 [2]."""
    return np.frombuffer(secrets.token_bytes(16), np.uint64).copy()


@intrinsic
def load_word(_typing: Any, data: Any, at: Any) -> Any:
    """The eight bytes of a uint8 array from ``at`` on, as a little-endian uint64; the caller checks the bounds."""

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
    at = start
    for _ in range(size >> 3):
        word = load_word(data, at)
        at += 8
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    word = np.uint64(size & 0xFF) << np.uint64(56)
    rest = size & 7
    if size >= 8 and rest > 0:  # the last eight bytes, without those read already
        word |= load_word(data, start + size - 8) >> np.uint64(64 - 8 * rest)
    else:
        for k in range(rest):
            word |= np.uint64(data[at + k]) << np.uint64(8 * k)
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
