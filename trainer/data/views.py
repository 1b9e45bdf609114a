"""Views of the store for training: events of the newest snapshot, or the last snapshots as graphs.

Nodes are numbers of remembered nodes, which are the stream's dense ids until a node is forgotten.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int32, Int64
from freshet_graph.stream.snapshots.delta import Csr
from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns, event_columns
from freshet_graph.stream.store.window.rows import NodeRows
from freshet_graph.trainer.data.neighbours import runs
from freshet_graph.trainer.data.node_names import NodeNames


class EventsView(Protocol):
    """The snapshots of a stream as events; each method is about one of ``taus``."""

    @property
    def taus(self) -> list[int]:
        """Interval indices, oldest first."""
        ...

    @property
    def sequence(self) -> int:
        """Number of the newest snapshot in its log, from 0; −1 before the first."""
        ...

    @property
    def num_nodes(self) -> int:
        """Nodes after the newest snapshot."""
        ...

    def events(self, tau: int) -> EventColumns:
        """Edge events in log order."""
        ...

    def advance(self, manifest: LaneManifest) -> None:
        """Make ``manifest`` the newest snapshot."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        ...


class GraphView(EventsView, Protocol):
    """The same snapshots as graphs."""

    def csr(self, tau: int) -> Csr:
        """Undirected adjacency of the edges stored with this view's parts."""
        ...

    def pairs(self, tau: int) -> tuple[Int64, Int64, Float32]:
        """Directed pairs stored with this view's parts: int64 src and dst (E,), self-loops included, and float32 weights (E,)."""
        ...

    def features(self, ids: Int64, tau: int) -> Float32:
        """float32 (n, F); zeros for nodes not stored with this view's parts."""
        ...

    def rows(self, wanted: Mapping[int, Int64]) -> dict[int, NodeRows]:
        """Rows of any nodes, int64 ascending by snapshot, over all parts of a vertex lane, read from the store."""
        ...

    def owner(self, tau: int) -> Int32:
        """Part of every node of that snapshot, over all parts; −1 for none."""
        ...

    def shared(self) -> Bool:
        """Nodes in more than one part after the newest snapshot, bool (num_nodes,); none in vertex lanes."""
        ...

    def event_parts(self, tau: int) -> Int32 | None:
        """Edge lanes: the part of every edge event, −1 for discarded ones and deletes; None in vertex lanes."""
        ...


class LogWindow:
    """One snapshot's events without its graph: of the lane's files only the records are read.

    A ``WindowView`` holds every live pair of the lane: on a stream without deletes, all pairs that ever met.

    Args:
        lane: The lane to follow.
    """

    def __init__(self, lane: LaneReader) -> None:
        self._lane = lane
        self._manifest: LaneManifest | None = None
        self._events: EventColumns | None = None

    def advance(self, manifest: LaneManifest) -> None:
        """See ``EventsView.advance``."""
        self._manifest, self._events = manifest, None

    @property
    def taus(self) -> list[int]:
        """See ``EventsView.taus``: the newest."""
        return [] if self._manifest is None else [self._manifest.tau]

    @property
    def sequence(self) -> int:
        """See ``EventsView.sequence``."""
        return -1 if self._manifest is None else self._manifest.sequence

    @property
    def num_nodes(self) -> int:
        """See ``EventsView.num_nodes``."""
        return 0 if self._manifest is None else self._manifest.num_nodes

    def events(self, tau: int) -> EventColumns:
        """See ``EventsView.events``."""
        if self._events is None or self.taus != [tau]:
            self._events = edge_events(self._lane, tau)
        return self._events

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return 0 if self._events is None else self._events.memory_bytes


