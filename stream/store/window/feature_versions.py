"""Node features over a window, additively: the newest vectors, and the values that every change replaced.

One table holds the vectors at the newest snapshot. Segments that a snapshot changes in a row are first saved to a pool, one
run per row and snapshot; runs of whole numbers below 256 are saved as bytes. The first read at an older snapshot after a change
groups the runs by row, in O(rows + runs), for all snapshots. A read takes each segment from the row's first run after its
snapshot that has it, or else from the table: a gather, never a copy of the table. A new node takes a slot, which is its row of
the table, and a leaving node gives it back once the window has moved past: this costs no version, only a note of the slot's
owner.
"""

from bisect import bisect_right

import numpy as np

from stream.arrays.kinds import Bool, Float32, Int32, Int64, UInt8
from stream.snapshots.node_features import segment_bounds
from stream.store.lane.diff import segment_width
from stream.store.window.lines import joined, on_lines
from stream.store.window.slots import Slots
from stream.store.window.version_kernels import (
    BEGUN,
    ROW,
    SMALL,
    START,
    pack,
    run_columns,
    sort_by_row,
    write,
)
from stream.store.window.version_reads import read


class FeatureVersions:
    """Vectors of F values in S segments for any snapshot of a window, by dense node id.

    A node that was never written, or only with zeros, takes no memory and reads as zeros.
    """

    def __init__(self, features: int, segments: int) -> None:
        self.features = features
        self.segments = segments
        self.width = segment_width(features, segments)
        self._bounds = segment_bounds(features, segments)
        self._slots = Slots()
        self._table: Float32 = np.empty((0, features), np.float32)
        self._held: Int32 = np.empty(0, np.int32)  # runs of each row
        # The pool: run r is at place r − _first; runs keep their numbers, so that marks stay valid.
        self._first = 0
        self._marks: list[tuple[int, int]] = []  # (sequence, number of its first run)
        self._runs: Int32 = np.empty((0, run_columns(segments)), np.int32)
        self._values: Float32 = np.empty((0, self.width), np.float32)
        self._small: UInt8 = np.empty((0, self.width), np.uint8)
        self._by_row: tuple[Int32, Int32] | None = None  # ``sort_by_row`` of the current runs

    def holds(self, node: Int64) -> Bool:
        """Which of ``node`` may have values other than zero, bool of its shape."""
        return self._slots.of(node) >= 0

    def write(
        self, sequence: int, node: Int64, segment: Int32, values: Float32, num_nodes: int, *, undo: bool
    ) -> None:
        """Set segments as of snapshot ``sequence``.

        Args:
            sequence: Not below any earlier one, and above those written with ``undo``.
            node: int64 (n,), ascending.
            segment: int32 (n,), ascending for each node, distinct.
            values: float32 (n, W).
            num_nodes: Dense ids in use.
            undo: Keep the replaced values, so that earlier snapshots can be read.

        Raises:
            ValueError: Values that this snapshot replaced are kept already.
        """
        if undo and self._marks and self._marks[-1][0] >= sequence:
            raise ValueError(f"snapshot {sequence} can't be written after {self._marks[-1][0]}")
        self._slots.grow(num_nodes)
        if len(node) == 0:
            return
        end = self._first + len(self._runs)
        without = self._slots.of(node) < 0
        fresh = self._slots.take(sequence, np.unique(node[without][values[without].any(axis=1)]), undo=undo)
        self._make_room(fresh)
        slots = self._slots.of(node)
        has_slot = slots >= 0  # the others are zeros over zeros
        if not has_slot.all():
            slots, segment, values = slots[has_slot], segment[has_slot], values[has_slot]
        self._held[fresh] = BEGUN
        runs, replaced = write(slots, segment, values, self._bounds, self._table, self._held, undo)
        self._held[fresh] = 0
        if undo and len(runs):
            self._marks.append((sequence, end))
            numbers, small = pack(runs, replaced, self.segments, len(self._values), len(self._small))
            self._runs = np.concatenate([self._runs, runs])
            self._values = joined(self._values, numbers)
            self._small = joined(self._small, small)
            self._held[runs[:, ROW]] += 1
            self._by_row = None

    def clear(self, sequence: int, node: Int64, *, undo: bool) -> None:
        """Make nodes read as zeros from snapshot ``sequence`` on.

        Args:
            sequence: Not below any earlier one.
            node: int64 (n,), ascending, distinct.
            undo: Keep their vectors, so that earlier snapshots can be read.
        """
        self._slots.give_back(sequence, node[self.holds(node)], undo=undo)

    def read(self, ids: Int64, sequence: int) -> Float32:
        """Vectors as of snapshot ``sequence``.

        Args:
            ids: int64 (n,), any order, repeats allowed, each ≥ 0; ids not yet in use read as zeros.
            sequence: Not before the last ``forget``.

        Returns:
            float32 (n, F), a fresh contiguous array.
        """
        out = on_lines(len(ids), self.features, np.float32)
        since = self._through(sequence)
        begin, runs = self._sorted() if since < len(self._runs) else (self._held[:0], self._runs[:0])
        read(
            self._slots.at(ids, sequence), since, begin, runs, self._bounds, self._table, self._values, self._small,
            out,
        )  # fmt: skip
        return out

    def forget(self, sequence: int) -> None:
        """Drop the values that snapshots up to ``sequence`` replaced: nothing before it is read again."""
        self._slots.forget(sequence)
        dropped = self._through(sequence)
        del self._marks[: bisect_right(self._marks, sequence, key=_sequence)]
        if dropped == 0:
            return
        self._by_row = None
        rows, counts = np.unique(self._runs[:dropped, ROW], return_counts=True)
        self._held[rows] -= counts.astype(np.int32)
        self._first += dropped
        self._runs = self._runs[dropped:].copy()
        start = self._runs[:, START]
        small = start >= SMALL
        numbers, bytes_ = start[~small], start[small] - SMALL
        large_rows = numbers[0] if len(numbers) else len(self._values)
        small_rows = bytes_[0] if len(bytes_) else len(self._small)
        start -= np.where(small, small_rows, large_rows).astype(np.int32)
        self._values = joined(self._values[large_rows:], self._values[:0])
        self._small = joined(self._small[small_rows:], self._small[:0])
        # A slot with a zero vector and no version is not needed.
        idle = rows[(self._held[rows] == 0) & ~self._table[rows].any(axis=1)]
        self._slots.free_idle(idle)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, index structures included."""
        held = self._table.nbytes + self._held.nbytes + self._runs.nbytes
        held += self._values.nbytes + self._small.nbytes
        by_row = sum(array.nbytes for array in self._by_row or ())
        return held + by_row + self._slots.memory_bytes + 16 * len(self._marks)

    @property
    def spared_bytes(self) -> int:
        """Bytes saved by holding replaced whole numbers below 256 as bytes instead of float32."""
        return 3 * self._small.nbytes

    def _through(self, sequence: int) -> int:
        """Number of kept runs of snapshots up to ``sequence``, which is the place of the next one."""
        later = bisect_right(self._marks, sequence, key=_sequence)
        return self._marks[later][1] - self._first if later < len(self._marks) else len(self._runs)

    def _sorted(self) -> tuple[Int32, Int32]:
        """Where each row's runs begin, and the runs by row."""
        if self._by_row is None:
            self._by_row = sort_by_row(self._runs, len(self._held))
        return self._by_row

    def _make_room(self, fresh: Int32) -> None:
        """Provide rows of zeros without a version for newly taken slots."""
        used = self._slots.used
        if used > len(self._held):
            room = used if len(self._held) == 0 else used + used // 16 + 64
            more = room - len(self._held)
            self._table = joined(self._table, np.zeros((more, self.features), np.float32))
            self._held = np.concatenate([self._held, np.zeros(more, np.int32)])
            self._by_row = None
        self._table[fresh] = 0


def _sequence(mark: tuple[int, int]) -> int:
    return mark[0]
