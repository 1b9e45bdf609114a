"""Rows of some nodes in the snapshots of a window, read from the files of a vertex lane.

In a vertex lane all pairs of a node are stored with the node's part. So only the parts of the asked nodes are read: from the
newest base at or before the first snapshot, then the changes since, a file at a time, and of each only rows of these nodes are
kept. A window holds the rows of its parts; this reads rows of other parts without holding those.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int8, Int32, Int64
from freshet_graph.stream.snapshots.node_features import segment_bounds
from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.tables import LaneTables


@dataclass(frozen=True, slots=True)
class NodeRows:
    """The content of a snapshot about some nodes.

    Attributes:
        nodes: int64 (n,), ascending: the nodes.
        has_owner: bool (n,), whether a node has an owner in the snapshot.
        keys: int64 (m,), the directed pairs with an end among the nodes, as ``freshet_graph.stream.snapshots.pairs.pair_keys``,
            ascending and
            distinct, self-loops included.
        weight: float32 (m,), their weights.
        features: float32 (n, F), zeros for nodes without an owner.
    """

    nodes: Int64
    has_owner: Bool
    keys: Int64
    weight: Float32
    features: Float32


@dataclass(frozen=True, slots=True)
class Wanted:
    """Nodes of a snapshot.

    Attributes:
        sequence: The snapshot's number.
        nodes: int64 (n,), ascending and distinct.
        owner: int32 (n,), their parts in the snapshot; −1 for none.
    """

    sequence: int
    nodes: Int64
    owner: Int32


def read_rows(lane: LaneReader, wanted: Sequence[Wanted]) -> Iterator[NodeRows]:
    """Read rows of some nodes in some snapshots.

    One pass over the files from the newest base before the first snapshot to the last one; O(rows of the nodes' parts in these
    files), and memory for one part of one file beside the rows of the nodes.

    Args:
        lane: A vertex lane.
        wanted: By snapshot, ascending.

    Yields:
        The rows of each snapshot.

    Raises:
        ValueError: An edge lane, whose pairs are with one part only.
        CorruptError: A file doesn't match its manifest.
        RetainedError: A file is no longer kept.
    """
    if lane.header.kind != "vertex":
        raise ValueError(
            f"lane {lane.header.lane} is an edge lane, which does not have a node's pairs in one part"
        )
    if not wanted:
        return
    manifests, last = lane.manifests, wanted[-1].sequence
    parts = np.unique(np.concatenate([snapshot.owner for snapshot in wanted]))
    pairs = [_PairsOf(part, wanted) for part in parts[parts >= 0].tolist()]
    vectors = _Vectors(lane, wanted) if lane.header.node_features else None
    due = {snapshot.sequence: snapshot for snapshot in wanted}
    begin = _first(lane, wanted[0].sequence)
    for number in range(begin, last + 1):
        manifest = manifests[number]
        from_base = number == begin and lane.base_of(manifest) is not None
        tables = lane.tables(manifest, base=from_base)
        for of_part in pairs:
            rows = lane.read_kept(manifest, partial(tables.pairs, of_part.part))
            of_part.take(rows, manifest.num_nodes, whole=from_base or manifest.whole_pairs)
        if vectors is not None:
            lane.read_kept(manifest, partial(vectors.take, tables, [of_part.part for of_part in pairs]))
        if number in due:
            now = due[number]
            pairs_by_part = [of_part.of(now) for of_part in pairs]
            keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in pairs_by_part)])
            keys, once = np.unique(keys, return_index=True)  # a pair of nodes of two parts is in both
            weight = np.concatenate([np.empty(0, np.float32), *(weight for _, weight in pairs_by_part)])[once]
            has_owner = now.owner >= 0
            features = np.zeros((len(now.nodes), lane.header.node_features), np.float32)
            if vectors is not None:
                features[has_owner] = vectors.of(now.nodes[has_owner])
            yield NodeRows(now.nodes, has_owner, keys, weight, features)


def _first(lane: LaneReader, sequence: int) -> int:
    """Number of the snapshot that a pass begins with: the newest with a base, or the lane's first."""
    manifests = lane.manifests
    for number in range(sequence, manifests.first, -1):
        if lane.base_of(manifests[number]) is not None:
            return number
    return manifests.first


