"""The live adjacency as partitioners see it: rows of neighbours, in no order."""

from typing import NamedTuple

from stream.arrays.kinds import Int32, Int64


class Rows(NamedTuple):
    """Neighbours by node, as kernels read them: ``indices[start[v]:end[v]]``, without v itself.

    ``start`` and ``end`` are int64 (num_nodes,), ``indices`` int32 of any length: there is room between rows, with
    anything in it. Neighbours are in no order, but in the same whenever the same snapshots were applied.
    """

    start: Int64
    end: Int64
    indices: Int32
