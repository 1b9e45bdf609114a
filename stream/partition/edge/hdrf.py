"""HDRF and PowerGraph's greedy rule: edge partitioners that may copy any node. They discard nothing, and do not limit copies.

Up to 32 parts a node's record is 8 bytes, so that an edge touches two cache lines: its parts (bits 0 to 31) and a count (bits
32 to 63). No part is scored: the parts fall into four classes (both ends, the first, the second, neither), and within a class
the least loaded is best (``load_planes``). An edge whose ends share a part changes no node's parts, which is the one branch
that most edges take. With more parts there is a loop over the parts.

Scores are compared after multiplication by both denominators, that of θ and that of the balance term, so that they are whole
numbers except for λ. Ties of loads go to the next part from a drawn one.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Int8, Int32, Int64, UInt32, UInt64, Words
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.bits import lowest_bit
from freshet_graph.stream.kernels.mixing import splitmix64
from freshet_graph.stream.partition.edge.base import Placed, StreamPartitioner
from freshet_graph.stream.partition.edge.load_planes import (
    STEP,
    Planes,
    choose,
    drawn_part,
    full,
    least_level,
    least_loaded,
    loads_of,
    next_part,
    planes_of,
    raised,
    spread,
)
from freshet_graph.stream.partition.edge.part_sets import join_ends, least_by_class, note_ends
from freshet_graph.stream.partition.interface import PartitionerSetting, register
from freshet_graph.stream.snapshots.delta import SnapshotDelta
from freshet_graph.stream.snapshots.prefetch import AHEAD, prefetch

RECORD_PARTS = 32
"""Most parts that fit into a record, beside a count."""

_COUNT_SHIFT = np.uint64(32)
_ONE = np.uint64(1 << 32)
_PARTS = np.uint64((1 << 32) - 1)
_NONE = np.uint64(0)


class CopyingPartitioner(StreamPartitioner):
    """Assigns every insert, in log order, by the parts of its ends and a count per end; see ``EdgePartitioner``."""

    greedy: ClassVar[bool]
    """PowerGraph's rule; otherwise HDRF's."""

    balance_weight = 1.0

    def __init__(self, setting: PartitionerSetting, options: Section) -> None:
        super().__init__(setting, options)
        parts = self.parts
        # One record per node up to 32 parts, words of parts and separate counts above.
        self._has_records = parts <= RECORD_PARTS
        words = () if self._has_records else (-(-parts // 64),)
        self.records: UInt64 = np.empty((0, *words), np.uint64)
        self._counts: UInt32 = np.empty(0, np.uint32)

    def _place(self, delta: SnapshotDelta) -> Placed:
        if self.greedy:
            self._count(delta.op, delta.src, delta.dst)
        return self._assign_all(delta, delta.num_nodes)

    def _memory(self) -> dict[str, NDArray[Any]]:
        masks, counts = self.records[: self._num_nodes], self._counts[: self._num_nodes]
        if self._has_records:
            masks, counts = masks & _PARTS, (masks >> _COUNT_SHIFT).astype(np.uint32)
        return {
            "masks": masks.reshape(-1, -(-self.parts // 64)),
            "counts": counts,
            "events": np.array([self._events, self._shared]),
        }

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self.records, self._counts = memory["masks"], memory["counts"]
        if self._has_records:
            self.records = self.records.reshape(-1) | self._counts.astype(np.uint64) << _COUNT_SHIFT
            self._counts = np.empty(0, np.uint32)
        self._placed = int(np.count_nonzero(self._home >= 0))
        self._events, self._shared = (int(x) for x in memory["events"])

    def _assign(
        self, op: Int8, src: Int64, dst: Int64, drawn: int, event_part: Int32, gained: Int64
    ) -> tuple[int, int]:
        rule = self.greedy, self.balance_weight, self.seed, drawn, event_part, gained
        if self._has_records:
            return assign_records(op, src, dst, self.records, self.sizes, *rule)
        return assign_words(op, src, dst, self.records, self._counts, self._home, self.sizes, *rule)

    def _count(self, op: Int8, src: Int64, dst: Int64) -> None:
        """Add a snapshot's inserts to the counts of unassigned edges."""
        if self._has_records:
            count_edges(op, src, dst, self.records)
            return
        rows = op > 0
        ends = np.concatenate([src[rows], dst[rows & (src != dst)]])
        self._counts += np.bincount(ends, minlength=len(self._counts)).astype(np.uint32)

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self.records = with_room(self.records, num_nodes)
        if not self._has_records:
            self._counts = with_room(self._counts, num_nodes)


class HdrfOptions(Section):
    """Options of ``hdrf``."""

    balance_weight: float = Field(
        1.0, gt=0, description="λ; above 1, balance may take precedence over copies."
    )


