"""The need cover's first step: the snapshot's local graph, and a home for each of its nodes.

A snapshot's nodes get local numbers in order of first appearance, so that every loop works on arrays of the snapshot's size;
the state of all nodes is read once and written once. Weights are in units of one edge of this snapshot.
"""

import numpy as np

from stream.arrays.kinds import Bool, Float32, Int8, Int16, Int32, Int64, UInt16
from stream.kernels import njit
from stream.kernels.mixing import mixed_part
from stream.partition.edge.load_planes import choose
from stream.snapshots.prefetch import AHEAD, prefetch

EDGE_SLACK, HARD_EDGE_SLACK = 1.04, 1.08
"""A part takes nodes up to the first multiple of its fair share of edges, and keeps them up to the second."""

NODE_SLACK = 1.3
"""A part takes nodes up to this multiple of its fair share of nodes."""


@njit(cache=True, nogil=True)
def local_graph(
    op: Int8, src: Int64, dst: Int64, local: Int32
) -> tuple[Int64, Int32, Int32, Int64, Int32, Int32]:
    """Number a snapshot's nodes and list their neighbours.

    Args:
        op: int8 (E,); only inserts count.
        src: int64 (E,).
        dst: int64 (E,).
        local: int32 (N,), all −1; receives the number of each node of the snapshot.

    Returns:
        Dense ids of the n nodes in order of first appearance, int64 (n,); local ends of the inserts, int32
        (I,) each; and, without self-loops, rows int64 (n + 1,) and neighbours int32, in order of the events,
        one entry an insert and end; self-loops of each node, int32 (n,).
    """
    inserts = 0
    for e in range(len(op)):
        inserts += op[e] > 0
    ids = np.empty(2 * inserts + 1, np.int64)
    degree = np.zeros(2 * inserts + 1, np.int32)
    first, second = np.empty(inserts, np.int32), np.empty(inserts, np.int32)
    k, n = 0, np.int64(0)
    last = len(op) - 1
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(local, src[ahead])
        prefetch(local, dst[ahead])
        if op[e] <= 0:
            continue
        # Every end is noted as the next new node, and counted if it is one, because branches would be unpredictable.
        i, j = np.uint64(src[e]), np.uint64(dst[e])
        u = np.int64(local[i])
        is_new = u < 0
        u = choose(is_new, n, u)
        ids[n], local[i] = i, u
        n += np.int64(is_new)
        v = np.int64(local[j])
        is_new = v < 0
        v = choose(is_new, n, v)
        ids[n], local[j] = j, v
        n += np.int64(is_new)
        entry = np.int32(u != v)
        degree[np.uint64(u)] += entry
        degree[np.uint64(v)] += entry
        first[k], second[k] = u, v
        k += 1
    indptr = np.empty(n + 1, np.int64)
    at = np.empty(n, np.uint32)
    indptr[0] = 0
    for row in range(n):
        at[row] = indptr[row]
        indptr[row + 1] = indptr[row] + degree[row]
    neighbours = np.empty(indptr[n], np.int32)
    loops = np.zeros(n, np.int32)
    for k in range(inserts):
        one, other = np.uint64(first[k]), np.uint64(second[k])
        if one != other:
            neighbours[at[one]] = other
            at[one] += np.uint32(1)
            neighbours[at[other]] = one
            at[other] += np.uint32(1)
        else:
            loops[one] += 1
    return ids[:n].copy(), first, second, indptr, neighbours, loops


@njit(cache=True, nogil=True)
def slots(home: Int16, shared: Bool, parts: int) -> UInt16:
    """Destination of an edge to each node: its home, any part (P) if it is shared, none yet (P + 1) without a home."""
    out = np.empty(len(home), np.uint16)
    for v in range(len(home)):
        at_home = parts + 1 if home[v] < 0 else int(home[v])
        out[v] = parts if shared[v] else at_home
    return out


@njit(cache=True, nogil=True)
def _loads(first: Int32, second: Int32, slot: UInt16, sizes: Int64) -> Int64:
    """Edges per part: those assigned before, and those of this snapshot whose part follows from the homes so far."""
    parts = len(sizes)
    added = np.zeros((4, parts + 2), np.int64)  # used in turn, because a counter can't be read again at once
    for k in range(len(first)):
        a, b = np.int64(slot[np.uint64(first[k])]), np.int64(slot[np.uint64(second[k])])
        # An edge goes to the home of the end that is not shared, if both have one home or the other end is shared.
        known = (a == b) | (max(a, b) == parts)
        added[k & 3, min(a, b) if known else parts + 1] += 1
    return sizes + added.sum(axis=0)[:parts]


