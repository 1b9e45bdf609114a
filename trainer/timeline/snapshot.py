"""One snapshot of a timeline: its changes or raw events, and the activity of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.events import Op
from stream.arrays.kinds import Float32, Int64
from stream.kernels.node_sets import distinct
from stream.store.log.event_columns import EventColumns
from stream.store.window.pairs import ChangedPairs
from trainer.timeline.smoothing import Entries

Part = ChangedPairs | Entries


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of a horizon.

    Attributes:
        number: In the lane; that of the snapshot before is one less.
        tau: Interval index.
        num_nodes: Dense ids in use.
        entered: int64, nodes that have an edge since this snapshot (smoothed: in its raw events).
        left: int64, nodes that had one in the snapshot before.
        undirected: By pair, the lower id first: its changes, or with smoothing its raw events; None: it is the oldest.
        directed: The same by (source, destination).
        pairs: How many undirected and directed ones of two nodes it has; 0 with smoothing.
        active: int64, ascending ends of its inserts.
        activity: float32 (active, 2): log(1 + inserts as source, as destination).
    """

    number: int
    tau: int
    num_nodes: int
    entered: Int64
    left: Int64
    undirected: Part | None
    directed: Part | None
    pairs: tuple[int, int]
    active: Int64
    activity: Float32

    def part(self, *, directed: bool) -> Part | None:
        """``directed`` or ``undirected``."""
        return self.directed if directed else self.undirected

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = (self.entered, self.left, self.active, self.activity, self.undirected, self.directed)
        return sum(column.nbytes for column in columns if column is not None)


def raw(snapshots: Sequence[Snapshot], *, directed: bool) -> list[Entries]:
    """The raw events of snapshots."""
    parts = [snapshot.part(directed=directed) for snapshot in snapshots]
    return [part for part in parts if isinstance(part, Entries)]


def activity(events: EventColumns) -> tuple[Int64, Float32]:
    """Ends of inserts, ascending, and log(1 + inserts as source, as destination) of each, float32 (n, 2)."""
    inserts = events.op == int(Op.INSERT)
    ends = events.src[inserts], events.dst[inserts]
    nodes = distinct(*ends)
    # Every end is one of the nodes, so a node's ends reach to the next node's first.
    counts = [np.diff(np.searchsorted(np.sort(each), nodes), append=len(each)) for each in ends]
    return nodes, np.log1p(np.stack(counts, axis=1)).astype(np.float32)