@register
class Hdrf(CopyingPartitioner):
    """The part with the largest ``C_REP + λ·C_BAL``, by degrees so far.

    HDRF (Petroni and others 2015): high degrees are copied first. SPEED section III describes its limit, which SEP removes:
    any node may be copied.
    """

    name: ClassVar[str] = "hdrf"
    Options: ClassVar[type[Section]] = HdrfOptions
    greedy: ClassVar[bool] = False

    def __init__(self, setting: PartitionerSetting, options: HdrfOptions) -> None:
        super().__init__(setting, options)
        self.balance_weight = options.balance_weight


@register
class PowergraphGreedy(CopyingPartitioner):
    """The least loaded part that both ends are in, or else of the end with more edges left, or else of all.

    PowerGraph's greedy vertex cut (Gonzalez and others, OSDI 2012, section 5.1).

    1. A part that both ends are in. 2. If both are in parts without a common one: a part of the end with more unassigned edges.
    3. If one is in parts: one of them. 4. Otherwise any part. Among several, the least loaded. Unassigned edges are those left
    in the sealed snapshot; if both ends have equally many, the parts of both count.
    """

    name: ClassVar[str] = "powergraph-greedy"
    greedy: ClassVar[bool] = True


@njit(cache=True, nogil=True)
def count_edges(op: Int8, src: Int64, dst: Int64, records: Words) -> None:
    """Add each insert to the counts in its ends' records, once for a self-loop."""
    last = len(op) - 1
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(records, src[ahead])
        prefetch(records, dst[ahead])
        if op[e] > 0:
            records[src[e]] += _ONE
            if src[e] != dst[e]:
                records[dst[e]] += _ONE


@njit(cache=True, nogil=True)
def best_class(
    sizes: Int64,
    in_a: np.uint64,
    in_b: np.uint64,
    everywhere: np.uint64,
    count_a: int,
    count_b: int,
    weight: float,
) -> np.uint64:
    """The class whose least loaded part has the best score (HDRF's ``C_REP + λ·C_BAL``, ε = 1), the first among equals.

    Args:
        sizes: int64 (P,) loads.
        in_a: Parts of the first end.
        in_b: Parts of the second end.
        everywhere: All parts.
        count_a: The first end's degree.
        count_b: The second end's degree.
        weight: λ.
    """
    least, most = loads_of(sizes, everywhere)
    both_counts = count_a + count_b
    among, best = everywhere, -1.0
    for which in range(4):
        if which == 0:
            mask, worth = in_a & in_b, 3 * both_counts
        elif which == 1:
            mask, worth = in_a & ~in_b, both_counts + count_b
        elif which == 2:
            mask, worth = in_b & ~in_a, both_counts + count_a
        else:
            mask, worth = everywhere & ~(in_a | in_b), 0
        if mask != _NONE:
            room = most - loads_of(sizes, mask)[0]
            score = float(worth) * (1 + most - least) + weight * (float(both_counts) * room)
            if score > best:
                among, best = mask, score
    return among


@njit(cache=True, nogil=True, inline="always")
def better_end(
    planes: Planes,
    in_a: np.uint64,
    in_b: np.uint64,
    everywhere: np.uint64,
    count_a: int,
    count_b: int,
    weight: float,
) -> np.uint64:
    """The least loaded parts of ``best_class``, for λ ≤ 1, ends without a common part, and loads within the levels.

    A part of neither end can't win then. An end without parts takes those of the other; if both are without, both take all,
    and the two scores are of one set.
    """
    some = in_a | in_b
    some = some if some != _NONE else everywhere
    in_a = in_a if in_a != _NONE else some
    in_b = in_b if in_b != _NONE else some
    of_a, level_a = least_level(planes, in_a)
    of_b, level_b = least_level(planes, in_b)
    rarer = (count_b - count_a) * (1 + spread(planes, everywhere))
    fuller = (count_a + count_b) * (level_a - level_b)
    return choose(float(rarer) >= weight * float(fuller), of_a, of_b)


