"""A compiled copy of consecutive values with a variable length."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic
def move(_typing: Any, target: Any, at: Any, source: Any, start: Any, count: Any) -> Any:
    """``move(target, at, source, start, count)``: ``target[at : at + count] = source[start : start + count]``.

    1-d contiguous arrays of one type, without bounds checks. A copy of slices would make two arrays first, and a loop checks
    every index for being negative, which prevents vector moves.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, at_index, given, start_index, length = arguments
        pointers = [
            builder.gep(context.make_array(kind)(context, builder, array).data, [index])
            for kind, array, index in ((target, to, at_index), (source, given, start_index))
        ]
        size = context.get_abi_sizeof(context.get_data_type(target.dtype))
        cgutils.raw_memcpy(builder, *pointers, builder.sext(length, ir.IntType(64)), size)
        return context.get_dummy_value()

    return types.void(target, at, source, start, count), generate
