"""Loads of up to 64 parts as the lanes of one vector: finds the least loaded part of a set without a loop over parts.

A lane is ``load << 6 | part``, so that among equal loads the smallest ``part XOR draw`` can win. The vector stays in registers
between edges: from an array, the next edge could read all loads only after the store of the changed one had reached the
cache, which takes longer than finding the least. The vectors are LLVM's own, so that a processor with narrower registers works
on halves or quarters of them.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.types.containers import Tuple
from numba.extending import intrinsic, models, register_model
from numpy.typing import NDArray

from stream.arrays.kinds import Int64
from stream.kernels import njit

LANE_PARTS = 64
"""Most parts that a vector has lanes for."""

PART_BITS = 6
"""Lowest bits of a lane, which hold its part."""

SHORT_LOADS = 2**25
"""Limit of 32-bit lanes: loads above the smallest at the start of a chunk, and edges per chunk."""

_WIDTHS = (8, 32, 64)
"""Numbers of lanes that kernels are compiled for, on demand."""

LaneArray = NDArray[np.signedinteger[Any]]


class Lanes(types.Type):
    """Numba's type of a vector of ``count`` unsigned lanes of ``bits`` bits."""

    def __init__(self, count: int, bits: int) -> None:
        self.count, self.bits = count, bits
        self.lane = types.uint32 if bits == 32 else types.uint64
        super().__init__(name=f"Lanes({count}, {bits})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, ir.VectorType(ir.IntType(lanes.bits), lanes.count))


def lanes_for(sizes: Int64) -> tuple[LaneArray, tuple[int, ...]]:
    """An array for the lanes of int64 (P,) loads (P ≤ ``LANE_PARTS``) during one chunk, and a tuple with one item per lane.

    Kernels are compiled for the array's type and the tuple's length.
    """
    width = next(width for width in _WIDTHS if len(sizes) <= width)
    short = int(sizes.max() - sizes.min()) < SHORT_LOADS
    return np.zeros(width, np.int32 if short else np.int64), (0,) * width


@njit(cache=True, nogil=True)
def loads_to_lanes(sizes: Int64, lanes: LaneArray) -> None:
    """Write loads above the smallest to ``lanes``."""
    lowest = sizes.min()
    for p in range(len(sizes)):
        lanes[p] = (sizes[p] - lowest) << PART_BITS | p


@njit(cache=True, nogil=True)
def lanes_to_loads(lanes: LaneArray, sizes: Int64) -> None:
    """Undo ``loads_to_lanes``, including the edges added since."""
    lowest = sizes.min()
    for p in range(len(sizes)):
        sizes[p] = lowest + (lanes[p] >> PART_BITS)


def _splat(builder: Any, value: Any, count: int) -> Any:
    undefined = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(first, undefined, zeros)


def _of_mask(builder: Any, vector: Any, mask: Any, other: int) -> Any:
    """The lanes of the parts in a 64-bit mask; the other lanes are set to ``other``."""
    count = vector.type.count
    bits = builder.trunc(mask, ir.IntType(count)) if count < 64 else mask
    chosen = builder.bitcast(bits, ir.VectorType(ir.IntType(1), count))
    return builder.select(chosen, vector, ir.Constant(vector.type, [other] * count))


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    vector = arguments[0].type
    full = f"llvm.{name}.v{vector.count}i{vector.element.width}"
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    function = builder.module.globals.get(full) or ir.Function(builder.module, signature, full)
    return builder.call(function, arguments)


def _all_ones(vector: Any) -> int:
    return int(2**vector.type.element.width - 1)


@intrinsic
def read_lanes(_typing: Any, array: Any, width: Any) -> Any:
    """``read_lanes(array, width)``: the vector with as many lanes as ``width`` has items."""
    lanes = Lanes(len(width), array.dtype.bitwidth)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        vector = ir.VectorType(ir.IntType(lanes.bits), lanes.count)
        return builder.load(builder.bitcast(data, vector.as_pointer()), align=4)

    return lanes(array, width), generate


@intrinsic
def write_lanes(_typing: Any, array: Any, lanes: Any) -> Any:
    """``write_lanes(array, lanes)``: write the vector back to its array."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        builder.store(arguments[1], builder.bitcast(data, arguments[1].type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, lanes), generate


@intrinsic
def add_to_least(_typing: Any, lanes: Any, mask: Any, draw: Any) -> Any:
    """``add_to_least(lanes, mask, draw)``: add an edge to the least loaded part of a non-empty mask.

    Among equal loads, the part with the smallest ``part XOR draw`` wins; the draw is in [0, 64). The vector is folded onto its
    mirror images until every lane holds the least, so that nothing leaves the vector registers between two edges.

    Returns:
        The new lanes, and the part, int32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, count = arguments[0], lanes.count
        bits = context.cast(builder, arguments[1], signature.args[1], types.uint64)
        flip = context.cast(builder, arguments[2], signature.args[2], lanes.lane)
        flipped = builder.xor(vector, _splat(builder, flip, count))
        flipped = least = _of_mask(builder, flipped, bits, _all_ones(vector))
        undefined = ir.Constant(vector.type, ir.Undefined)
        step = count // 2
        while step:
            mirror = ir.Constant(ir.VectorType(ir.IntType(32), count), [lane ^ step for lane in range(count)])
            mirrored = builder.shuffle_vector(least, undefined, mirror)
            least = _call(builder, "umin", vector.type, least, mirrored)
            step //= 2
        edge = ir.Constant(vector.type, [1 << PART_BITS] * count)
        found = builder.icmp_unsigned("==", flipped, least)
        fuller = builder.select(found, builder.add(vector, edge), vector)
        lane = builder.xor(builder.extract_element(least, ir.IntType(32)(0)), flip)
        part = builder.and_(lane, ir.Constant(lane.type, (1 << PART_BITS) - 1))
        part = context.cast(builder, part, lanes.lane, types.int32)
        return context.make_tuple(builder, signature.return_type, [fuller, part])

    return Tuple((lanes, types.int32))(lanes, mask, draw), generate


@intrinsic
def least_load(_typing: Any, lanes: Any, mask: Any) -> Any:
    """``least_load(lanes, mask)``: smallest load of the parts in a non-empty mask, int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = arguments[0]
        bits = context.cast(builder, arguments[1], signature.args[1], types.uint64)
        chosen = _of_mask(builder, vector, bits, _all_ones(vector))
        least = _call(builder, "vector.reduce.umin", vector.type.element, chosen)
        load = builder.lshr(least, ir.Constant(least.type, PART_BITS))
        return context.cast(builder, load, lanes.lane, types.int64)

    return types.int64(lanes, mask), generate


@intrinsic
def largest_load(_typing: Any, lanes: Any, mask: Any) -> Any:
    """``largest_load(lanes, mask)``: largest load of the parts in a mask, int64; 0 if it is empty."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = arguments[0]
        bits = context.cast(builder, arguments[1], signature.args[1], types.uint64)
        largest = _call(
            builder, "vector.reduce.umax", vector.type.element, _of_mask(builder, vector, bits, 0)
        )
        load = builder.lshr(largest, ir.Constant(largest.type, PART_BITS))
        return context.cast(builder, load, lanes.lane, types.int64)

    return types.int64(lanes, mask), generate
