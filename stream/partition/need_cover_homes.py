"""The sealed-snapshot need cover's first step: the snapshot's local graph, and a home for each of its nodes.

A snapshot's nodes get local numbers in order of first appearance, so that every loop works on arrays of the
snapshot's size; the state of all nodes is read once and written once. Weights are in units of one edge of
this snapshot.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.mixing import mixed_part
from stream.snapshots.delta import Float32, Int8, Int32, Int64

Bool = NDArray[np.bool_]
Words = NDArray[np.uint64]
Int16 = NDArray[np.int16]

EDGE_SLACK, HARD_EDGE_SLACK = 1.04, 1.08
"""A part takes nodes up to this many times its fair share of edges, and keeps them up to the second."""

NODE_SLACK = 1.3
"""A part takes nodes up to this many times its fair share of nodes."""


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
