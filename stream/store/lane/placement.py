"""Where the nodes of a lane are: homes and sets of parts, advanced by the rows of ``assignment.arrow``."""

from dataclasses import dataclass

import numpy as np

from freshet_graph.schemas.store import LaneHeader, LaneKind, Why
from freshet_graph.stream.arrays.growing import Growing
from freshet_graph.stream.arrays.kinds import Bool, Int8, Int32, Int64, Words
from freshet_graph.stream.kernels import njit, or_plain
from freshet_graph.stream.kernels.bits import in_several

_GONE, _NEW, _MOVED, _DEMOTED = int(Why.GONE), int(Why.NEW), int(Why.MOVED), int(Why.DEMOTED)


@dataclass(frozen=True, slots=True)
class Transition:
    """The (node, part) placements that one snapshot ended and began, and the homes that it changed.

    Attributes:
        entered_node: int64 (e,), ascending.
        entered_part: int32 (e,).
        left_node: int64 (l,), ascending.
        left_part: int32 (l,).
        rehomed: int64 (h,), nodes with a changed home, ascending.
        former_home: int32 (h,), their homes before, −1 for none.
    """

    entered_node: Int64
    entered_part: Int32
    left_node: Int64
    left_part: Int32
    rehomed: Int64
    former_home: Int32


