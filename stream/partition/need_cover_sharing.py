"""The sealed-snapshot need cover's other steps, on local numbers: selecting shared nodes, assigning edges, learning."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.mixing import splitmix64
from stream.snapshots.delta import Float32, Int8, Int32, Int64

Bool = NDArray[np.bool_]
Words = NDArray[np.uint64]
Int16 = NDArray[np.int16]

BUCKETS = 2048
"""Keys are picked from buckets, 8 an octave: a float32 without its sign and its 20 lowest bits."""

COPY_SLACK = 1.02
"""An edge between two shared nodes opens no new copy while a part that has one is below this many fair shares."""


@njit(cache=True, nogil=True)
def bucket(key: Float32) -> Int32:
    """Bucket of each key, int32, larger ones for larger keys; −1 for keys that are not positive."""
    bits = key.view(np.int32)
    out = np.empty(len(key), np.int32)
    for v in range(len(key)):
        out[v] = bits[v] >> 20 if key[v] > 0.0 else -1
    return out


@njit(cache=True, nogil=True)
def select(
    indptr: Int64, neighbours: Int32, home: Int32, need: Float32, was_shared: Bool, budget: int
) -> Int32:
    """Step 2: share the nodes that save most, a lazy greedy cover of the edges between homes.

    A node's key is its need and the number of its edges to unpicked nodes of other homes. Of keys in one bucket
    the shared nodes come first, then by order of appearance.

    Args:
        indptr: int64 (n + 1,) rows of the snapshot's nodes.
        neighbours: int32.
        home: int32 (n,).
        need: float32 (n + m,), weighed: first the snapshot's nodes, then shared nodes that it does not name.
        was_shared: bool (n + m,).
        budget: Most picks.

    Returns:
        The number of each node's pick, int32 (n + m,), 2³¹ − 1 for nodes that are not picked.
    """
    n = len(home)
    key = need.copy()
    for v in range(n):
        cut = 0
        for x in range(indptr[v], indptr[v + 1]):
            cut += home[neighbours[x]] != home[v]
        key[v] = need[v] + np.float32(cut)
    bits = key.view(np.int32)
    of = bucket(key)
    head = np.full(BUCKETS, -1, np.int32)
    following = np.empty(len(key), np.int32)
    for shared_first in (False, True):
        for v in range(len(key) - 1, -1, -1):
            if was_shared[v] == shared_first and of[v] >= 0:
                following[v] = head[of[v]]
                head[of[v]] = v
    pick = np.full(len(key), 2**31 - 1, np.int32)
    picks = 0
    for b in range(BUCKETS - 1, -1, -1):
        while head[b] >= 0 and picks < budget:
            v = head[b]
            head[b] = following[v]
            if not key[v] > 0.0:
                continue
            now = bits[v] >> 20
            if now < b:
                following[v] = head[now]
                head[now] = v
                continue
            pick[v] = picks
            picks += 1
            if v >= n:
                continue
            for x in range(indptr[v], indptr[v + 1]):
                u = neighbours[x]
                if home[u] != home[v]:
                    key[u] -= np.float32(1.0)
    return pick


@njit(cache=True, nogil=True)
def assign(
    op: Int8,
    first: Int32,
    second: Int32,
    home: Int32,
    shared: Bool,
    masks: Words,
    sizes: Int64,
    seed: int,
    drawn: int,
) -> Int32:
    """Step 3: a part for every insert.

    One end shared: the other's home. None: the home of both, or discarded. Both: the least loaded of the parts
    that both are in, else of those that one is in, both below ``COPY_SLACK`` fair shares; else the least loaded.

    Args:
        op: int8 (E,), rows other than inserts get −1.
        first: int32 (I,) local ends of the inserts.
        second: int32 (I,).
        home: int32 (n,).
        shared: bool (n,).
        masks: uint64 (n, words) the parts that each node is in; written to.
        sizes: int64 (P,) edges assigned; written to.
        seed: Of the draws that break ties.
        drawn: Events before this batch.

    Returns:
        int32 (E,), −1 for a discarded insert.
    """
    parts = len(sizes)
    most = int(COPY_SLACK * (sizes.sum() + len(first)) / parts)
    start = splitmix64(np.uint64(seed))
    event_part = np.full(len(op), -1, np.int32)
    k = 0
    for e in range(len(op)):
        if op[e] <= 0:
            continue
        u, v = first[k], second[k]
        k += 1
        if shared[u] and shared[v]:
            of = drawn + e
            bits = splitmix64(start ^ np.uint64(of >> 3))
            draw = np.int64((bits >> np.uint64(8 * (of & 7))) & np.uint64(63))
            part = _both_shared(masks[u], masks[v], sizes, most, draw)
            masks[u, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
            masks[v, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
        elif shared[u]:
            part = home[v]
            masks[u, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
        elif shared[v]:
            part = home[u]
            masks[v, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
        elif home[u] == home[v]:
            part = home[u]
        else:
            continue
        event_part[e] = part
        sizes[part] += 1
    return event_part


@njit(cache=True, nogil=True)
def _both_shared(a: Words, b: Words, sizes: Int64, most: int, draw: int) -> int:
    """Least loaded part of the best class: in both and up to ``most``, in one and up to it, any.

    A minimum over ``class, load, part XOR draw`` in one number each, so that the loop has no branch.
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
    home: Int32,
    pick: Int32,
    need: Float32,
    at_home: Float32,
    other: Int16,
    at_other: Float32,
) -> None:
    """Step 4: what the snapshot says of the next one.

    An edge between homes is needed by the end that was picked first, by both where none was. Neighbours that are
    not shared count for the home, or vote for the candidate part (Boyer and Moore 1981).

    Args:
        indptr: int64 (n + 1,).
        neighbours: int32.
        home: int32 (n,).
        pick: int32, at least (n,), from ``select``.
        need: float32 (n,), written to.
        at_home: float32 (n,), written to.
        other: int16 (n,), written to.
        at_other: float32 (n,), written to.
    """
    unpicked = 2**31 - 1
    one = np.float32(1.0)
    for v in range(len(home)):
        needed, inside, part, votes = need[v], at_home[v], other[v], at_other[v]
        for x in range(indptr[v], indptr[v + 1]):
            u = neighbours[x]
            if home[u] != home[v] and pick[v] <= pick[u]:
                needed += one
            if pick[u] != unpicked:
                continue
            if home[u] == home[v]:
                inside += one
            elif home[u] == part:
                votes += one
            else:
                votes -= one
                if votes < 0.0:
                    part, votes = np.int16(home[u]), -votes
        need[v], at_home[v], other[v], at_other[v] = needed, inside, part, votes
