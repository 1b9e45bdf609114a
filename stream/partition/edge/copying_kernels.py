"""Loops of edge partitioners that may copy any node: HDRF and PowerGraph's greedy rule.

Up to 32 parts a node's record is 8 bytes, so that an edge touches two cache lines: its parts (bits 0 to 31) and a count (bits
32 to 63). Up to 64 parts the count has an array of its own. No loop scores each part: the parts fall into four classes (both
ends, the first, the second, neither), and within a class the least loaded is best (``load_planes``). An edge whose ends share
a part changes no node's parts, which is the one branch that most edges take.

Scores are compared after multiplication by both denominators, that of θ and that of the balance term, so that they are whole
numbers except for λ. Ties of loads go to the next part from a drawn one.
"""

import numpy as np

from stream.arrays.kinds import Int8, Int32, Int64, UInt32, Words
from stream.kernels import njit
from stream.kernels.bits import lowest_bit
from stream.kernels.mixing import splitmix64
from stream.partition.edge.load_planes import (
    STEP,
    Planes,
    choose,
    drawn_part,
    full,
    least_level,
    least_loaded,
    next_part,
    planes_of,
    raised,
    spread,
)
from stream.partition.edge.part_sets import note
from stream.snapshots.prefetch import AHEAD, prefetch

RECORD_PARTS = 32
"""Parts that fit into a record, beside a count."""

_ONE = np.uint64(1 << 32)
_PARTS = np.uint64((1 << 32) - 1)
_NONE = np.uint64(0)


@njit(cache=True, nogil=True)
def count_edges(op: Int8, src: Int64, dst: Int64, records: Words) -> None:
    """Add each insert to the counts in its ends' records, once for a self-loop."""
    last = len(op) - 1
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(records, src[ahead])
        prefetch(records, dst[ahead])
        if op[e] > 0:
            records[src[e]] += _ONE
            if src[e] != dst[e]:
                records[dst[e]] += _ONE


@njit(cache=True, nogil=True)
def loads_of(sizes: Int64, among: np.uint64) -> tuple[int, int]:
    """Smallest and largest load of a set of parts, (2⁶², −1) for an empty set."""
    least, most = 2**62, -1
    for p in range(len(sizes)):
        if among >> np.uint64(p) & np.uint64(1):
            least, most = min(least, sizes[p]), max(most, sizes[p])
    return least, most


@njit(cache=True, nogil=True)
def best_class(
    sizes: Int64,
    in_a: np.uint64,
    in_b: np.uint64,
    everywhere: np.uint64,
    count_a: int,
    count_b: int,
    weight: float,
) -> np.uint64:
    """The class whose least loaded part has the best score (HDRF's ``C_REP + λ·C_BAL``, ε = 1), the first among equals.

    Args:
        sizes: int64 (P,) loads.
        in_a: Parts of the first end.
        in_b: Parts of the second end.
        everywhere: All parts.
        count_a: The first end's degree.
        count_b: The second end's degree.
        weight: λ.
    """
    least, most = loads_of(sizes, everywhere)
    both_counts = count_a + count_b
    among, best = everywhere, -1.0
    for which in range(4):
        if which == 0:
            mask, worth = in_a & in_b, 3 * both_counts
        elif which == 1:
            mask, worth = in_a & ~in_b, both_counts + count_b
        elif which == 2:
            mask, worth = in_b & ~in_a, both_counts + count_a
        else:
            mask, worth = everywhere & ~(in_a | in_b), 0
        if mask != _NONE:
            room = most - loads_of(sizes, mask)[0]
            score = float(worth) * (1 + most - least) + weight * (float(both_counts) * room)
            if score > best:
                among, best = mask, score
    return among


