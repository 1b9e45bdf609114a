"""Words of bits: processor instructions, and whole rows of them."""

from typing import Any

import numpy as np

from freshet_graph.stream.arrays.kinds import Bool, Words
from freshet_graph.stream.kernels import intrinsic


@intrinsic
def lowest_bit(_typing: Any, word: Any) -> Any:
    """``lowest_bit(word)``: index of the lowest set bit of a uint64 other than 0, int64."""
    from llvmlite import ir
    from numba.core import types

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@intrinsic
def count_bits(_typing: Any, word: Any) -> Any:
    """``count_bits(word)``: number of set bits of a uint64, int64."""
    from numba.core import types

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


def in_several(masks: Words) -> Bool:
    """Which rows of masks uint64 (n, words) have more than one bit, bool (n,)."""
    several: Bool = (masks & (masks - np.uint64(1))).any(axis=1) | (np.count_nonzero(masks, axis=1) > 1)
    return several
