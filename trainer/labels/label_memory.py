"""The memory of events and labels at each node, decayed over several half-lives: what a classifier of events looks up."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Float32, Float64, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.labels.node_labels import CountedLabels

FEATURES = 8
"""Features of an event, its weight included, that have a mean at each node."""

DAY_US = 86_400 * US_PER_S


class LabelMemory:
    """Decayed counts at each node: its events, the means of their features, and its labels.

    A count c with half-life h becomes c · 2^(−Δt / h) after Δt. An event counts at both ends, for events strictly later; a
    label at both ends of its event, for events strictly later than it became visible.

    Args:
        half_lives_s: H of them, seconds.
        features: Width of an event's values.
        log: Its labels of nodes count at their nodes; None: there are none.

    Attributes:
        columns: Number of columns of a row.
    """

    def __init__(self, half_lives_s: Sequence[float], features: int, log: LogReader | None = None) -> None:
        self._of_nodes = None if log is None else CountedLabels(log)
        self._half_us: Float64 = np.asarray(half_lives_s, np.float64) * US_PER_S
        self._means = min(features, FEATURES)
        halves = len(self._half_us)
        self._seen_us: Int64 = np.zeros(0, np.int64)
        self._seen: Float64 = np.zeros((0, halves, 1 + self._means))  # events, sums of their features
        self._labelled_us: Int64 = np.zeros(0, np.int64)
        self._labelled: Float64 = np.zeros((0, halves, 2))  # labels, labels of class 1
        self.columns = 2 * halves * (1 + 2 * self._means + 3)

    def arrive(self, since_us: int, until_us: int, dense_ids: int, names: NodeNames) -> int:
        """Take in a snapshot's labels of nodes, for the next ``look``; see ``CountedLabels.arrive``."""
        assert self._of_nodes is not None
        return self._of_nodes.arrive(since_us, until_us, dense_ids, names)

    def look(
        self,
        ends: Int64,
        time_us: Int64,
        values: Float32,
        label_ends: Int64,
        label_us: Int64,
        change: Float64,
        num_nodes: int,
    ) -> Float32:
        """Look events up in order, and take in each after the look, and every label at its time, those of nodes too.

        Args:
            ends: int64 (E, 2), source and destination.
            time_us: int64 (E,), not decreasing, microseconds.
            values: float32 (E, features), of a scale in which means say something, such as a logarithm.
            label_ends: int64 (L, 2), the ends of the labelled events; −1: forgotten.
            label_us: int64 (L,), when each became visible, not decreasing.
            change: float64 (L, 2): what it adds to the labels and to those of class 1. A label that replaces another adds 0
                to the first, and the difference to the second.
            num_nodes: All nodes are below.

        Returns:
            float32 (E, columns). For each end and half-life log(1 + events), of each feature the mean and how far the event
            lies above it, log(1 + labels), log(1 + labels of class 1) and their share.
        """
        self._grow(num_nodes)
        if self._of_nodes is not None and len(self._of_nodes.nodes):
            nodes = self._of_nodes.nodes
            label_us = np.concatenate([label_us, self._of_nodes.visible_us])
            in_order = np.argsort(label_us, kind="stable")
            of_nodes = np.stack([nodes, np.full(len(nodes), -1)], axis=1)
            label_ends = np.concatenate([label_ends, of_nodes])[in_order]
            change = np.concatenate([change, self._of_nodes.change])[in_order]
            label_us = label_us[in_order]
        rows = np.zeros((len(ends), self.columns), np.float32)
        _look(
            ends, time_us, np.ascontiguousarray(values[:, : self._means]), label_ends, label_us, change, self._half_us,
            self._seen_us, self._seen, self._labelled_us, self._labelled, rows,
        )  # fmt: skip
        return rows

    def peek(
        self,
        ends: Int64,
        time_us: Int64,
        values: Float32,
        label_ends: Int64,
        label_us: Int64,
        change: Float64,
    ) -> Float32:
        """The rows that ``look`` would return for each event if it alone came next; nothing changes.

        Args:
            ends: int64 (E, 2); of nodes that may be new.
            time_us: int64 (E,), in any order.
            values: See ``look``, and so for the labels.
            label_ends: Of labels that are not taken in. Each counts for the events that are later.
            label_us: Their times, not decreasing.
            change: What they add.
        """
        alone, nodes = copy.copy(self), ends.ravel()  # each event has nodes of its own
        alone._of_nodes = None
        known = np.flatnonzero(nodes < len(self._seen_us))
        for name in ("_seen_us", "_seen", "_labelled_us", "_labelled"):
            column = getattr(self, name)
            setattr(alone, name, np.zeros((len(nodes), *column.shape[1:]), column.dtype))
            getattr(alone, name)[known] = column[nodes[known]]
        apart = np.arange(len(nodes)).reshape(-1, 2)
        apart[:, 1] = np.where(ends[:, 0] == ends[:, 1], apart[:, 0], apart[:, 1])
        near = np.flatnonzero(np.isin(label_ends, ends).any(axis=1))
        label, node = np.nonzero((label_ends[near][:, :, None] == nodes).any(axis=1))
        said = near[label]
        order = np.argsort(time_us, kind="stable")
        rows = np.empty((len(ends), self.columns), np.float32)
        rows[order] = alone.look(
            apart[order], time_us[order], values[order], np.stack([node, np.full(len(node), -1)], axis=1), label_us[said],
            change[said], len(nodes),
        )  # fmt: skip
        return rows

    def shares(self, rows: Float32) -> Float32:
        """From rows (E, columns) the share of class 1 at each end by half-life, float32 (E, 2, H)."""
        halves = len(self._half_us)
        by_half: Float32 = rows.reshape(len(rows), 2, halves, -1)[..., -1]
        return by_half

    def keep(self, kept_nodes: Int64) -> None:
        """Forget all nodes except these, ascending, which are renumbered in their order."""
        kept_nodes = kept_nodes[kept_nodes < len(self._seen_us)]
        for name in _COLUMNS:
            setattr(self, f"_{name}", getattr(self, f"_{name}")[kept_nodes])

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        columns = {name: getattr(self, f"_{name}") for name in _COLUMNS}
        return columns if self._of_nodes is None else {**columns, "of_nodes": self._of_nodes.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        for name in _COLUMNS:
            setattr(self, f"_{name}", np.asarray(state[name]).copy())
        if self._of_nodes is not None and "of_nodes" in state:
            self._of_nodes.restore(state["of_nodes"])

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        of_nodes_bytes = 0 if self._of_nodes is None else self._of_nodes.memory_bytes
        return of_nodes_bytes + sum(getattr(self, f"_{name}").nbytes for name in _COLUMNS)

    def _grow(self, num_nodes: int) -> None:
        more = num_nodes - len(self._seen_us)
        if more <= 0:
            return
        more = max(more, len(self._seen_us) // 4)
        for name in _COLUMNS:
            column = getattr(self, f"_{name}")
            more_rows = np.zeros((more, *column.shape[1:]), column.dtype)
            setattr(self, f"_{name}", np.concatenate([column, more_rows]))


_COLUMNS = ("seen_us", "seen", "labelled_us", "labelled")


@njit(cache=True, nogil=True)
def _look(  # type: ignore[no-untyped-def]  # compiled
    ends, time_us, values, label_ends, label_us, change, half_us, seen_us, seen, labelled_us, labelled, rows
):
    """See ``LabelMemory.look``."""
    means = values.shape[1]
    label = 0
    first = 0
    while first < len(time_us):
        last = first  # events of one time do not see each other
        while last < len(time_us) and time_us[last] == time_us[first]:
            last += 1
        now = time_us[first]
        while label < len(label_us) and label_us[label] < now:
            _take_label(label_ends[label], label_us[label], change[label], half_us, labelled_us, labelled)
            label += 1
        for event in range(first, last):
            column = 0
            for end in ends[event]:
                for half in range(len(half_us)):
                    fade = 0.5 ** ((now - seen_us[end]) / half_us[half])
                    events = seen[end, half, 0]
                    rows[event, column] = np.log1p(events * fade)
                    for feature in range(means):
                        if events > 0:
                            mean = seen[end, half, 1 + feature] / events
                            rows[event, column + 1 + 2 * feature] = mean
                            rows[event, column + 2 + 2 * feature] = values[event, feature] - mean
                    column += 1 + 2 * means
                    fade = 0.5 ** ((now - labelled_us[end]) / half_us[half])
                    labels, ones = labelled[end, half, 0] * fade, labelled[end, half, 1] * fade
                    rows[event, column] = np.log1p(labels)
                    rows[event, column + 1] = np.log1p(max(ones, 0.0))
                    rows[event, column + 2] = max(ones, 0.0) / labels if labels > 0 else 0.0
                    column += 3
        for event in range(first, last):
            for place in range(2):
                end = ends[event, place]
                if place == 1 and end == ends[event, 0]:
                    continue
                for half in range(len(half_us)):
                    fade = 0.5 ** ((now - seen_us[end]) / half_us[half])
                    seen[end, half] *= fade
                    seen[end, half, 0] += 1
                    for feature in range(means):
                        seen[end, half, 1 + feature] += values[event, feature]
                seen_us[end] = now
        first = last
    while label < len(label_us):
        _take_label(label_ends[label], label_us[label], change[label], half_us, labelled_us, labelled)
        label += 1


@njit(cache=True, nogil=True)
def _take_label(ends, now, change, half_us, labelled_us, labelled):  # type: ignore[no-untyped-def]  # compiled
    """Count a label at both ends."""
    for place in range(2):
        end = ends[place]
        if end < 0 or (place == 1 and end == ends[0]):
            continue
        for half in range(len(half_us)):
            fade = 0.5 ** ((now - labelled_us[end]) / half_us[half])
            labelled[end, half] = labelled[end, half] * fade + change
        labelled_us[end] = now
