"""SEP's loops: centrality (SPEED eq. 1) and edge assignment (Alg. 1). Arrays in, arrays out.

Up to 63 parts, a node takes 8 bytes in the assignment: its parts and whether it is a hub. Its centrality is read only if two
hubs without a common part meet. The parts' loads are the lanes of a vector (``load_lanes``). An edge whose ends have a part in
common writes nothing but its own part.
"""

import numpy as np

from stream.arrays.kinds import Bool, Float64, Int8, Int32, Int64, Words
from stream.kernels import njit
from stream.kernels.mixing import splitmix64
from stream.partition.edge.copying_kernels import add_part
from stream.partition.edge.load_lanes import (
    LaneArray,
    Lanes,
    add_to_least,
    lanes_to_loads,
    largest_load,
    least_load,
    loads_to_lanes,
    read_lanes,
    write_lanes,
)
from stream.partition.edge.part_sets import note
from stream.snapshots.prefetch import AHEAD, prefetch

HUB = np.uint64(1 << 63)
"""Bit of a hub, beside the bits of its parts."""

EPSILON = 1.0
"""ε of the balance term, in edges."""

MARKED_PARTS = 63
"""Most parts that leave room for the hub's bit."""

_NONE = np.uint64(0)
_OCTAVES = 1 << 15
"""Buckets of ``candidates``: the sign, exponent and first bits of a float64, 8 per octave."""


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
    last = len(op) - 1
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(centrality, src[ahead])
        prefetch(centrality, dst[ahead])
        if op[e] > 0:
            i, j = np.uint64(src[e]), np.uint64(dst[e])
            centrality[i] += weight[e]
            if i != j:
                centrality[j] += weight[e]


@njit(cache=True, nogil=True)
def candidates(centrality: Float64, count: int) -> Float64:
    """Whole buckets of an eighth of an octave that include the ``count`` largest centralities.

    Args:
        centrality: float64 (N,), none negative; N > count > 0.
        count: Number wanted.
    """
    bits = centrality.view(np.int64)
    held = np.zeros(_OCTAVES, np.int64)
    for v in range(len(bits)):
        held[bits[v] >> 49] += 1
    bucket, found = _OCTAVES, 0
    while found < count:
        bucket -= 1
        found += held[bucket]
    out = np.empty(found, np.float64)
    at = 0
    for v in range(len(bits)):
        if bits[v] >> 49 >= bucket:
            out[at] = centrality[v]
            at += 1
    return out


@njit(cache=True, nogil=True)
def mark_hubs(marks: Words, hub: Bool) -> None:
    """Set or clear every node's ``HUB``."""
    for v in range(len(marks)):
        marks[v] = (marks[v] & ~HUB) | (HUB if hub[v] else _NONE)


@njit(cache=True, nogil=True)
def reach(op: Int8, src: Int64, dst: Int64, home: Int32, may: Bool) -> int:
    """Number of nodes marked in ``may`` with an insert to a node of another home, or before either has a home.

    Args:
        op: int8 (E,).
        src: int64 (E,).
        dst: int64 (E,).
        home: int32 (N,), −1 for none.
        may: bool (N,); the counted nodes are unmarked.
    """
    found = 0
    for e in range(len(op)):
        i, j = src[e], dst[e]
        if op[e] > 0 and (home[i] != home[j] or home[i] < 0):
            found += may[i]
            may[i] = False
            found += may[j]
            may[j] = False
    return found


@njit(cache=True, nogil=True, inline="always")
def better_end(
    lanes: Lanes, in_a: np.uint64, in_b: np.uint64, everywhere: np.uint64, theta: float, weight: float
) -> np.uint64:
    """The parts of the end whose least loaded part has the better score (HDRF's ``C_REP + λ·C_BAL``), ties to the first.

    A part of neither end can't win up to λ = 1.

    Args:
        lanes: Loads.
        in_a: Parts of the first end, at least one and none in common with the second.
        in_b: Parts of the second end, at least one.
        everywhere: All parts.
        theta: θ of the first end.
        weight: λ ≤ 1.
    """
    largest = largest_load(lanes, everywhere)
    scale = weight / (EPSILON + largest - least_load(lanes, everywhere))
    first = 2.0 - theta + scale * (largest - least_load(lanes, in_a))
    second = 1.0 + theta + scale * (largest - least_load(lanes, in_b))
    return in_a if first >= second else in_b


