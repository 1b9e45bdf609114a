"""The additive difference between two snapshots, which a lane stores (DistDy, section 3.2).

Pure functions, arrays in and out. An edge is stored with each part that owns one of its ends (vertex lanes) or with one part
(edge lanes). Of features only the segments that differ from those in a part are stored; a new node starts from zeros.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from freshet_graph.stream.arrays.kinds import Float32, Int8, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.snapshots.node_features import segment_bounds
from freshet_graph.stream.snapshots.pairs import split_keys

NOWHERE = -1

ENDS_BYTES, WEIGHT_BYTES = 2.5, 3.6
"""Compressed bytes of a row's ends and of a varying weight: 1.9 to 3 and 3.6 on graphs of 2 to 100 pairs per node."""


@dataclass(frozen=True, slots=True)
class WholePairs:
    """The live pairs of a snapshot and the parts that hold them.

    ``keys`` int64 (n,) ascending (``pairs.pair_keys``), ``weight`` float32 (n,), ``first`` and ``second`` int32 (n,): the
    parts, ``second`` −1 if one part holds the pair.
    """

    keys: Int64
    weight: Float32
    first: Int32
    second: Int32

    @classmethod
    def by_owner(cls, keys: Int64, weight: Float32, home: Int32) -> "WholePairs":
        """Vertex lanes: each pair with the owners of its ends; ``home`` is int32 (num_nodes,)."""
        src, dst = split_keys(keys)
        first, second = home[src], home[dst]
        return cls(keys, weight, first, np.where(first == second, np.int32(NOWHERE), second))

    @classmethod
    def by_edge(cls, keys: Int64, weight: Float32, part: Int32) -> "WholePairs":
        """Edge lanes: each pair with one part; ``part`` is int32 (n,)."""
        return cls(keys, weight, part, np.full(len(keys), NOWHERE, np.int32))

    def count(self, batches: int) -> Int64:
        """Pairs stored with each part, int64 (batches,)."""
        both = np.bincount(self.first, minlength=batches)
        return both + np.bincount(self.second[self.second >= 0], minlength=batches)


