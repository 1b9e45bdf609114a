"""The need cover's other steps, on local numbers: selecting shared nodes, assigning edges, learning."""

import numpy as np

from stream.arrays.kinds import Bool, Float32, Int8, Int16, Int32, Int64, UInt16, Words
from stream.kernels import njit
from stream.kernels.mixing import splitmix64
from stream.partition.edge.load_lanes import (
    LaneArray,
    add_to_least,
    lanes_to_loads,
    loads_to_lanes,
    read_lanes,
    write_lanes,
)
from stream.partition.edge.load_planes import choose
from stream.snapshots.prefetch import AHEAD, prefetch

_NONE = np.uint64(0)

BUCKETS = 2048
"""Buckets of keys, 8 per octave: a float32 without its sign and its 20 lowest bits."""

COPY_SLACK = 1.02
"""An edge between two shared nodes makes no new copy while a part with a copy is below this multiple of its fair share."""


@njit(cache=True, nogil=True)
def select(
    first: Int32,
    second: Int32,
    indptr: Int64,
    neighbours: Int32,
    home: Int16,
    need: Float32,
    was_shared: Bool,
    budget: int,
) -> Int32:
    """Step 2: share the nodes that save most, by a lazy greedy cover of the edges between homes.

    A node's key is its need plus the number of its edges to unpicked nodes of other homes. Within a bucket of keys, shared
    nodes come first, then nodes in order of appearance.

    Args:
        first: int32 (I,) ends of the inserts.
        second: int32 (I,).
        indptr: int64 (n + 1,) rows of the snapshot's nodes.
        neighbours: int32.
        home: int16 (n,).
        need: float32 (n + m,), weighed: first the snapshot's nodes, then shared nodes outside of it.
        was_shared: bool (n + m,).
        budget: Most picks.

    Returns:
        Number of each node's pick, int32 (n + m,), 2³¹ − 1 for unpicked nodes.
    """
    n, size = len(home), len(need)
    cut = np.zeros(n, np.int32)
    for k in range(len(first)):
        one, other = np.uint64(first[k]), np.uint64(second[k])
        between = np.int32(home[one] != home[other])
        cut[one] += between
        cut[other] += between
    key = need.copy()
    for v in range(n):
        key[v] += np.float32(cut[v])
    order, begin = _by_bucket(key, was_shared)
    bits = key.view(np.int32)
    # Nodes moved down from a larger bucket precede those already there, the last one first.
    top, below = np.full(BUCKETS, -1, np.int32), np.empty(size, np.int32)
    pick = np.full(size, 2**31 - 1, np.int32)
    picks = 0
    for b in range(BUCKETS - 1, -1, -1):
        i, end = begin[b + 1], begin[b]
        while picks < budget:
            if top[b] >= 0:
                node = np.uint64(top[b])
                top[b] = below[node]
            elif i < end:
                node = np.uint64(order[i])
                prefetch(key, order[min(i + AHEAD, size - 1)])
                prefetch(indptr, order[min(i + AHEAD, size - 1)])
                i += 1
            else:
                break
            if not key[node] > 0.0:
                continue
            now = bits[node] >> 20
            if now < b:
                below[node] = top[now]
                top[now] = node
                continue
            pick[node] = picks
            picks += 1
            if node >= np.uint64(n):
                continue
            here = home[node]
            for x in range(np.uint64(indptr[node]), np.uint64(indptr[node + np.uint64(1)])):
                u = np.uint64(neighbours[x])
                key[u] -= np.float32(home[u] != here)
    return pick