@njit(cache=True, nogil=True)
def assign_lanes(
    op: Int8,
    src: Int64,
    dst: Int64,
    marks: Words,
    centrality: Float64,
    home: Int32,
    sizes: Int64,
    room: LaneArray,
    width: tuple[int, ...],
    weight: float,
    seed: int,
    drawn: int,
    event_part: Int32,
    gained: Int64,
) -> tuple[np.int64, int]:
    """Second pass of SEP over one batch (SPEED Alg. 1, lines 2 to 16), for at most ``MARKED_PARTS`` parts and λ ≤ 1.

    A node's first part is its home. Only hubs get further parts, and no node loses one, so both ends of an assigned edge are
    in its part when the batch is done.

    Args:
        op: int8 (E,), rows other than inserts get −1. At most ``SHORT_LOADS`` rows.
        src: int64 (E,).
        dst: int64 (E,).
        marks: uint64 (N,) parts, and ``HUB``; written to.
        centrality: float64 (N,).
        home: int32 (N,), −1 for nodes without a part; written to.
        sizes: int64 (P,) edges assigned so far; written to.
        room: From ``lanes_for``; scratch.
        width: From ``lanes_for``.
        weight: λ of eq. 6.
        seed: Seed of the draws that break ties.
        drawn: Events before this batch; the draw of an event depends on its number only.
        event_part: int32 (E,), written: part of each event, −1 for a discarded one.
        gained: int64 (2 E,), written: notes of the parts that nodes gained, in the order of the edges.

    Returns:
        Rows of ``gained``, and number of nodes that gained a second part.
    """
    parts = len(sizes)
    everywhere = ~_NONE >> np.uint64(64 - parts)
    loads_to_lanes(sizes, room)
    lanes = read_lanes(room, width)
    start = splitmix64(np.uint64(seed))
    last = len(op) - 1
    bits, bits_of = _NONE, -1
    rows, shared = np.uint64(0), 0
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(marks, src[ahead])
        prefetch(marks, dst[ahead])
        if op[e] <= 0:
            event_part[e] = -1
            continue
        i, j = np.uint64(src[e]), np.uint64(dst[e])
        of = (drawn + e) >> 3
        if of != bits_of:
            bits, bits_of = splitmix64(start ^ np.uint64(of)), of
        draw = (bits >> np.uint64(8 * ((drawn + e) & 7))) & np.uint64(63)
        a, b = marks[i], marks[j]
        both = a & b & ~HUB
        if both != _NONE:
            lanes, part = add_to_least(lanes, both, draw)
            event_part[e] = part
            continue
        in_a, in_b = a & ~HUB, b & ~HUB
        if not in_a or not in_b:
            among = in_a | in_b
            if among == _NONE:
                among = everywhere
        elif (a & b) >= HUB:
            total = centrality[i] + centrality[j]
            theta = centrality[i] / total if total > 0.0 else 0.5
            among = better_end(lanes, in_a, in_b, everywhere, theta, weight)
        elif (a | b) >= HUB:
            among = in_b if a >= HUB else in_a
        else:
            event_part[e] = -1
            continue
        lanes, part = add_to_least(lanes, among, draw)
        event_part[e] = part
        bit = np.uint64(1) << np.uint64(part)
        marks[i], marks[j] = a | bit, b | bit
        if in_a & bit == _NONE:
            if in_a == _NONE:
                home[i] = part
            shared += in_a != _NONE and in_a & (in_a - np.uint64(1)) == _NONE
            gained[rows] = note(i, part, in_a != _NONE)
            rows += np.uint64(1)
        if in_b & bit == _NONE:
            if in_b == _NONE:
                home[j] = part
            shared += in_b != _NONE and in_b & (in_b - np.uint64(1)) == _NONE
            if i != j:
                gained[rows] = note(j, part, in_b != _NONE)
                rows += np.uint64(1)
    write_lanes(room, lanes)
    lanes_to_loads(room, sizes)
    return np.int64(rows), shared


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
    event_part: Int32,
    gained: Int64,
) -> tuple[int, int]:
    """``assign_lanes`` for any number of parts and any λ, with masks uint64 (N, words) and a separate array of hubs."""
    parts = len(sizes)
    start = splitmix64(np.uint64(seed))
    best = np.empty(4, np.int64)
    rows = shared = 0
    for e in range(len(op)):
        event_part[e] = -1
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
            added, second = add_part(masks, v, part)
            if added:
                gained[rows] = note(np.uint64(v), part, home[v] >= 0)
                rows += 1
                shared += second
                if home[v] < 0:
                    home[v] = part
    return rows, shared
