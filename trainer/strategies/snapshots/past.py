"""The snapshots before a prediction, as one rank sees them."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freshet_graph.stream.arrays.kinds import Bool, Float32, Float64, Int32, Int64
from freshet_graph.stream.kernels.node_sets import locate
from freshet_graph.stream.snapshots.adjacency import build_adjacency
from freshet_graph.stream.snapshots.pairs import pair_keys
from freshet_graph.trainer.data.neighbours import NodeEdges, runs, sample_neighbours
from freshet_graph.trainer.data.views import GraphView
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.interface import NodeInputs, SnapshotModel
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.timeline.graph import activity

STRIDE = 1 << 32
"""Larger than every dense id."""


@dataclass(frozen=True, slots=True)
class PastSnapshot:
    """One snapshot of the window.

    Attributes:
        tau: Interval index.
        number: Of the snapshot in its log, from 0.
        local: Edges of the nodes that this rank owns.
        home: int8 or int16 (dense ids of τ,): the rank that computes each node's rows.
        active: int64 (m,), ascending: the nodes with inserts.
        activity: float32 (m, 2): their log(1 + inserts of τ as source, as destination).
        foreign: Edges of nodes of other ranks.
    """

    tau: int
    number: int
    local: NodeEdges
    home: NDArray[np.signedinteger]
    active: Int64
    activity: Float32
    foreign: NodeEdges = field(default_factory=NodeEdges.empty)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, without edges of other ranks' nodes."""
        return self.local.nbytes + self.home.nbytes + self.active.nbytes + self.activity.nbytes

    def neighbours(self, nodes: Int64, fanout: int | None, seed: int) -> tuple[Int64, Int64]:
        """See ``sample_neighbours``: of nodes whose edges are here."""
        return sample_neighbours(self.local, self.foreign, nodes, fanout, seed)

    def loads(self, hops: int) -> Float64:
        """Σ_{l ≤ hops} Σ_{j ≤ l} (walks of length j from a node), float64 (dense ids,): DynaHB's definition 2.

        Valid for nodes whose edges, and those of all fewer than ``hops`` away, are here.
        """
        nodes = len(self.home)
        walks, total = np.ones(nodes), np.full(nodes, float(hops + 1))
        for hop in range(1, hops + 1):
            walks = self.local.sums(walks) + self.foreign.sums(walks)
            total += walks * (hops + 1 - hop)  # a walk of length j counts in every l from j on
        return total


class Past:
    """Snapshots before the one to be predicted, oldest first; nodes in them are named by one int64 *key*.

    A key is place · ``STRIDE`` + node, so a window is one large graph of disjoint snapshots: sampled, fetched and
    multiplied at once. Keys may name nodes that a snapshot does not have: they have no owner.

    Attributes:
        snapshots: At most ``length``, oldest first.
        length: Snapshots the model wants.
    """

    def __init__(self, snapshots: list[PastSnapshot], length: int) -> None:
        self.snapshots = snapshots
        self.length = length

    def part(self, first: int, length: int) -> "Past":
        """Some consecutive snapshots."""
        return Past(self.snapshots[first : first + length], self.length)

    def keys(self, nodes: Int64) -> Int64:
        """Keys of ``nodes`` in every snapshot: int64 (snapshots, n)."""
        places = np.arange(len(self.snapshots), dtype=np.int64)
        return places[:, None] * STRIDE + nodes

    def homes(self, keys: Int64) -> Int32:
        """The rank that owns each key; −1 without an owner."""
        out = np.full(len(keys), -1, np.int32)
        for snapshot, here, nodes in self.by_snapshot(keys):
            inside = nodes < len(snapshot.home)
            out[here][inside] = snapshot.home[nodes[inside]]
        return out

    def activity(self, keys: Int64) -> Float32:
        """float32 (n, 2), see ``PastSnapshot``; zeros for nodes without inserts."""
        out = np.zeros((len(keys), 2), np.float32)
        for snapshot, here, nodes in self.by_snapshot(keys):
            place, active = locate(snapshot.active, nodes)
            out[here][active] = snapshot.activity[place[active]]
        return out

    def sample(self, keys: Int64, fanout: int | None, seed: int) -> tuple[Int64, Int64]:
        """Neighbours of sorted keys, as keys: indptr int64 (n + 1,), neighbours int64 (indptr[-1],)."""
        starts, neighbour_keys, offset = [np.zeros(1, np.int64)], [], 0
        for place, (snapshot, _, nodes) in enumerate(self.by_snapshot(keys)):
            indptr, neighbours = snapshot.neighbours(nodes, fanout, seed + snapshot.number)
            starts.append(indptr[1:] + offset)
            offset += int(indptr[-1])
            neighbour_keys.append(neighbours + place * STRIDE)
        return np.concatenate(starts), np.concatenate([*neighbour_keys, np.empty(0, np.int64)])

    def by_snapshot(self, keys: Int64) -> list[tuple[PastSnapshot, slice, Int64]]:
        """Sorted keys by snapshot: the places of its keys, and their nodes."""
        borders = np.searchsorted(keys, np.arange(len(self.snapshots) + 1) * STRIDE)
        return [
            (snapshot, slice(begin, end), keys[begin:end] - place * STRIDE)
            for place, (snapshot, begin, end) in enumerate(
                zip(self.snapshots, borders[:-1].tolist(), borders[1:].tolist(), strict=True)
            )
        ]


