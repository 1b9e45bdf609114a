"""Attention over gathered rows, compiled: a neighbour's vector is assembled in the cache and never stored.

A neighbour is c = [state ‖ edge ‖ φ(age)]. One table of (R, K, C) costs more than the arithmetic: with ten neighbours in
batches of 2,000 it is 11 MB, written and read several times. The products are small, too (two heads times ten neighbours
per row), and a batched matrix product is a hundred times slower for small ones than for large ones. Cosines of spans are
computed on demand, once for all heads, and again for the gradient.

Rows are processed in order, on one thread, so the gradient of a state that many rows read is always the same.
"""

import numpy as np

from stream.kernels import njit
from trainer.nn.cosines import cosine, sine

_LANES = 64
"""Numbers that the compiler processes at once, four registers. Rows in the cache are padded to multiples, because the
rest would be processed one by one."""

# Sums may be taken in any order, or numbers would be added one at a time; NaN stays NaN.
_SUMS = {"reassoc", "contract", "nsz", "arcp"}
_FUSED = {"contract"}


@njit(cache=True, nogil=True, fastmath=_FUSED)
def _put_together(context, neighbours, r):  # type: ignore[no-untyped-def]  # compiled
    """Assemble the vectors of a row's neighbours in ``context`` and their numbers in ``places``; returns how many."""
    states, place, edge, age, table, frequency, phase, there, places = neighbours
    width, edges = states.shape[1], edge.shape[2]
    first, count = width + edges, 0
    for k in range(place.shape[1]):
        if not there[r, k]:
            continue
        at = np.uint64(place[r, k])
        for j in range(width):
            context[count, j] = states[at, j]
        for j in range(edges):
            context[count, width + j] = edge[r, k, j]
        for j in range(table.shape[2]):
            context[count, first + j] = table[r, k, j]
        for j in range(len(frequency)):
            context[count, first + j] = cosine(np.float64(age[r, k] * frequency[j] + phase[j]))
        places[count] = k
        count += 1
    return count


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _dot(one, i, other, k):  # type: ignore[no-untyped-def]  # compiled
    total = one.dtype.type(0)
    for j in range(one.shape[1]):
        total += one[i, j] * other[k, j]
    return total


@njit(cache=True, nogil=True, fastmath=_FUSED)
def _add(to, i, factor, what, k):  # type: ignore[no-untyped-def]  # compiled
    for j in range(to.shape[1]):
        to[i, j] += factor * what[k, j]


@njit(cache=True, nogil=True)
def _copy(to, i, what, k, width):  # type: ignore[no-untyped-def]  # compiled
    for j in range(width):
        to[i, j] = what[k, j]


