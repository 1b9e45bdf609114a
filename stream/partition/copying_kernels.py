"""Loops of edge partitioners that copy any node: HDRF and PowerGraph's greedy rule.

A node's record is 8 bytes, so that an edge touches two cache lines: the parts it is in (bits 0 to 31) and a count
(bits 32 to 63). No loop over parts scores each: the parts fall into four classes (both ends, one of them, the
other, neither), and within a class the least loaded is best. It is a minimum over keys ``load << 6 | part``, which
compilers turn into vector instructions. Of equal loads the smallest ``part XOR draw`` is taken.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.mixing import splitmix64
from stream.partition.prefetch import AHEAD, prefetch
from stream.snapshots.delta import Int8, Int32, Int64

Words = NDArray[np.uint64]

RECORD_PARTS = 32
"""Parts that fit into a record."""

EPSILON = 1.0
"""ε of HDRF's balance term, in edges."""

_LARGEST_KEY_LOAD = 2**24
"""Loads above the smallest that keys of 32 bits hold at the start of a chunk, and edges of a chunk."""

_ONE = np.uint64(1 << 32)


@njit(cache=True, nogil=True)
def count_edges(op: Int8, src: Int64, dst: Int64, records: Words) -> None:
    """Add each insert to the counts of its ends' records, once for a self-loop."""
    for e in range(len(op)):
        if op[e] > 0:
            records[src[e]] += _ONE
            if src[e] != dst[e]:
                records[dst[e]] += _ONE


@njit(cache=True, nogil=True)
def assign_records(
    op: Int8,
    src: Int64,
    dst: Int64,
    records: Words,
    home: Int32,
    sizes: Int64,
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
) -> Int32:
    """A part for every insert, at most ``RECORD_PARTS`` parts.

    Args:
        op: int8 (E,), rows other than inserts get −1.
        src: int64 (E,).
        dst: int64 (E,).
        records: uint64 (N,) parts and count; written to. The count is HDRF's degree so far, or for PowerGraph the
            edges that are not yet assigned.
        home: int32 (N,) first part, −1 for none; written to.
        sizes: int64 (P,) edges assigned; written to.
        greedy: PowerGraph's rule, else HDRF.
        weight: λ of HDRF's balance term.
        seed: Of the draws that break ties.
        drawn: Events before this batch.

    Returns:
        int32 (E,) parts.
    """
    event_part = np.full(len(op), -1, np.int32)
    small, large = np.empty(len(sizes), np.int32), np.empty(len(sizes), np.int64)
    for begin in range(0, len(op), _LARGEST_KEY_LOAD):
        end = min(begin + _LARGEST_KEY_LOAD, len(op))
        lowest = sizes.min()
        if sizes.max() - lowest < _LARGEST_KEY_LOAD:
            _assign_chunk(
                op, src, dst, records, home, sizes, lowest, small, np.int32(2**31 - 1), greedy, weight, seed, drawn,
                begin, end, event_part,
            )  # fmt: skip
        else:
            _assign_chunk(
                op, src, dst, records, home, sizes, lowest, large, np.int64(2**63 - 1), greedy, weight, seed, drawn,
                begin, end, event_part,
            )  # fmt: skip
    return event_part


@njit(cache=True, nogil=True, inline="always")
def _least(keys: NDArray[np.signedinteger], mask: np.uint32, draw: int, none: int, bit_of: Int32) -> int:
    """Smallest ``key XOR draw`` of the parts in ``mask``, ``none`` where it is empty; no branch in the loop."""
    least, flip, chosen = none, keys.dtype.type(draw), np.int32(mask)
    for p in range(len(keys)):
        key = keys[p] ^ flip
        least = min(least, key if (chosen & bit_of[p]) != 0 else none)
    return least


