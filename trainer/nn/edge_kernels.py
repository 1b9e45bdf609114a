"""Sums over edges whose weights are products of two numbers per end, compiled; nothing of size edges × heads is stored.

exp LeakyReLU(t + s) is eᵗ · eˢ above the bend and eᵗᐟ⁵ · eˢᐟ⁵ below it: exponentials of nodes, none of edges. A weight's
derivative is the weight times a slope. So gradients need only two sums per row, above and below the bend; the other
factors of a derivative belong to the row and are taken out of the sum.
Both sides' numbers are read before one is chosen: an unpredictable branch would cost as much as the sums. Weights are
spread over the columns of their heads, because loops over whole rows are twice as fast as loops over heads.
"""

import numpy as np

from stream.kernels import njit

_WIDE = {
    "nogil": True,
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},  # sums in any order; NaN stays NaN
    "error_model": "numpy",  # a division that may raise is a branch
}


@njit(cache=True, inline="always", **_WIDE)
def _put(wide, h, d, above, below):  # type: ignore[no-untyped-def]  # compiled
    """Fill a head's columns."""
    for k in range(h * d, (h + 1) * d):
        wide[0, np.uint64(k)] = above
        wide[1, np.uint64(k)] = below


@njit(cache=True, inline="always", **_WIDE)
def _add(sides, wide, values, j):  # type: ignore[no-untyped-def]  # compiled
    """Add row j of values to both sums by their weights."""
    for k in range(sides.shape[1]):
        at = np.uint64(k)
        sides[0, at] += wide[0, at] * values[j, at]
        sides[1, at] += wide[1, at] * values[j, at]


@njit(cache=True, **_WIDE)
def attend(indptr, sources, counts, values, ends, starts, slope, out):  # type: ignore[no-untyped-def]  # compiled
    """Σ_j α_ij v_j over the neighbours j of each target i and the source i itself, head by head.

    Args:
        indptr: int (T + 1,), edges by target.
        sources: int (E,).
        counts: (E,), how often each edge counts; empty: once.
        values: (S, H · d), v; a head has d columns.
        ends: (S, 3 H): s, eˢ and e to the power of slope · s, all of s less the head's largest.
        starts: (T, 3 H): t plus that largest, and the factors of weights above and below the bend.
        slope: Of LeakyReLU below zero.
        out: Filled: sums (T, H · d); the same with weights times slopes; sums (T, H) of weights times slopes; the
            softmax's denominators (T, H).
    """
    sums, sloped, steep, total = out
    (targets, heads), kind = total.shape, sums.dtype.type
    d, zero, one, slope = sums.shape[1] // heads, kind(0), kind(1), kind(slope)
    sides, wide = np.empty((2, heads * d), sums.dtype), np.empty((2, heads * d), sums.dtype)
    weights = np.empty((2, heads), sums.dtype)
    for target in range(targets):
        i, begin, end = np.uint64(target), indptr[target], indptr[target + 1]
        sides[:] = 0
        weights[:] = 0
        for e in range(begin, end + 1):
            itself = e == end
            j = i if itself else np.uint64(sources[e])
            count = counts[e] if len(counts) and not itself else one
            for h in range(heads):
                score = starts[i, h] + ends[j, h]
                first, second = ends[j, heads + h], ends[j, 2 * heads + h]
                above = count * (first if score > 0 else zero)
                below = count * (zero if score > 0 else second)
                weights[0, h] += above
                weights[1, h] += below
                _put(wide, h, d, above, below)
            _add(sides, wide, values, j)
        for h in range(heads):
            above, below = starts[i, heads + h], starts[i, 2 * heads + h]
            total[i, h] = above * weights[0, h] + below * weights[1, h]
            above, below = above / total[i, h], below / total[i, h]
            steep[i, h] = above * weights[0, h] + slope * (below * weights[1, h])
            _put(wide, h, d, above, below)
        for k in range(heads * d):
            at = np.uint64(k)
            first, second = wide[0, at] * sides[0, at], wide[1, at] * sides[1, at]
            sums[i, at] = first + second
            sloped[i, at] = first + slope * second
        if begin == end:  # products of exponentials are not exact
            sums[i] = values[i]


@njit(cache=True, **_WIDE)
def attend_back(indptr, targets, counts, values, ends, starts, slope, gradient, found):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of ``attend`` by the sources' values and scores.

    Args:
        indptr: int (S + 1,), edges by source.
        targets: int (E,).
        counts: See ``attend``, in this order of edges.
        values: See ``attend``.
        ends: See ``attend``.
        starts: (T, 4 H): as in ``attend``, the factors divided by the denominators; and the products of ``gradient`` with
            the sums.
        slope: See ``attend``.
        gradient: (T, H · d), of the sums.
        found: Filled: gradients of ``values`` and of s.
    """
    by_values, by_scores = found
    (sources, heads), kind = by_scores.shape, values.dtype.type
    d, zero, one, slope = values.shape[1] // heads, kind(0), kind(1), kind(slope)
    sides, wide = np.empty((2, heads * d), values.dtype), np.empty((2, heads * d), values.dtype)
    means, products = np.empty((2, heads), values.dtype), np.empty(heads * d, values.dtype)
    for source in range(sources):
        j, begin, end = np.uint64(source), indptr[source], indptr[source + 1]
        sides[:] = 0
        means[:] = 0
        for e in range(begin, end + 1 if source < len(starts) else end):
            itself = e == end
            i = j if itself else np.uint64(targets[e])
            count = counts[e] if len(counts) and not itself else one
            for h in range(heads):
                score = starts[i, h] + ends[j, h]
                first, second = starts[i, heads + h], starts[i, 2 * heads + h]
                above = count * (first if score > 0 else zero)
                below = count * (zero if score > 0 else second)
                means[0, h] += above * starts[i, 3 * heads + h]
                means[1, h] += below * starts[i, 3 * heads + h]
                _put(wide, h, d, above, below)
            _add(sides, wide, gradient, i)
        for h in range(heads):
            above, below = ends[j, heads + h], ends[j, 2 * heads + h]
            by_scores[j, h] = -(above * means[0, h] + slope * (below * means[1, h]))
            _put(wide, h, d, above, below)
        for k in range(heads * d):
            at = np.uint64(k)
            first, second = wide[0, at] * sides[0, at], wide[1, at] * sides[1, at]
            by_values[j, at] = first + second
            products[at] = values[j, at] * (first + slope * second)
        for h in range(heads):
            for k in range(h * d, (h + 1) * d):
                by_scores[j, h] += products[np.uint64(k)]