class Placement:
    """Homes and sets of parts of dense node ids, advanced by the rows of ``assignment.arrow``.

    Vertex lanes: a node is in its home only. Edge lanes: a node is in a set of parts, kept as a bit mask; a node that moves
    stays in its former home until a DEMOTED row.
    """

    def __init__(self, kind: LaneKind, parts: int) -> None:
        self.kind = kind
        self.parts = parts
        self._homes = Growing(-1, np.int32)
        self._sets = Growing(0, np.uint64, (0 if kind == "vertex" else -(-parts // 64),))

    @property
    def home(self) -> Int32:
        """Home of every dense id, int32 (num_nodes,), −1 for none: a view, valid for one snapshot."""
        return self._homes.values

    @property
    def _masks(self) -> Words:
        return self._sets.values

    def apply(self, node: Int64, part: Int32, why: Int8, num_nodes: int) -> Transition:
        """Advance by one snapshot's changes.

        Args:
            node: int64 (n,) dense ids, ascending.
            part: int32 (n,) in [−1, K).
            why: int8 (n,), a ``Why`` each.
            num_nodes: Dense ids in use after the snapshot.

        Returns:
            The placements that began and ended; O(n), and O(num_nodes) only to grow.
        """
        self._homes.grow(num_nodes)
        self._sets.grow(num_nodes)
        first = np.flatnonzero(np.diff(node, prepend=-1))
        rehomed = node[first]
        former = self.home[rehomed]
        if self.kind == "vertex":
            chosen = part[first]
            self.home[rehomed] = chosen
            changed = former != chosen
            entered, left = changed & (chosen >= 0), changed & (former >= 0)
            return Transition(
                rehomed[entered],
                chosen[entered],
                rehomed[left],
                former[left],
                rehomed[changed],
                former[changed],
            )
        entered_node, entered_part, left_node, left_part = _apply_sets(
            node, part, why, self.home, self._masks, self.parts
        )
        changed = self.home[rehomed] != former
        return Transition(entered_node, entered_part, left_node, left_part, rehomed[changed], former[changed])

    def parts_of(self, nodes: Int64) -> tuple[Int64, Int32]:
        """All placements of ``nodes`` (ascending): parallel arrays (node, part), by node, then part."""
        if self.kind == "vertex":
            home = self.home[nodes]
            return nodes[home >= 0], home[home >= 0]
        placements: tuple[Int64, Int32] = _enumerate(nodes, self._masks, self.parts)
        return placements

    def all(self) -> tuple[Int64, Int32]:
        """All placements: parallel arrays (node, part), by node, then part."""
        return self.parts_of(np.arange(len(self.home), dtype=np.int64))

    def in_any(self, selected: Bool, nodes: Int64) -> Bool:
        """Which ``nodes`` are in at least one selected part; ``selected`` is bool (K,)."""
        if self.kind == "vertex":
            home = self.home[nodes]
            return np.where(home >= 0, selected[home], False)
        bits = np.packbits(np.pad(selected, (0, self._masks.shape[1] * 64 - self.parts)), bitorder="little")
        is_in_any: Bool = np.any(self._masks[nodes] & bits.view("<u8"), axis=1)
        return is_in_any

    def shared(self) -> Bool:
        """Nodes in more than one part, bool (num_nodes,)."""
        if self.kind == "vertex":
            return np.zeros(len(self.home), np.bool_)
        return in_several(self._masks)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._homes.nbytes + self._sets.nbytes


def _apply_sets_plain(
    node: Int64, part: Int32, why: Int8, home: Int32, masks: Words, parts: int
) -> tuple[Int64, Int32, Int64, Int32]:
    """``_apply_sets`` by NumPy, for readers of stores without numba: the first rows of all nodes, then the second ones."""
    nodes, first = np.unique(node, return_index=True)
    before = _bits(masks[nodes], parts)
    turn = np.arange(len(node)) - np.repeat(first, np.diff(first, append=len(node)))
    for number in range(turn.max(initial=-1) + 1):
        rows = np.flatnonzero(turn == number)
        v, p, reason = node[rows], part[rows], why[rows]
        gone, demoted = reason == _GONE, reason == _DEMOTED
        masks[v[gone]] = 0
        home[v[gone]] = -1
        bit = np.uint64(1) << (p & 63).astype(np.uint64)
        masks[v[demoted], p[demoted] >> 6] &= ~bit[demoted]
        stays = ~gone & ~demoted
        masks[v[stays], p[stays] >> 6] |= bit[stays]
        homes = (reason == _NEW) | (reason == _MOVED)
        home[v[homes]] = p[homes]
    after = _bits(masks[nodes], parts)
    entered, left = np.nonzero(after & ~before), np.nonzero(before & ~after)
    return nodes[entered[0]], entered[1].astype(np.int32), nodes[left[0]], left[1].astype(np.int32)


def _bits(masks: Words, parts: int) -> Bool:
    """Masks uint64 (n, words) as bool (n, parts)."""
    return np.unpackbits(masks.view(np.uint8), axis=1, count=parts, bitorder="little").view(np.bool_)


@or_plain(_apply_sets_plain)
@njit(cache=True, nogil=True)
def _apply_sets(node, part, why, home, masks, parts):  # type: ignore[no-untyped-def]  # compiled
    words = masks.shape[1]
    before = np.empty(words, np.uint64)
    ending = 0
    for i in range(len(node)):
        ending += parts if why[i] == _GONE else 1
    entered_node = np.empty(len(node), np.int64)
    entered_part = np.empty(len(node), np.int32)
    left_node = np.empty(ending, np.int64)
    left_part = np.empty(ending, np.int32)
    entered = left = 0
    i = 0
    while i < len(node):
        v = node[i]
        before[:] = masks[v]
        while i < len(node) and node[i] == v:
            if why[i] == _GONE:
                masks[v, :] = 0
                home[v] = -1
            else:
                word, bit = part[i] >> 6, np.uint64(1) << np.uint64(part[i] & 63)
                if why[i] == _DEMOTED:
                    masks[v, word] &= ~bit
                else:
                    masks[v, word] |= bit
                    if why[i] == _NEW or why[i] == _MOVED:
                        home[v] = part[i]
            i += 1
        for word in range(words):
            changed = before[word] ^ masks[v, word]
            if changed == 0:
                continue
            for p in range(word * 64, min(word * 64 + 64, parts)):
                bit = np.uint64(1) << np.uint64(p & 63)
                if changed & bit:
                    if before[word] & bit:
                        left_node[left] = v
                        left_part[left] = p
                        left += 1
                    else:
                        entered_node[entered] = v
                        entered_part[entered] = p
                        entered += 1
    return entered_node[:entered], entered_part[:entered], left_node[:left], left_part[:left]


@njit(cache=True, nogil=True)
def _enumerate(nodes, masks, parts):  # type: ignore[no-untyped-def]  # compiled
    total = 0
    for i in range(len(nodes)):
        for p in range(parts):
            if masks[nodes[i], p >> 6] & (np.uint64(1) << np.uint64(p & 63)):
                total += 1
    node = np.empty(total, np.int64)
    part = np.empty(total, np.int32)
    n = 0
    for i in range(len(nodes)):
        for p in range(parts):
            if masks[nodes[i], p >> 6] & (np.uint64(1) << np.uint64(p & 63)):
                node[n] = nodes[i]
                part[n] = p
                n += 1
    return node, part


def edge_batch_count(header: LaneHeader) -> int:
    """Record batches of ``edges.arrow``: one per part, and in edge lanes one of discarded pairs."""
    return header.parts + (header.kind == "edge")
