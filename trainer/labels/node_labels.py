"""Labels of nodes over time: a label holds from its time on, until the node's next one. From a file, or from the log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import label_schema
from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.stream.store.label_file import read_labels
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.labels.waiting import as_numbers, as_texts, change_of

NONE = -1
"""In place of the label of a node without one."""


class FileLabels:
    """The newest label of each node in a file, at moments that do not decrease.

    Args:
        file: See ``read_labels``.
        log: Has the nodes' ids.
        classes: K; labels are 0 to K − 1.

    Raises:
        Failure: See ``read_labels``.
    """

    def __init__(self, file: str | Path, log: LogReader, classes: int) -> None:
        self._log = log
        rows = read_labels(Path(file), log.header.ids, classes)
        rows = rows.take(np.argsort(rows["t"].to_numpy(), kind="stable"))
        ids = rows["src"].dictionary_encode()
        self._ids: pa.Array = ids.dictionary
        self._place, self._t = ids.indices.to_numpy().astype(np.int64), rows["t"].to_numpy()
        self._label = rows["label"].to_numpy().astype(np.int64)
        self.rewind()

    def rewind(self) -> None:
        """Forget all labels: the next moment may be any."""
        self._passed = 0  # rows of the file
        self._newest = np.full(len(self._ids) + 1, NONE)  # the last is that of a node without a row

    def before(self, t_us: int, nodes: Int64) -> Int64:
        """The labels of nodes just before a moment.

        Args:
            t_us: Microseconds, not before the last call's.
            nodes: int64 (n,) dense ids.

        Returns:
            int64 (n,); ``NONE`` for a node without a label.
        """
        end = max(self._passed, int(np.searchsorted(self._t, t_us)))
        newest_first = slice(self._passed, end)
        place, last = np.unique(self._place[newest_first][::-1], return_index=True)
        self._newest[place] = self._label[newest_first][::-1][last]
        self._passed = end
        places = pc.index_in(self._log.external_ids_of(nodes), value_set=self._ids)
        return self._newest[places.fill_null(len(self._ids)).to_numpy()]

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        columns = (self._ids, self._place, self._t, self._label, self._newest)
        return sum(column.nbytes for column in columns)


@dataclass(frozen=True, slots=True)
class NodeLabelChanges:
    """Labels of nodes that became visible, in order of these times.

    Attributes:
        node: External ids.
        label: int64 (n,).
        visible_us: int64 (n,), microseconds; only strictly later events know the label.
        former: int64 (n,), the label that it replaces; ``NONE``: it is the node's first.
    """

    node: pa.Array
    label: Int64
    visible_us: Int64
    former: Int64


class TopicLabels:
    """The newest label of each node that label topics gave, at moments that do not decrease.

    A label of the same or a higher ``priority`` replaces the node's label; a moment knows those with an earlier ``visible_us``.

    Args:
        log: Has the labels and the nodes' ids.
        classes: K; labels are 0 to K − 1.

    Attributes:
        wrong: Labels so far that are none of K, which are left out.
    """

    def __init__(self, log: LogReader, classes: int) -> None:
        self._log, self._classes = log, classes
        self._schema = label_schema(log.header.ids)
        self.rewind()

    def rewind(self) -> None:
        """Forget all labels: the next moment may be any."""
        self._read_until, self._until_us, self.wrong = -1, _BEFORE_ALL, 0
        self._ahead = self._schema.empty_table()  # read, and visible later
        self._ids: pa.Array = pa.array([], self._schema.field("node").type)
        self._newest, self._priority = np.zeros((2, 0), np.int64)

    def __len__(self) -> int:
        """Nodes with a label so far."""
        return len(self._ids)

    def before(self, t_us: int, nodes: Int64) -> Int64:
        """The labels of nodes just before a moment; see ``FileLabels.before``."""
        self.arrive(t_us)
        return self.newest(nodes)

    def newest(self, nodes: Int64) -> Int64:
        """The labels int64 (n,) of dense ids as of the last moment; ``NONE`` for a node without a label."""
        places = pc.index_in(self._log.external_ids_of(nodes), value_set=self._ids)
        return np.append(self._newest, NONE)[places.fill_null(len(self._ids)).to_numpy()]

    def arrive(self, t_us: int) -> NodeLabelChanges:
        """Take in the labels that are visible before a moment and were not before the last one."""
        due = self._due(t_us)
        node = due["node"].combine_chunks()
        unknown = pc.unique(node.filter(pc.is_null(pc.index_in(node, value_set=self._ids))))
        self._ids = pa.concat_arrays([self._ids, unknown])
        none = np.full(len(unknown), NONE)
        self._newest, self._priority = (
            np.concatenate([column, none]) for column in (self._newest, self._priority)
        )
        place = pc.index_in(node, value_set=self._ids).to_numpy().astype(np.int64)
        label, priority = (due[name].to_numpy().astype(np.int64) for name in ("label", "priority"))
        former, takes = np.full(len(due), NONE), np.ones(len(due), np.bool_)
        said = zip(place.tolist(), label.tolist(), priority.tolist(), strict=True)
        for index, (one, says, rank) in enumerate(said):
            takes[index] = rank >= self._priority[one]
            if takes[index]:
                former[index] = self._newest[one]
                self._newest[one], self._priority[one] = says, rank
        return NodeLabelChanges(
            node.filter(pa.array(takes)), label[takes], due["visible_us"].to_numpy()[takes], former[takes]
        )

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from: retention may drop labels that are in it."""
        is_text = pa.types.is_string(self._ids.type)
        ids = as_numbers(self._ids.cast(pa.large_string())) if is_text else self._ids.to_numpy().copy()
        return {"until_us": self._until_us, "ids": ids, "newest": self._newest, "priority": self._priority}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.rewind()
        self._until_us = int(state["until_us"])
        ids = as_texts(state["ids"]) if isinstance(state["ids"], dict) else pa.array(np.asarray(state["ids"]))
        self._ids = ids.cast(self._ids.type)
        self._newest, self._priority = (np.asarray(state[name]).copy() for name in ("newest", "priority"))

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._ids.nbytes + self._newest.nbytes + self._priority.nbytes + self._ahead.nbytes

    def _due(self, t_us: int) -> pa.Table:
        """The labels of K that became visible before a moment, in order of these times and then of arrival."""
        new = self._log.labels(self._read_until)
        if self._log.last is not None:
            self._read_until = self._log.last.n
        new = new.filter(pc.and_(new["node"].is_valid(), pc.greater_equal(new["visible_us"], self._until_us)))
        every = pa.concat_tables([self._ahead, new])
        is_due = pc.less(every["visible_us"], t_us)
        self._ahead, due = every.filter(pc.invert(is_due)), every.filter(is_due)
        self._until_us = max(self._until_us, t_us)
        is_right = pc.and_(pc.greater_equal(due["label"], 0), pc.less(due["label"], self._classes))
        self.wrong += len(due) - (pc.sum(is_right).as_py() or 0)
        due = due.filter(is_right)
        return due.take(pa.array(np.argsort(due["visible_us"].to_numpy(), kind="stable")))


