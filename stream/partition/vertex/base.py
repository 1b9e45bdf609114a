"""The base of all vertex partitioners: owners over snapshots, their changes, state, and the running quality."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Bool, Float64, Int32, Int64
from freshet_graph.stream.partition.interface import (
    Assignment,
    Kind,
    PartitionerSetting,
    Quality,
    Why,
    foreign_state,
    misplaced,
)
from freshet_graph.stream.partition.quality import Mean, balance, share
from freshet_graph.stream.partition.vertex.pair_totals import PairTotals
from freshet_graph.stream.snapshots.delta import NeighbourRows, SnapshotDelta
from freshet_graph.stream.snapshots.state_table import pack, unpack


class VertexPartitionerOptions(Section):
    """Options of all vertex partitioners."""

    fanout: int = Field(
        10,
        ge=1,
        le=2**31,
        description="f, neighbours that a trainer samples per node; it weighs the pairs of the utility.",
    )  # DistDy section 3.4


class VertexPartitioner(ABC):
    """Gives every live node one owner per snapshot.

    A node that leaves the live graph loses its owner (GONE); when it returns it is NEW. The base costs O(nodes that a snapshot
    touched, and neighbours of those that moved), whatever the size of the graph.

    Args:
        setting: Parts, seed and window, which become attributes.
        options: Its ``Options``.

    Attributes:
        totals: Sums over the live pairs, kept by deltas.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "vertex"
    Options: ClassVar[type[Section]] = VertexPartitionerOptions

    def __init__(self, setting: PartitionerSetting, options: VertexPartitionerOptions) -> None:
        parts = setting.parts
        self.parts, self.seed, self.window = parts, setting.seed, setting.window
        self._owner: Int32 = np.empty(0, np.int32)  # a row per node and spare ones, −1 for no owner
        self._nodes_per_part: Int64 = np.zeros(parts, np.int64)
        self._left_from: Int32 = np.empty(0, np.int32)
        self._marks: Bool = np.empty(0, np.bool_)
        self._num_nodes = 0
        self.totals = PairTotals(parts, options.fanout)
        self._is_current = True  # whether state kept per node is that of the last snapshot's graph
        self._quality = VertexQuality()

    @abstractmethod
    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        """Nodes and their owners: each of ``delta.entered``, and old nodes that move.

        Nodes int64 (n,), distinct, in any order, all of them live; owners int32 (n,) in [0, K). An old node may keep its owner.
        ``self._home`` has the owners at the previous snapshot, −1 for nodes that were not live and for ``delta.left``;
        ``self._nodes_per_part`` the number of still live nodes per part, int64 (K,); ``self._left_from`` the former owners of
        ``delta.left``. All are read-only.
        """

    @property
    def _home(self) -> Int32:
        return self._owner[: self._num_nodes]

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Partition snapshot ``delta.tau``; called once per snapshot, in order."""
        self._grow(delta.num_nodes)
        if not self._is_current:
            self._begin(delta)
            self._is_current = True
        self._left_from = self._owner[delta.left]
        self._nodes_per_part -= self._count(self._left_from)
        self._owner[delta.left] = -1
        named, part = self._require_parts(delta, self._place(delta))
        before = self._owner[named]
        placed = before != part
        node, part, before = named[placed], part[placed], before[placed]
        new = before < 0
        gone = delta.left
        changed = np.concatenate([node, gone])
        order = np.argsort(changed)
        changed = changed[order]
        self._owner[node] = part
        self._require_placed(delta, changed, node[new])
        self._nodes_per_part += self._count(part) - self._count(before[~new])
        self.totals.advance(delta, self._owner, named)
        self._settle()
        moved = len(node) - int(new.sum())
        self._quality.observe(self.totals, self._nodes_per_part, moved)

        part = np.concatenate([part, np.full(len(gone), -1, np.int32)])
        why = np.concatenate([np.where(new, Why.NEW, Why.MOVED), np.full(len(gone), Why.GONE)])
        return Assignment(changed, part[order].astype(np.int32), why[order].astype(np.int8))

    def _require_parts(self, delta: SnapshotDelta, placed: Any) -> tuple[Int64, Int32]:
        """What ``_place`` gave, if it is nodes of the graph and a part in [0, K) for each."""
        try:
            node, part = (np.asarray(column) for column in placed)
        except (TypeError, ValueError):
            node = part = np.empty(0)
        if not (
            node.ndim == part.ndim == 1
            and len(node) == len(part)
            and {node.dtype.kind, part.dtype.kind} <= {*"iu"}
        ):
            raise misplaced(
                self.name,
                delta.tau,
                "`_place` gave no nodes with a part each",
                "It returns two arrays of whole numbers of one length",
            )
        for what, numbers, most in (("part", part, self.parts), ("node", node, delta.num_nodes)):
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= most):
                row = np.flatnonzero((numbers < 0) | (numbers >= most))[0]
                fault = (
                    f"node {node[row]} got part {part[row]}"
                    if what == "part"
                    else f"there is no node {node[row]}"
                )
                raise misplaced(self.name, delta.tau, fault, f"`_place` gives {what}s from 0 to {most - 1}")
        return node, part

    def _require_placed(self, delta: SnapshotDelta, changed: Int64, new: Int64) -> None:
        """Check, once owners are set, that every entered node has one, and that no other node was given one.

        Args:
            delta: The snapshot.
            changed: int64, nodes that ``_place`` placed and nodes that left, sorted.
            new: int64, those of them that had no owner.
        """
        absent = self._owner[delta.entered] < 0
        if absent.any():
            raise misplaced(
                self.name,
                delta.tau,
                f"node {delta.entered[absent][0]} entered and got no part ({np.count_nonzero(absent)} in all)",
                "`_place` names every node of delta.entered, by dense id",
            )
        twice = changed[1:] == changed[:-1]
        if twice.any() or len(new) != len(delta.entered):
            is_stray = ~np.isin(new, delta.entered)
            fault = (
                f"node {new[is_stray][0]} is not live and got a part"
                if is_stray.any()
                else f"node {changed[1:][twice][0]} got a part twice"
            )
            raise misplaced(self.name, delta.tau, fault, "`_place` names live nodes, each once")

    def home(self) -> Int32:
        """Owner of every dense id so far, int32 (num_nodes,); −1 for nodes that are not live. A view."""
        return self._home

    def quality(self) -> Quality:
        """Quality of all snapshots so far."""
        return self._quality.quality()

    def state(self) -> pa.Table:
        """The state that the next update depends on, including the running quality."""
        return pack({"home": self._home, "quality": self._quality.state(), **self._memory()})

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``.

        Raises:
            PartitionError: The state is from an earlier release.
        """
        arrays = unpack(table)
        self._owner = arrays.pop("home")
        self._num_nodes = len(self._owner)
        self._is_current = self._num_nodes == 0
        self._nodes_per_part = self._count(self._owner[self._owner >= 0])
        self._quality.restore(arrays.pop("quality"))
        try:
            self._remember(arrays)
        except KeyError as missing:
            raise foreign_state(self.name, missing) from missing

    def _memory(self) -> dict[str, NDArray[Any]]:
        """State of the algorithm besides owners and quality."""
        return {}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        """Restore ``_memory``."""
        if memory:
            raise ValueError(f"this is not a state of {self.name}: it has {', '.join(memory)}")

    def _begin(self, delta: SnapshotDelta) -> None:
        """After a restore, take in the whole graph, as it is after the snapshot, with the owners from before it."""
        self.totals.begin(delta, self._owner)

    def _settle(self) -> None:  # noqa: B027  most learn nothing
        """Learn from a snapshot once all is placed; owners, ``_nodes_per_part`` and ``totals`` are then those of the snapshot."""

    def _count(self, parts: Int32) -> Int64:
        """Number of occurrences of each part, int64 (K,)."""
        return np.bincount(parts, minlength=self.parts)

    def _grow(self, num_nodes: int) -> None:
        """Extend every array with a row per node."""
        self._num_nodes = max(num_nodes, self._num_nodes)
        self._owner = with_room(self._owner, self._num_nodes, -1)
        self._marks = with_room(self._marks, self._num_nodes)