@dataclass(frozen=True, slots=True)
class PairRows:
    """Edge changes by part: rows offsets[k]:offsets[k + 1] are part k's, ascending by (op, src, dst).

    ``op`` int8: 1 the pair enters the part, −1 it leaves the part, 0 it stays with a new weight. ``weight`` is 0 where op
    is −1.
    """

    offsets: Int64
    op: Int8
    keys: Int64
    weight: Float32

    @property
    def growth(self) -> Int64:
        """Net number of pairs that each part gains, int64 (batches,)."""
        total = np.concatenate([[0], np.cumsum(self.op, dtype=np.int64)])
        growth: Int64 = np.diff(total[self.offsets])
        return growth


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Feature changes by part: rows offsets[k]:offsets[k + 1] are part k's, ascending by (node, segment).

    ``values`` is float32 (n, W), W = ceil(F / S); shorter segments are padded with zeros.
    """

    offsets: Int64
    node: Int64
    segment: Int32
    values: Float32


@dataclass(frozen=True, slots=True)
class Stored:
    """Content of a lane snapshot's files: the change from its predecessor, or from nothing (a base).

    ``whole_pairs``: ``pairs`` lists all pairs after the snapshot, and pairs from before are dropped.
    """

    node: Int64
    part: Int32
    why: Int8
    pairs: PairRows
    segments: SegmentRows
    whole_pairs: bool = False


def segment_width(features: int, segments: int) -> int:
    """W: values in the longest segment, ceil(F / S); 0 without features."""
    return -(-features // segments)


def rows_of_all(pairs: WholePairs, batches: int) -> PairRows:
    """All pairs of a snapshot by part, as changes from nothing.

    Args:
        pairs: Of the snapshot.
        batches: Number of parts, plus one for discarded pairs in edge lanes.
    """
    twice = pairs.second >= 0
    part, keys, weight = (
        np.concatenate([column, other[twice]])
        for column, other in ((pairs.first, pairs.second), (pairs.keys,) * 2, (pairs.weight,) * 2)
    )
    return by_part(part, np.ones(len(part), np.int8), keys, weight, batches)


def is_smaller_whole(changes: PairRows, pairs: int) -> bool:
    """Whether a list of all pairs takes fewer bytes in a file than the changes, estimated from counts.

    Rows of both cost the same except for weights: those of leaving pairs are zeros, and equal weights cost nothing.

    Args:
        changes: From the previous snapshot.
        pairs: Rows of the list.
    """
    if pairs >= len(changes.op):
        return False
    weight = changes.weight[changes.op >= 0]
    alike = len(weight) == 0 or bool((weight == weight[0]).all())
    weight_bytes = 0.0 if alike else WEIGHT_BYTES
    return pairs * (ENDS_BYTES + weight_bytes) < len(changes.op) * ENDS_BYTES + len(weight) * weight_bytes


def by_part(part: Int32, op: Int8, keys: Int64, weight: Float32, batches: int) -> PairRows:
    """Order rows of pair changes by part, op and key: similar rows together take a fifth less when compressed."""
    order = np.argsort(keys)  # a key has one row per part, so this need not be stable
    kind = np.int16 if 3 * batches < 1 << 15 else np.int32  # 16 bits are sorted by counting
    group = (3 * part + op + 1).astype(kind)
    order = order[np.argsort(group[order], kind="stable")]
    return PairRows(_offsets(part, batches), op[order], keys[order], weight[order])


def full_rows(
    node: Int64, part: Int32, vectors: Float32, segments: int
) -> tuple[Int32, Int64, Int32, Float32]:
    """Segments of newly placed nodes that aren't all zeros.

    Args:
        node: int64 (n,).
        part: int32 (n,).
        vectors: float32 (n, F), the nodes' whole vectors.
        segments: S.

    Returns:
        Rows (part, node, segment, values (r, W)).
    """
    cut = cut_segments(vectors, segments)
    row, segment = np.nonzero(cut.any(axis=2))
    return part[row], node[row], segment.astype(np.int32), cut[row, segment]


def cut_segments(vectors: Float32, segments: int) -> Float32:
    """Vectors (n, F) as float32 (n, S, W): segment s holds values [b[s], b[s + 1]) of ``segment_bounds``, then zeros."""
    n, features = vectors.shape
    bounds = segment_bounds(features, segments)
    width = segment_width(features, segments)
    if features == segments * width:
        return vectors.reshape(n, segments, width)
    cut = np.zeros((n, segments, width), np.float32)
    for s, (start, end) in enumerate(pairwise(bounds.tolist())):
        cut[:, s, : end - start] = vectors[:, start:end]
    return cut


def segment_changes(rows: list[tuple[Int32, Int64, Int32, Float32]], parts: int, width: int) -> SegmentRows:
    """Order rows (part, node, segment, values) by part, node and segment."""
    part = np.concatenate([np.empty(0, np.int32), *(r[0] for r in rows)])
    node = np.concatenate([np.empty(0, np.int64), *(r[1] for r in rows)])
    segment = np.concatenate([np.empty(0, np.int32), *(r[2] for r in rows)])
    values = np.concatenate([np.empty((0, width), np.float32), *(r[3] for r in rows)])
    order = np.lexsort((segment, node, part))
    return SegmentRows(_offsets(part, parts), node[order], segment[order], values[order])


def _offsets(part: Int32, batches: int) -> Int64:
    return np.concatenate([[0], np.cumsum(np.bincount(part, minlength=batches))]).astype(np.int64)


@njit(cache=True, nogil=True)
def pair_change(key, old, new, reweighted, w, n, part, op, keys, weight):  # type: ignore[no-untyped-def]  # compiled
    """Write the rows of one pair from row ``n`` on (without outputs, only count them); returns the row after them.

    ``old`` and ``new`` are the two parts that held and now hold it; −1 for none, twice the same for one.
    """
    fill = len(part) > 0
    for i in range(2):
        p = old[i]
        if p < 0 or p == new[0] or p == new[1] or (i == 1 and p == old[0]):
            continue
        if fill:
            part[n], op[n], keys[n], weight[n] = p, -1, key, 0
        n += 1
    for i in range(2):
        p = new[i]
        if p < 0 or (i == 1 and p == new[0]):
            continue
        was_stored = p == old[0] or p == old[1]
        if was_stored and not reweighted:
            continue
        if fill:
            part[n], op[n], keys[n], weight[n] = p, 0 if was_stored else 1, key, w
        n += 1
    return n
