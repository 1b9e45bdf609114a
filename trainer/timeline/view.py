"""A lane for strategies that hold whole snapshots: a window, and the timeline of its graph by difference."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from schemas.events import Op
from schemas.store import LaneManifest
from schemas.trainer_config import Smoothing
from stream.store.lane.reader import LaneReader
from stream.store.log.base import groups
from stream.store.window.view import WindowView
from trainer.data.node_names import NodeNames
from trainer.data.windows import NamedGraph
from trainer.timeline.graph import Pairs, TimelineGraph


class TimelineView(NamedGraph):
    """A view of all parts of a lane, with its timeline.

    Args:
        lane: The lane to follow.
        snapshots: H; one more is held, which is predicted from the others.
        smoothing: Of every snapshot.
        names: Advanced with the view; none is forgotten, because only event models have a budget.
        labels: See ``NamedEvents``.

    Attributes:
        timeline: Its last ``snapshots`` + 1.
    """

    def __init__(
        self, lane: LaneReader, snapshots: int, smoothing: Smoothing, names: NodeNames, *, labels: bool = True
    ) -> None:
        self._lane = lane
        self._window = WindowView(lane, snapshots + smoothing.length)
        super().__init__(self._window, names, labels=labels)
        self.timeline = TimelineGraph(snapshots + 1, smoothing, lane.header.edge_life, self.pairs)

    def advance(self, manifest: LaneManifest) -> None:
        """See ``EventsView.advance``; the timeline also takes in snapshots that were left out."""
        super().advance(manifest)
        manifests, taus = self._lane.manifests, self._window.taus
        known, newest = self.timeline.snapshots, manifest.sequence
        oldest = newest - len(taus) + 1
        if not known or known[-1].number < oldest:
            first = manifests[oldest]
            events = self.events(first.tau)
            self.timeline.begin(oldest, first.num_nodes, self._until(first), events, first.tau)
        for number in range(known[-1].number + 1, newest + 1):
            each = manifests[number]
            table = partial(self._lane.log.events, each.tau)
            self.timeline.advance(number, each.tau, each.num_nodes, table, self.events(each.tau))

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return super().memory_bytes + self.timeline.memory_bytes

    def _until(self, manifest: LaneManifest) -> Iterator[tuple[int, pa.Table]]:
        """Events that lead to the live graph of a snapshot: of its pairs, or of an edge life before it."""
        life, log = self._lane.header.edge_life, self._lane.log
        if life is None:
            yield manifest.tau, _inserts(self.pairs(manifest.tau))
            return
        # live pairs were seen within a life, and only their events say when
        since = manifest.tau - life
        base = log.base()
        yield from (
            ((tau, events) for tau, events in groups(base, life) if tau > since) if base is not None else ()
        )
        first = manifest.sequence
        while first > log.snapshots.first and log.snapshots[first - 1].tau > since:
            first -= 1
        for snapshot in log.snapshots[first : manifest.sequence + 1]:
            yield snapshot.tau, log.events(snapshot.tau)


def _inserts(pairs: Pairs) -> pa.Table:
    src, dst, weight = pairs
    return pa.table(
        {
            "op": np.full(len(src), int(Op.INSERT), np.int8),
            "src_node": src,
            "dst_node": dst,
            "t": np.zeros(len(src), np.int64),
            "weight": weight,
        }
    )
