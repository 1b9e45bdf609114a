"""The events of a stream for event models: columns by number, inputs of each event, and the temporal graph."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_graph.schemas.events import Op
from freshet_graph.stream.arrays.kinds import Float32, Int32, Int64
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.temporal_graph import TemporalGraph

LARGEST_FEATURE = 1e6
"""Features are clipped here: larger ones overflow in a model's sums without further meaning."""

CARRIED = 3
"""Columns of ``EventFeed.carried`` before the event's features: weight, label, whether there is a label."""


MESSAGE = 2
"""``op`` of an event that is a message to memories and neighbours only: it is neither learned nor an encounter."""

_AT_ONCE = 1 << 16


class EventFeed:
    """All insert events so far, numbered from 0 in log order.

    The graph has an event as soon as its snapshot is taken in. A sample names the time up to which it may look.

    Args:
        features: Width of edge features.

    Attributes:
        src: int32 (events,).
        dst: int32 (events,).
        time_us: int64 (events,), visible times, never decreasing.
        carried: float32 (events, CARRIED + features): sign · log(1 + |weight|), the same of the label (0 without
            one), whether there is a label, features up to ``LARGEST_FEATURE``.
        graph: Their interactions by node.
    """

    def __init__(self, features: int) -> None:
        self._size = 0
        self._src = np.empty(0, np.int32)
        self._dst = np.empty(0, np.int32)
        self._time_us: Int64 = np.empty(0, np.int64)
        self._carried: Float32 = np.empty((0, CARRIED + features), np.float32)
        self._births = 0  # nodes that ever came
        self._born: Int64 | None = None  # by number, how many nodes came before; None: equal to the number
        self.graph = TemporalGraph()

    def __len__(self) -> int:
        return self._size

    @property
    def src(self) -> Int32:
        """See the class."""
        return self._src[: self._size]

    @property
    def dst(self) -> Int32:
        """See the class."""
        return self._dst[: self._size]

    @property
    def time_us(self) -> Int64:
        """See the class."""
        return self._time_us[: self._size]

    @property
    def carried(self) -> Float32:
        """See the class."""
        return self._carried[: self._size]

    def append(self, events: EventColumns, num_nodes: int) -> None:
        """Take in a snapshot's inserts and messages; deletes do not predict encounters."""
        inserts = np.flatnonzero(events.op >= int(Op.INSERT))
        end = self._size + len(inserts)
        if end > len(self._src):
            room = max(end, len(self._src) * 3 // 2, 1024)
            for name in ("_src", "_dst", "_time_us", "_carried"):
                old = getattr(self, name)
                grown = np.empty((room, *old.shape[1:]), old.dtype)
                grown[: self._size] = old[: self._size]
                setattr(self, name, grown)
        new = slice(self._size, end)
        self._src[new] = events.src[inserts]
        self._dst[new] = events.dst[inserts]
        self._time_us[new] = events.visible_t[inserts]
        for column, values in enumerate((events.weight[inserts], events.label[inserts].astype(np.float32))):
            self._carried[new, column] = np.sign(values) * np.log1p(np.abs(values))
        self._carried[new, CARRIED - 1] = events.has_label[inserts]
        if events.features is not None:
            self._carried[new, CARRIED:] = events.features[inserts].clip(-LARGEST_FEATURE, LARGEST_FEATURE)
        self.graph.append(events.src[inserts], events.dst[inserts], events.visible_t[inserts], num_nodes)
        self._size = end
        self._bear(num_nodes)

    def born(self, nodes: Int64) -> Int64:
        """Number of nodes that came before each: its own number until nodes are forgotten, and always unique."""
        if self._born is None:
            return nodes
        last = len(self._born) - 1
        return np.where(nodes <= last, self._born[np.minimum(nodes, last)], self._births + nodes - last - 1)

    def forget(self, kept_nodes: Int64, first: int) -> Int64:
        """Forget nodes with all their events, and the oldest events; renumber the rest in its order.

        Args:
            kept_nodes: int64, ascending numbers of the nodes that stay.
            first: Number of the oldest event that may stay.

        Returns:
            int64 (events before + 1,): how many of the events before each stay, which is the new number of a kept one.
        """
        nodes = self.graph.num_nodes
        if self._born is None:
            self._born = np.arange(self._births)
        self._born = self._born[kept_nodes]
        place = np.full(nodes, -1, np.int32)
        place[kept_nodes] = np.arange(len(kept_nodes))
        stays = (place[self.src] >= 0) & (place[self.dst] >= 0)
        stays[:first] = False
        before: Int64 = np.concatenate([[0], np.cumsum(stays)])
        chosen = np.flatnonzero(stays)
        for name in ("_src", "_dst", "_time_us", "_carried"):
            column = getattr(self, name)
            for begin in range(0, len(chosen), _AT_ONCE):  # a copy of a whole column would double the peak
                part = chosen[begin : begin + _AT_ONCE]
                column[begin : begin + len(part)] = column[part]
        self._size = len(chosen)
        for ends in (self.src, self.dst):
            ends[:] = place[ends]
        self.graph.forget(kept_nodes, before)
        return before

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything, as arrays."""
        state: dict[str, NDArray[np.generic]] = {
            f"graph_{name}": column for name, column in self.graph.state().items()
        }
        for name in ("src", "dst", "time_us", "carried"):
            state[name] = getattr(self, name)
        state["births"] = np.array([self._births])
        if self._born is not None:
            state["born"] = self._born
        return state

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from a ``state()``."""
        for name in ("src", "dst", "time_us", "carried"):
            setattr(self, f"_{name}", np.asarray(state[name]).copy())
        self._size = len(self._src)
        self._births = int(state["births"][0])
        self._born = np.asarray(state["born"], np.int64).copy() if "born" in state else None
        graph = {name.removeprefix("graph_"): state[name] for name in state if name.startswith("graph_")}
        self.graph.restore(graph)  # type: ignore[arg-type]  # these are int64

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        columns = (self._src, self._dst, self._time_us, self._carried)
        born = 0 if self._born is None else self._born.nbytes
        return self.graph.memory_bytes + born + sum(column.nbytes for column in columns)

    def _bear(self, num_nodes: int) -> None:
        if self._born is None:
            self._births = max(self._births, num_nodes)
            return
        fresh = np.arange(self._births, self._births + num_nodes - len(self._born))
        self._born = np.concatenate([self._born, fresh])
        self._births += len(fresh)
