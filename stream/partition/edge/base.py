"""The base of all edge partitioners: parts of nodes over snapshots, sizes, state, and the running quality."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Bool, Float64, Int8, Int32, Int64
from freshet_graph.stream.partition.edge.part_sets import gains
from freshet_graph.stream.partition.interface import (
    Assignment,
    Kind,
    PartitionError,
    PartitionerSetting,
    Quality,
    Why,
    foreign_state,
    misplaced,
)
from freshet_graph.stream.partition.quality import Mean, balance, share
from freshet_graph.stream.snapshots.delta import SnapshotDelta
from freshet_graph.stream.snapshots.state_table import pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Result of one snapshot.

    Attributes:
        assignment: Changes of nodes, and the part of each event.
        inserts: Insert events.
        discarded: Insert events without a part.
        seen: Distinct nodes in all events so far.
        shared: Nodes in more than one part.
        placed: Nodes in at least one part; the other seen ones count as in one.
        moved: Nodes whose home changed.
    """

    assignment: Assignment
    inserts: int
    discarded: int = 0
    seen: int
    shared: int
    placed: int
    moved: int = 0


class HubOptions(Section):
    """Options of SPEED's partitioners."""

    hubs: float = Field(
        0.05, ge=0, le=1, description="k, share of the seen nodes that may be in more than one part."
    )
    time_constant: float | None = Field(
        None,
        gt=0,
        description="Seconds of event time after which an event counts 1/e of a new one, half after ln 2 times this; null: no "
        "decay. partition: by default a tenth of the file's span.",
    )


