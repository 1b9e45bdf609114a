"""The sealed-snapshot need cover's loops: local graph, placing, selecting, assigning, learning.

A snapshot's nodes get local numbers in order of first appearance, so that every loop works on arrays of the
snapshot's size; the state of all nodes is read once and written once. Weights are in units of one edge of
this snapshot.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.mixing import mixed_part, splitmix64
from stream.snapshots.delta import Float32, Int8, Int32, Int64

Bool = NDArray[np.bool_]
Words = NDArray[np.uint64]
Int16 = NDArray[np.int16]

BUCKETS = 2048
"""Keys are picked from buckets, 8 an octave: a float32 without its sign and its 20 lowest bits."""

EDGE_SLACK, HARD_EDGE_SLACK = 1.04, 1.08
"""A part takes nodes up to this many times its fair share of edges, and keeps them up to the second."""

NODE_SLACK = 1.3
"""A part takes nodes up to this many times its fair share of nodes."""

COPY_SLACK = 1.02
"""An edge between two shared nodes opens no new copy while a part that has one is below this many fair shares."""


@njit(cache=True, nogil=True)
def local_graph(
    op: Int8, src: Int64, dst: Int64, local: Int32
) -> tuple[Int64, Int32, Int32, Int64, Int32, Int32]:
    """Number a snapshot's nodes and list their neighbours.

    Args:
        op: int8 (E,); only inserts count.
        src: int64 (E,).
        dst: int64 (E,).
        local: int32 (N,), all −1; left so.

    Returns:
        Dense ids of the n nodes in order of first appearance, int64 (n,); local ends of the inserts, int32
        (I,) each; and, without self-loops, rows int64 (n + 1,) and neighbours int32, in order of the events,
        one entry an insert and end; self-loops of each node, int32 (n,).
    """
    inserts = 0
    for e in range(len(op)):
        inserts += op[e] > 0
    ids = np.empty(2 * inserts, np.int64)
    degree = np.zeros(2 * inserts, np.int32)
    loops = np.zeros(2 * inserts, np.int32)
    first, second = np.empty(inserts, np.int32), np.empty(inserts, np.int32)
    n = k = 0
    for e in range(len(op)):
        if op[e] <= 0:
            continue
        u = local[src[e]]
        if u < 0:
            u = local[src[e]] = n
            ids[n] = src[e]
            n += 1
        v = local[dst[e]]
        if v < 0:
            v = local[dst[e]] = n
            ids[n] = dst[e]
            n += 1
        if u == v:
            loops[u] += 1
        else:
            degree[u] += 1
            degree[v] += 1
        first[k], second[k] = u, v
        k += 1
    indptr = np.empty(n + 1, np.int64)
    at = np.empty(n, np.int64)
    indptr[0] = 0
    for v in range(n):
        local[ids[v]] = -1
        at[v] = indptr[v]
        indptr[v + 1] = indptr[v] + degree[v]
    neighbours = np.empty(indptr[n], np.int32)
    for k in range(inserts):
        u, v = first[k], second[k]
        if u != v:
            neighbours[at[u]] = v
            at[u] += 1
            neighbours[at[v]] = u
            at[v] += 1
    return ids[:n].copy(), first, second, indptr, neighbours, loops[:n].copy()


@njit(cache=True, nogil=True)
def place(
    indptr: Int64,
    neighbours: Int32,
    loops: Int32,
    ids: Int64,
    before: Int32,
    home: Int32,
    shared: Bool,
    at_home: Float32,
    other: Int16,
    at_other: Float32,
    sizes: Int64,
    homes: Int64,
    expected: int,
    nodes: int,
    seed: int,
) -> None:
    """Step 1: give every node of the snapshot a home, in order of first appearance.

    A part's score is the weight of the node's neighbours that live there and nowhere else, now and (in its old
    home and in the candidate) before, times ``1 − V/2cap``. A node stays where scores are equal, and where none
    is positive; otherwise the part with fewer edges is taken. Where no scored part has room, a new node or one
    whose home is overfull goes to the part with fewest edges that has room, else to that with fewest.

    Args:
        indptr: int64 (n + 1,).
        neighbours: int32.
        loops: int32 (n,).
        ids: int64 (n,), of the draws that break ties.
        before: int32 (n,) homes before the snapshot, −1 for new nodes.
        home: int32 (n,) homes so far; written to.
        shared: bool (n,) nodes that are shared as far as is known.
        at_home: float32 (n,) weight of earlier neighbours in the home before.
        other: int16 (n,) candidate part, −1 for none.
        at_other: float32 (n,) its weight.
        sizes: int64 (P,) edges assigned before this snapshot.
        homes: int64 (P,) nodes at home in each part; written to.
        expected: Edges that will be assigned when the snapshot is done; 0: as many as the homes so far give.
        nodes: Nodes with a home, those of this snapshot included.
        seed: Of the draws.
    """
    parts = len(sizes)
    everywhere, nowhere = parts, parts + 1
    slot = np.empty(len(home), np.int32)
    for v in range(len(home)):
        slot[v] = everywhere if shared[v] else (home[v] if home[v] >= 0 else nowhere)
    load = sizes.copy()
    for v in range(len(home)):
        if slot[v] < parts:
            inside = 0
            for x in range(indptr[v], indptr[v + 1]):
                s = slot[neighbours[x]]
                load[slot[v]] += s == everywhere
                inside += s == slot[v] and neighbours[x] > v
            load[slot[v]] += inside + loops[v]
    cap = NODE_SLACK * nodes / parts + 2.0
    count = np.zeros(parts + 2, np.int64)
    listed = np.empty(parts, np.int64)
    if expected == 0:
        expected = load.sum()
    taken_edges = EDGE_SLACK * expected / parts + 4.0
    kept_edges = HARD_EDGE_SLACK * expected / parts + 4.0
    for v in range(len(home)):
        some = 0
        for x in range(indptr[v], indptr[v + 1]):
            s = slot[neighbours[x]]
            if count[s] == 0 and s < parts:
                listed[some] = s
                some += 1
            count[s] += 1
        old = before[v]
        second = np.int64(other[v]) if old >= 0 else np.int64(-1)
        if old >= 0 and count[old] == 0:
            listed[some] = old
            some += 1
        if second >= 0 and count[second] == 0 and second != old:
            listed[some] = second
            some += 1
        now = home[v]
        free = count[everywhere] + loops[v]
        if now >= 0:
            homes[now] -= 1
            if not shared[v]:
                load[now] -= count[now] + free
        best, best_score = -1, 0.0
        for i in range(some):
            p = listed[i]
            if load[p] > (kept_edges if p == now else taken_edges) or (p != now and homes[p] > cap):
                continue
            weight = float(count[p])
            if p == old:
                weight += at_home[v]
            elif p == second:
                weight += at_other[v]
            score = weight * (1.0 - homes[p] / (2.0 * cap))
            if score > best_score or (
                score == best_score and best >= 0 and best != now and (p == now or load[p] < load[best])
            ):
                best, best_score = p, score
        if best < 0:
            if now >= 0 and load[now] <= kept_edges:
                best = now
            else:
                best = _least_loaded(load, homes, taken_edges, cap, mixed_part(seed, ids[v], parts))
        home[v] = best
        homes[best] += 1
        if not shared[v]:
            slot[v] = best
            load[best] += count[best] + free
        for i in range(some):
            count[listed[i]] = 0
        count[everywhere] = count[nowhere] = 0


@njit(cache=True, nogil=True)
def _least_loaded(load: Int64, homes: Int64, most_edges: float, most_nodes: float, first: int) -> int:
    """Part with fewest edges among those with room for a node, else among all; of equal ones the next from ``first``."""
    parts = len(load)
    best, roomy = -1, False
    p = first
    for _ in range(parts):
        room = load[p] <= most_edges and homes[p] <= most_nodes
        if best < 0 or (room and not roomy) or (room == roomy and load[p] < load[best]):
            best, roomy = p, room
        p += 1
        if p == parts:
            p = 0
    return best


@njit(cache=True, nogil=True)
def forget_former_homes(
    before: Int32, home: Int32, at_home: Float32, other: Int16, at_other: Float32
) -> None:
    """Make the former home of each node that moved its candidate, and what is known of its new home the weight there."""
    for v in range(len(home)):
        if before[v] >= 0 and before[v] != home[v]:
            weight = at_home[v]
            at_home[v] = at_other[v] if other[v] == home[v] else np.float32(0.0)
            other[v], at_other[v] = before[v], weight


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


@njit(cache=True, nogil=True)
def placement_changes(
    node: Int64, home_before: Int32, home: Int32, masks_before: Words, masks: Words, placements: Int64
) -> tuple[Int64, Int32, Int8, int]:
    """Rows (node, part, why) of the net changes, by node, then part, and the nodes that moved.

    Args:
        node: int64 (c,) ascending.
        home_before: int32 (c,), −1 for none.
        home: int32 (c,).
        masks_before: uint64 (c, words).
        masks: uint64 (c, words).
        placements: int64 (P,) nodes in each part, kept current.
    """
    rows = moved = 0
    for i in range(len(node)):
        for w in range(masks.shape[1]):
            changed = masks_before[i, w] ^ masks[i, w]
            while changed:
                changed &= changed - np.uint64(1)
                rows += 1
        if home[i] != home_before[i] and home_before[i] >= 0:
            moved += 1
            if (masks_before[i, home[i] >> 6] >> np.uint64(home[i] & 63)) & np.uint64(1):
                rows += 1
    out_node, out_part = np.empty(rows, np.int64), np.empty(rows, np.int32)
    why = np.empty(rows, np.int8)
    r = 0
    for i in range(len(node)):
        new_home = home[i] if home[i] != home_before[i] else -1
        for w in range(masks.shape[1]):
            changed = masks_before[i, w] ^ masks[i, w]
            if new_home >> 6 == w:
                changed |= np.uint64(1) << np.uint64(new_home & 63)
            for p in range(64 * w, min(64 * w + 64, len(placements)) if changed else 0):
                bit = np.uint64(1) << np.uint64(p & 63)
                if changed & bit == 0:
                    continue
                was, now = masks_before[i, w] & bit != 0, masks[i, w] & bit != 0
                out_node[r], out_part[r] = node[i], p
                if p == new_home:
                    why[r] = 1 if home_before[i] < 0 else 2
                else:
                    why[r] = 3 if now else 4
                placements[p] += np.int64(now) - np.int64(was)
                r += 1
    return out_node, out_part, why, moved


@njit(cache=True, nogil=True)
def in_several(masks: Words) -> Bool:
    """Which rows have more than one bit, bool (n,).

    Args:
        masks: uint64 (n, words).
    """
    out = np.zeros(len(masks), np.bool_)
    for i in range(len(masks)):
        bits = 0
        for w in range(masks.shape[1]):
            word = masks[i, w]
            if word:
                bits += 1 if word & (word - np.uint64(1)) == 0 else 2
        out[i] = bits > 1
    return out
