"""``sep``, the sealed-snapshot need cover: an edge partitioner that shares the nodes whose sharing saves most edges.

The whole sealed snapshot may be inspected before its edges are assigned, but no later one. Nodes are not shared for their
centrality, as in SPEED's SEP (``sep.py``), but for the edges between homes that they cover:

1. *Place* the snapshot's nodes: each goes to the part where its neighbours live, within the parts' room.
2. *Select* at most ⌊k · nodes seen⌋ shared nodes by a lazy greedy cover of the edges between homes. The need of past snapshots
   counts ``past_weight``, so that the shared set is steady. A shared node that is not selected returns to its home. Then both
   steps run once more, because shared neighbours pull no node to their homes.
3. *Assign*: an edge with a shared end goes to the home of its other end; between two homes it is discarded.
4. *Learn* what each node needed and where its neighbours live, decayed by event time.

The budget is hard: ``RF ≤ k·P + (1 − k)`` (SPEED Theorem 1) holds after every snapshot, nodes that are not shared are in one
part, and both ends of an assigned insert are in its part when the snapshot is sealed.

A snapshot's nodes get local numbers in order of first appearance, so that every loop works on arrays of the snapshot's size.
The state of all nodes is read once, at the start of a snapshot, and written once, at its end; its rows are prefetched, because
each is a cache miss, and values that are read and written together are one record. Weights are in units of one edge of the
snapshot.
"""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int8, Int16, Int32, Int64, UInt16, UInt64, Words
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.bits import in_several, lowest_bit
from freshet_graph.stream.kernels.mixing import mixed_part, splitmix64
from freshet_graph.stream.partition.edge.base import EdgePartitioner, HubOptions, Placed
from freshet_graph.stream.partition.edge.load_planes import choose
from freshet_graph.stream.partition.interface import Assignment, PartitionerSetting, Why, register
from freshet_graph.stream.snapshots.delta import SnapshotDelta
from freshet_graph.stream.snapshots.prefetch import AHEAD, prefetch

EDGE_SLACK, HARD_EDGE_SLACK = 1.04, 1.08
"""A part takes nodes up to the first multiple of its fair share of edges, and keeps them up to the second."""

NODE_SLACK = 1.3
"""A part takes nodes up to this multiple of its fair share of nodes."""

COPY_SLACK = 1.02
"""An edge between two shared nodes makes no new copy while a part with a copy is below this multiple of its fair share."""

BUCKETS = 2048
"""Buckets of keys, 8 per octave: a float32 without its sign and its 20 lowest bits."""

NODE = np.dtype(
    [("need", "f4"), ("at_home", "f4"), ("at_other", "f4"), ("other", "i2"), ("shared", "?")], align=True
)
"""A node: its need, the weight of its neighbours at home and in the candidate part, that part or −1, and whether it is shared;
16 bytes."""

Nodes = NDArray[np.void]

PART_BITS, WHY_BITS = 15, 3
"""A change is node, part and why side by side in an int64, so that sorting orders changes."""

_NEW, _MOVED, _REPLICATED, _DEMOTED = int(Why.NEW), int(Why.MOVED), int(Why.REPLICATED), int(Why.DEMOTED)
_NONE = np.uint64(0)
_LARGEST_UNIT = 1e15
"""Weights are stored times e^(t/T), the unit of forward decay; beyond this they are scaled back to 1."""
_UNPICKED = 2**31 - 1
_STORED = ("need", "at_home", "other", "at_other")


class NeedCoverOptions(HubOptions):
    """Options of ``sep``."""

    past_weight: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Weight of the need of past snapshots, relative to the edges of the sealed one. 1 keeps the shared set "
        "steady, 0 discards least on arrival.",
    )