class NamedEvents:
    """A view over numbers of remembered nodes; the newest snapshot gives numbers to its nodes.

    Args:
        view: By dense ids of the stream.
        names: Advanced with the view.
        labels: Whether events keep their labels; no if the task asks for them.
    """

    def __init__(self, view: EventsView, names: NodeNames, *, labels: bool = True) -> None:
        self._view = view
        self._names = names
        self._labels = labels

    def advance(self, manifest: LaneManifest) -> None:
        """See ``EventsView.advance``."""
        self._view.advance(manifest)
        self._names.meet(manifest.num_nodes)
        named(self._view.events(manifest.tau), self._names)  # returning nodes get a number

    @property
    def taus(self) -> list[int]:
        """See ``EventsView.taus``."""
        return self._view.taus

    @property
    def sequence(self) -> int:
        """See ``EventsView.sequence``."""
        return self._view.sequence

    @property
    def num_nodes(self) -> int:
        """See ``EventsView.num_nodes``: numbers in use."""
        return len(self._names)

    def events(self, tau: int) -> EventColumns:
        """See ``EventsView.events``."""
        events = named(self._view.events(tau), self._names)
        return events if self._labels else without_labels(events)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, those of the names included."""
        return self._view.memory_bytes + self._names.memory_bytes


class WithMessages:
    """A view whose newest snapshot also has messages (``MESSAGE``) among its events.

    Args:
        view: The view.
        messages: Between numbers of nodes, as the view's events.
    """

    def __init__(self, view: EventsView, messages: EventColumns) -> None:
        self._view, self._messages = view, messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def events(self, tau: int) -> EventColumns:
        """See ``EventsView.events``."""
        events = self._view.events(tau)
        return with_messages(events, self._messages) if tau == self._view.taus[-1] else events


class NamedGraph(NamedEvents):
    """As ``NamedEvents``, over a view of graphs."""

    def __init__(self, view: GraphView, names: NodeNames, *, labels: bool = True) -> None:
        super().__init__(view, names, labels=labels)
        self._graphs = view

    def csr(self, tau: int) -> Csr:
        """See ``GraphView.csr``; pairs of forgotten nodes are left out."""
        graph = self._graphs.csr(tau)
        return graph if self._names.are_ids else _named_graph(graph, self._names)

    def pairs(self, tau: int) -> tuple[Int64, Int64, Float32]:
        """See ``GraphView.pairs``; those of forgotten nodes are left out."""
        src, dst, weight = self._graphs.pairs(tau)
        src, dst = self._names.find(src), self._names.find(dst)
        is_known = (src >= 0) & (dst >= 0)
        return src[is_known], dst[is_known], weight[is_known]

    def features(self, ids: Int64, tau: int) -> Float32:
        """See ``GraphView.features``."""
        return self._graphs.features(self._names.ids(ids), tau)

    def rows(self, wanted: Mapping[int, Int64]) -> dict[int, NodeRows]:
        """See ``GraphView.rows``; pairs of forgotten nodes are left out."""
        if self._names.are_ids:
            return self._graphs.rows(wanted)
        ids = {tau: self._names.ids(nodes) for tau, nodes in wanted.items()}
        by_tau = self._graphs.rows({tau: np.sort(wanted_ids) for tau, wanted_ids in ids.items()})
        return {tau: _named_rows(rows, wanted[tau], ids[tau], self._names) for tau, rows in by_tau.items()}

    def owner(self, tau: int) -> Int32:
        """See ``GraphView.owner``; −1 for nodes that came after that snapshot."""
        owner = self._graphs.owner(tau)
        if self._names.are_ids:
            return owner
        ids = self._names.ids(np.arange(len(self._names)))
        has_owner = ids < len(owner)
        named_owner = np.full(len(ids), -1, np.int32)
        named_owner[has_owner] = owner[ids[has_owner]]
        return named_owner

    def shared(self) -> Bool:
        """See ``GraphView.shared``."""
        shared = self._graphs.shared()
        return shared[self._names.ids(np.arange(len(self._names)))]

    def event_parts(self, tau: int) -> Int32 | None:
        """See ``GraphView.event_parts``."""
        return self._graphs.event_parts(tau)


def edge_events(lane: LaneReader, tau: int) -> EventColumns:
    """The edge events of a snapshot of a lane's log."""
    header = lane.header
    return event_columns(lane.log.events(tau), tau, header.interval_us, header.edge_features)


def named(events: EventColumns, names: NodeNames) -> EventColumns:
    """The same events between numbers of remembered nodes; forgotten ends return as new nodes."""
    ends = np.stack([events.src, events.dst], axis=1).ravel()
    numbers = names.numbers(ends)
    return events if numbers is ends else replace(events, src=numbers[0::2], dst=numbers[1::2])


def with_messages(events: EventColumns, messages: EventColumns) -> EventColumns:
    """Events and messages of the same snapshot, in order of their visible times."""
    order = np.argsort(np.concatenate([events.visible_t, messages.visible_t]), kind="stable")
    columns: dict[str, Any] = {
        field.name: np.concatenate([ours, getattr(messages, field.name)])[order]
        for field in fields(events)
        for ours in [getattr(events, field.name)]
        if ours is not None
    }
    return replace(events, **columns)


def without_labels(events: EventColumns) -> EventColumns:
    """The same events without labels, which event models would otherwise take as inputs."""
    none = np.zeros(len(events), np.int32)
    return replace(events, label=none, has_label=none.astype(np.bool_))


def _named_rows(rows: NodeRows, nodes: Int64, ids: Int64, names: NodeNames) -> NodeRows:
    """Rows of nodes by number."""
    place = np.searchsorted(rows.nodes, ids)
    src, dst = (names.find(end) for end in split_keys(rows.keys))
    known_pairs = np.flatnonzero((src >= 0) & (dst >= 0))
    keys = pair_keys(src[known_pairs], dst[known_pairs])
    order = np.argsort(keys)
    return NodeRows(
        nodes, rows.has_owner[place], keys[order], rows.weight[known_pairs[order]], rows.features[place]
    )


def _named_graph(graph: Csr, names: NodeNames) -> Csr:
    """Rows and columns of an adjacency by number, sorted within a row."""
    ids = names.ids(np.arange(len(names)))
    has_row = ids < graph.num_nodes
    degree = np.zeros(len(ids), np.int64)
    degree[has_row] = np.diff(graph.indptr)[ids[has_row]]
    row = np.repeat(np.arange(len(ids)), degree)
    begin = np.zeros(len(ids), np.int64)
    begin[has_row] = graph.indptr[ids[has_row]]
    entry = runs(begin, degree)
    column = names.find(graph.indices[entry].astype(np.int64))
    is_known = column >= 0
    row, column, entry = row[is_known], column[is_known], entry[is_known]
    order = np.lexsort((column, row))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(ids)))])
    return Csr(indptr, column[order], graph.weights[entry[order]])
