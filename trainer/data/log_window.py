"""Windows of strategies for event models: the events of the newest snapshot, by the numbers of remembered nodes."""

from dataclasses import replace
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.store import LaneManifest
from stream.snapshots.delta import Csr
from stream.store.lane.reader import LaneReader
from stream.store.log.event_columns import EventColumns, event_columns
from trainer.data.graph_window import GraphWindow
from trainer.data.node_names import NodeNames

Int64 = NDArray[np.int64]


class AdvancingWindow(GraphWindow, Protocol):
    """A window that the daemon moves on."""

    def advance(self, manifest: LaneManifest) -> None:
        """Make ``manifest`` the newest snapshot."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        ...


class LogWindow:
    """One snapshot's events and nothing of its graph, for strategies that remember by themselves.

    A ``WindowView`` holds every live pair of the lane, which on a stream without deletes are all that ever were.

    Args:
        lane: The lane to follow.
    """

    def __init__(self, lane: LaneReader) -> None:
        self._lane = lane
        self._manifest: LaneManifest | None = None
        self._events: EventColumns | None = None

    def advance(self, manifest: LaneManifest) -> None:
        """See ``AdvancingWindow.advance``."""
        self._manifest, self._events = manifest, None

    @property
    def taus(self) -> list[int]:
        """See ``GraphWindow.taus``: the newest."""
        return [] if self._manifest is None else [self._manifest.tau]

    @property
    def num_nodes(self) -> int:
        """See ``GraphWindow.num_nodes``."""
        return 0 if self._manifest is None else self._manifest.num_nodes

    def events(self, tau: int) -> EventColumns:
        """See ``GraphWindow.events``."""
        if self._events is None or self.taus != [tau]:
            self._events = edge_events(self._lane, tau)
        return self._events

    def csr(self, tau: int) -> Csr:
        """Not held."""
        self._absent("adjacency")

    def features(self, ids: Int64, tau: int) -> NDArray[np.float32]:
        """Not held."""
        self._absent("node features")

    def owner(self, tau: int) -> NDArray[np.int32]:
        """Not held."""
        self._absent("owners")

    def shared(self) -> NDArray[np.bool_]:
        """Not held."""
        self._absent("shared nodes")

    def event_parts(self, tau: int) -> NDArray[np.int32] | None:
        """Not held."""
        self._absent("parts of events")

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return 0 if self._events is None else self._events.memory_bytes

    def _absent(self, what: str) -> NoReturn:
        raise TypeError(f"a window of events has no {what}: the strategy's attribute reads must be graph")


class NamedWindow:
    """A window whose nodes are the numbers of remembered ones; the newest snapshot gives numbers to its nodes.

    Args:
        window: By dense ids of the stream.
        names: Moved on with the window.
    """

    def __init__(self, window: AdvancingWindow, names: NodeNames) -> None:
        self._window = window
        self._names = names

    def advance(self, manifest: LaneManifest) -> None:
        """See ``AdvancingWindow.advance``."""
        self._window.advance(manifest)
        self._names.meet(manifest.num_nodes)
        self.events(manifest.tau)

    @property
    def taus(self) -> list[int]:
        """See ``GraphWindow.taus``."""
        return self._window.taus

    @property
    def num_nodes(self) -> int:
        """Numbers in use."""
        return len(self._names)

    def csr(self, tau: int) -> Csr:
        """See ``GraphWindow.csr``; by dense ids of the stream, for snapshot models, which forget none."""
        return self._window.csr(tau)

    def features(self, ids: Int64, tau: int) -> NDArray[np.float32]:
        """See ``GraphWindow.features``."""
        return self._window.features(self._names.ids(ids), tau)

    def owner(self, tau: int) -> NDArray[np.int32]:
        """See ``GraphWindow.owner``; −1 for nodes that came after that snapshot."""
        owner = self._window.owner(tau)
        if self._names.are_ids:
            return owner
        ids = self._names.ids(np.arange(len(self._names)))
        there = ids < len(owner)
        named_owner = np.full(len(ids), -1, np.int32)
        named_owner[there] = owner[ids[there]]
        return named_owner

    def shared(self) -> NDArray[np.bool_]:
        """See ``GraphWindow.shared``."""
        shared = self._window.shared()
        return shared[self._names.ids(np.arange(len(self._names)))]

    def events(self, tau: int) -> EventColumns:
        """See ``GraphWindow.events``."""
        return named(self._window.events(tau), self._names)

    def event_parts(self, tau: int) -> NDArray[np.int32] | None:
        """See ``GraphWindow.event_parts``."""
        return self._window.event_parts(tau)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, those of the names included."""
        return self._window.memory_bytes + self._names.memory_bytes


def edge_events(lane: LaneReader, tau: int) -> EventColumns:
    """The edge events of a snapshot of a lane's log."""
    header = lane.header
    return event_columns(lane.log.events(tau), tau, header.interval_us, header.edge_features)


def named(events: EventColumns, names: NodeNames) -> EventColumns:
    """The same events between numbers of remembered nodes; ends that were forgotten come back as new ones."""
    ends = np.stack([events.src, events.dst], axis=1).ravel()
    numbers = names.numbers(ends)
    return events if numbers is ends else replace(events, src=numbers[0::2], dst=numbers[1::2])