@register
class NeedCover(EdgePartitioner):
    """Need cover over snapshots, in up to 32,768 parts."""

    name: ClassVar[str] = "sep"
    Options: ClassVar[type[Section]] = NeedCoverOptions

    def __init__(self, setting: PartitionerSetting, options: NeedCoverOptions) -> None:
        super().__init__(setting, options)
        self.hubs, self.time_constant, self.past_weight = (
            options.hubs,
            options.time_constant,
            options.past_weight,
        )
        parts, words = self.parts, -(-self.parts // 64)
        self._masks: UInt64 = np.empty((0, words), np.uint64)
        self.nodes: Nodes = np.empty(0, NODE)
        self._local: Int32 = np.empty(0, np.int32)  # scratch, all −1 between snapshots
        self.shared: Int64 = np.empty(0, np.int64)  # ids of the shared nodes
        self._homes: Int64 = np.zeros(parts, np.int64)  # nodes at home in each part
        self.unit = 1.0  # stored weight of an event of the latest snapshot
        self.latest: int | None = None  # µs

    def _place(self, delta: SnapshotDelta) -> Placed:
        """Place, select, assign, learn."""
        self._decay(delta)
        budget = int(self.hubs * delta.num_nodes)
        ids, first, second, indptr, neighbours, loops = local_graph(
            delta.op, delta.src, delta.dst, self._local
        )
        n, inserts = len(ids), len(first)
        unit = np.float32(self.unit)
        node, home = self.nodes[ids], self._home[ids].astype(np.int16)
        was_shared, other = (np.ascontiguousarray(node[name]) for name in ("shared", "other"))
        need, at_home, at_other = (node[name] / unit for name in ("need", "at_home", "at_other"))
        home_before = home.copy()
        placed_before = int(self._homes.sum())
        placed = placed_before + int(np.count_nonzero(home < 0))
        unnamed = self.shared[self._local[self.shared] < 0]
        weighed = np.concatenate([need, self.nodes["need"][unnamed] / unit]) * np.float32(self.past_weight)
        everyone_was_shared = np.concatenate([was_shared, np.ones(len(unnamed), np.bool_)])
        shared = was_shared
        # First as if nothing were discarded, then with the resulting shared nodes and loads.
        for expected in (int(self.sizes.sum()) + inserts, 0):
            place(
                first, second, indptr, neighbours, loops, ids, home_before, home, slots(home, shared[:n], self.parts),
                at_home, other, at_other, self.sizes, self._homes, expected, placed, self.seed,
            )  # fmt: skip
            pick = select(first, second, indptr, neighbours, home, weighed, everyone_was_shared, budget)
            shared = pick != _UNPICKED
        # The former home of a node that moved is its candidate.
        left = np.flatnonzero((home_before >= 0) & (home_before != home))
        known = np.where(other[left] == home[left], at_other[left], np.float32(0))
        other[left], at_other[left], at_home[left] = home_before[left], at_home[left], known
        slot = slots(home, shared[:n], self.parts)
        # Nodes that were and stay shared keep their parts, others are at home only.
        masks = self._masks.take(ids, axis=0) * (shared[:n] & was_shared)[:, None]
        masks.reshape(-1)[np.arange(n) * masks.shape[1] + (home >> 6)] |= np.uint64(1) << (home & 63).astype(
            np.uint64
        )
        event_part = np.empty(len(delta.op), np.int32)
        most = int(COPY_SLACK * (int(self.sizes.sum()) + inserts) / self.parts)
        discarded = assign(
            delta.op, first, second, slot, masks, self.sizes, most, self.seed, self._events, event_part
        )
        learn(indptr, neighbours, home, slot, self.parts, pick, need, at_home, other, at_other)

        # Only shared nodes and former homes can have lost parts.
        copies = int(self._placements.sum()) - placed_before + len(self.shared)
        changes = np.empty(2 * (n + inserts) + copies, np.int64)
        rows, moved, several = write_nodes(
            ids, home, shared[:n], masks, need, at_home, other, at_other, unit, self._home, self._masks, self.nodes,
            self._local, self._placements, changes,
        )  # fmt: skip
        still_shared, demoted = unnamed[shared[n:]], unnamed[~shared[n:]]
        rows = send_home(demoted, self._home, self._masks, self.nodes, self._placements, changes, rows)
        self.shared = np.concatenate([ids[shared[:n]], still_shared])
        changes = np.sort(changes[:rows])
        part = (changes >> WHY_BITS & ((1 << PART_BITS) - 1)).astype(np.int32)
        why = (changes & ((1 << WHY_BITS) - 1)).astype(np.int8)
        return Placed(
            assignment=Assignment(changes >> (PART_BITS + WHY_BITS), part, why, event_part),
            inserts=inserts,
            discarded=discarded,
            seen=delta.num_nodes,
            shared=several + int(in_several(self._masks[still_shared]).sum()),
            placed=placed,
            moved=moved,
        )

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {
            "masks": self._masks[: self._num_nodes],
            **{name: self.nodes[name][: self._num_nodes].copy() for name in _STORED},
            "shared": self.shared,
            "unit": np.array(self.unit),
            "latest": np.array([] if self.latest is None else [self.latest], np.int64),
            "events": np.array(self._events),
        }

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._masks, self.shared = memory["masks"], memory["shared"]
        self.nodes = np.zeros(len(self._home), NODE)
        for name in _STORED:
            self.nodes[name] = memory[name]
        self.nodes["shared"][self.shared] = True
        self._local = np.full(len(self._home), -1, np.int32)
        self._homes = np.bincount(self._home[self._home >= 0], minlength=self.parts)
        self.unit, self._events = float(memory["unit"]), int(memory["events"])
        self.latest = int(memory["latest"][0]) if len(memory["latest"]) else None

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self._local = with_room(self._local, num_nodes, -1)
        self._masks = with_room(self._masks, num_nodes)
        known = len(self.nodes)
        self.nodes = with_room(self.nodes, num_nodes)
        self.nodes["other"][known:] = -1

    def _decay(self, delta: SnapshotDelta) -> None:
        """Forward decay: an event's unit grows by e^(Δt/T), so that nothing else has to shrink."""
        if self.time_constant is None or not len(delta.t):
            return
        latest = int(delta.t.max())
        if self.latest is not None and latest > self.latest:
            fading = math.exp(-(latest - self.latest) / US_PER_S / self.time_constant)
            if fading * _LARGEST_UNIT < self.unit:
                faded = fading / self.unit
                for name in ("need", "at_home", "at_other"):
                    self.nodes[name] *= faded
                self.unit = 1.0
            else:
                self.unit /= fading
        self.latest = latest if self.latest is None else max(latest, self.latest)


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
    free = np.empty(n, np.uint32)
    indptr[0] = 0
    for row in range(n):
        free[row] = indptr[row]
        indptr[row + 1] = indptr[row] + degree[row]
    neighbours = np.empty(indptr[n], np.int32)
    loops = np.zeros(n, np.int32)
    for k in range(inserts):
        one, other = np.uint64(first[k]), np.uint64(second[k])
        if one != other:
            neighbours[free[one]] = other
            free[one] += np.uint32(1)
            neighbours[free[other]] = one
            free[other] += np.uint32(1)
        else:
            loops[one] += 1
    return ids[:n].copy(), first, second, indptr, neighbours, loops


def slots(home: Int16, shared: Bool, parts: int) -> UInt16:
    """Destination of an edge to each node: its home, any part (P) if it is shared, none yet (P + 1) without a home."""
    return np.where(shared, parts, np.where(home < 0, parts + 1, home)).astype(np.uint16)


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
    slot: UInt16,
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
        slot: uint16 (n,), as of ``slots``; written to.
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
    load = _loads(first, second, slot, sizes)
    cap = NODE_SLACK * nodes / parts + 2.0
    if expected == 0:
        expected = load.sum()
    fair = expected / parts
    room = int(EDGE_SLACK * fair + 4.0), int(HARD_EDGE_SLACK * fair + 4.0), int(cap)
    count = np.zeros(parts, np.int64)
    elsewhere = np.empty(len(neighbours) + 1, np.int64)  # pages are touched only for the longest row
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
        moving = np.int64(0) if slot[v] == parts else in_now + free  # edges that leave the part with the node
        best, score, edges = np.int64(-1), 0.0, np.int64(0)
        if old >= 0:
            weight = float(in_old) + at_home[v]
            best, score, edges = _better(best, score, edges, old, now, weight, moving, load, homes, room, cap)
            if candidate >= 0:
                weight = float(in_candidate) + at_other[v]
                best, score, edges = _better(
                    best, score, edges, candidate, now, weight, moving, load, homes, room, cap
                )
        if some > np.uint64(0):
            for i in range(some):
                count[np.uint64(elsewhere[i])] += 1
            for i in range(some):
                p = elsewhere[i]
                weight = float(count[np.uint64(p)])
                count[np.uint64(p)] = 0  # so its weight is 0 if it recurs
                best, score, edges = _better(
                    best, score, edges, p, now, weight, moving, load, homes, room, cap
                )
        if now >= 0:
            # Most nodes stay and write nothing: a write would make the next nodes wait for it.
            if best == now or (best < 0 and load[now] - moving <= room[1]):
                continue
            homes[now] -= 1
            load[now] -= moving
        if best < 0:
            best = np.int64(_least_loaded(load, homes, room[0], cap, mixed_part(seed, ids[v], parts)))
        home[v] = best
        homes[best] += 1
        if slot[v] != parts:
            slot[v] = best
            for x in range(np.uint64(indptr[v]), np.uint64(indptr[v + 1])):
                free += slot[np.uint64(neighbours[x])] == best
            load[best] += free


@njit(cache=True, nogil=True)
def _better(
    best: int,
    best_score: float,
    best_load: int,
    part: int,
    now: int,
    weight: float,
    moving: int,
    load: Int64,
    homes: Int64,
    room: tuple[int, int, int],
    cap: float,
) -> tuple[int, float, int]:
    """The better of the best part so far and another, its score and its edges; without unpredictable branches.

    Edges and nodes exclude the node being placed, whose home is still ``now``.
    """
    stays = part == now
    edges = load[np.uint64(part)] - (moving if stays else 0)
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
    row_end = np.zeros(2 * BUCKETS + 2, np.int32)
    for v in range(len(key)):
        turn[v] = np.uint64(2 * (BUCKETS - 1 - (bits[v] >> 20)) + 1 - was_shared[v]) if key[v] > 0.0 else none
        row_end[np.uint64(turn[v]) + np.uint64(1)] += 1
    for row in range(2 * BUCKETS + 1):
        row_end[row + 1] += row_end[row]
    begin = row_end[0 : 2 * BUCKETS + 1 : 2][::-1].copy()
    order = np.empty(len(key), np.int32)
    for v in range(len(key)):
        of = np.uint64(turn[v])
        order[row_end[of]] = v
        row_end[of] += 1
    return order, begin


@njit(cache=True, nogil=True)
def assign(
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
    """Step 3: assign a part to every insert.

    If one end is shared, the edge goes to the other's home; if none is, to their common home, or it is discarded. If both are,
    it goes to the least loaded of the parts that both are in, or else one is in, with up to ``most`` edges each; or else to the
    least loaded.

    Args:
        op: int8 (E,), rows other than inserts get −1.
        first: int32 (I,) local ends of the inserts.
        second: int32 (I,).
        slot: uint16 (n,) home, P of shared nodes.
        masks: uint64 (n, words) the parts of each node; written to.
        sizes: int64 (P,) edges assigned; written to.
        most: Edges up to which a part gets new copies.
        seed: Seed of the draws that break ties.
        drawn: Events before this batch.
        event_part: int32 (E,), written: −1 for a discarded insert.

    Returns:
        Number of discarded inserts.
    """
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
            bits = splitmix64(start ^ np.uint64((drawn + e) >> 3))
            draw = np.int64((bits >> np.uint64(8 * ((drawn + e) & 7))) & np.uint64(63))
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
            home_of_u = u & low
            between, alone = (u >> np.uint64(16) & low) != here, home_of_u != everywhere
            needed += np.float32(between & (picked <= u >> np.uint64(32)))
            inside += np.float32(alone & (not between))
            turned = votes + choose(home_of_u == part, one, -one)
            part = choose(alone & between & (turned < zero), home_of_u, part)
            votes = choose(alone & between, abs(turned), votes)
        need[v], at_home[v], at_other[v] = needed, inside, votes
        other[v] = np.int16(np.uint16(part))


@njit(cache=True, nogil=True)
def _changes(
    node: int,
    before: int,
    home: int,
    masks: Words,
    new_masks: Words,
    i: int,
    placements: Int64,
    rows: Int64,
    r: int,
) -> int:
    """Note the changes of a node's home and parts, given in row i of ``new_masks``, from row r on; returns their end."""
    for w in range(masks.shape[1]):
        had, has = masks[node, w], new_masks[i, w]
        changed = had ^ has
        if home != before and home >> 6 == w:
            changed |= np.uint64(1) << np.uint64(home & 63)
        while changed != _NONE:
            bit = changed & (~changed + np.uint64(1))
            changed ^= bit
            part = 64 * w + lowest_bit(bit)
            was, now = had & bit != _NONE, has & bit != _NONE
            why = _REPLICATED if now else _DEMOTED
            if part == home and home != before:
                why = _NEW if before < 0 else _MOVED
            placements[part] += np.int64(now) - np.int64(was)
            rows[r] = (node << PART_BITS | part) << WHY_BITS | why
            r += 1
    return r


@njit(cache=True, nogil=True)
def write_nodes(
    ids: Int64,
    new_home: Int16,
    new_shared: Bool,
    new_masks: Words,
    new_need: Float32,
    inside: Float32,
    others: Int16,
    outside: Float32,
    unit: Float32,
    home: Int32,
    masks: Words,
    nodes: Nodes,
    local: Int32,
    placements: Int64,
    rows: Int64,
) -> tuple[int, int, int]:
    """Write the snapshot's nodes back, and note the changes of their parts.

    Args:
        ids: int64 (n,).
        new_home: int16 (n,).
        new_shared: bool (n,).
        new_masks: uint64 (n, words).
        new_need: float32 (n,).
        inside: float32 (n,).
        others: int16 (n,).
        outside: float32 (n,).
        unit: float32 scalar, stored weight of an edge of this snapshot.
        home: int32 (N,), written to, as are the other arrays of all nodes.
        masks: uint64 (N, words).
        nodes: ``NODE`` (N,).
        local: int32 (N,), reset to −1.
        placements: int64 (P,) nodes in each part; updated.
        rows: int64, written: changes, by node in the order of ``ids``.

    Returns:
        Numbers of rows, of nodes that moved, and of nodes in several parts.
    """
    n, r, moved, several, words = len(ids), 0, 0, 0, masks.shape[1]
    flat = masks.reshape(-1)
    for i in range(n):
        ahead = ids[min(i + AHEAD, n - 1)]
        prefetch(home, ahead)
        prefetch(flat, words * ahead)
        prefetch(nodes, ahead)
        prefetch(local, ahead)
        v = np.uint64(ids[i])
        former = home[v]
        r = _changes(ids[i], former, np.int32(new_home[i]), masks, new_masks, i, placements, rows, r)
        moved += former >= 0 and former != new_home[i]
        parts_of_node = 0
        for w in range(words):
            word = new_masks[i, w]
            parts_of_node += (word != _NONE) + (word & (word - np.uint64(1)) != _NONE)
            masks[v, w] = word
        several += parts_of_node > 1
        home[v], local[v] = new_home[i], -1
        node = nodes[v]
        node.other, node.shared = others[i], new_shared[i]
        node.need, node.at_home, node.at_other = new_need[i] * unit, inside[i] * unit, outside[i] * unit
    return r, moved, several


@njit(cache=True, nogil=True)
def send_home(
    ids: Int64, home: Int32, masks: Words, nodes: Nodes, placements: Int64, rows: Int64, r: int
) -> int:
    """Unshare nodes, so that they keep only their home; notes as in ``write_nodes`` from row r on; returns their end."""
    only = np.empty((1, masks.shape[1]), np.uint64)
    for i in range(len(ids)):
        v = ids[i]
        only[0, :] = _NONE
        only[0, home[v] >> 6] = np.uint64(1) << np.uint64(home[v] & 63)
        r = _changes(v, home[v], home[v], masks, only, 0, placements, rows, r)
        masks[v, :] = only[0, :]
        nodes[v].shared = False
    return r
