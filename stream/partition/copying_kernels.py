"""Loops of edge partitioners that copy any node: HDRF and PowerGraph's greedy rule.

Up to 32 parts a node's record is 8 bytes, so that an edge touches two cache lines: the parts it is in (bits 0 to 31)
and a count (bits 32 to 63); up to 64 the count has an array of its own. No loop scores each part: the parts fall into
four classes (both ends, one of them, the other, neither), and within a class the least loaded is best
(``load_lanes``). An edge whose ends meet in a part changes no node's parts: that is the one branch most edges take.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.load_lanes import (
    LaneArray,
    Lanes,
    add_to_least,
    lanes_to_loads,
    largest_load,
    least_load,
    loads_to_lanes,
    read_lanes,
    write_lanes,
)
from stream.partition.mixing import splitmix64
from stream.snapshots.delta import Int8, Int32, Int64
from stream.snapshots.prefetch import AHEAD, prefetch

Words = NDArray[np.uint64]
Counts = NDArray[np.uint32]

RECORD_PARTS = 32
"""Parts that fit into a record, beside a count."""

EPSILON = 1.0
"""ε of HDRF's balance term, in edges."""

_ONE = np.uint64(1 << 32)
_PARTS = np.uint64((1 << 32) - 1)
_NONE = np.uint64(0)


@njit(cache=True, nogil=True)
def count_edges(op: Int8, src: Int64, dst: Int64, records: Words) -> None:
    """Add each insert to the counts of its ends' records, once for a self-loop."""
    last = len(op) - 1
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(records, src[ahead])
        prefetch(records, dst[ahead])
        if op[e] > 0:
            records[src[e]] += _ONE
            if src[e] != dst[e]:
                records[dst[e]] += _ONE


@njit(cache=True, nogil=True, inline="always")
def best_class(
    lanes: Lanes,
    in_a: np.uint64,
    in_b: np.uint64,
    everywhere: np.uint64,
    theta: float,
    weight: float,
) -> np.uint64:
    """The class whose least loaded part scores most (HDRF's ``C_REP + λ·C_BAL``), the first of equal ones.

    Args:
        lanes: Loads.
        in_a: Parts of the first end; up to λ = 1 the ends must have no part in common, and both must have one.
        in_b: Parts of the second end.
        everywhere: All parts.
        theta: θ of the first end.
        weight: λ.
    """
    largest = largest_load(lanes, everywhere)
    scale = weight / (EPSILON + largest - least_load(lanes, everywhere))
    if weight <= 1.0:  # no part of both, and none of neither can win
        first = 2.0 - theta + scale * (largest - least_load(lanes, in_a))
        second = 1.0 + theta + scale * (largest - least_load(lanes, in_b))
        return in_a if first >= second else in_b
    among, best = everywhere, -1.0
    for which in range(4):
        if which == 0:
            mask, worth = in_a & in_b, 3.0
        elif which == 1:
            mask, worth = in_a & ~in_b, 2.0 - theta
        elif which == 2:
            mask, worth = in_b & ~in_a, 1.0 + theta
        else:
            mask, worth = everywhere & ~(in_a | in_b), 0.0
        if mask != _NONE:
            score = worth + scale * (largest - least_load(lanes, mask))
            if score > best:
                among, best = mask, score
    return among