class CountedLabels:
    """Labels 0 and 1 of nodes from topics, for a memory that counts them at their nodes.

    A label that was visible before its node came counts from the node's first snapshot on.

    Args:
        log: Has the labels and the nodes' ids.

    Attributes:
        nodes: int64 (n,), numbers of nodes whose label became visible within the newest snapshot; −1: forgotten.
        visible_us: int64 (n,), when, microseconds.
        change: float64 (n, 2), see ``change_of``.
    """

    def __init__(self, log: LogReader) -> None:
        self._log, self._labels = log, TopicLabels(log, 2)
        self._came = 0  # dense ids that came before the next snapshot
        self.nodes, self.visible_us = np.zeros((2, 0), np.int64)
        self.change: Float64 = np.zeros((0, 2))

    def arrive(self, since_us: int, until_us: int, dense_ids: int, names: NodeNames) -> int:
        """Take in a snapshot.

        Args:
            since_us: Its begin, or the end of the one before, microseconds.
            until_us: Its end.
            dense_ids: Nodes of the stream after it.
            names: Numbers of the remembered ones.

        Returns:
            Labels that are neither 0 nor 1, which are left out.
        """
        new, wrong = np.arange(self._came, dense_ids), self._labels.wrong
        early = self._labels.newest(new)
        changes = self._labels.arrive(until_us)
        node = changes.node if not len(changes.node) else pc.index_in(changes.node, self._log.external_ids())
        node = node.cast(pa.int64()).fill_null(dense_ids).to_numpy()
        self._came, has_early, is_here = dense_ids, early != NONE, node < dense_ids
        none = np.full(has_early.sum(), NONE)
        before_us = max(since_us, _BEFORE_ALL) - 1
        self.nodes = names.find(np.concatenate([new[has_early], node[is_here]]))
        # Labels lie behind this only if the checkpoint is older than labels of nodes.
        visible_us = np.maximum(changes.visible_us[is_here], before_us)
        self.visible_us = np.concatenate([np.full(len(none), before_us), visible_us])
        self.change = change_of(
            np.concatenate([early[has_early], changes.label[is_here]]),
            np.concatenate([none, changes.former[is_here]]),
        )
        return self._labels.wrong - wrong

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {"labels": self._labels.state(), "came": self._came}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self._labels.restore(state["labels"])
        self._came = int(state["came"])

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._labels.memory_bytes


_BEFORE_ALL = -(1 << 62)
