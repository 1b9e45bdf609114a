"""SEP's loops: centrality (SPEED eq. 1) and edge assignment (Alg. 1). Arrays in, arrays out.

Up to 63 parts a node's record is 16 bytes, so that an edge touches two cache lines: its parts and whether it is a hub,
and its centrality. As in ``copying_kernels``, the least loaded part of a class is a minimum over keys. Of equal loads
the smallest ``part XOR draw`` is taken.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.copying_kernels import EPSILON
from stream.partition.mixing import splitmix64
from stream.partition.prefetch import AHEAD, prefetch
from stream.snapshots.delta import Float64, Int8, Int32, Int64

Bool = NDArray[np.bool_]

Words = NDArray[np.uint64]

RECORD_PARTS = 63
"""Parts that fit into a record, beside the hub's bit."""

_HUB = np.uint64(1 << 63)


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
def pack_records(masks: Words, hub: Bool, centrality: Float64) -> Words:
    """Records uint64 (N, 2): parts and the hub's bit; the bits of the centrality."""
    records = np.empty((len(hub), 2), np.uint64)
    bits = centrality.view(np.uint64)
    for v in range(len(hub)):
        records[v, 0] = masks[v, 0] | (_HUB if hub[v] else np.uint64(0))
        records[v, 1] = bits[v]
    return records


@njit(cache=True, nogil=True)
def unpack_masks(records: Words, masks: Words) -> None:
    """Write the records' parts to ``masks``, uint64 (N, 1)."""
    for v in range(len(records)):
        masks[v, 0] = records[v, 0] & ~_HUB


@njit(cache=True, nogil=True, inline="always")
def _least(keys: Int64, mask: np.uint64, draw: int, bit_of: Words) -> int:
    """Smallest ``key XOR draw`` of the parts in ``mask``; no branch in the loop."""
    none = 2**63 - 1
    least = none
    for p in range(len(keys)):
        least = min(least, (keys[p] ^ draw) if (mask & bit_of[p]) != 0 else none)
    return least


@njit(cache=True, nogil=True)
def assign_records(
    op: Int8,
    src: Int64,
    dst: Int64,
    records: Words,
    home: Int32,
    sizes: Int64,
    weight: float,
    seed: int,
    drawn: int,
) -> Int32:
    """Second pass of SEP over one batch (SPEED Alg. 1, lines 2 to 16), at most ``RECORD_PARTS`` parts and λ ≤ 1.

    A node's first part is its home. Only hubs get further parts, and no node loses one, so both ends of an
    assigned edge are in its part when the batch is done.

    Args:
        op: int8 (E,), rows other than inserts get −1.
        src: int64 (E,).
        dst: int64 (E,).
        records: uint64 (N, 2) of ``pack_records``; written to.
        home: int32 (N,), −1 for nodes without a part; written to.
        sizes: int64 (P,) edges assigned so far; written to.
        weight: λ of eq. 6.
        seed: Of the draws that break ties.
        drawn: Events before this batch: the draw of an event depends on its number only.

    Returns:
        Part of each event, int32 (E,), −1 for a discarded one.
    """
    parts = len(sizes)
    flat = records.reshape(-1)
    centrality = flat.view(np.float64)
    event_part = np.full(len(op), -1, np.int32)
    keys, bit_of = np.empty(parts, np.int64), np.empty(parts, np.uint64)
    for p in range(parts):
        keys[p] = sizes[p] << 6 | p
        bit_of[p] = np.uint64(1) << np.uint64(p)
    everywhere = _HUB - np.uint64(1)
    largest, smallest = sizes.max(), sizes.min()
    at_smallest = (sizes == smallest).sum()
    start = splitmix64(np.uint64(seed))
    last = len(op) - 1
    bits, bits_of = np.uint64(0), -1
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(flat, 2 * src[ahead])
        prefetch(flat, 2 * dst[ahead])
        if op[e] <= 0:
            continue
        i, j = 2 * src[e], 2 * dst[e]
        of = (drawn + e) >> 3
        if of != bits_of:
            bits, bits_of = splitmix64(start ^ np.uint64(of)), of
        draw = np.int64((bits >> np.uint64(8 * ((drawn + e) & 7))) & np.uint64(63))
        a, b = flat[i], flat[j]
        in_a, in_b = a & ~_HUB, b & ~_HUB
        both = in_a & in_b
        if both != 0:
            least = _least(keys, both, draw, bit_of)
        elif in_a == 0 or in_b == 0:
            one = in_a | in_b
            least = _least(keys, one if one != 0 else everywhere, draw, bit_of)
        elif (a & b) >= _HUB:
            total = centrality[i + 1] + centrality[j + 1]
            theta = centrality[i + 1] / total if total > 0.0 else 0.5
            scale = weight / (EPSILON + largest - smallest)
            first, second = _least(keys, in_a, draw, bit_of), _least(keys, in_b, draw, bit_of)
            score = 2.0 - theta + scale * (largest - (first >> 6))
            other = 1.0 + theta + scale * (largest - (second >> 6))
            least = first if score >= other else second
        elif (a | b) >= _HUB:
            least = _least(keys, in_b if a >= _HUB else in_a, draw, bit_of)
        else:
            continue
        part = (least ^ draw) & 63
        keys[part] += 64
        load = keys[part] >> 6
        largest = max(largest, load)
        if load == smallest + 1:
            at_smallest -= 1
            if at_smallest == 0:
                smallest += 1
                for p in range(parts):
                    at_smallest += (keys[p] >> 6) == smallest
        if in_a == 0:
            home[src[e]] = part
        if in_b == 0:
            home[dst[e]] = part
        flat[i] = a | bit_of[part]
        flat[j] = b | bit_of[part]
        event_part[e] = part
    for p in range(parts):
        sizes[p] = keys[p] >> 6
    return event_part