@njit(cache=True, nogil=True, inline="always")
def better_end(
    planes: Planes,
    in_a: np.uint64,
    in_b: np.uint64,
    everywhere: np.uint64,
    count_a: int,
    count_b: int,
    weight: float,
) -> np.uint64:
    """The least loaded parts of ``best_class``, for λ ≤ 1, ends without a common part, and loads within the levels.

    A part of neither end can't win then. An end without parts takes those of the other; if both are without, both take all,
    and the two scores are of one set.
    """
    some = in_a | in_b
    some = some if some != _NONE else everywhere
    in_a = in_a if in_a != _NONE else some
    in_b = in_b if in_b != _NONE else some
    of_a, level_a = least_level(planes, in_a)
    of_b, level_b = least_level(planes, in_b)
    rarer = (count_b - count_a) * (1 + spread(planes, everywhere))
    fuller = (count_a + count_b) * (level_a - level_b)
    return choose(float(rarer) >= weight * float(fuller), of_a, of_b)


@njit(cache=True, nogil=True)
def assign_planes(
    op: Int8,
    src: Int64,
    dst: Int64,
    records: Words,
    counts: UInt32 | None,
    sizes: Int64,
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
    event_part: Int32,
    gained: Int64,
) -> tuple[np.int64, np.int64]:
    """Assign a part to every insert, for at most 64 parts.

    Args:
        op: int8 (E,), rows other than inserts get −1.
        src: int64 (E,).
        dst: int64 (E,).
        records: uint64 (N,) parts and count, or only parts if ``counts`` is given; written to. The count is HDRF's degree
            so far, or PowerGraph's number of unassigned edges.
        counts: uint32 (N,) for more than ``RECORD_PARTS`` parts; written to.
        sizes: int64 (P,) edges assigned; written to.
        greedy: PowerGraph's rule, otherwise HDRF.
        weight: λ of HDRF's balance term.
        seed: Seed of the draws that break ties.
        drawn: Events before this batch.
        event_part: int32 (E,), written: parts.
        gained: int64 (2 E,), written: notes of the parts that nodes gained, in the order of the edges.

    Returns:
        Rows of ``gained``, and number of nodes that gained a second part.
    """
    parts = len(sizes)
    everywhere = ~_NONE >> np.uint64(64 - parts)
    planes = planes_of(sizes)
    meeting_wins = greedy or weight <= 1.0
    step = (_NONE - _ONE) if greedy else _ONE
    state = splitmix64(np.uint64(seed)) + STEP * np.uint64(drawn)
    last = len(op) - 1
    rows = shared = _NONE
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(records, src[ahead])
        prefetch(records, dst[ahead])
        if counts is not None:
            prefetch(counts, src[ahead])
            prefetch(counts, dst[ahead])
        first = drawn_part(state, parts)
        state += STEP
        if op[e] <= 0:
            event_part[e] = -1
            continue
        i, j = np.uint64(src[e]), np.uint64(dst[e])
        if counts is None:
            a, b = records[i] + step, records[j] + step
            in_a, in_b = a & _PARTS, b & _PARTS
            count_a, count_b = np.int64(a >> np.uint64(32)), np.int64(b >> np.uint64(32))
        else:
            a, b = records[i], records[j]
            in_a, in_b = a, b
            change = -1 if greedy else 1
            count_a, count_b = np.int64(counts[i]) + change, np.int64(counts[j]) + change
            counts[i], counts[j] = np.uint32(count_a), np.uint32(count_b)
        both = in_a & in_b
        meets = both != _NONE and meeting_wins
        if meets:
            among = least_level(planes, both)[0]
            if counts is None:
                records[i], records[j] = a, b
        elif greedy:
            among = in_a | in_b
            if in_a and in_b and count_a != count_b:
                among = choose(count_a > count_b, in_a, in_b)
            among = least_level(planes, among if among != _NONE else everywhere)[0]
        elif weight <= 1.0 and full(planes) == _NONE:
            among = better_end(planes, in_a, in_b, everywhere, count_a, count_b, weight)
        else:
            among = best_class(sizes, in_a, in_b, everywhere, count_a, count_b, weight)
            among = least_level(planes, among)[0]
        if among & full(planes) != _NONE:
            among = least_loaded(sizes, among)
        bit = next_part(among, first)
        part = lowest_bit(bit)
        sizes[part] += 1
        planes, anew = raised(planes, bit, everywhere)
        if anew:
            planes = planes_of(sizes)
        event_part[e] = part
        if meets:
            continue
        records[i], records[j] = a | bit, b | bit
        # Both ends gain a part only if neither is in it, and at most one otherwise: first the end that does.
        is_new = in_a & bit == _NONE
        node, held = choose(is_new, i, j), choose(is_new, in_a, in_b)
        known = held != _NONE
        gained[rows] = note(node, part, known)
        rows += np.uint64(held & bit == _NONE)
        shared += np.uint64(known & (held & (held - np.uint64(1)) == _NONE) & (held & bit == _NONE))
        if (in_a | in_b) & bit == _NONE and i != j:
            known = in_b != _NONE
            gained[rows] = note(j, part, known)
            rows += np.uint64(1)
            shared += np.uint64(known & (in_b & (in_b - np.uint64(1)) == _NONE))
    return np.int64(rows), np.int64(shared)


