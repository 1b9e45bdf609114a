"""SEP's loops: centrality (SPEED eq. 1) and edge assignment (Alg. 1). Arrays in, arrays out."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.mixing import mixed_part
from stream.snapshots.delta import Float64, Int8, Int32, Int64

Bool = NDArray[np.bool_]

EPSILON = 1.0
"""ε of eq. 6, in edges."""


@njit(cache=True, nogil=True)
def add_centrality(centrality: Float64, op: Int8, src: Int64, dst: Int64, weight: Float64) -> None:
    """Add each insert's weight to its ends, once to the end of a self-loop (SPEED eq. 1).

    Args:
        centrality: float64 (N,), written to.
        op: int8 (E,).
        src: int64 (E,).
        dst: int64 (E,).
        weight: float64 (E,).
    """
    for e in range(len(op)):
        if op[e] > 0:
            centrality[src[e]] += weight[e]
            if dst[e] != src[e]:
                centrality[dst[e]] += weight[e]


@njit(cache=True, nogil=True)
def assign_edges(
    op: Int8,
    src: Int64,
    dst: Int64,
    centrality: Float64,
    hub: Bool,
    member: Bool,
    copies: Int32,
    home: Int32,
    sizes: Int64,
    placements: Int64,
    shared: int,
    weight: float,
    seed: int,
    drawn: int,
) -> tuple[Int32, int]:
    """Second pass of SEP over one batch (SPEED Alg. 1, lines 2 to 16).

    A node's first part is its home. Only hubs get further parts, and no node loses one, so both ends of an
    assigned edge are in its part when the batch is done.

    Args:
        op: int8 (E,), rows other than inserts get −1.
        src: int64 (E,).
        dst: int64 (E,).
        centrality: float64 (N,).
        hub: bool (N,).
        member: bool (N, P): A(i), the parts of node i; written to.
        copies: int32 (N,) parts a node is in; written to.
        home: int32 (N,), −1 for nodes without a part; written to.
        sizes: int64 (P,) edges assigned so far; written to.
        placements: int64 (P,) nodes in each part; written to.
        shared: Nodes in more than one part.
        weight: λ of eq. 6.
        seed: Of the draws that break ties.
        drawn: Events before this batch: the draw of an event depends on its number only.

    Returns:
        Part of each event, int32 (E,), −1 for a discarded one; and the nodes in more than one part.
    """
    parts = len(sizes)
    event_part = np.full(len(op), -1, np.int32)
    for e in range(len(op)):
        if op[e] <= 0:
            continue
        i, j = src[e], dst[e]
        first = mixed_part(seed, drawn + e, parts)
        if copies[i] == 0 or copies[j] == 0 or (hub[i] and hub[j]):
            part = _best_score(i, j, centrality, member, copies, sizes, weight, first)
        else:
            part = _least_loaded(i, j, member, sizes, first)
            if part < 0 and hub[i] != hub[j]:
                only = j if hub[i] else i
                part = _least_loaded(only, only, member, sizes, first)
        event_part[e] = part
        if part < 0:
            continue
        sizes[part] += 1
        for v in (i, j):
            if not member[v, part]:
                member[v, part] = True
                placements[part] += 1
                copies[v] += 1
                if copies[v] == 1:
                    home[v] = part
                elif copies[v] == 2:
                    shared += 1
    return event_part, shared


@njit(cache=True, nogil=True, inline="always")
def _best_score(
    i: int,
    j: int,
    centrality: Float64,
    member: Bool,
    copies: Int32,
    sizes: Int64,
    weight: float,
    first: int,
) -> int:
    """Part of the largest score (SPEED eqs. 2 to 6); of equal ones the next from ``first`` on."""
    parts = len(sizes)
    both = centrality[i] + centrality[j]
    theta = centrality[i] / both if both > 0.0 else 0.5
    largest = smallest = sizes[0]
    for p in range(1, parts):
        largest = max(largest, sizes[p])
        smallest = min(smallest, sizes[p])
    scale = weight / (EPSILON + largest - smallest)
    best, best_score = -1, -1.0
    p = first
    for _ in range(parts):
        score = scale * (largest - sizes[p])
        if member[i, p]:
            score += 2.0 - theta
        if member[j, p]:
            score += 1.0 + theta
        if score > best_score:
            best, best_score = p, score
        p += 1
        if p == parts:
            p = 0
    return best


@njit(cache=True, nogil=True, inline="always")
def _least_loaded(i: int, j: int, member: Bool, sizes: Int64, first: int) -> int:
    """Smallest part of A(i) ∩ A(j), −1 where that is empty; of equal ones the next from ``first`` on."""
    parts = len(sizes)
    best = -1
    p = first
    for _ in range(parts):
        if member[i, p] and member[j, p] and (best < 0 or sizes[p] < sizes[best]):
            best = p
        p += 1
        if p == parts:
            p = 0
    return best