@njit(cache=True, nogil=True)
def assign_masks(
    op: Int8,
    src: Int64,
    dst: Int64,
    masks: Words,
    hub: Bool,
    centrality: Float64,
    home: Int32,
    sizes: Int64,
    weight: float,
    seed: int,
    drawn: int,
) -> Int32:
    """``assign_records`` for any number of parts and any λ, with masks of uint64 (N, words)."""
    parts = len(sizes)
    event_part = np.full(len(op), -1, np.int32)
    start = splitmix64(np.uint64(seed))
    best = np.empty(4, np.int64)
    for e in range(len(op)):
        if op[e] <= 0:
            continue
        i, j = src[e], dst[e]
        of = drawn + e
        bits = splitmix64(start ^ np.uint64(of >> 3))
        draw = np.int64((bits >> np.uint64(8 * (of & 7))) & np.uint64(63))
        best[:] = -1  # least loaded part of both, of the first end only, of the second only, of neither
        largest = smallest = sizes[0]
        for p in range(parts):
            word, bit = p >> 6, np.uint64(p & 63)
            in_a = (masks[i, word] >> bit) & np.uint64(1)
            in_b = (masks[j, word] >> bit) & np.uint64(1)
            place = 3 - 2 * np.int64(in_a) - np.int64(in_b)
            known = best[place]
            if known < 0 or sizes[p] < sizes[known] or (sizes[p] == sizes[known] and p ^ draw < known ^ draw):
                best[place] = p
            largest, smallest = max(largest, sizes[p]), min(smallest, sizes[p])
        if home[i] < 0 or home[j] < 0 or (hub[i] and hub[j]):
            total = centrality[i] + centrality[j]
            theta = centrality[i] / total if total > 0.0 else 0.5
            scale = weight / (EPSILON + largest - smallest)
            part, best_score = -1, -1.0
            for which in range(4):
                worth = 3.0 if which == 0 else (2.0 - theta if which == 1 else 1.0 + theta)
                if best[which] >= 0:
                    score = (0.0 if which == 3 else worth) + scale * (largest - sizes[best[which]])
                    if score > best_score:
                        part, best_score = int(best[which]), score
        elif best[0] >= 0:
            part = int(best[0])
        elif hub[i] != hub[j]:
            part = int(best[2] if hub[i] else best[1])
        else:
            continue
        sizes[part] += 1
        event_part[e] = part
        for v in (i, j):
            if home[v] < 0:
                home[v] = part
            masks[v, part >> 6] |= np.uint64(1) << np.uint64(part & 63)
    return event_part