@njit(cache=True, nogil=True)
def _by_bucket(key: Float32, was_shared: Bool) -> tuple[Int32, Int32]:
    """Nodes with a positive key, largest buckets first; within each, shared nodes first, then by number.

    Returns:
        Nodes int32, and rows int32 (``BUCKETS`` + 1,): bucket b's are from ``begin[b + 1]`` to ``begin[b]``.
    """
    none = np.uint64(2 * BUCKETS)
    bits = key.view(np.int32)
    turn = np.empty(len(key), np.uint16)
    at = np.zeros(2 * BUCKETS + 2, np.int32)
    for v in range(len(key)):
        turn[v] = np.uint64(2 * (BUCKETS - 1 - (bits[v] >> 20)) + 1 - was_shared[v]) if key[v] > 0.0 else none
        at[np.uint64(turn[v]) + np.uint64(1)] += 1
    for row in range(2 * BUCKETS + 1):
        at[row + 1] += at[row]
    begin = at[0 : 2 * BUCKETS + 1 : 2][::-1].copy()
    order = np.empty(len(key), np.int32)
    for v in range(len(key)):
        of = np.uint64(turn[v])
        order[at[of]] = v
        at[of] += 1
    return order, begin


@njit(cache=True, nogil=True)
def assign_lanes(
    op: Int8,
    first: Int32,
    second: Int32,
    slot: UInt16,
    masks: Words,
    sizes: Int64,
    room: LaneArray,
    width: tuple[int, ...],
    most: int,
    seed: int,
    drawn: int,
    event_part: Int32,
) -> int:
    """Step 3: assign a part to every insert, for at most 64 parts.

    If one end is shared, the edge goes to the other's home; if none is, to their common home, or it is discarded. If both are,
    it goes to the least loaded of the parts that both are in, or else one is in, with up to ``most`` edges each; or else to the
    least loaded.

    Args:
        op: int8 (E,), rows other than inserts get −1. At most ``SHORT_LOADS`` rows.
        first: int32 (I,) local ends of the inserts.
        second: int32 (I,).
        slot: uint16 (n,) home, P of shared nodes.
        masks: uint64 (n, 1) the parts of each node; written to.
        sizes: int64 (P,) edges assigned; written to.
        room: From ``lanes_for``; scratch.
        width: From ``lanes_for``.
        most: Edges up to which a part gets new copies.
        seed: Seed of the draws that break ties.
        drawn: Events before this batch.
        event_part: int32 (E,), written: −1 for a discarded insert.

    Returns:
        Number of discarded inserts.
    """
    parts = len(sizes)
    everywhere = ~_NONE >> np.uint64(64 - parts)
    loads_to_lanes(sizes, room)
    lanes = read_lanes(room, width)
    left, light = most - sizes, _NONE
    for p in range(parts):
        light |= np.uint64(left[p] >= 0) << np.uint64(p)
    flat = masks.reshape(-1)
    start = splitmix64(np.uint64(seed))
    bits, bits_of = _NONE, -1
    k, discarded = -1, 0
    for e in range(len(op)):
        if op[e] <= 0:
            event_part[e] = -1
            continue
        k += 1
        u, v = np.uint64(first[k]), np.uint64(second[k])
        a, b = slot[u], slot[v]
        if min(a, b) == parts:
            of = (drawn + e) >> 3
            if of != bits_of:
                bits, bits_of = splitmix64(start ^ np.uint64(of)), of
            draw = (bits >> np.uint64(8 * ((drawn + e) & 7))) & np.uint64(63)
            among = flat[u] & flat[v] & light
            if among == _NONE:
                among = (flat[u] | flat[v]) & light
            lanes, part = add_to_least(lanes, among if among != _NONE else everywhere, draw)
            bit = np.uint64(1) << np.uint64(part)
            flat[u] |= bit
            flat[v] |= bit
        elif a == b or max(a, b) == parts:
            bit = np.uint64(1) << np.uint64(min(a, b))
            lanes, part = add_to_least(lanes, bit, _NONE)
            if a != b:
                flat[u if a == parts else v] |= bit
        else:
            event_part[e] = -1
            discarded += 1
            continue
        event_part[e] = part
        left[part] -= 1
        if left[part] == -1:
            light &= ~bit
    write_lanes(room, lanes)
    lanes_to_loads(room, sizes)
    return discarded


