"""Loads of up to 64 parts as bit planes: finds the least loaded parts of a set in a few logic operations, without a loop.

Balanced loads need few bits above the smallest: a part's level, 0 to 7, is one bit in each of three words. Level 7 stands for
all higher loads, which are then compared themselves. All levels drop by 4 as soon as none is below that, so that this is rare.
The words stay in registers between edges.
"""

from typing import Any

import numpy as np

from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.kernels import intrinsic, njit

Planes = tuple[np.uint64, np.uint64, np.uint64]
"""Bits 0, 1 and 2 of each part's level."""

TOP = 7
"""The largest level."""

_EVEN = tuple(np.uint64((2**64 - 1) // (2**2**digit + 1)) for digit in range(6))
"""Of each binary digit, the parts whose number has it clear; moved up by the digit's value, those that have it set."""

_NONE, _ONE, _WORD = np.uint64(0), np.uint64(1), np.uint64(64)
STEP = np.uint64(0x9E3779B97F4A7C15)
"""Difference of the states of two draws."""

_HALF = np.uint64(32)


@intrinsic
def choose(_typing: Any, condition: Any, one: Any, other: Any) -> Any:
    """``choose(condition, one, other)``: one of two integers, without an unpredictable branch."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bit = context.cast(builder, arguments[0], signature.args[0], types.boolean)
        bit = builder.trunc(bit, ir.IntType(1)) if bit.type.width > 1 else bit
        chosen = builder.select(bit, arguments[1], arguments[2])
        chosen.set_metadata("unpredictable", builder.module.add_metadata([]))
        return chosen

    return one(condition, one, other), generate


@njit(cache=True, nogil=True, inline="always")
def drawn_part(state: np.uint64, parts: int) -> np.uint64:
    """A part in [0, ``parts``) for an event with the state ``start + number · STEP``, as in SplitMix64."""
    return ((state >> _HALF) * np.uint64(parts)) >> _HALF


@njit(cache=True, nogil=True)
def planes_of(sizes: Int64) -> Planes:
    """Levels of int64 (P,) loads, relative to the smallest."""
    lowest = sizes.min()
    low = middle = high = _NONE
    for p in range(len(sizes)):
        level = np.uint64(min(sizes[p] - lowest, TOP))
        low |= (level & _ONE) << np.uint64(p)
        middle |= (level >> _ONE & _ONE) << np.uint64(p)
        high |= (level >> np.uint64(2)) << np.uint64(p)
    return low, middle, high


@njit(cache=True, nogil=True, inline="always")
def least_level(planes: Planes, among: np.uint64) -> tuple[np.uint64, np.int64]:
    """The parts with the smallest level in a non-empty set, and that level."""
    low, middle, high = planes
    below = among & ~high
    fours = below == _NONE
    among = among if fours else below
    below = among & ~middle
    twos = below == _NONE
    among = among if twos else below
    below = among & ~low
    ones = below == _NONE
    among = among if ones else below
    return among, np.int64(fours) << 2 | np.int64(twos) << 1 | np.int64(ones)


@njit(cache=True, nogil=True, inline="always")
def spread(planes: Planes, everywhere: np.uint64) -> np.int64:
    """Largest minus smallest level."""
    low, middle, high = planes
    below_top = least_level((~low, ~middle, ~high), everywhere)[1]
    return np.int64(TOP) - below_top - least_level(planes, everywhere)[1]


@njit(cache=True, nogil=True, inline="always")
def full(planes: Planes) -> np.uint64:
    """Parts at level 7 or above."""
    low, middle, high = planes
    return low & middle & high


@njit(cache=True, nogil=True)
def loads_of(sizes: Int64, among: np.uint64) -> tuple[int, int]:
    """Smallest and largest load of a set of parts, (2⁶², −1) for an empty set."""
    least, most = 2**62, -1
    for p in range(len(sizes)):
        if among >> np.uint64(p) & _ONE:
            least, most = min(least, sizes[p]), max(most, sizes[p])
    return least, most


@njit(cache=True, nogil=True)
def least_loaded(sizes: Int64, among: np.uint64) -> np.uint64:
    """The parts with the smallest load in a non-empty set, from the loads themselves."""
    least, lightest = sizes.max(), _NONE
    for p in range(len(sizes)):
        bit = among & _ONE << np.uint64(p)
        if bit != _NONE and sizes[p] <= least:
            lightest = bit if sizes[p] < least else lightest | bit
            least = sizes[p]
    return lightest


@njit(cache=True, nogil=True, inline="always")
def next_part(among: np.uint64, first: np.uint64) -> np.uint64:
    """The part of a non-empty set that is ``first`` or comes next after it, in a circle; as a bit."""
    back = (_WORD - first) & np.uint64(63)
    turned = among >> first | among << back
    turned &= _NONE - turned
    return turned << first | turned >> back


@njit(cache=True, nogil=True, inline="always")
def smallest_flipped(among: np.uint64, draw: np.uint64, parts: int) -> np.uint64:
    """The part of a non-empty set with the smallest ``part XOR draw``, as a bit; the draw is in [0, 64)."""
    if parts > 4:
        if parts > 8:
            if parts > 16:
                if parts > 32:
                    among = _half(among, draw, np.uint64(32), _EVEN[5])
                among = _half(among, draw, np.uint64(16), _EVEN[4])
            among = _half(among, draw, np.uint64(8), _EVEN[3])
        among = _half(among, draw, np.uint64(4), _EVEN[2])
    among = _half(among, draw, np.uint64(2), _EVEN[1])
    return _half(among, draw, _ONE, _EVEN[0])


@njit(cache=True, nogil=True, inline="always")
def _half(among: np.uint64, draw: np.uint64, digit: np.uint64, even: np.uint64) -> np.uint64:
    """The parts that have the draw's value of a binary digit, or all if there are none."""
    equal = among & even << (draw & digit)
    return choose(equal != _NONE, equal, among)


@njit(cache=True, nogil=True, inline="always")
def raised(planes: Planes, bit: np.uint64, everywhere: np.uint64) -> tuple[Planes, bool]:
    """Planes after one more edge in the part of a bit, and whether they must be recomputed from the loads.

    Takes no array, because its reference count would be updated for every edge.
    """
    low, middle, high = planes
    risen = carry = bit & ~(low & middle & high)
    carry, low = low & carry, low ^ carry
    carry, middle = middle & carry, middle ^ carry
    high ^= carry
    above = low & middle & high
    lowered = high == everywhere
    is_stale = (above & risen != _NONE) | ((above != _NONE) & lowered)
    high = _NONE if lowered else high
    return (low, middle, high), is_stale