class _PairsOf:
    """Pairs of the wanted nodes in one part; a pair is there once, so its last row says what it is."""

    def __init__(self, part: int, wanted: Sequence[Wanted]) -> None:
        self.part = part
        self._mask = _mask([snapshot.nodes[snapshot.owner == part] for snapshot in wanted])
        self._keys: Int64 = np.empty(0, np.int64)
        self._weight: Float32 = np.empty(0, np.float32)
        self._later: list[tuple[Int8, Int64, Float32]] = []

    def take(self, rows: tuple[Int8, Int64, Int64, Float32], num_nodes: int, *, whole: bool) -> None:
        """Take in the rows of a file (op, src, dst, weight); ``whole``: they list all pairs."""
        op, src, dst, weight = rows
        if whole:
            self._keys, self._weight, self._later = self._keys[:0], self._weight[:0], []
        if len(self._mask) < num_nodes:
            self._mask = np.concatenate([self._mask, np.zeros(num_nodes - len(self._mask), np.bool_)])
        chosen = np.flatnonzero(self._mask[src] | self._mask[dst])
        if len(chosen):
            self._later.append((op[chosen], pair_keys(src[chosen], dst[chosen]), weight[chosen]))

    def of(self, wanted: Wanted) -> tuple[Int64, Float32]:
        """Keys and weights of the pairs of a snapshot's nodes in this part; the snapshot is the last one taken in."""
        if self._later:
            op = np.concatenate([np.zeros(len(self._keys), np.int8), *(op for op, _, _ in self._later)])
            keys = np.concatenate([self._keys, *(keys for _, keys, _ in self._later)])
            weight = np.concatenate([self._weight, *(weight for _, _, weight in self._later)])
            order = np.argsort(keys, kind="stable")  # equal keys stay in order of time
            last = order[np.append(keys[order][1:] != keys[order][:-1], True)]
            last = last[op[last] >= 0]
            self._keys, self._weight, self._later = keys[last], weight[last], []
        mine = np.zeros(len(self._mask), np.bool_)
        mine[wanted.nodes[wanted.owner == self.part]] = True
        src, dst = split_keys(self._keys)
        chosen = mine[src] | mine[dst]
        return self._keys[chosen], self._weight[chosen]


class _Vectors:
    """Feature vectors of the wanted nodes; a node that enters a part brings its vector, starting from zeros."""

    def __init__(self, lane: LaneReader, wanted: Sequence[Wanted]) -> None:
        self._nodes = np.unique(np.concatenate([snapshot.nodes for snapshot in wanted]))
        self._bounds = segment_bounds(lane.header.node_features, lane.header.segments)
        self._part = np.full(len(self._nodes), -1, np.int32)
        self._table = np.zeros((len(self._nodes), lane.header.node_features), np.float32)

    def take(self, tables: LaneTables, parts: Sequence[int]) -> None:
        """Take in a snapshot's changes; vectors of nodes in other parts are not kept."""
        node, part, _ = tables.placed()
        first = np.flatnonzero(np.diff(node, prepend=-1))  # as ``Placement.apply``
        node, part = node[first], part[first]
        place, known = self._located(node)
        moved = place[known][self._part[place[known]] != part[known]]
        self._table[moved] = 0
        self._part[place[known]] = part[known]
        for part_number in parts:
            node, segment, values = tables.segments(part_number)
            place, known = self._located(node)
            known &= self._part[np.minimum(place, len(self._nodes) - 1)] == part_number
            place, segment, values = place[known], segment[known], values[known]
            for s in np.unique(segment).tolist():
                start, end = self._bounds[s], self._bounds[s + 1]
                of = segment == s
                self._table[place[of], start:end] = values[of, : end - start]

    def of(self, nodes: Int64) -> Float32:
        """Vectors of some of the nodes after the last snapshot taken in."""
        return self._table[np.searchsorted(self._nodes, nodes)]

    def _located(self, nodes: Int64) -> tuple[Int64, Bool]:
        place = np.searchsorted(self._nodes, nodes)
        if len(self._nodes) == 0:
            return place, np.zeros(len(nodes), np.bool_)
        return place, self._nodes[np.minimum(place, len(self._nodes) - 1)] == nodes


def _mask(nodes: Sequence[Int64]) -> Bool:
    every = np.concatenate(nodes)
    mask = np.zeros(int(every.max(initial=-1)) + 1, np.bool_)
    mask[every] = True
    return mask