class PastBuilder:
    """Makes the ``Past`` of each new snapshot, and reuses older snapshots.

    Args:
        length: Snapshots the model wants.
        ranks: Part k belongs to rank k mod their number.
    """

    def __init__(self, length: int, ranks: Ranks) -> None:
        self._length = length
        self._ranks = ranks
        self._known: dict[int, PastSnapshot] = {}

    def before_latest(self, window: GraphView) -> Past:
        """The snapshots before the window's newest one, for its prediction."""
        return self._past(window, window.taus[:-1])

    def through_latest(self, window: GraphView) -> Past:
        """The newest snapshot and those before it, for the next prediction."""
        return self._past(window, window.taus)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return sum(snapshot.memory_bytes for snapshot in self._known.values())

    def _past(self, window: GraphView, taus: list[int]) -> Past:
        taus, first = taus[-self._length :], window.sequence + 1 - len(window.taus)
        for tau in taus:
            if tau not in self._known:
                self._known[tau] = self._snapshot(window, tau, first + window.taus.index(tau))
        self._known = {tau: known for tau, known in self._known.items() if tau in window.taus}
        return Past([self._known[tau] for tau in taus], self._length)

    def _snapshot(self, window: GraphView, tau: int, number: int) -> PastSnapshot:
        owner = window.owner(tau)
        # A node without an edge has no owner; its row needs no other row.
        home = np.where(owner >= 0, owner, np.arange(len(owner))) % self._ranks.size
        local = _edges_of(window, tau, home == self._ranks.rank)
        narrow = home.astype(np.min_scalar_type(-self._ranks.size))
        return PastSnapshot(tau, number, local, narrow, *activity(window.events(tau)))


def encoded(
    model: SnapshotModel, past: Past, keys: Int64, stored: Float32, device: torch.device
) -> tuple[Tensor, Float32]:
    """Input rows (n, d) of sorted keys from ``stored_inputs``, on a device, zeros before a node has come; and degrees (n,)."""
    features, degrees = stored.shape[1] - 1, stored[:, -1]
    structure = np.log1p(degrees, dtype=np.float64).astype(np.float32)[:, None]
    rows = to_device(np.concatenate([stored[:, :features], structure, past.activity(keys)], axis=1), device)
    nodes = torch.from_numpy(keys % STRIDE)
    inputs = model.encode(NodeInputs(nodes, rows[:, :features], rows[:, features:]))
    present = past.homes(keys) >= 0
    # A signature follows from the id: without this a node would have one before it has come.
    return inputs if present.all() else inputs * to_device(present, device).unsqueeze(1), degrees


def _edges_of(window: GraphView, tau: int, is_local: Bool) -> NodeEdges:
    """Edges of this rank's nodes; the view's own adjacency has weights and parts of other rows, too."""
    src, dst, _ = window.pairs(tau)
    keys = pair_keys(src, dst)
    if not (keys[1:] > keys[:-1]).all():
        keys.sort()  # the order of numbers is not that of ids
    nodes = np.flatnonzero(is_local)
    degrees, neighbours = neighbours_of(len(is_local), keys, nodes)
    some = degrees > 0
    return NodeEdges.of_degrees(nodes[some], degrees[some], neighbours)


def neighbours_of(num_nodes: int, keys: Int64, nodes: Int64) -> tuple[Int64, Int32]:
    """Neighbours of some nodes in either direction, without self-loops.

    Args:
        num_nodes: More than any node.
        keys: int64 (m,), directed pairs as ``pair_keys``, ascending and distinct.
        nodes: int64 (n,), ascending.

    Returns:
        Degrees int64 (n,), and int32 (Σ degrees,), the neighbours of one node after the other, ascending.
    """
    indptr, indices, _ = build_adjacency(num_nodes, keys, np.zeros(len(keys), np.float32))
    degree = indptr[nodes + 1] - indptr[nodes]
    return degree, indices[runs(indptr[nodes], degree)]


def stored_inputs(window: GraphView, past: Past, keys: Int64, features: int) -> Float32:
    """Stored inputs of this rank's nodes by sorted keys: features and degree, float32 (n, F + 1)."""
    out = np.empty((len(keys), features + 1), np.float32)
    for snapshot, here, nodes in past.by_snapshot(keys):
        if features:
            out[here, :-1] = window.features(nodes, snapshot.tau)
        out[here, -1] = snapshot.local.find(nodes)[2]
    return out
