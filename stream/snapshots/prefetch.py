"""A compiled prefetch: announces the cache line that a loop will need some iterations later."""

from typing import Any

from freshet_graph.stream.kernels import intrinsic

AHEAD = 24
"""Edges between a prefetch and its use: longer than a cache miss, shorter than a line stays in the cache."""


@intrinsic
def prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """``prefetch(array, index)``: fetch the line of ``array[index]`` for writing; a 1-d contiguous array."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        word = ir.IntType(32)
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        signature = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        known = builder.module.globals.get("llvm.prefetch.p0")
        function = known or ir.Function(builder.module, signature, "llvm.prefetch.p0")
        for_writing, keep, data_cache = word(1), word(3), word(1)
        builder.call(function, [pointer, for_writing, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, index), generate


NODES_AHEAD = 4
"""Nodes between a prefetch for their rows' entries and its use."""

ENTRIES = 64
"""Most entries prefetched per row; a hub's later ones are fetched while its first are processed."""