@njit(cache=True, nogil=True)
def add_part(masks: Words, v: int, part: int) -> tuple[bool, bool]:
    """Add a part to node v; returns whether it is new to the node, and whether it is the node's second."""
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
    counts: UInt32,
    home: Int32,
    sizes: Int64,
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
    event_part: Int32,
    gained: Int64,
) -> tuple[int, int]:
    """``assign_planes`` for any number of parts, with masks uint64 (N, words) and homes int32 (N,), both written to."""
    parts = len(sizes)
    state = splitmix64(np.uint64(seed)) + STEP * np.uint64(drawn)
    best = np.empty(4, np.int64)
    rows = shared = 0
    for e in range(len(op)):
        first = np.int64(drawn_part(state, parts))
        state += STEP
        if op[e] <= 0:
            event_part[e] = -1
            continue
        i, j = src[e], dst[e]
        step = -1 if greedy else 1
        counts[i] += step
        if i != j:
            counts[j] += step
        best[:] = -1
        largest = smallest = sizes[0]
        for turn in range(parts):
            p = first + turn if first + turn < parts else first + turn - parts
            word, bit = p >> 6, np.uint64(p & 63)
            in_a = (masks[i, word] >> bit) & np.uint64(1)
            in_b = (masks[j, word] >> bit) & np.uint64(1)
            place = 3 - 2 * np.int64(in_a) - np.int64(in_b)  # 0 both, 1 the first, 2 the second, 3 neither
            if best[place] < 0 or sizes[p] < sizes[best[place]]:
                best[place] = p
            largest, smallest = max(largest, sizes[p]), min(smallest, sizes[p])
        count_a, count_b = np.int64(counts[i]), np.int64(counts[j])
        if greedy:
            part = _greedy_part(best, sizes, first, count_a, count_b)
        else:
            part, best_score = -1, -1.0
            both_counts = count_a + count_b
            for which in range(4):
                worth = (3 * both_counts, both_counts + count_b, both_counts + count_a, 0)[which]
                if best[which] >= 0:
                    room = weight * (float(both_counts) * (largest - sizes[best[which]]))
                    score = float(worth) * (1 + largest - smallest) + room
                    if score > best_score:
                        part, best_score = int(best[which]), score
        sizes[part] += 1
        event_part[e] = part
        for v in (i, j):
            added, second = add_part(masks, v, part)
            if added:
                gained[rows] = note(np.uint64(v), part, home[v] >= 0)
                rows += 1
                shared += second
                if home[v] < 0:
                    home[v] = part
    return rows, shared


@njit(cache=True, nogil=True)
def _greedy_part(best: Int64, sizes: Int64, drawn: int, left_a: int, left_b: int) -> int:
    """PowerGraph's choice among the least loaded parts of the four classes."""
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
    parts = len(sizes)
    return first if (first - drawn) % parts < (second - drawn) % parts else second