@njit(cache=True, nogil=True)
def place(
    first: Int32,
    second: Int32,
    indptr: Int64,
    neighbours: Int32,
    loops: Int32,
    ids: Int64,
    before: Int16,
    home: Int16,
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

    A part's score is the weight of the node's neighbours that live only there, now and (in its old home and in the candidate)
    before, times ``1 − V/2cap``. A node stays if scores are equal or none is positive; among other parts, the one with fewer
    edges wins. If no scored part has room, a new node, or one whose home is overfull, goes to the part with the fewest edges
    that has room, or else to the part with the fewest.

    Args:
        first: int32 (I,) ends of the inserts.
        second: int32 (I,).
        indptr: int64 (n + 1,).
        neighbours: int32.
        loops: int32 (n,).
        ids: int64 (n,), for the draws that break ties.
        before: int16 (n,) homes before the snapshot, −1 for new nodes.
        home: int16 (n,) homes so far; written to.
        shared: bool (n,) nodes known to be shared.
        at_home: float32 (n,) weight of earlier neighbours in the home before.
        other: int16 (n,) candidate part, −1 for none.
        at_other: float32 (n,) its weight.
        sizes: int64 (P,) edges assigned before this snapshot.
        homes: int64 (P,) nodes at home in each part; written to.
        expected: Edges assigned when the snapshot is done; 0: as many as follow from the homes so far.
        nodes: Nodes with a home, including those of this snapshot.
        seed: Seed of the draws.
    """
    parts = len(sizes)
    slot = slots(home, shared, parts)
    load = _loads(first, second, slot, sizes)
    cap = NODE_SLACK * nodes / parts + 2.0
    if expected == 0:
        expected = load.sum()
    fair = expected / parts
    room = int(EDGE_SLACK * fair + 4.0), int(HARD_EDGE_SLACK * fair + 4.0), int(cap)
    count = np.zeros(parts, np.int64)
    elsewhere = np.empty(_longest(indptr), np.int64)
    for v in range(len(home)):
        old, now = np.int64(before[v]), np.int64(home[v])
        candidate = np.int64(other[v]) if old >= 0 and other[v] != old else np.int64(-1)
        in_old = in_candidate = in_now = anywhere = np.int64(0)
        some = np.uint64(0)
        for x in range(np.uint64(indptr[v]), np.uint64(indptr[v + 1])):
            s = np.int64(slot[np.uint64(neighbours[x])])
            elsewhere[some] = s
            some += np.uint64((s != old) & (s != candidate) & (s < parts))
            in_old += s == old
            in_candidate += s == candidate
            in_now += s == now
            anywhere += s == parts
        free = anywhere + loops[v]
        own = np.int64(0) if shared[v] else in_now + free  # edges that leave the part with the node
        best, score, edges = np.int64(-1), 0.0, np.int64(0)
        if old >= 0:
            weight = float(in_old) + at_home[v]
            best, score, edges = _better(best, score, edges, old, now, weight, own, load, homes, room, cap)
            if candidate >= 0:
                weight = float(in_candidate) + at_other[v]
                best, score, edges = _better(
                    best, score, edges, candidate, now, weight, own, load, homes, room, cap
                )
        if some > np.uint64(0):
            for i in range(some):
                count[np.uint64(elsewhere[i])] += 1
            for i in range(some):
                p = elsewhere[i]
                weight = float(count[np.uint64(p)])
                count[np.uint64(p)] = 0  # so its weight is 0 if it recurs
                best, score, edges = _better(best, score, edges, p, now, weight, own, load, homes, room, cap)
        if now >= 0:
            # Most nodes stay and write nothing: a write would make the next nodes wait for it.
            if best == now or (best < 0 and load[now] - own <= room[1]):
                continue
            homes[now] -= 1
            load[now] -= own
        if best < 0:
            best = np.int64(_least_loaded(load, homes, room[0], cap, mixed_part(seed, ids[v], parts)))
        home[v] = best
        homes[best] += 1
        if not shared[v]:
            slot[v] = best
            for x in range(np.uint64(indptr[v]), np.uint64(indptr[v + 1])):
                free += slot[np.uint64(neighbours[x])] == best
            load[best] += free


@njit(cache=True, nogil=True)
def _longest(indptr: Int64) -> int:
    """Length of the longest row, plus one."""
    most = 0
    for v in range(len(indptr) - 1):
        most = max(most, indptr[v + 1] - indptr[v])
    return most + 1


@njit(cache=True, nogil=True)
def _better(
    best: int,
    best_score: float,
    best_load: int,
    part: int,
    now: int,
    weight: float,
    own: int,
    load: Int64,
    homes: Int64,
    room: tuple[int, int, int],
    cap: float,
) -> tuple[int, float, int]:
    """The better of the best part so far and another, its score and its edges; without unpredictable branches.

    Edges and nodes exclude the node being placed, whose home is still ``now``.
    """
    stays = part == now
    edges = load[np.uint64(part)] - (own if stays else 0)
    nodes = homes[np.uint64(part)] - np.int64(stays)
    fits = (edges <= (room[1] if stays else room[0])) & (stays | (nodes <= room[2]))
    score = weight * (1.0 - nodes / (2.0 * cap))
    tied = (score == best_score) & (best >= 0) & (best != now) & (stays | (edges < best_load))
    better = fits & ((score > best_score) | tied)
    return choose(better, part, best), score if better else best_score, choose(better, edges, best_load)


@njit(cache=True, nogil=True)
def _least_loaded(load: Int64, homes: Int64, most_edges: float, most_nodes: float, first: int) -> int:
    """The part with the fewest edges among those with room for a node, or among all; ties go to the next from ``first``."""
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
    before: Int16, home: Int16, at_home: Float32, other: Int16, at_other: Float32
) -> None:
    """Make the former home of each moved node its candidate, and set its weights at the new and the former home."""
    for v in range(len(home)):
        if before[v] >= 0 and before[v] != home[v]:
            weight = at_home[v]
            at_home[v] = at_other[v] if other[v] == home[v] else np.float32(0.0)
            other[v], at_other[v] = before[v], weight
