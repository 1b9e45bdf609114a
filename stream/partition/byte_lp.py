"""byte-lp: label propagation that counts bytes, fetched ones against moved ones; and METIS tied to where nodes were.

A node is worth to a part what trainers fetch less if it is there: uses·(min(d, f)/d of either end) vectors a neighbour,
the edge weights of DistDy section 3.4. Moving it costs ``move_cost`` vectors.
"""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.partition.byte_lp_kernels import shed, sweep, traffic
from stream.partition.interface import PartitionError, register
from stream.partition.live_rows import live_rows
from stream.partition.metis import keep_and_place, metis_of_live
from stream.partition.metis_library import metis
from stream.partition.quality import DEFAULT_FANOUT, sampled_share
from stream.partition.relabel import relabel
from stream.partition.vertex import VertexPartitioner
from stream.snapshots.delta import Float64, Int32, Int64, SnapshotDelta

_SLACK = 1.05
"""Nodes a part may hold over the mean."""

_SWEEPS = 30
"""At most so many a snapshot; few streams need ten."""

_WEIGHT_UNITS = 16
"""METIS takes whole numbers: sixteenths of a vector."""

_WORTH_IT = 0.05
"""Below this gain the next METIS is put off twice as long."""


@register
class ByteLp(VertexPartitioner):
    """METIS on the first snapshot, then new nodes to their neighbours and sweeps from what the delta touched.

    Sweeps end in local optima that drift from what METIS finds. So once ``refresh`` events a live pair have come in,
    METIS runs again with each old node tied to where it was: a weightless anchor a part, an edge of weight ``tie``
    between an old node and its part's anchor, and the pairs with their weights. Its parts, renamed to those of
    before and swept, are taken where they send fewer vectors in fetches and moves. Where that gains little, the
    next one is put off twice as long. No part ever holds more than ⌈1.05·n/K⌉ nodes.

    Args:
        move_cost: m, what a move costs, in vectors.
        uses: How often a snapshot is trained on; None: ``window`` times.
        tie: Weight that holds a node to its part in METIS, in vectors.
        refresh: Events a live pair between two runs of METIS; None: only on the first snapshot.
        fanout: f, neighbours that a trainer samples a node.
        shared: parts, seed and window of all vertex partitioners.
    """

    name: ClassVar[str] = "byte-lp"

    def __init__(
        self,
        *,
        move_cost: float = 0.2,
        uses: float | None = None,
        tie: float = 2.0,
        refresh: float | None = 1.0,
        fanout: int = DEFAULT_FANOUT,
        **shared: Any,
    ) -> None:
        super().__init__(fanout=fanout, **shared)
        for value, of in ((move_cost, "move_cost"), (tie, "tie"), (refresh or 0.0, "refresh")):
            if not value >= 0:
                raise PartitionError(f"{self.name} takes {of} ≥ 0, found {value}")
        if uses is not None and not uses > 0:
            raise PartitionError(
                f"{self.name} takes uses > 0, trainings on a snapshot, or null, found {uses}"
            )
        if fanout < 1:
            raise PartitionError(f"{self.name} takes fanout ≥ 1, found {fanout}")
        self.move_cost, self.tie, self.fanout = move_cost, tie, fanout
        self.uses = float(self.window if uses is None else uses)
        self.refresh = math.inf if refresh is None else refresh
        self._wait, self._churn = (
            self.refresh,
            0.0,
        )  # events a live pair: until the next METIS, since the last one

    def _place(self, delta: SnapshotDelta) -> Int32:
        owner = self._home.copy()
        starts = not (owner >= 0).any()
        self._churn += len(delta.op) / max(len(delta.graph.indices) // 2, 1)
        chance = sampled_share(delta.graph.indptr, self.fanout)
        if starts:
            self._churn = 0.0
            owner[delta.live] = metis_of_live(delta, self.parts, self.seed)
            dirty = delta.live
        else:
            keep_and_place(delta, owner, self.parts, self.seed)
            dirty = delta.touched[owner[delta.touched] >= 0]
        self._improve(delta, chance, owner, dirty)
        if not starts and self._churn >= self._wait:
            owner = self._cheaper(delta, chance, owner, self._tied(delta, chance))
        placed: NDArray[np.int32] = owner[delta.live]
        return placed

    def _cheaper(self, delta: SnapshotDelta, chance: Float64, swept: Int32, tied: Int32) -> Int32:
        """The placement that sends fewer vectors; decides when METIS runs next."""
        graph = delta.graph
        of_swept, of_tied = (
            traffic(
                graph.indptr, graph.indices, chance, self.uses, delta.live, self._home, owner, self.move_cost
            )
            for owner in (swept, tied)
        )
        self._churn = 0.0
        self._wait = self.refresh if of_tied < (1 - _WORTH_IT) * of_swept else 2 * self._wait
        return tied if of_tied < of_swept else swept

    def _tied(self, delta: SnapshotDelta, chance: Float64) -> Int32:
        """Owners int32 (num_nodes,) by METIS with every old node tied to its part of before, swept."""
        starts, neighbours = live_rows(delta.graph.indptr, delta.graph.indices, delta.live)
        n, own, before = len(delta.live), chance[delta.live], self._home[delta.live]
        row = np.repeat(np.arange(n), np.diff(starts))
        weight = self.uses * (own[row] + own[neighbours])
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
            edge_weights=_whole(np.concatenate([weight, np.full(2 * len(old), self.tie)])[order]),
        )
        owner = np.full(delta.num_nodes, -1, np.int32)
        owner[delta.live] = relabel(before, found[:n], self.parts)
        self._improve(delta, chance, owner, delta.live)
        return owner

    def _improve(self, delta: SnapshotDelta, chance: Float64, owner: Int32, dirty: Int64) -> None:
        """Sweep from the dirty nodes, then bring every part within its capacity."""
        graph, n = delta.graph, len(delta.live)
        count = np.bincount(owner[delta.live], minlength=self.parts)
        if n == 0:
            return
        # Every pair is in two rows, and a row's chances add up to min(d, f).
        weight = 2 * self.uses * float(np.minimum(np.diff(graph.indptr), self.fanout).sum())
        capacity = math.ceil(_SLACK * n / self.parts)
        sweep(
            graph.indptr,
            graph.indices,
            chance,
            self.uses,
            self._home,
            owner,
            count,
            dirty,
            self.move_cost,
            weight / n * self.parts / n,  # a part of n/K nodes costs what the mean node is worth
            capacity,
            _SWEEPS,
        )
        shed(
            graph.indptr,
            graph.indices,
            chance,
            self.uses,
            delta.live,
            self._home,
            owner,
            count,
            self.move_cost,
            capacity,
        )

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {"churn": np.array([self._churn, self._wait])}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._churn, self._wait = memory["churn"].tolist()


def _whole(weights: Float64) -> Int64:
    whole: Int64 = np.maximum(np.rint(weights * _WEIGHT_UNITS), 1).astype(np.int64)
    return whole


@register
class AnchorMetis(ByteLp):
    """``byte-lp`` with METIS tied to where nodes were on every snapshot: the lowest traffic, at METIS's speed."""

    name: ClassVar[str] = "anchor-metis"

    def __init__(self, *, refresh: float | None = 0.0, **shared: Any) -> None:
        super().__init__(refresh=refresh, **shared)