@njit(cache=True, nogil=True)
def assign_lanes(
    op: Int8,
    src: Int64,
    dst: Int64,
    records: Words,
    counts: Counts | None,
    home: Int32,
    sizes: Int64,
    room: LaneArray,
    width: tuple[int, ...],
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
    event_part: Int32,
    gained: Int64,
) -> tuple[np.int64, int]:
    """A part for every insert, at most 64 parts.

    Args:
        op: int8 (E,), rows other than inserts get −1. At most ``SHORT_LOADS`` rows.
        src: int64 (E,).
        dst: int64 (E,).
        records: uint64 (N,) parts and count, or parts alone where ``counts`` is given; written to. The count is
            HDRF's degree so far, or for PowerGraph the edges that are not yet assigned.
        counts: uint32 (N,) where there are more than ``RECORD_PARTS`` parts; written to.
        home: int32 (N,) first part, −1 for none; written to.
        sizes: int64 (P,) edges assigned; written to.
        room: Of ``lanes_for``; scratch.
        width: Of ``lanes_for``.
        greedy: PowerGraph's rule, else HDRF.
        weight: λ of HDRF's balance term.
        seed: Of the draws that break ties.
        drawn: Events before this batch.
        event_part: int32 (E,), written: parts.
        gained: int64 (2 E,), written: ``(node · P + part) · 2 + copy`` for every part that a node gained, copy
            being 0 for a first part, in the order of the edges.

    Returns:
        Rows of ``gained``, and nodes that gained a second part.
    """
    parts = len(sizes)
    everywhere = ~_NONE >> np.uint64(64 - parts)
    loads_to_lanes(sizes, room)
    lanes = read_lanes(room, width)
    meeting_wins = greedy or weight <= 1.0
    step = (_NONE - _ONE) if greedy else _ONE
    apart = np.uint64(2 * parts)
    start = splitmix64(np.uint64(seed))
    last = len(op) - 1
    bits, bits_of = _NONE, -1
    rows, shared = np.uint64(0), 0
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(records, src[ahead])
        prefetch(records, dst[ahead])
        if counts is not None:
            prefetch(counts, src[ahead])
            prefetch(counts, dst[ahead])
        if op[e] <= 0:
            event_part[e] = -1
            continue
        i, j = np.uint64(src[e]), np.uint64(dst[e])
        of = (drawn + e) >> 3
        if of != bits_of:
            bits, bits_of = splitmix64(start ^ np.uint64(of)), of
        draw = (bits >> np.uint64(8 * ((drawn + e) & 7))) & np.uint64(63)
        if counts is None:
            a, b = records[i] + step, records[j] + step
            in_a, in_b = a & _PARTS, b & _PARTS
            count_a, count_b = a >> np.uint64(32), b >> np.uint64(32)
        else:
            a, b = records[i], records[j]
            in_a, in_b = a, b
            count_a, count_b = np.uint64(counts[i]), np.uint64(counts[j])
            count_a = (count_a - np.uint64(1)) if greedy else (count_a + np.uint64(1))
            count_b = (count_b - np.uint64(1)) if greedy else (count_b + np.uint64(1))
            counts[i], counts[j] = np.uint32(count_a), np.uint32(count_b)
        both = in_a & in_b
        if both != _NONE and meeting_wins:
            lanes, part = add_to_least(lanes, both, draw)
            if counts is None:
                records[i], records[j] = a, b
            event_part[e] = part
            continue
        among = in_a | in_b
        if greedy:
            if in_a and in_b and count_a != count_b:
                among = in_a if count_a > count_b else in_b
        elif weight > 1.0 or (in_a and in_b):
            theta = float(count_a) / (float(count_a) + float(count_b))
            among = best_class(lanes, in_a, in_b, everywhere, theta, weight)
        if among == _NONE:
            among = everywhere
        lanes, part = add_to_least(lanes, among, draw)
        event_part[e] = part
        bit = np.uint64(1) << np.uint64(part)
        records[i], records[j] = a | bit, b | bit
        if in_a & bit == _NONE:
            if in_a == _NONE:
                home[i] = part
            shared += in_a != _NONE and in_a & (in_a - np.uint64(1)) == _NONE
            gained[rows] = i * apart + np.uint64(2 * part + (in_a != _NONE))
            rows += np.uint64(1)
        if in_b & bit == _NONE and i != j:
            if in_b == _NONE:
                home[j] = part
            shared += in_b != _NONE and in_b & (in_b - np.uint64(1)) == _NONE
            gained[rows] = j * apart + np.uint64(2 * part + (in_b != _NONE))
            rows += np.uint64(1)
    write_lanes(room, lanes)
    lanes_to_loads(room, sizes)
    return np.int64(rows), shared


@njit(cache=True, nogil=True)
def add_part(masks: Words, v: int, part: int) -> tuple[bool, bool]:
    """Put node v into a part; whether it was not in it, and whether it is its second."""
    word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
    if masks[v, word] & bit != _NONE:
        return False, False
    held = 0
    for w in range(masks.shape[1]):
        one = masks[v, w]
        held += 0 if one == _NONE else (1 if one & (one - np.uint64(1)) == _NONE else 2)
    masks[v, word] |= bit
    return True, held == 1


@njit(cache=True, nogil=True)
def assign_masks(
    op: Int8,
    src: Int64,
    dst: Int64,
    masks: Words,
    counts: Counts,
    home: Int32,
    sizes: Int64,
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
    event_part: Int32,
    gained: Int64,
) -> tuple[int, int]:
    """``assign_lanes`` for any number of parts, with masks of uint64 (N, words)."""
    parts = len(sizes)
    start = splitmix64(np.uint64(seed))
    best = np.empty(4, np.int64)
    rows = shared = 0
    for e in range(len(op)):
        if op[e] <= 0:
            event_part[e] = -1
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
            added, second = add_part(masks, v, part)
            if added:
                gained[rows] = 2 * (v * parts + part) + (home[v] >= 0)
                rows += 1
                shared += second
                if home[v] < 0:
                    home[v] = part
    return rows, shared


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