@njit(cache=True, nogil=True)
def attend(asked, neighbours, kept, scale, gathered, weights):  # type: ignore[no-untyped-def]  # compiled
    """Σ_k w_k c_k with w = softmax(q·c · scale), all rows and heads.

    Args:
        asked: Of each head (≥ R, C), q.
        neighbours: ``states`` (n, d); ``place`` int64 (R, K), neighbours among the states; ``edge`` (R, K, edges);
            ``age`` (R, K), and either ``table`` (R, K, T), φ, with no ``frequency`` and ``phase``, or those (T,) of
            cosines and a table of width 0; ``there`` bool (R, K), which neighbours exist.
        kept: (R, H, K), factor of each weight: 0 if it is dropped.
        scale: Of products.
        gathered: Of each head (≥ R, C), filled.
        weights: (R, H, K), filled where a neighbour exists.
    """
    states, place, edge, age, table, frequency, phase, there = neighbours
    (rows, heads, most), kind, width = kept.shape, kept.dtype.type, asked[0].shape[1]
    padded = -(-width // _LANES) * _LANES
    context = np.zeros((most, padded), kept.dtype)
    query, sums = np.zeros((1, padded), kept.dtype), np.zeros((1, padded), kept.dtype)
    score, places = np.empty(most, kept.dtype), np.empty(most, np.int64)
    named = (states, place, edge, age, table, frequency, phase, there, places)
    for r in range(rows):
        count = _put_together(context, named, r)
        for h in range(heads):
            _copy(query, 0, asked[h], r, width)
            largest = kind(-np.inf)
            for i in range(count):
                score[i] = _dot(query, 0, context, i) * kind(scale)
                largest = max(largest, score[i])
            total = kind(0)
            for i in range(count):
                score[i] = np.exp(score[i] - largest)
                total += score[i]
            sums[:] = 0
            for i in range(count):
                weight = score[i] / total
                weights[r, h, places[i]] = weight
                _add(sums, 0, weight * kept[r, h, places[i]], context, i)
            _copy(gathered[h], r, sums, 0, width)


@njit(cache=True, nogil=True)
def attend_back(asked, neighbours, kept, scale, weights, gradient, out):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of ``attend``.

    Args:
        asked: See ``attend``.
        neighbours: See ``attend``.
        kept: See ``attend``.
        scale: See ``attend``.
        weights: As ``attend`` left them.
        gradient: Of each head (≥ R, C), of what was gathered.
        out: Gradients of ``asked`` (filled), ``states`` (added to), ``table`` (filled), and, float64 (T,), of
            frequency and phase (added to).
    """
    states, place, edge, age, table, frequency, phase, there = neighbours
    by_asked, by_states, by_table, by_frequency, by_phase = out
    (rows, heads, most), kind, width = kept.shape, kept.dtype.type, asked[0].shape[1]
    first = states.shape[1] + edge.shape[2]
    padded = -(-width // _LANES) * _LANES
    context = np.zeros((most, padded), kept.dtype)
    query, told = np.zeros((heads, padded), kept.dtype), np.zeros((heads, padded), kept.dtype)
    sums = np.empty((1, padded), kept.dtype)
    by_score, places = np.empty((heads, most), kept.dtype), np.empty(most, np.int64)
    named = (states, place, edge, age, table, frequency, phase, there, places)
    by_table[:] = 0
    for r in range(rows):
        count = _put_together(context, named, r)
        for h in range(heads):
            _copy(query, h, asked[h], r, width)
            _copy(told, h, gradient[h], r, width)
            mean = kind(0)
            for i in range(count):
                by_score[h, i] = _dot(told, h, context, i) * kept[r, h, places[i]]
                mean += by_score[h, i] * weights[r, h, places[i]]
            sums[:] = 0
            for i in range(count):
                by_score[h, i] = weights[r, h, places[i]] * (by_score[h, i] - mean) * kind(scale)
                _add(sums, 0, by_score[h, i], context, i)
            _copy(by_asked[h], r, sums, 0, width)
        for i in range(count):
            k = places[i]
            sums[:] = 0
            for h in range(heads):
                weight = weights[r, h, k] * kept[r, h, k]
                for j in range(padded):
                    sums[0, j] += by_score[h, i] * query[h, j] + weight * told[h, j]
            _spread(sums[0], first, by_states[place[r, k]], by_table[r, k])
            _spread_spans(sums[0, first:], age[r, k], frequency, phase, by_frequency, by_phase)


@njit(cache=True, nogil=True)
def _spread(sums, first, by_state, by_span):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(by_state)):
        by_state[j] += sums[j]
    for j in range(len(by_span)):
        by_span[j] = sums[first + j]


@njit(cache=True, nogil=True, fastmath=_FUSED)
def _spread_spans(sums, age, frequency, phase, by_frequency, by_phase):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(frequency)):
        change = sine(np.float64(age * frequency[j] + phase[j])) * sums[j]
        by_phase[j] -= change
        by_frequency[j] -= change * age


@njit(cache=True, nogil=True)
def add_rows(to, place, rows):  # type: ignore[no-untyped-def]  # compiled
    """Add rows (R, d) to those of a table (n, d) at int64 (R,) places, in order."""
    for r in range(len(place)):
        at = np.uint64(place[r])
        for j in range(rows.shape[1]):
            to[at, j] += rows[r, j]