class VertexQuality:
    """Quality of a vertex partition: every live node has one owner.

    ``cut_final`` is the latest snapshot's cut. Each node is in its owner's part only, so both replication factors are 1.
    ``edge_balance`` counts the pairs stored with a part: those with an end in it.
    """

    def __init__(self) -> None:
        self._cut, self._utility, self._moved = Mean(), Mean(), Mean()
        self._snapshots = 0
        self._last_cut = self._node_balance = self._edge_balance = math.nan

    def observe(self, totals: PairTotals, node_count: Int64, moved: int) -> None:
        """Add a snapshot.

        Args:
            totals: Pairs and weights under the owners after it.
            node_count: int64 (K,) nodes per part.
            moved: Nodes that changed their owner.
        """
        self._last_cut = share(totals.cross, totals.pairs)
        self._cut.add(self._last_cut)
        self._utility.add(share(totals.inside, totals.weight))
        if self._snapshots:
            self._moved.add(share(moved, int(node_count.sum())))
        self._snapshots += 1
        self._node_balance = balance(node_count)
        self._edge_balance = balance(totals.stored)

    def quality(self) -> Quality:
        """All snapshots so far."""
        present = 1.0 if self._snapshots else math.nan
        return Quality(
            cut=self._cut.value(),
            cut_final=self._last_cut,
            replication_factor=present,
            training_replication_factor=present,
            shared_share=0.0 if self._snapshots else math.nan,
            node_balance=self._node_balance,
            edge_balance=self._edge_balance,
            utility=self._utility.value(),
            moved_share=self._moved.value(of_none=0.0),
        )

    def state(self) -> Float64:
        """The values that the next figures depend on, float64 (10,)."""
        means = [x for mean in (self._cut, self._utility, self._moved) for x in (mean.total, mean.count)]
        return np.array([*means, self._snapshots, self._last_cut, self._node_balance, self._edge_balance])

    def restore(self, state: Float64) -> None:
        """Continue from a ``state()``."""
        for i, mean in enumerate((self._cut, self._utility, self._moved)):
            mean.total, mean.count = float(state[2 * i]), int(state[2 * i + 1])
        self._snapshots = int(state[6])
        self._last_cut, self._node_balance, self._edge_balance = (float(x) for x in state[7:])


def sampled_share(rows: NeighbourRows, nodes: Int64, fanout: int) -> Float64:
    """``min(d, f) / d`` of nodes: the chance that a training node samples a given neighbour, float64 like ``nodes``."""
    degree = rows.end[nodes] - rows.start[nodes]
    return np.minimum(degree, fanout) / np.maximum(degree, 1)
