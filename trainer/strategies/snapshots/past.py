"""The snapshots before a prediction, as one rank sees them."""

from dataclasses import dataclass

import numpy as np

from schemas.events import Op
from stream.arrays.kinds import Float32, Int32, Int64
from stream.snapshots.delta import Rows
from stream.store.log.event_columns import EventColumns
from trainer.data.neighbours import sample_neighbours
from trainer.data.views import GraphView

STRIDE = 1 << 32
"""Larger than every dense id."""


@dataclass(frozen=True, slots=True)
class PastSnapshot:
    """One snapshot of the window.

    Attributes:
        tau: Interval index.
        number: Of the snapshot in its log, from 0.
        graph: Adjacency; complete for the nodes this rank owns.
        home: int32 (dense ids of τ,): the rank that computes each node's rows.
        activity: float32 (dense ids of τ, 2): log(1 + inserts of τ as source, as destination).
    """

    tau: int
    number: int
    graph: Rows
    home: Int32
    activity: Float32


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
        """float32 (n, 2), see ``PastSnapshot``."""
        out = np.zeros((len(keys), 2), np.float32)
        for snapshot, here, nodes in self.by_snapshot(keys):
            out[here] = snapshot.activity[nodes]
        return out

    def sample(self, keys: Int64, fanout: int | None, seed: int) -> tuple[Int64, Int64]:
        """Neighbours of sorted keys, as keys: indptr int64 (n + 1,), neighbours int64 (indptr[-1],)."""
        starts, found, offset = [np.zeros(1, np.int64)], [], 0
        for place, (snapshot, _, nodes) in enumerate(self.by_snapshot(keys)):
            indptr, neighbours = sample_neighbours(snapshot.graph, nodes, fanout, seed + snapshot.number)
            starts.append(indptr[1:] + offset)
            offset += int(indptr[-1])
            found.append(neighbours + place * STRIDE)
        return np.concatenate(starts), np.concatenate([*found, np.empty(0, np.int64)])

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
        ranks: Part k belongs to rank k mod ``ranks``.
    """

    def __init__(self, length: int, ranks: int) -> None:
        self._length = length
        self._ranks = ranks
        self._known: dict[int, PastSnapshot] = {}

    def before_latest(self, window: GraphView) -> Past:
        """The snapshots before the window's newest one, for its prediction."""
        return self._past(window, window.taus[:-1])

    def through_latest(self, window: GraphView) -> Past:
        """The newest snapshot and those before it, for the next prediction."""
        return self._past(window, window.taus)

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
        home = (np.where(owner >= 0, owner, np.arange(len(owner))) % self._ranks).astype(np.int32)
        return PastSnapshot(
            tau, number, window.csr(tau).rows, home, activity_of(window.events(tau), len(owner))
        )


def activity_of(events: EventColumns, num_nodes: int) -> Float32:
    """Log(1 + inserts as source, as destination) of every node, float32 (num_nodes, 2)."""
    inserts = events.op == int(Op.INSERT)
    counts = [np.bincount(ids[inserts], minlength=num_nodes) for ids in (events.src, events.dst)]
    return np.log1p(np.stack(counts, axis=1)).astype(np.float32)
