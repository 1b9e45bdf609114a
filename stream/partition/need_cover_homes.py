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
from stream.snapshots.prefetch import AHEAD, prefetch

Bool = NDArray[np.bool_]
Int16 = NDArray[np.int16]
Slots = NDArray[np.uint16]

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
        local: int32 (N,), all −1; left with the number of each node of the snapshot.

    Returns:
        Dense ids of the n nodes in order of first appearance, int64 (n,); local ends of the inserts, int32
        (I,) each; and, without self-loops, rows int64 (n + 1,) and neighbours int32, in order of the events,
        one entry an insert and end; self-loops of each node, int32 (n,).
    """
    inserts = 0
    for e in range(len(op)):
        inserts += op[e] > 0
    ids = np.empty(2 * inserts, np.int64)
    degree = np.empty(2 * inserts, np.int32)
    first, second = np.empty(inserts, np.int32), np.empty(inserts, np.int32)
    n = k = 0
    last = len(op) - 1
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(local, src[ahead])
        prefetch(local, dst[ahead])
        if op[e] <= 0:
            continue
        u = local[src[e]]
        if u < 0:
            u = local[src[e]] = n
            ids[n], degree[n] = src[e], 0
            n += 1
        v = local[dst[e]]
        if v < 0:
            v = local[dst[e]] = n
            ids[n], degree[n] = dst[e], 0
            n += 1
        entry = np.int32(u != v)
        degree[u] += entry
        degree[v] += entry
        first[k], second[k] = u, v
        k += 1
    indptr = np.empty(n + 1, np.int64)
    at = np.empty(n, np.int64)
    indptr[0] = 0
    for v in range(n):
        at[v] = indptr[v]
        indptr[v + 1] = indptr[v] + degree[v]
    neighbours = np.empty(indptr[n], np.int32)
    loops = np.zeros(n, np.int32)
    for k in range(inserts):
        u, v = first[k], second[k]
        if u != v:
            neighbours[at[u]] = v
            at[u] += 1
            neighbours[at[v]] = u
            at[v] += 1
        else:
            loops[u] += 1
    return ids[:n].copy(), first, second, indptr, neighbours, loops


@njit(cache=True, nogil=True)
def slots(home: Int16, shared: Bool, parts: int) -> Slots:
    """Where an edge to each node goes: to its home, anywhere (P) if it is shared, nowhere yet (P + 1) without a home."""
    out = np.empty(len(home), np.uint16)
    for v in range(len(home)):
        at_home = parts + 1 if home[v] < 0 else int(home[v])
        out[v] = parts if shared[v] else at_home
    return out


@njit(cache=True, nogil=True)
def _loads(first: Int32, second: Int32, slot: Slots, sizes: Int64) -> Int64:
    """Edges a part: those assigned before, and those of this snapshot whose part the homes so far give."""
    parts = len(sizes)
    added = np.zeros((4, parts + 2), np.int64)  # in turns: a counter cannot be read again at once
    for k in range(len(first)):
        a, b = np.int64(slot[np.uint64(first[k])]), np.int64(slot[np.uint64(second[k])])
        # An edge goes to the home of the end that is not shared, where both have one home or the other is shared.
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

    A part's score is the weight of the node's neighbours that live there and nowhere else, now and (in its old
    home and in the candidate) before, times ``1 − V/2cap``. A node stays where scores are equal, and where none
    is positive; otherwise the part with fewer edges is taken. Where no scored part has room, a new node or one
    whose home is overfull goes to the part with fewest edges that has room, else to that with fewest.

    Args:
        first: int32 (I,) ends of the inserts.
        second: int32 (I,).
        indptr: int64 (n + 1,).
        neighbours: int32.
        loops: int32 (n,).
        ids: int64 (n,), of the draws that break ties.
        before: int16 (n,) homes before the snapshot, −1 for new nodes.
        home: int16 (n,) homes so far; written to.
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
    slot = slots(home, shared, parts)
    load = _loads(first, second, slot, sizes)
    cap = NODE_SLACK * nodes / parts + 2.0
    count = np.zeros(parts + 2, np.int64)
    listed = np.empty(parts + 3, np.int64)
    if expected == 0:
        expected = load.sum()
    taken_edges = EDGE_SLACK * expected / parts + 4.0
    kept_edges = HARD_EDGE_SLACK * expected / parts + 4.0
    for v in range(len(home)):
        some = 0
        for x in range(indptr[v], indptr[v + 1]):
            s = np.int64(slot[np.uint64(neighbours[x])])
            listed[some] = s
            some += (count[s] == 0) & (s < parts)
            count[s] += 1
        old = before[v]
        candidate = np.int64(other[v]) if old >= 0 else np.int64(-1)
        if old >= 0 and count[old] == 0:
            listed[some] = old
            some += 1
        if candidate >= 0 and count[candidate] == 0 and candidate != old:
            listed[some] = candidate
            some += 1
        now = home[v]
        free = count[everywhere] + loops[v]
        if now >= 0:
            homes[now] -= 1
            if not shared[v]:
                load[now] -= count[now] + free
        best, best_score, best_load = -1, 0.0, np.int64(0)
        for i in range(some):  # selects instead of branches, which nothing could predict
            p = listed[i]
            stays = p == now
            most = kept_edges if stays else taken_edges
            has_room = (load[p] <= most) & (stays | (homes[p] <= cap))
            past = at_home[v] if p == old else (at_other[v] if p == candidate else np.float32(0.0))
            score = (float(count[p]) + past) * (1.0 - homes[p] / (2.0 * cap))
            tied = (score == best_score) & (best >= 0) & (best != now) & (stays | (load[p] < best_load))
            better = has_room & ((score > best_score) | tied)
            best = p if better else best
            best_score = score if better else best_score
            best_load = load[p] if better else best_load
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
    before: Int16, home: Int16, at_home: Float32, other: Int16, at_other: Float32
) -> None:
    """Make the former home of each node that moved its candidate, and what is known of its new home the weight there."""
    for v in range(len(home)):
        if before[v] >= 0 and before[v] != home[v]:
            weight = at_home[v]
            at_home[v] = at_other[v] if other[v] == home[v] else np.float32(0.0)
            other[v], at_other[v] = before[v], weight