@njit(cache=True, nogil=True)
def assign_records(
    op: Int8,
    src: Int64,
    dst: Int64,
    records: Words,
    sizes: Int64,
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
    event_part: Int32,
    gained: Int64,
) -> tuple[np.int64, np.int64]:
    """Assign a part to every insert, for at most ``RECORD_PARTS`` parts.

    Args:
        op: int8 (E,), rows other than inserts get −1.
        src: int64 (E,).
        dst: int64 (E,).
        records: uint64 (N,) parts and count; written to. The count is HDRF's degree so far, or PowerGraph's number of
            unassigned edges.
        sizes: int64 (P,) edges assigned; written to.
        greedy: PowerGraph's rule, otherwise HDRF.
        weight: λ of HDRF's balance term.
        seed: Seed of the draws that break ties.
        drawn: Events before this batch.
        event_part: int32 (E,), written: parts.
        gained: int64 (2 E,), written: notes of the parts that nodes gained, in the order of the edges.

    Returns:
        Rows of ``gained``, and number of nodes that gained a second part.
    """
    parts = len(sizes)
    everywhere = ~_NONE >> np.uint64(64 - parts)
    planes = planes_of(sizes)
    meeting_wins = greedy or weight <= 1.0
    step = (_NONE - _ONE) if greedy else _ONE
    state = splitmix64(np.uint64(seed)) + STEP * np.uint64(drawn)
    last = len(op) - 1
    rows = shared = _NONE
    for e in range(len(op)):
        ahead = min(e + AHEAD, last)
        prefetch(records, src[ahead])
        prefetch(records, dst[ahead])
        first = drawn_part(state, parts)
        state += STEP
        if op[e] <= 0:
            event_part[e] = -1
            continue
        i, j = np.uint64(src[e]), np.uint64(dst[e])
        a, b = records[i] + step, records[j] + step
        in_a, in_b = a & _PARTS, b & _PARTS
        count_a, count_b = np.int64(a >> _COUNT_SHIFT), np.int64(b >> _COUNT_SHIFT)
        both = in_a & in_b
        meets = both != _NONE and meeting_wins
        if meets:
            among = least_level(planes, both)[0]
            records[i], records[j] = a, b
        elif greedy:
            among = in_a | in_b
            if in_a and in_b and count_a != count_b:
                among = choose(count_a > count_b, in_a, in_b)
            among = least_level(planes, among if among != _NONE else everywhere)[0]
        elif weight <= 1.0 and full(planes) == _NONE:
            among = better_end(planes, in_a, in_b, everywhere, count_a, count_b, weight)
        else:
            among = best_class(sizes, in_a, in_b, everywhere, count_a, count_b, weight)
            among = least_level(planes, among)[0]
        if among & full(planes) != _NONE:
            among = least_loaded(sizes, among)
        bit = next_part(among, first)
        part = lowest_bit(bit)
        sizes[part] += 1
        planes, is_stale = raised(planes, bit, everywhere)
        if is_stale:
            planes = planes_of(sizes)
        event_part[e] = part
        if meets:
            continue
        records[i], records[j] = a | bit, b | bit
        rows, second = note_ends(gained, rows, i, j, in_a, in_b, part, bit)
        shared += second
    return np.int64(rows), np.int64(shared)


@njit(cache=True, nogil=True)
def assign_words(
    op: Int8,
    src: Int64,
    dst: Int64,
    masks: Words,
    counts: UInt32,
    home: Int32,
    sizes: Int64,
    greedy: bool,
    weight: float,
    seed: int,
    drawn: int,
    event_part: Int32,
    gained: Int64,
) -> tuple[int, int]:
    """``assign_records`` for any number of parts; masks uint64 (N, words), counts (N,) and homes (N,) are written to."""
    parts = len(sizes)
    state = splitmix64(np.uint64(seed)) + STEP * np.uint64(drawn)
    rows = shared = 0
    for e in range(len(op)):
        first = np.int64(drawn_part(state, parts))
        state += STEP
        if op[e] <= 0:
            event_part[e] = -1
            continue
        i, j = src[e], dst[e]
        step = -1 if greedy else 1
        counts[i] += step
        if i != j:
            counts[j] += step
        best, largest, smallest = least_by_class(masks[i], masks[j], sizes, first, 0)
        count_a, count_b = np.int64(counts[i]), np.int64(counts[j])
        if greedy:
            part = _greedy_part(best, sizes, first, count_a, count_b)
        else:
            part, best_score = -1, -1.0
            both_counts = count_a + count_b
            for which in range(4):
                worth = (3 * both_counts, both_counts + count_b, both_counts + count_a, 0)[which]
                if best[which] >= 0:
                    room = weight * (float(both_counts) * (largest - sizes[best[which]]))
                    score = float(worth) * (1 + largest - smallest) + room
                    if score > best_score:
                        part, best_score = int(best[which]), score
        sizes[part] += 1
        event_part[e] = part
        rows, second = join_ends(gained, rows, i, j, masks, home, part)
        shared += second
    return rows, shared


@njit(cache=True, nogil=True)
def _greedy_part(best: tuple[int, int, int, int], sizes: Int64, drawn: int, left_a: int, left_b: int) -> int:
    """PowerGraph's choice among the least loaded parts of the four classes."""
    both, first, second, neither = best
    if both >= 0:
        return both
    if first < 0 and second < 0:
        return neither
    if first < 0 or second < 0:
        return max(first, second)
    if left_a != left_b:
        return first if left_a > left_b else second
    if sizes[first] != sizes[second]:
        return first if sizes[first] < sizes[second] else second
    parts = len(sizes)
    return first if (first - drawn) % parts < (second - drawn) % parts else second
