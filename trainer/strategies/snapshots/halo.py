"""The halo: edges of other ranks' nodes within the reach of the model from this rank's nodes (DynaHB section 4.1).

With them and the inputs of their neighbours, a rank draws samples and computes rows of its nodes alone, and only gradients
cross ranks. A sealed snapshot never changes, so for a new one only the differences from the one before are fetched.
"""

import numpy as np

from stream.arrays.kinds import Bool, Int32, Int64
from stream.service.failure import Failure
from trainer.data.views import GraphView
from trainer.ranks import Ranks
from trainer.strategies.request import Request
from trainer.strategies.snapshots.held_edges import HeldEdges, changed_edges
from trainer.strategies.snapshots.past import STRIDE, Past
from trainer.strategies.snapshots.remote import InputRows

MIB = 1 << 20


class Halo:
    """Edges and inputs of the closure of this rank's nodes in every snapshot of the window.

    It has the edges of other ranks' nodes that are fewer than ``hops`` away, and the inputs of those up to ``hops`` away.
    Data for questions about other nodes are fetched on demand, and kept as long as their snapshot.

    Args:
        ranks: All ranks; methods that take a ``GraphView`` are collectives.
        hops: Graph stages of the model.
        inputs: Keeps the inputs.
        budget_bytes: Of edges and inputs of the closure of this rank's own nodes; None: no bound.
        refresh: Snapshots by which edges of other ranks' nodes may be older than their snapshot.

    Attributes:
        ratio: Nodes of the halo to nodes of this rank, over the window.
    """

    def __init__(
        self, ranks: Ranks, hops: int, inputs: InputRows, budget_bytes: int | None = None, refresh: int = 0
    ) -> None:
        self._ranks, self._hops, self._inputs = ranks, hops, inputs
        self._budget, self._refresh = budget_bytes, refresh
        self._alone = Ranks(device=ranks.device)
        self.edges: dict[int, HeldEdges] = {}
        self.ratio = 0.0

    @property
    def held_bytes(self) -> int:
        """Bytes of edges, own ones included."""
        return sum(edges.held_bytes for edges in self.edges.values())

    def figures(self, past: Past) -> dict[str, float]:
        """Its figures; the age is the most snapshots by which an edge or input is older than its snapshot."""
        ages = [
            s.number - min(self.edges[s.tau].oldest, self._inputs.cache.oldest(s.tau, s.number))
            for s in past.snapshots
        ]
        return {"halo_ratio": self.ratio, "halo_age_snapshots": max(ages, default=0)}

    def seal(self, view: GraphView, past: Past, own: Int64) -> None:
        """Complete the halo of a new window.

        Args:
            view: Has this rank's parts.
            past: The window.
            own: int64, ascending: this rank's nodes in the newest snapshot.

        Raises:
            Failure: It exceeds the budget on any rank (raised on all ranks).
        """
        self.edges = {s.tau: self.edges[s.tau] for s in past.snapshots if s.tau in self.edges}
        reached, needed = self._reach(view, past, own)
        self._require_room(past, reached, needed)
        self._inputs.rows(view, past, needed)
        roots = int((past.homes(past.keys(own).ravel()) >= 0).sum())
        self.ratio = len(needed) / max(roots, 1)
        here_now = zip(past.by_snapshot(reached), past.by_snapshot(needed), strict=True)
        for (snapshot, _, edges_of), (_, _, inputs_of) in here_now:
            gone = self.edges[snapshot.tau].settle(edges_of, inputs_of)
            self._inputs.cache.retain(
                snapshot.tau, np.setdiff1d(self._inputs.cache.nodes(snapshot.tau), gone, assume_unique=True)
            )

    def cover(self, view: GraphView, past: Past, nodes: Int64) -> None:
        """Fetch the data for questions about any nodes, ascending."""
        _, needed = self._reach(view, past, nodes)
        self._inputs.rows(view, past, needed)

    def local(self, past: Past) -> tuple[Past, Ranks]:
        """The same window as of a single rank that owns all nodes; valid where it was covered."""
        return Past([self.edges[s.tau].alone for s in past.snapshots], past.length), self._alone

    def _reach(self, view: GraphView, past: Past, roots: Int64) -> tuple[Int64, Int64]:
        """Keys of other ranks' nodes in the closure of roots: those with edges, and those with inputs."""
        for snapshot in past.snapshots:
            if snapshot.tau not in self.edges:
                self.edges[snapshot.tau] = HeldEdges(snapshot, self._ranks.rank)
        keys = past.keys(roots).ravel()
        frontier = keys[past.homes(keys) >= 0]
        reached = frontier[:0]
        for _ in range(self._hops):
            self._hold(past, self._foreign(past, frontier))
            reached = np.union1d(reached, frontier)
            neighbours = self.local(past)[0].sample(frontier, None, 0)[1]
            frontier = np.setdiff1d(neighbours, reached)
        return self._foreign(past, reached), self._foreign(past, np.union1d(reached, frontier))

    def _foreign(self, past: Past, keys: Int64) -> Int64:
        homes = past.homes(keys)
        return keys[(homes >= 0) & (homes != self._ranks.rank)]

    def _hold(self, past: Past, keys: Int64) -> None:
        """Complete the edges of other ranks' nodes: missing ones are fetched if they changed."""
        missing = np.zeros(len(keys), np.bool_)
        for place, (snapshot, here, nodes) in enumerate(past.by_snapshot(keys)):
            edges = self.edges[snapshot.tau]
            if place:
                before = self.edges[past.snapshots[place - 1].tau]
                edges.take_over(before, nodes[~edges.held[nodes]], snapshot.number - self._refresh)
            missing[here] = ~edges.held[nodes]
        if not self._ranks.any(bool(missing.any()))[0]:
            return
        wanted = keys[missing]
        homes = past.homes(wanted)
        request = Request(wanted, homes, self._ranks)
        had = self._had(past, wanted, homes)
        lengths, flat = changed_edges(past, request.asked, request.tell(had))
        came = request.answer_array(lengths, "edges").astype(np.int64)
        expected = np.maximum(came, 0)
        arrived = request.answer_runs(flat, np.maximum(lengths, 0).astype(np.int64), expected, "edges")
        ends = np.cumsum(expected)
        for place, (snapshot, here, nodes) in enumerate(past.by_snapshot(wanted)):
            edges, same = self.edges[snapshot.tau], came[here] < 0
            if same.any():
                edges.take_over(self.edges[past.snapshots[place - 1].tau], nodes[same], 0, as_new=True)
            begin, end = (
                (ends[here.start - 1] if here.start else 0),
                (ends[here.stop - 1] if here.stop else 0),
            )
            edges.add(nodes[~same], expected[here][~same], arrived[begin:end], snapshot.number)

    def _had(self, past: Past, wanted: Int64, homes: Int32) -> Bool:
        """Whether edges of the snapshot before, with the same owner, are or will be present."""
        same = (wanted >= STRIDE) & (past.homes(np.maximum(wanted - STRIDE, 0)) == homes)
        had = np.isin(wanted - STRIDE, wanted, assume_unique=True)
        for place, (_, here, nodes) in enumerate(past.by_snapshot(wanted)):
            if place:
                earlier = past.snapshots[place - 1]
                inside = nodes < len(earlier.home)
                had[here][inside] |= self.edges[earlier.tau].exact(nodes[inside])
        return had & same

    def _require_room(self, past: Past, reached: Int64, needed: Int64) -> None:
        if self._budget is None:
            return
        edges = sum(
            self.edges[snapshot.tau].bytes_of(nodes) for snapshot, _, nodes in past.by_snapshot(reached)
        )
        (most,) = self._ranks.maximum([edges + len(needed) * self._inputs.cache.row_bytes])
        if most > self._budget:
            raise Failure(
                f"the halo of a rank takes {most / MIB:.3g} MiB, but strategy_params.halo_mib is "
                f"{self._budget / MIB:.3g}. Choose a lane of fewer foreign neighbours, such as metis or byte-lp, or set "
                "fetch to owner"
            )