class EdgePartitioner(ABC):
    """Assigns the inserts of a snapshot to parts; a node is in every part with an insert of it, or in its home.

    Args:
        setting: P parts, and the seed of the draws that break ties.
        options: Its ``Options``, for its subclass.

    Attributes:
        sizes: Events assigned to each part, int64 (P,).
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "edge"
    Options: ClassVar[type[Section]] = Section

    def __init__(self, setting: PartitionerSetting, options: Any) -> None:
        parts = setting.parts
        self.parts, self.seed = parts, setting.seed
        self._num_nodes = 0  # arrays with a row per node may have spare ones
        self._home: Int32 = np.empty(0, np.int32)  # −1 for nodes without edges
        self.sizes: Int64 = np.zeros(parts, np.int64)
        self._placements: Int64 = np.zeros(parts, np.int64)  # nodes in each part, copies included
        self._events = 0
        self._quality = EdgeQuality(parts)

    @abstractmethod
    def _place(self, delta: SnapshotDelta) -> Placed:
        """Assign the inserts of a snapshot, and update ``_home``, ``sizes`` and ``_placements``.

        ``_events`` counts the events before it.
        """

    @abstractmethod
    def _memory(self) -> dict[str, NDArray[Any]]:
        """State of the algorithm besides homes, sizes, placements and quality."""

    @abstractmethod
    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        """Restore ``_memory``; homes, sizes and placements are restored already. A KeyError means a foreign state."""

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Assign the inserts of snapshot ``delta.tau``; called once per snapshot, in order."""
        self._grow(delta.num_nodes)
        placed = self._place(delta)
        self._require_parts(delta, placed)
        self._events += len(delta.op)
        self._quality.observe(placed, self._placements, self.sizes, live=delta.num_live)
        return placed.assignment

    def _require_parts(self, delta: SnapshotDelta, placed: Placed) -> None:
        """Check that events and nodes have parts in [0, P), deletes none, and every node that entered a home.

        Homes of nodes that were seen before are not looked at, so that the cost is that of two passes over the events.
        """
        event_part, part, node = placed.assignment.event_part, placed.assignment.part, placed.assignment.node

        def refusal(fault: str, remedy: str) -> PartitionError:
            return misplaced(self.name, delta.tau, fault, remedy)

        if event_part is None or event_part.shape != delta.op.shape:
            number = "no" if event_part is None else len(event_part)
            raise refusal(
                f"{number} events got a part, it has {len(delta.op)}",
                "`_place` gives event_part, a row per event",
            )
        for what, parts, most in (("event", event_part, self.parts), ("node", part, self.parts)):
            if len(parts) and (parts.min() < -1 or parts.max() >= most):
                row = int(np.flatnonzero((parts < -1) | (parts >= most))[0])
                named = f"event {row} of it" if what == "event" else f"node {node[row]}"
                raise refusal(
                    f"{named} got part {parts[row]}",
                    f"`_place` gives parts from 0 to {most - 1}, or -1 for none",
                )
        if (wrong := (event_part >= 0) > (delta.op > 0)).any():
            raise refusal(
                f"event {wrong.argmax()} of it is a delete and got part {event_part[wrong.argmax()]}",
                "Deletes get -1",
            )
        if (absent := self._home[delta.entered] < 0).any():
            raise refusal(
                f"node {delta.entered[absent][0]} entered and got no home ({np.count_nonzero(absent)} in all)",
                "`_place` sets _home of every node of delta.entered, by dense id",
            )

    def home(self) -> Int32:
        """Home of every dense id so far, int32 (num_nodes,); −1 for nodes without edges. A view."""
        return self._home[: self._num_nodes]

    def quality(self) -> Quality:
        """Quality of all snapshots so far; ``cut_final`` needs the events again and is NaN."""
        return self._quality.quality()

    def state(self) -> pa.Table:
        """The state that the next update depends on, including the running quality."""
        return pack(
            {
                "home": self._home[: self._num_nodes],
                "sizes": self.sizes,
                "placements": self._placements,
                "quality": self._quality.state(),
                **self._memory(),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``.

        Raises:
            PartitionError: The state is from another partitioner or release.
        """
        state: dict[str, NDArray[Any]] = unpack(table)
        try:
            self._home, self.sizes = state.pop("home"), state.pop("sizes")
            self._num_nodes, self._placements = len(self._home), state.pop("placements")
            self._quality.restore(state.pop("quality"))
            self._remember(state)
        except KeyError as missing:
            raise foreign_state(self.name, missing) from missing

    def _grow(self, num_nodes: int) -> None:
        """Extend every array with a row per node."""
        self._num_nodes = max(num_nodes, self._num_nodes)
        self._home = with_room(self._home, num_nodes, -1)


_CHUNK = 1 << 18
"""Events per call of ``_assign``, so that its notes of changes stay in the cache."""


class StreamPartitioner(EdgePartitioner):
    """Assigns one insert after the other, in log order, by the parts of its ends so far; meanwhile no node loses a part."""

    def __init__(self, setting: PartitionerSetting, options: Any) -> None:
        super().__init__(setting, options)
        self._shared = self._placed = 0  # nodes in more than one part, and in any

    @abstractmethod
    def _assign(
        self, op: Int8, src: Int64, dst: Int64, drawn: int, event_part: Int32, gained: Int64
    ) -> tuple[int, int]:
        """Assign a part to every insert of some events.

        Args:
            op: int8 (E,).
            src: int64 (E,).
            dst: int64 (E,).
            drawn: Events before these; the draw of an event depends on its number only.
            event_part: int32 (E,), written: part of each event, −1 for none.
            gained: int64 (≥ 2 E,), written: notes of the parts that nodes gained.

        Returns:
            Rows of ``gained``, and number of nodes that gained a second part.
        """

    def _assign_all(self, delta: SnapshotDelta, seen: int) -> Placed:
        """Assign all inserts of a snapshot; ``seen``: distinct nodes in all events so far."""
        event_part = np.empty(len(delta.op), np.int32)
        room = np.empty(2 * min(len(delta.op), _CHUNK), np.int64)
        noted = []
        for begin in range(0, len(delta.op), _CHUNK):
            rows = slice(begin, begin + _CHUNK)
            events = delta.op[rows], delta.src[rows], delta.dst[rows]
            num_noted, shared = self._assign(*events, self._events + begin, event_part[rows], room)
            self._shared += int(shared)
            noted.append(room[: int(num_noted)].copy())
        node, part, why = gains(noted, self._placements, self._home)
        self._placed += int(np.count_nonzero(why == Why.NEW))
        inserts = int(np.count_nonzero(delta.op > 0))
        return Placed(
            assignment=Assignment(node, part, why, event_part),
            inserts=inserts,
            discarded=inserts - int(np.count_nonzero(event_part >= 0)),
            seen=seen,
            shared=self._shared,
            placed=self._placed,
        )


class EdgeQuality:
    """Quality of an edge partition: every insert event has a part or is discarded, nodes have sets of parts.

    ``cut`` is the share of discards among all insert events so far; ``uncovered_share`` computes ``cut_final``, which needs the
    events again. The training replication factor copies shared nodes to every part (SPEED Alg. 1 line 20). ``edge_balance``
    counts assigned insert events.

    Args:
        parts: K.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._moved = Mean()
        self._snapshots = self._inserts = self._discarded = 0
        self._shared_share = self._replication = self._training = math.nan
        self._node_balance = self._edge_balance = math.nan

    def observe(self, placed: Placed, placements: Int64, assigned: Int64, *, live: int) -> None:
        """Add a snapshot.

        Args:
            placed: Its result.
            placements: int64 (K,) nodes in each part, copies included.
            assigned: int64 (K,) insert events assigned so far.
            live: Live nodes.
        """
        seen = placed.seen
        self._inserts += placed.inserts
        self._discarded += placed.discarded
        shared_share = share(placed.shared, seen)
        self._shared_share = float(np.fmax(self._shared_share, shared_share))
        self._replication = share(int(placements.sum()) + seen - placed.placed, seen)
        self._training = 1 + shared_share * (self.parts - 1)
        self._node_balance, self._edge_balance = balance(placements), balance(assigned)
        if self._snapshots:
            self._moved.add(share(placed.moved, live))
        self._snapshots += 1

    def quality(self) -> Quality:
        """All snapshots so far."""
        return Quality(
            cut=share(self._discarded, self._inserts),
            replication_factor=self._replication,
            training_replication_factor=self._training,
            shared_share=self._shared_share,
            node_balance=self._node_balance,
            edge_balance=self._edge_balance,
            moved_share=self._moved.value(of_none=0.0),
        )

    def state(self) -> Float64:
        """The values that the next figures depend on, float64 (10,)."""
        return np.array(
            [
                self._moved.total,
                self._moved.count,
                self._snapshots,
                self._inserts,
                self._discarded,
                self._shared_share,
                self._replication,
                self._training,
                self._node_balance,
                self._edge_balance,
            ]
        )

    def restore(self, state: Float64) -> None:
        """Continue from a ``state()``."""
        self._moved.total, self._moved.count = float(state[0]), int(state[1])
        self._snapshots, self._inserts, self._discarded = (int(x) for x in state[2:5])
        self._shared_share, self._replication, self._training = (float(x) for x in state[5:8])
        self._node_balance, self._edge_balance = (float(x) for x in state[8:])


def uncovered_share(src: Int64, dst: Int64, home: Int32, shared: Bool) -> float:
    """Share of events that no final node list covers, with shared nodes in all lists.

    Args:
        src: int64 (E,) ends of the insert events.
        dst: int64 (E,).
        home: int32 (num_nodes,).
        shared: bool (num_nodes,) nodes in more than one part.
    """
    uncovered = ~shared[src] & ~shared[dst] & (home[src] != home[dst])
    return share(int(uncovered.sum()), len(src))
