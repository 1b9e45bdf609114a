"""SPEED's streaming edge partitioning (SEP; SPEED, section II-B): nodes are shared by their centrality.

``sep-centrality`` takes a sealed snapshot as its batch. Pass 1 adds the snapshot's inserts to the nodes' centralities and takes
the top k of the nodes seen so far as hubs; pass 2 assigns the inserts in log order. It uses nothing from a later snapshot.
``sep-two-pass`` takes pass 1 over a whole file first, or over its training part, as in the paper. Readings, as in
``docs/partitioning.md``:

- At most ⌊k·seen⌋ nodes are ever in more than one part, so ``RF ≤ k·P + (1 − k)`` (Theorem 1) holds at every moment. A former
  hub keeps its parts until a snapshot in which a hub may need its place, and returns to its home before that snapshot's first
  event. Within a snapshot no node loses a part, so the ends of every assigned insert are in its part when it is sealed.
- λ ≤ 1 keeps a non-hub in one part for ever, even after all of its edges are gone and it comes back: placements belong to seen
  nodes and never end (there is no GONE).
- With |A| > 1, lines 6 and 10 take the least loaded of A(i) ∩ A(j), or line 6 otherwise of the non-hub's parts.
- Part sizes count all edges ever assigned; a discarded edge counts for centrality only.

Up to 63 parts, a node takes 8 bytes in the assignment: its parts and whether it is a hub. Its centrality is read only if two
hubs without a common part meet. The parts' loads are bit planes (``load_planes``). An edge whose ends have a part in common
writes nothing but its own part. With more parts there is a loop over the parts.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Bool, Float64, Int8, Int32, Int64, UInt64, Words
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.bits import in_several, lowest_bit
from freshet_graph.stream.kernels.mixing import mixed, splitmix64
from freshet_graph.stream.partition.edge.base import HubOptions, Placed, StreamPartitioner
from freshet_graph.stream.partition.edge.load_planes import (
    Planes,
    choose,
    full,
    least_level,
    least_loaded,
    loads_of,
    planes_of,
    raised,
    smallest_flipped,
    spread,
)
from freshet_graph.stream.partition.edge.part_sets import join_ends, least_by_class, note_ends
from freshet_graph.stream.partition.interface import PartitionError, PartitionerSetting, Why, register
from freshet_graph.stream.snapshots.delta import SnapshotDelta
from freshet_graph.stream.snapshots.prefetch import AHEAD, prefetch

HUB = np.uint64(1 << 63)
"""Bit of a hub, beside the bits of its parts."""

MARKED_PARTS = 63
"""Most parts that leave room for the hub's bit."""

EPSILON = 1.0
"""ε of the balance term, in edges."""

_NONE = np.uint64(0)

_WEIGHED = 1 << 15
"""Events whose weights are computed together, so that they stay in the nearest caches until they are added."""

_LARGEST_EXPONENT = 500.0
"""Forward decay moves its origin before e^x of the newest event approaches the largest float64."""


class SepOptions(HubOptions):
    """Options of ``sep-centrality``; ``time_constant`` is SPEED's 1/β."""

    balance_weight: float = Field(
        1.0, gt=0, description="λ of SPEED's equation 6, at most 1 unless hubs is 1."
    )

    @model_validator(mode="after")
    def _copies_are_bounded(self) -> Self:
        if self.balance_weight > 1 and self.hubs < 1:
            raise ValueError(
                f"balance_weight (λ) must be in (0, 1], found {self.balance_weight}: above 1, nodes that are no hubs would be "
                "copied, and the bound on copies would not hold"
            )
        return self


class SepTwoPassOptions(SepOptions):
    """Options of ``sep-two-pass``."""

    training_until: float | None = Field(
        None,
        ge=0,
        description="Last time of the training part, over which pass 1 is taken, in seconds. null: the whole file, which a lane "
        "does not have. evaluate sets it to the end of the training split.",
    )


