"""byte-lp: label propagation that counts bytes, fetched against moved ones; and METIS tied to former places.

A node is worth to a part the reduction of what trainers fetch if it is there: uses·(min(d, f)/d of either end) vectors per
neighbour, the edge weights of DistDy section 3.4, plus ``pair_cost`` for the pair itself. Moving it costs ``move_cost`` vectors.
"""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.arrays.growing import grown
from stream.arrays.kinds import Float32, Float64, Int32, Int64
from stream.kernels.mixing import mixed
from stream.kernels.node_sets import union
from stream.partition.interface import PartitionError, register
from stream.partition.vertex.annealing import COLUMNS, anneal
from stream.partition.vertex.base import VertexPartitioner
from stream.partition.vertex.byte_lp_kernels import shed, traffic
from stream.partition.vertex.ldg import place_new
from stream.partition.vertex.live_rows import live_rows
from stream.partition.vertex.metis import NEW_NODE_SLACK, metis_of_live, relabel
from stream.partition.vertex.metis_library import metis
from stream.partition.vertex.quality import DEFAULT_FANOUT, sampled_share
from stream.snapshots.delta import Rows, SnapshotDelta

_SLACK = 1.05
"""Most nodes of a part, relative to the mean."""

_SWEEPS = 30
"""Most sweeps per snapshot; few streams need ten."""

_HALF_UNITS = 256
"""Halves are whole multiples of its inverse, so that their sums in float32 are exact up to 65,536 vectors."""

_WEIGHT_UNITS = 16
"""METIS takes whole numbers: sixteenths of a vector."""

_POSITIVE = 2**62 - 1

_WORTH_IT = 0.05
"""Below this gain, the wait for the next METIS doubles."""


