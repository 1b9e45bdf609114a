"""Current node features, and the segments of them that a snapshot changed."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import Op
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.kernels import njit, or_plain
from freshet_graph.stream.kernels.node_sets import distinct


@dataclass(frozen=True, slots=True)
class SegmentChanges:
    """Segments whose values a snapshot changed.

    Attributes:
        nodes: int64 (n,) ascending; each has at least one changed segment.
        changed: bool (n, S).
    """

    nodes: Int64
    changed: Bool


def segment_bounds(width: int, segments: int) -> Int64:
    """Borders of the S slices of a vector of ``width`` values, int64 (S + 1,): slice s is [b[s], b[s+1])."""
    return np.arange(segments + 1, dtype=np.int64) * width // segments


class NodeFeatures:
    """Feature vectors by dense id; a node without features has zeros.

    Args:
        width: F values per vector; 0: features in events are ignored.
        segments: S slices per vector.
    """

    def __init__(self, width: int, segments: int) -> None:
        if width < 0 or segments < 1:
            raise ValueError(f"features need width ≥ 0 and segments ≥ 1, found {width} and {segments}")
        self.width = width
        self.segments = segments
        self.values: Float32 = np.zeros((0, width), np.float32)
        self._bounds = segment_bounds(width, segments)

    def grow(self, num_nodes: int) -> None:
        """Make room for ids below ``num_nodes``."""
        if num_nodes > len(self.values):
            values = np.zeros((max(num_nodes, 2 * len(self.values)), self.width), np.float32)
            values[: len(self.values)] = self.values
            self.values = values

    def apply(self, events: pa.Table) -> SegmentChanges:
        """Apply the node events of a snapshot, in order; ``grow`` first.

        Args:
            events: ``log_event_schema``; only rows with op 0 and features count.

        Returns:
            The bitwise differences from before the snapshot.

        Raises:
            ValueError: A vector does not fit the width.
        """
        nothing = SegmentChanges(np.empty(0, np.int64), np.zeros((0, self.segments), np.bool_))
        if self.width == 0:
            return nothing
        rows = events.filter(pc.and_(pc.equal(events["op"], int(Op.NODE)), pc.is_valid(events["features"])))
        if rows.num_rows == 0:
            return nothing
        node = rows["src_node"].to_numpy()
        start, offsets, values = self._vectors(rows)
        nodes = distinct(node)
        before = self.values[nodes]
        _write(self.values, node, start, offsets, values)
        differs = before.view(np.uint32) != self.values[nodes].view(np.uint32)
        changed = np.stack(
            [differs[:, a:b].any(axis=1) for a, b in zip(self._bounds, self._bounds[1:], strict=False)],
            axis=1,
        )
        some = changed.any(axis=1)
        return SegmentChanges(nodes[some], changed[some])

    def _vectors(self, rows: pa.Table) -> tuple[Int64, Int64, Float32]:
        """Each row's first position, the borders between rows in the values, and the values."""
        lists = rows["features"].combine_chunks()
        offsets = lists.offsets.to_numpy().astype(np.int64)
        values = lists.values.to_numpy(zero_copy_only=False)
        whole = rows["feature_offset"].is_null().to_numpy()
        start = rows["feature_offset"].fill_null(0).to_numpy().astype(np.int64)
        length = np.diff(offsets)
        bad = np.where(whole, length != self.width, (start < 0) | (start + length > self.width))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"node {rows['src_node'][row]} got {length[row]} feature values from position {start[row]} on, "
                f"but this graph's node features have width {self.width}"
            )
        return start, offsets, values


def _write_plain(table: Float32, node: Int64, start: Int64, offsets: Int64, values: Float32) -> None:
    """``_write`` by NumPy, which promises that of a value that is set twice the last one stays."""
    length = np.diff(offsets)
    column = np.repeat(start - offsets[:-1], length) + np.arange(offsets[0], offsets[-1])
    table[np.repeat(node, length), column] = values[offsets[0] : offsets[-1]]


@or_plain(_write_plain)
@njit(cache=True, nogil=True)
def _write(table: Float32, node: Int64, start: Int64, offsets: Int64, values: Float32) -> None:
    for i in range(len(node)):
        for j in range(offsets[i + 1] - offsets[i]):
            table[node[i], start[i] + j] = values[offsets[i] + j]