@register
class SepCentrality(StreamPartitioner):
    """SPEED Alg. 1, with a sealed snapshot as its batch.

    Draws break ties between parts and between equally central nodes.
    """

    name: ClassVar[str] = "sep-centrality"
    Options: ClassVar[type[Section]] = SepOptions

    def __init__(self, setting: PartitionerSetting, options: SepOptions) -> None:
        super().__init__(setting, options)
        self.hubs, self.time_constant = options.hubs, options.time_constant
        self.balance_weight, parts = options.balance_weight, self.parts
        self._seen = 0  # nodes in events so far; of ``sep-two-pass``, fewer than there are rows
        # Up to 63 parts and λ = 1, a node's parts and its hub bit are one word; otherwise words of parts alone.
        self._marked = parts <= MARKED_PARTS and self.balance_weight <= 1
        self._masks: UInt64 = np.empty((0, -(-parts // 64)), np.uint64)
        self.centrality: Float64 = np.empty(0, np.float64)
        self._hub: Bool = np.empty(0, np.bool_)  # of the last snapshot, or of pass 1
        self._origin: int | None = None  # t0 of the forward decay, µs
        self._foreseen = 0  # nodes of pass 1, of ``sep-two-pass``

    def _place(self, delta: SnapshotDelta) -> Placed:
        self._seen = delta.num_nodes
        if not self._foreseen:
            self._add(delta.op, delta.src, delta.dst, delta.t)
        seen = max(delta.num_nodes, self._foreseen)
        candidates = self._foreseen or seen
        budget = int(self.hubs * candidates)
        leaving = np.empty(0, np.int64)
        if not self._foreseen or not len(self._hub):
            self._hub = np.zeros(self._num_nodes, np.bool_)
            self._hub[:candidates] = most_central(self.centrality[:candidates], budget, self.seed)
            leaving = self._without_room(delta, self._hub, budget)
            if self._marked:
                marks = self._masks[: self._num_nodes].reshape(-1)
                marks &= ~HUB
                marks[self._hub] |= HUB
        elif len(self._hub) < self._num_nodes:  # nodes after pass 1 are no hubs
            self._hub = np.pad(self._hub, (0, self._num_nodes - len(self._hub)))
        left = self._send_home(leaving)
        placed = self._assign_all(delta, seen)
        if not len(leaving):
            return placed
        gained = placed.assignment
        node, part = np.concatenate([gained.node, left[0]]), np.concatenate([gained.part, left[1]])
        order = np.lexsort((part, node))
        why = np.concatenate([gained.why, left[2]])[order]
        return replace(placed, assignment=replace(gained, node=node[order], part=part[order], why=why))

    def _assign(
        self, op: Int8, src: Int64, dst: Int64, drawn: int, event_part: Int32, gained: Int64
    ) -> tuple[int, int]:
        rule = self.centrality, self._home, self.sizes, self.balance_weight, self.seed, drawn
        if self._marked:
            return assign_marked(op, src, dst, self._masks.reshape(-1), *rule, event_part, gained)
        return assign_words(op, src, dst, self._masks, self._hub, *rule, event_part, gained)

    def _sets(self, rows: Any = slice(None)) -> UInt64:
        """Parts of these nodes, uint64 (n, words): a copy, without the hub's bit."""
        sets: UInt64 = self._masks[: self._num_nodes][rows]
        return sets & ~HUB if self._marked else sets.copy()

    def _send_home(self, leaving: Int64) -> tuple[Int64, Int32, Int8]:
        """Remove all parts but the home of these nodes; returns rows (node, part, why) of their losses."""
        node = np.sort(leaving)  # no hubs
        home, only = self._home[node], np.zeros((len(node), self._masks.shape[1]), np.uint64)
        only[np.arange(len(node)), home >> 6] = np.uint64(1) << (home & 63).astype(np.uint64)
        lost = self._sets(node) & ~only
        self._masks[node] = only
        self._shared -= len(node)
        row, part = np.nonzero(np.unpackbits(lost.view(np.uint8), axis=1, bitorder="little"))
        self._placements -= np.bincount(part, minlength=self.parts)
        return node[row], part.astype(np.int32), np.full(len(row), Why.DEMOTED, np.int8)

    def _without_room(self, delta: SnapshotDelta, hub: Bool, budget: int) -> Int64:
        """Former hubs that must give up their parts so that these inserts can't break the budget.

        A hub in one part can get a second one only by an insert whose ends don't have one home (SPEED eqs. 2 to 6: a part with
        both ends scores 3, any other less). The least central former hubs leave first.
        """
        several = in_several(self._sets())
        former = np.flatnonzero(several & ~hub)
        if not len(former):
            return former
        needing = reach(delta.op, delta.src, delta.dst, self._home, hub & ~several)
        excess = max(self._shared + needing - budget, 0)
        return former[np.argsort(self.centrality[former], kind="stable")][:excess]

    def home(self) -> Int32:
        """First part of every dense id so far, fixed; int32 (num_nodes,), −1 for nodes without edges. A view."""
        return self._home[: self._seen]

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {
            "masks": self._sets(),
            "centrality": self.centrality[: self._num_nodes],
            "origin": np.array([] if self._origin is None else [self._origin], np.int64),
            "counts": np.array([self._seen, self._events, self._foreseen]),
        }

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._masks, self.centrality = memory["masks"], memory["centrality"]
        self._shared = int(in_several(self._masks).sum())
        self._placed = int(np.count_nonzero(self._home >= 0))
        self._hub = self._hub[:0]
        self._origin = int(memory["origin"][0]) if len(memory["origin"]) else None
        self._seen, self._events, self._foreseen = (int(x) for x in memory["counts"])

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self._masks = with_room(self._masks, num_nodes)
        self.centrality = with_room(self.centrality, num_nodes)

    def _add(self, op: Int8 | None, src: Int64, dst: Int64, t: Int64) -> None:
        """Pass 1: forward decay, ``e^((t − t0)/T)``; the order and θ don't depend on t0. Without ``op`` all are inserts."""
        scale = math.inf
        if self.time_constant is not None and len(t):
            scale = self.time_constant * US_PER_S
            latest = int(t.max())
            if self._origin is None:
                self._origin = latest
            if (latest - self._origin) / scale > _LARGEST_EXPONENT:
                self.centrality *= math.exp(-(latest - self._origin) / scale)
                self._origin = latest
        inserts, ones = np.ones(_WEIGHED, np.int8), np.ones(_WEIGHED)
        for begin in range(0, len(src), _WEIGHED):
            rows = slice(begin, min(begin + _WEIGHED, len(src)))
            count = rows.stop - begin
            weight = ones[:count] if self._origin is None else np.exp((t[rows] - self._origin) / scale)
            kind = inserts[:count] if op is None else op[rows]
            add_centrality(self.centrality, kind, src[rows], dst[rows], weight)


@register
class SepTwoPass(SepCentrality):
    """SPEED's two passes over a file or its training part. Later events are placed by pass 2 with the hubs of pass 1.

    Hubs and centralities never change after pass 1, and pass 2 takes one event after the other. So no later event changes
    the part of an event.
    """

    name: ClassVar[str] = "sep-two-pass"
    Options: ClassVar[type[Section]] = SepTwoPassOptions

    def __init__(self, setting: PartitionerSetting, options: SepTwoPassOptions) -> None:
        super().__init__(setting, options)
        until = options.training_until
        self.training_until_us = None if until is None else round(until * US_PER_S)

    def foresee(self, src: Int64, dst: Int64, t: Int64, num_nodes: int) -> None:
        """Take pass 1 over all inserts of a file or its training part, before its first update.

        The hubs are those of the part, and all its nodes count as seen. It may be given in pieces, in order of time.

        Args:
            src: int64 (E,) dense ids of the inserts' ends, numbered by first appearance.
            dst: int64 (E,).
            t: int64 (E,) microseconds. Inserts after ``training_until`` are left out.
            num_nodes: Distinct nodes of the file, or of its pieces so far.
        """
        if self.training_until_us is not None:
            part = t <= self.training_until_us
            src, dst, t = src[part], dst[part], t[part]
            num_nodes = int(max(src.max(initial=-1), dst.max(initial=-1), self._foreseen - 1)) + 1
        self._grow(num_nodes)
        self._add(None, src, dst, t)
        self._foreseen = num_nodes
        self._hub = self._hub[:0]

    def _place(self, delta: SnapshotDelta) -> Placed:
        if not self._foreseen and (delta.op > 0).any():
            raise PartitionError(
                f"{self.name} needs the file or its training part before its first snapshot. Call foresee, or choose "
                "sep-centrality"
            )
        return super()._place(delta)


def most_central(centrality: Float64, count: int, seed: int) -> Bool:
    """Mask of the ``count`` largest; ties are broken by a seeded draw."""
    if count >= len(centrality):
        return np.ones(len(centrality), np.bool_)
    if count == 0:
        return np.zeros(len(centrality), np.bool_)
    threshold = np.partition(centrality, -count)[-count]
    top: Bool = centrality > threshold
    equal = np.flatnonzero(centrality == threshold)
    drawn = equal[np.argsort(mixed(seed, equal), kind="stable")]
    top[drawn[: count - int(np.count_nonzero(top))]] = True
    return top


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
def reach(op: Int8, src: Int64, dst: Int64, home: Int32, may: Bool) -> int:
    """Number of nodes marked in ``may`` with an insert to a node of another home, or before either has a home.

    Args:
        op: int8 (E,).
        src: int64 (E,).
        dst: int64 (E,).
        home: int32 (N,), −1 for none.
        may: bool (N,); the counted nodes are unmarked.
    """
    reached = 0
    for e in range(len(op)):
        i, j = src[e], dst[e]
        if op[e] > 0 and (home[i] != home[j] or home[i] < 0):
            reached += may[i]
            may[i] = False
            reached += may[j]
            may[j] = False
    return reached


@njit(cache=True, nogil=True, inline="always")
def better_end(
    planes: Planes,
    sizes: Int64,
    in_a: np.uint64,
    in_b: np.uint64,
    everywhere: np.uint64,
    theta: float,
    weight: float,
) -> np.uint64:
    """The parts of the end whose least loaded part has the better score (HDRF's ``C_REP + λ·C_BAL``), ties to the first.

    A part of neither end can't win up to λ = 1.

    Args:
        planes: Levels of the loads.
        sizes: int64 (P,) the loads, read if a level stands for several.
        in_a: Parts of the first end, at least one and none in common with the second.
        in_b: Parts of the second end, at least one.
        everywhere: All parts.
        theta: θ of the first end.
        weight: λ ≤ 1.
    """
    if full(planes) == _NONE:
        range_of_loads = spread(planes, everywhere)
        highest = range_of_loads + least_level(planes, everywhere)[1]
        room_a, room_b = highest - least_level(planes, in_a)[1], highest - least_level(planes, in_b)[1]
    else:
        least, largest = loads_of(sizes, everywhere)
        range_of_loads = largest - least
        room_a, room_b = largest - loads_of(sizes, in_a)[0], largest - loads_of(sizes, in_b)[0]
    scale = weight / (EPSILON + range_of_loads)
    return choose(2.0 - theta + scale * room_a >= 1.0 + theta + scale * room_b, in_a, in_b)


@njit(cache=True, nogil=True)
def assign_marked(
    op: Int8,
    src: Int64,
    dst: Int64,
    marks: Words,
    centrality: Float64,
    home: Int32,
    sizes: Int64,
    weight: float,
    seed: int,
    drawn: int,
    event_part: Int32,
    gained: Int64,
) -> tuple[np.int64, np.int64]:
    """Second pass of SEP over one batch (SPEED Alg. 1, lines 2 to 16), for at most ``MARKED_PARTS`` parts and λ ≤ 1.

    A node's first part is its home. Only hubs get further parts, and no node loses one, so both ends of an assigned edge are
    in its part when the batch is done.

    Args:
        op: int8 (E,), rows other than inserts get −1.
        src: int64 (E,).
        dst: int64 (E,).
        marks: uint64 (N,) parts, and ``HUB``; written to.
        centrality: float64 (N,).
        home: int32 (N,), −1 for nodes without a part; written to.
        sizes: int64 (P,) edges assigned so far; written to.
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
    planes = planes_of(sizes)
    start = splitmix64(np.uint64(seed))
    last = len(op) - 1
    bits, bits_of = _NONE, -1
    rows = shared = _NONE
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(marks, src[ahead])
        prefetch(marks, dst[ahead])
        if op[e] <= 0:
            event_part[e] = -1
            continue
        i, j = np.uint64(src[e]), np.uint64(dst[e])
        if (drawn + e) >> 3 != bits_of:
            bits_of = (drawn + e) >> 3
            bits = splitmix64(start ^ np.uint64(bits_of))
        draw = (bits >> np.uint64(8 * ((drawn + e) & 7))) & np.uint64(63)
        a, b = marks[i], marks[j]
        in_a, in_b = a & ~HUB, b & ~HUB
        among = in_a & in_b
        meets = among != _NONE
        if not meets:
            if not in_a or not in_b:
                among = in_a | in_b
                if among == _NONE:
                    among = everywhere
            elif (a & b) >= HUB:
                total = centrality[i] + centrality[j]
                theta = centrality[i] / total if total > 0.0 else 0.5
                among = better_end(planes, sizes, in_a, in_b, everywhere, theta, weight)
            elif (a | b) >= HUB:
                among = in_b if a >= HUB else in_a
            else:
                event_part[e] = -1
                continue
        among = least_level(planes, among)[0]
        if among & full(planes) != _NONE:
            among = least_loaded(sizes, among)
        bit = smallest_flipped(among, draw, parts)
        part = lowest_bit(bit)
        sizes[np.uint64(part)] += 1
        planes, is_stale = raised(planes, bit, everywhere)
        if is_stale:
            planes = planes_of(sizes)
        event_part[e] = part
        if meets:
            continue
        marks[i], marks[j] = a | bit, b | bit
        rows, second = note_ends(gained, rows, i, j, in_a, in_b, part, bit)
        shared += second
    return np.int64(rows), np.int64(shared)


@njit(cache=True, nogil=True)
def assign_words(
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
    """``assign_marked`` for any number of parts and any λ, with masks uint64 (N, words) and a separate array of hubs."""
    start = splitmix64(np.uint64(seed))
    rows = shared = 0
    for e in range(len(op)):
        event_part[e] = -1
        if op[e] <= 0:
            continue
        i, j = src[e], dst[e]
        bits = splitmix64(start ^ np.uint64((drawn + e) >> 3))
        draw = np.int64((bits >> np.uint64(8 * ((drawn + e) & 7))) & np.uint64(63))
        best, largest, smallest = least_by_class(masks[i], masks[j], sizes, 0, draw)
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
        rows, second = join_ends(gained, rows, i, j, masks, home, part)
        shared += second
    return rows, shared