@register
class ByteLp(VertexPartitioner):
    """METIS on the first snapshot, then new nodes join their neighbours, and a search starts from what the delta touched.

    The search sweeps over nodes and gives each its best part; some sweeps are heated (``annealing``), because cold ones alone end
    in poor local optima. To limit drift, METIS runs again after ``refresh`` events per live pair, with each old node tied to its
    place: one weightless anchor per part, an edge of weight ``tie`` between an old node and its part's anchor, and the pairs
    with their weights. Its parts, renamed to the former ones and searched from, are taken if they send fewer vectors in fetches
    and moves. If that gains little, the wait for the next one doubles. No part ever has more than ⌈1.05·n/K⌉ nodes.

    Args:
        move_cost: m, cost of a move, in vectors.
        pair_cost: Cost of a cut pair per use beside the vectors, in vectors, because both parts keep and read it.
        uses: Number of trainings on a snapshot; None: ``window``.
        tie: Weight that holds a node in its part in METIS, in vectors.
        tries: Partitions that METIS makes each time, to take the best.
        heat: Temperature of the first heated sweep, in costs of the mean pair; it falls linearly to 0.
        steps: Heated sweeps per search; 0: none.
        refresh: Events per live pair between two runs of METIS; None: only on the first snapshot.
        fanout: f, neighbours that a trainer samples per node.
        shared: parts, seed and window of all vertex partitioners.
    """

    name: ClassVar[str] = "byte-lp"

    def __init__(
        self,
        *,
        move_cost: float = 0.3,
        pair_cost: float = 1.0,
        uses: float | None = None,
        tie: float = 3.0,
        tries: int = 4,
        heat: float = 0.5,
        steps: int = 2,
        refresh: float | None = 1.0,
        fanout: int = DEFAULT_FANOUT,
        **shared: Any,
    ) -> None:
        super().__init__(fanout=fanout, **shared)
        for value, of in (
            (move_cost, "move_cost"),
            (pair_cost, "pair_cost"),
            (tie, "tie"),
            (heat, "heat"),
            (steps, "steps"),
            (refresh or 0.0, "refresh"),
        ):
            if not value >= 0:
                raise PartitionError(f"{self.name} takes {of} ≥ 0, found {value}")
        if uses is not None and not uses > 0:
            raise PartitionError(
                f"{self.name} takes uses > 0, trainings on a snapshot, or null, found {uses}"
            )
        if fanout < 1:
            raise PartitionError(f"{self.name} takes fanout ≥ 1, found {fanout}")
        if not 1 <= tries <= 100:
            raise PartitionError(f"{self.name} takes tries from 1 to 100, found {tries}")
        self.move_cost, self.pair_cost, self.fanout = move_cost, pair_cost, fanout
        self.tie, self.tries = tie, tries
        self.heat, self.steps = heat, steps
        self.uses = float(self.window if uses is None else uses)
        self.refresh = math.inf if refresh is None else refresh
        # Events per live pair: until the next METIS, since the last one.
        self._wait, self._churn = self.refresh, 0.0
        self._known: Float32 = np.empty((0, 2), np.float32)  # for kernels; a row per node and spare ones
        self._work: Float32 = np.empty((0, COLUMNS + self.parts), np.float32)

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        rows, known = delta.rows, self._known
        known[delta.left, 0] = -1
        known[delta.touched, 1] = self._halves(rows, delta.touched)
        weight = self.totals.weight_after(rows, delta.touched) + self.pair_cost * delta.num_pairs
        if not self._held.any():
            self._churn = 0.0
            part = metis_of_live(delta, self.parts, self.seed, self.tries)
            known[delta.live, 0] = part
            self._improve(delta, known, self._count(part), delta.live, weight)
            return delta.live, known[delta.live, 0].astype(np.int32)
        self._churn += len(delta.op) / max(delta.num_pairs, 1)
        part = place_new(rows, delta.entered, self._owner, self._held, NEW_NODE_SLACK, self.seed)
        known[delta.entered, 0] = part
        dirty = delta.touched[known[delta.touched, 0] >= 0]
        changed = self._improve(delta, known, self._held + self._count(part), dirty, weight)
        if self._churn >= self._wait and delta.num_live:
            self._take_cheaper(rows, self._tied(delta, weight))
            changed = np.flatnonzero(self._known[: self._num_nodes, 0] != self._home)
        named = union(delta.entered, changed, self._marks)
        return named, self._known[named, 0].astype(np.int32)

    def _take_cheaper(self, rows: Rows, tied: Float32) -> None:
        """Take the placement that sends fewer vectors; decide when METIS runs next."""
        of_swept, of_tied = (
            traffic(rows, known, self.uses, self._owner, self.move_cost) for known in (self._known, tied)
        )
        self._churn = 0.0
        self._wait = self.refresh if of_tied < (1 - _WORTH_IT) * of_swept else 2 * self._wait
        if of_tied < of_swept:
            self._known = tied

    def _tied(self, delta: SnapshotDelta, weight: float) -> Float32:
        """A copy of ``_known`` with parts by METIS, every old node tied to its former part, and searched from."""
        starts, neighbours = live_rows(delta.graph.indptr, delta.graph.indices, delta.live)
        n, own, before = delta.num_live, self._known[delta.live, 1].astype(np.float64), self._home[delta.live]
        row = np.repeat(np.arange(n), np.diff(starts))
        pair_weight = self.uses * (own[row] + own[neighbours])
        old = np.flatnonzero(before >= 0)
        anchor = n + before[old].astype(np.int64)
        ends = np.concatenate([row, old, anchor])
        order = np.argsort(ends, kind="stable")
        found = metis(
            np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=n + self.parts))]),
            np.concatenate([neighbours, anchor, old])[order],
            self.parts,
            self.seed,
            node_weights=np.concatenate([np.ones(n, np.int64), np.zeros(self.parts, np.int64)]),
            tries=self.tries,
            edge_weights=_whole(np.concatenate([pair_weight, np.full(2 * len(old), self.tie)])[order]),
        )
        part = relabel(before, found[:n], self.parts)
        known = self._known.copy()
        known[delta.live, 0] = part
        self._improve(delta, known, self._count(part), delta.live, weight)
        return known

    def _improve(
        self, delta: SnapshotDelta, known: Float32, count: Int64, dirty: Int64, weight: float
    ) -> Int64:
        """Search from the dirty nodes, then bring every part within its capacity.

        Args:
            delta: The snapshot.
            known: Parts and halves; parts are written to.
            count: int64 (K,) nodes per part; written to.
            dirty: int64, ascending.
            weight: Cost of all pairs per use if they are cut.

        Returns:
            Nodes that left their place of the previous snapshot in the search or for the capacity, int64, distinct.
        """
        rows, live = delta.rows, delta.num_live
        if live == 0:
            return dirty
        capacity = math.ceil(_SLACK * live / self.parts)
        *_, changed = anneal(
            rows,
            known,
            self._work,
            self._owner,
            count,
            dirty,
            self.move_cost / self.uses,
            # A part of n/K nodes costs as much as the mean node is worth; every pair is worth that to both ends.
            2 * weight / live * self.parts / live,
            capacity,
            _SWEEPS,
            self.heat * weight / max(delta.num_pairs, 1),
            self.steps,
            int(mixed(self.seed, np.array([delta.tau & _POSITIVE]))[0] >> np.uint64(1)),
        )
        out = shed(rows, known[: self._num_nodes], self.uses, self._owner, count, self.move_cost, capacity)
        return union(changed, out, self._marks)

    def _halves(self, rows: Rows, nodes: Int64) -> Float64:
        """Contribution of each node to the cost of its pairs."""
        halves: Float64 = sampled_share(rows, nodes, self.fanout) + self.pair_cost / 2
        return np.rint(halves * _HALF_UNITS) / _HALF_UNITS

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self._known = grown(self._known, num_nodes, -1)
        self._work = grown(self._work, num_nodes)

    def _begin(self, delta: SnapshotDelta) -> None:
        super()._begin(delta)
        n = self._num_nodes
        self._known[:n, 0] = self._home
        self._known[:n, 1] = self._halves(delta.rows, np.arange(n))

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {"churn": np.array([self._churn, self._wait])}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._churn, self._wait = memory["churn"].tolist()


def _whole(weights: Float64) -> Int64:
    whole: Int64 = np.maximum(np.rint(weights * _WEIGHT_UNITS), 1).astype(np.int64)
    return whole


@register
class AnchorMetis(ByteLp):
    """``byte-lp`` with METIS tied to former places on every snapshot: the lowest traffic, at METIS's speed."""

    name: ClassVar[str] = "anchor-metis"

    def __init__(self, *, refresh: float | None = 0.0, steps: int = 30, **shared: Any) -> None:
        super().__init__(refresh=refresh, steps=steps, **shared)
