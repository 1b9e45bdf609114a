"""Sets of parts as bit masks of any length: their changes, which hold several parts, and the least loaded part of classes."""

import numpy as np

from freshet_graph.schemas.fields import MAX_PARTS
from freshet_graph.stream.arrays.kinds import Int8, Int32, Int64, Words
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.partition.edge.load_planes import choose
from freshet_graph.stream.partition.interface import Why

_NEW, _REPLICATED = np.int8(Why.NEW), np.int8(Why.REPLICATED)
_NONE, _ONE = np.uint64(0), np.uint64(1)
_ORDER_BITS = (MAX_PARTS - 1).bit_length()
_ORDERS = (1 << _ORDER_BITS) - 1
_NO_KEY = 2**63 - 1
_NOTED_NODE, _NOTED_PART = 24, (1 << 23) - 1
"""A note is ``node << 24 | part << 1 | copy``."""


@njit(cache=True, nogil=True)
def least_by_class(
    a: Words, b: Words, sizes: Int64, first: int, draw: int
) -> tuple[tuple[int, int, int, int], int, int]:
    """The least loaded part of those in both sets, in the first only, in the second only and in neither; −1 for none.

    A minimum of one number ``load, order`` for each class, so that the loop has no branch.

    Args:
        a: uint64 (words,).
        b: uint64 (words,).
        sizes: int64 (P,) loads.
        first: The part that wins ties; the others follow in a circle.
        draw: Number in [0, 64), by which this order is changed (XOR).

    Returns:
        The four parts, and the largest and the smallest load.
    """
    parts = len(sizes)
    both = one = other = neither = np.int64(_NO_KEY)
    largest = smallest = sizes[0]
    for word in range(len(a)):
        begin = 64 * word
        for p in range(begin, min(begin + 64, parts)):
            bit = np.uint64(p - begin)
            in_a, in_b = np.int64(a[word] >> bit & _ONE), np.int64(b[word] >> bit & _ONE)
            key = sizes[p] << _ORDER_BITS | ((p - first + (parts if p < first else 0)) ^ draw)
            # −in_a has all bits where the part is in the set, in_a − 1 where it is not: such a key is the largest.
            both = min(both, key | ((in_a - 1) | (in_b - 1)) & _NO_KEY)
            one = min(one, key | ((in_a - 1) | -in_b) & _NO_KEY)
            other = min(other, key | (-in_a | (in_b - 1)) & _NO_KEY)
            neither = min(neither, key | (-in_a | -in_b) & _NO_KEY)
            largest, smallest = max(largest, sizes[p]), min(smallest, sizes[p])
    classes = (
        _part_of(both, first, draw, parts),
        _part_of(one, first, draw, parts),
        _part_of(other, first, draw, parts),
        _part_of(neither, first, draw, parts),
    )
    return classes, largest, smallest


@njit(cache=True, nogil=True)
def _part_of(key: int, first: int, draw: int, parts: int) -> int:
    return -1 if key == _NO_KEY else (((key & _ORDERS) ^ draw) + first) % parts


@njit(cache=True, nogil=True)
def note(node: np.uint64, part: int, copy: bool) -> np.uint64:
    """Note that a node gained a part; ``copy``: not its first."""
    return node << np.uint64(_NOTED_NODE) | np.uint64(part) << np.uint64(1) | np.uint64(copy)


@njit(cache=True, nogil=True, inline="always")
def note_ends(
    gained: Int64,
    rows: np.uint64,
    i: np.uint64,
    j: np.uint64,
    in_i: np.uint64,
    in_j: np.uint64,
    part: int,
    bit: np.uint64,
) -> tuple[np.uint64, np.uint64]:
    """Note that the ends of an edge gained its part, as far as they were not in it.

    Args:
        gained: int64 (2 E,), written from ``rows`` on: notes. The first row is written even if it does not count.
        rows: Rows that count so far.
        i: One end.
        j: The other end, or the same.
        in_i: Parts of ``i`` before.
        in_j: Parts of ``j`` before. The ends have no part in common, unless they are one.
        part: The edge's part.
        bit: Its bit.

    Returns:
        Rows that count, and number of ends of which it is the second part.
    """
    # Both ends gain it only if neither is in it, and at most one otherwise: first the end that does.
    is_new = in_i & bit == _NONE
    node, its_parts = choose(is_new, i, j), choose(is_new, in_i, in_j)
    known = its_parts != _NONE
    gained[rows] = note(node, part, known)
    rows += np.uint64(its_parts & bit == _NONE)
    is_second = its_parts & (its_parts - _ONE) == _NONE
    second = np.uint64(known & is_second & (its_parts & bit == _NONE))
    if (in_i | in_j) & bit == _NONE and i != j:
        known = in_j != _NONE
        gained[rows] = note(j, part, known)
        rows += _ONE
        second += np.uint64(known & (in_j & (in_j - _ONE) == _NONE))
    return rows, second


@njit(cache=True, nogil=True, inline="always")
def join_ends(
    gained: Int64, rows: int, i: int, j: int, masks: Words, home: Int32, part: int
) -> tuple[int, int]:
    """Add an edge's part to its ends, and note it as ``note_ends`` does, for any number of parts.

    Args:
        gained: int64 (2 E,), written from ``rows`` on: notes.
        rows: Rows so far.
        i: One end.
        j: The other end, or the same.
        masks: uint64 (N, words) parts of nodes; written to.
        home: int32 (N,) first parts, −1 for none; written to.
        part: The edge's part.

    Returns:
        Rows, and number of ends of which it is the second part.
    """
    word, bit, shared = part >> 6, _ONE << np.uint64(part & 63), 0
    for v in (i, j):
        if masks[v, word] & bit != _NONE:
            continue
        parts = 0
        for w in range(masks.shape[1]):
            one = masks[v, w]
            parts += 0 if one == _NONE else (1 if one & (one - _ONE) == _NONE else 2)
        masks[v, word] |= bit
        gained[rows] = note(np.uint64(v), part, home[v] >= 0)
        rows += 1
        shared += parts == 1
        if home[v] < 0:
            home[v] = part
    return rows, shared


def gains(noted: list[Int64], placements: Int64, home: Int32) -> tuple[Int64, Int32, Int8]:
    """Rows (node, part, why) of the parts that nodes gained, by node, then part.

    Args:
        noted: int64 arrays of notes, in any order.
        placements: int64 (P,) nodes in each part; updated.
        home: int32 (N,) first parts; updated.
    """
    rows = np.concatenate([np.empty(0, np.int64), *noted])
    rows.sort()
    node, part = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
    why = np.empty(len(rows), np.int8)
    _read_notes(rows, node, part, why, placements, home)
    return node, part, why


@njit(cache=True, nogil=True)
def _read_notes(rows: Int64, node: Int64, part: Int32, why: Int8, placements: Int64, home: Int32) -> None:
    """``gains`` of sorted notes."""
    for r in range(len(rows)):
        v, p = rows[r] >> _NOTED_NODE, np.int32(rows[r] >> 1 & _NOTED_PART)
        node[r], part[r], why[r] = v, p, _REPLICATED if rows[r] & 1 else _NEW
        placements[p] += 1
        if not rows[r] & 1:
            home[v] = p
