"""A lane for strategies that hold whole snapshots: a window, and the timeline of its graph by difference."""

from schemas.store import LaneManifest
from schemas.trainer_config import Smoothing
from stream.store.lane.reader import LaneReader
from stream.store.window.view import WindowView
from trainer.data.node_names import NodeNames
from trainer.data.windows import NamedGraph
from trainer.timeline.graph import TimelineGraph


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
        self.timeline = TimelineGraph(snapshots + 1, smoothing, self._window)

    def advance(self, manifest: LaneManifest) -> None:
        """See ``EventsView.advance``; the timeline also takes in snapshots that were left out."""
        super().advance(manifest)
        manifests, taus = self._lane.manifests, self._window.taus
        known, newest = self.timeline.snapshots, manifest.sequence
        oldest = newest - len(taus) + 1
        if not known or known[-1].number < oldest:
            first = manifests[oldest]
            self.timeline.begin(oldest, first.tau, first.num_nodes, self.events(first.tau))
        for number in range(known[-1].number + 1, newest + 1):
            each = manifests[number]
            self.timeline.advance(number, each.tau, each.num_nodes, self.events(each.tau))

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return super().memory_bytes + self.timeline.memory_bytes