@njit(cache=True, nogil=True)
def _assign_chunk(
    op: Int8,
    src: Int64,
    dst: Int64,
    records: Words,
    home: Int32,
    sizes: Int64,
    lowest: int,
    keys: NDArray[np.signedinteger],
    none: int,
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
    begin: int,
    end: int,
    event_part: Int32,
) -> None:
    parts = len(sizes)
    everywhere = np.uint32((np.uint64(1) << np.uint64(parts)) - np.uint64(1))
    bit_of = np.empty(parts, np.int32)
    for p in range(parts):
        bit_of[p] = np.int32(np.uint32(1) << np.uint32(p))
        keys[p] = (sizes[p] - lowest) << 6 | p
    largest = sizes.max() - lowest
    smallest, at_smallest = 0, 0
    for p in range(parts):
        at_smallest += sizes[p] == lowest
    start = splitmix64(np.uint64(seed))
    last = len(op) - 1
    bits, bits_of = np.uint64(0), -1
    for e in range(begin, end):
        ahead = min(e + AHEAD, last)
        prefetch(records, src[ahead])
        prefetch(records, dst[ahead])
        if op[e] <= 0:
            continue
        i, j = src[e], dst[e]
        of = (drawn + e) >> 3
        if of != bits_of:
            bits, bits_of = splitmix64(start ^ np.uint64(of)), of
        draw = np.int64((bits >> np.uint64(8 * ((drawn + e) & 7))) & np.uint64(63))
        a, b = records[i], records[j]
        if greedy:
            a -= _ONE
            b -= _ONE
        else:
            a += _ONE
            b += _ONE
        in_a, in_b = np.uint32(a & np.uint64(0xFFFFFFFF)), np.uint32(b & np.uint64(0xFFFFFFFF))
        both, one = in_a & in_b, in_a | in_b
        if both and (greedy or weight <= 1.0):
            least = _least(keys, both, draw, none, bit_of)
        elif not one:
            least = _least(keys, everywhere, draw, none, bit_of)
        elif greedy or (weight <= 1.0 and (not in_a or not in_b)):
            among = one
            if greedy and in_a and in_b:
                left_a, left_b = a >> np.uint64(32), b >> np.uint64(32)
                among = in_a if left_a > left_b else (in_b if left_b > left_a else one)
            least = _least(keys, among, draw, none, bit_of)
        else:
            degree_a, degree_b = float(a >> np.uint64(32)), float(b >> np.uint64(32))
            theta = degree_a / (degree_a + degree_b)
            scale = weight / (EPSILON + largest - smallest)
            least, best = none, -1.0
            for which in range(4):
                if which == 0:
                    mask, worth = both, 3.0
                elif which == 1:
                    mask, worth = in_a & ~in_b, 2.0 - theta
                elif which == 2:
                    mask, worth = in_b & ~in_a, 1.0 + theta
                else:
                    mask, worth = everywhere & ~one, 0.0
                if mask and (weight > 1.0 or which in (1, 2)):  # else both or neither are done
                    key = _least(keys, mask, draw, none, bit_of)
                    score = worth + scale * (largest - (key >> 6))
                    if score > best:
                        least, best = key, score
        part = (least ^ draw) & 63
        keys[part] += 64
        load = keys[part] >> 6
        largest = max(largest, load)
        if load == smallest + 1:
            at_smallest -= 1
            if at_smallest == 0:
                smallest += 1
                for p in range(parts):
                    at_smallest += (keys[p] >> 6) == smallest
        bit = np.uint64(1) << np.uint64(part)
        if not in_a:
            home[i] = part
        if not in_b:
            home[j] = part
        records[i] = a | bit
        records[j] = b | bit
        event_part[e] = part
    for p in range(parts):
        sizes[p] = (keys[p] >> 6) + lowest


@njit(cache=True, nogil=True)
def assign_masks(
    op: Int8,
    src: Int64,
    dst: Int64,
    masks: Words,
    counts: NDArray[np.uint32],
    home: Int32,
    sizes: Int64,
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
) -> Int32:
    """``assign_records`` for any number of parts, with masks of uint64 (N, words) and counts of their own."""
    parts = len(sizes)
    event_part = np.full(len(op), -1, np.int32)
    start = splitmix64(np.uint64(seed))
    best = np.empty(4, np.int64)
    for e in range(len(op)):
        if op[e] <= 0:
            continue
        i, j = src[e], dst[e]
        of = drawn + e
        bits = splitmix64(start ^ np.uint64(of >> 3))
        draw = np.int64((bits >> np.uint64(8 * (of & 7))) & np.uint64(63))
        step = -1 if greedy else 1
        counts[i] += step
        if i != j:
            counts[j] += step
        best[:] = -1
        largest = smallest = sizes[0]
        for p in range(parts):
            word, bit = p >> 6, np.uint64(p & 63)
            in_a = (masks[i, word] >> bit) & np.uint64(1)
            in_b = (masks[j, word] >> bit) & np.uint64(1)
            place = 3 - 2 * np.int64(in_a) - np.int64(in_b)  # 0 both, 1 the first, 2 the second, 3 neither
            known = best[place]
            if known < 0 or sizes[p] < sizes[known] or (sizes[p] == sizes[known] and p ^ draw < known ^ draw):
                best[place] = p
            largest, smallest = max(largest, sizes[p]), min(smallest, sizes[p])
        if greedy:
            part = _greedy_part(best, sizes, draw, counts[i], counts[j])
        else:
            degree_a, degree_b = float(counts[i]), float(counts[j])
            theta = degree_a / (degree_a + degree_b)
            scale = weight / (EPSILON + largest - smallest)
            part, best_score = -1, -1.0
            for which in range(4):
                worth = 3.0 if which == 0 else (2.0 - theta if which == 1 else 1.0 + theta)
                if best[which] >= 0:
                    score = (0.0 if which == 3 else worth) + scale * (largest - sizes[best[which]])
                    if score > best_score:
                        part, best_score = int(best[which]), score
        sizes[part] += 1
        event_part[e] = part
        for v in (i, j):
            if home[v] < 0:
                home[v] = part
            masks[v, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
    return event_part


@njit(cache=True, nogil=True)
def _greedy_part(best: Int64, sizes: Int64, draw: int, left_a: int, left_b: int) -> int:
    """PowerGraph's part of the least loaded ones of the four classes."""
    both, first, second, neither = best
    if both >= 0:
        return both
    if first < 0 and second < 0:
        return neither
    if first < 0 or second < 0:
        return max(first, second)
    if left_a != left_b:
        return first if left_a > left_b else second
    if sizes[first] != sizes[second]:
        return first if sizes[first] < sizes[second] else second
    return first if first ^ draw < second ^ draw else second
