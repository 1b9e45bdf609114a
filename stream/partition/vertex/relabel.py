"""Renumber the parts of a new partition so that most nodes keep theirs."""

import numpy as np

from stream.arrays.kinds import Int32


def relabel(before: Int32, after: Int32, parts: int) -> Int32:
    """Rename the parts of ``after`` so that as few nodes as possible move (Hungarian method).

    Args:
        before: int32 (n,), −1 for nodes without a part.
        after: int32 (n,) in [0, K).
        parts: K.

    Returns:
        ``after`` under the best renaming, int32 (n,).
    """
    from scipy.optimize import linear_sum_assignment

    old = before >= 0
    shared = np.bincount(after[old].astype(np.int64) * parts + before[old], minlength=parts * parts)
    name = np.empty(parts, np.int32)
    rows, columns = linear_sum_assignment(shared.reshape(parts, parts), maximize=True)
    name[rows] = columns
    renamed: Int32 = name[after]
    return renamed