@njit(cache=True, nogil=True)
def assign_masks(
    op: Int8,
    first: Int32,
    second: Int32,
    slot: UInt16,
    masks: Words,
    sizes: Int64,
    most: int,
    seed: int,
    drawn: int,
    event_part: Int32,
) -> int:
    """``assign_lanes`` for any number of parts, with masks of uint64 (n, words)."""
    parts = len(sizes)
    start = splitmix64(np.uint64(seed))
    k, discarded = -1, 0
    for e in range(len(op)):
        event_part[e] = -1
        if op[e] <= 0:
            continue
        k += 1
        u, v = first[k], second[k]
        a, b = slot[u], slot[v]
        if min(a, b) == parts:
            of = drawn + e
            bits = splitmix64(start ^ np.uint64(of >> 3))
            draw = np.int64((bits >> np.uint64(8 * (of & 7))) & np.uint64(63))
            part = _both_shared(masks[u], masks[v], sizes, most, draw)
        elif a == b or max(a, b) == parts:
            part = np.int64(min(a, b))
        else:
            discarded += 1
            continue
        masks[u, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
        masks[v, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
        event_part[e] = part
        sizes[part] += 1
    return discarded


@njit(cache=True, nogil=True)
def _both_shared(a: Words, b: Words, sizes: Int64, most: int, draw: int) -> int:
    """Least loaded part of the best class: in both and up to ``most`` edges, in one and up to it, any.

    A minimum over one number ``class, load, part XOR draw`` each, so that the loop has no branch.
    """
    least = 2**63 - 1
    for word in range(len(a)):
        begin = 64 * word
        for p in range(begin, min(begin + 64, len(sizes))):
            bit = np.uint64(p - begin)
            known = np.int64((a[word] >> bit) & np.uint64(1)) + np.int64((b[word] >> bit) & np.uint64(1))
            missing = 2 - (known if sizes[p] <= most else 0)
            least = min(least, missing << 61 | sizes[p] << 15 | (p ^ draw))
    return (least & 0x7FFF) ^ draw


@njit(cache=True, nogil=True)
def learn(
    indptr: Int64,
    neighbours: Int32,
    home: Int16,
    slot: UInt16,
    parts: int,
    pick: Int32,
    need: Float32,
    at_home: Float32,
    other: Int16,
    at_other: Float32,
) -> None:
    """Step 4: learn from the snapshot for the next one.

    An edge between homes is needed by the end that was picked first, or by both if none was. Unshared neighbours count for the
    home, or vote for the candidate part (Boyer and Moore 1981).

    Args:
        indptr: int64 (n + 1,).
        neighbours: int32.
        home: int16 (n,).
        slot: uint16 (n,) home, P of picked nodes.
        parts: P.
        pick: int32, at least (n,), from ``select``.
        need: float32 (n,), written to.
        at_home: float32 (n,), written to.
        other: int16 (n,), written to.
        at_other: float32 (n,), written to.
    """
    one, zero, low, everywhere = np.float32(1.0), np.float32(0.0), np.uint64(0xFFFF), np.uint64(parts)
    node = np.empty(len(home), np.uint64)  # a neighbour is one line of the cache
    for v in range(len(home)):
        node[v] = (
            np.uint64(pick[v]) << np.uint64(32) | np.uint64(home[v]) << np.uint64(16) | np.uint64(slot[v])
        )
    for v in range(len(home)):
        needed, inside, part, votes = need[v], at_home[v], np.uint64(np.uint16(other[v])), at_other[v]
        here, picked = node[v] >> np.uint64(16) & low, node[v] >> np.uint64(32)
        for x in range(np.uint64(indptr[v]), np.uint64(indptr[v + 1])):
            u = node[np.uint64(neighbours[x])]
            there = u & low
            between, alone = (u >> np.uint64(16) & low) != here, there != everywhere
            needed += np.float32(between & (picked <= u >> np.uint64(32)))
            inside += np.float32(alone & (not between))
            turned = votes + choose(there == part, one, -one)
            part = choose(alone & between & (turned < zero), there, part)
            votes = choose(alone & between, abs(turned), votes)
        need[v], at_home[v], at_other[v] = needed, inside, votes
        other[v] = np.int16(np.uint16(part))
