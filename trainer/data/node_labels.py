"""Labels of nodes over time, from a file: a label holds from its time on, until the node's next one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.store.label_file import read_labels
from freshet_graph.stream.store.log.reader import LogReader

NONE = -1
"""In place of the label of a node without one."""


class NodeLabels:
    """The newest label of each node, at moments that do not decrease.

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
