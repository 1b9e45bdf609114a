"""Node features over a window, additively: the newest vectors, and what every change replaced.

One table holds the vectors as the newest snapshot sees them; the segments that a snapshot changes in a row are first
saved to a pool, one run a row and snapshot, each linked to the next of its row; rows of whole numbers below 256 as
bytes. The first read at an older snapshot notes for every row the first run after it, which later changes keep up to
date; a read takes each segment from the first run that has it, else from the table: a gather, never a copy of the
table. A node that comes takes a slot, and one that leaves gives it back once the window has moved past: neither costs a
version, only a note of which slot was whose.
"""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from stream.snapshots.delta import Float32, Int32, Int64
from stream.snapshots.node_features import segment_bounds
from stream.store.lane.diff import segment_width
from stream.store.window.slots import Slots
from stream.store.window.version_kernels import (
    BEGUN,
    NO_RUN,
    SLOT,
    SMALL,
    START,
    link,
    note,
    pack,
    read,
    run_columns,
    write,
)

UInt8 = NDArray[np.uint8]


class FeatureVersions:
    """Vectors of F values in S segments for any snapshot of a window, by dense node id.

    A node that was never written, or was written zeros only, takes no room and reads as zeros.
    """

    def __init__(self, features: int, segments: int) -> None:
        self.features = features
        self.segments = segments
        self.width = segment_width(features, segments)
        self._bounds = segment_bounds(features, segments)
        self._slots = Slots()
        self._table: Float32 = np.empty((0, features), np.float32)
        self._head: Int64 = np.empty(0, np.int64)
        # The pool: run r stands at row r − _first; runs are numbered for ever, so that a link to a forgotten one is known
        # by its number.
        self._first = 0
        self._marks: list[tuple[int, int]] = []  # (sequence, number of its first run)
        self._runs: Int32 = np.empty((0, run_columns(segments)), np.int32)
        self._values: Float32 = np.empty((0, self.width), np.float32)
        self._small: UInt8 = np.empty((0, self.width), np.uint8)
        self._after: dict[
            int, Int32
        ] = {}  # by snapshot that was read: a row's first run after it, modulo 2^31; −1: none

    def holds(self, node: Int64) -> NDArray[np.bool_]:
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
            undo: Keep what is replaced, so that earlier snapshots can be read.

        Raises:
            ValueError: What this snapshot replaced is kept already.
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
        has_slot = slots >= 0  # without one: zeros over zeros
        if not has_slot.all():
            slots, segment, values = slots[has_slot], segment[has_slot], values[has_slot]
        self._head[fresh] = BEGUN
        runs, replaced = write(slots, segment, values, self._bounds, self._table, self._head, undo)
        self._head[fresh] = NO_RUN
        if undo and len(runs):
            self._marks.append((sequence, end))
            numbers, small = pack(runs, replaced, self.segments, len(self._values), len(self._small))
            self._runs = np.concatenate([self._runs, runs])
            self._values = np.concatenate([self._values, numbers])
            self._small = np.concatenate([self._small, small])
            link(runs[:, SLOT], end, self._first, self._head, self._runs)
            for then, after in self._after.items():
                if then < sequence:
                    note(runs[:, SLOT], end, after)

    def clear(self, sequence: int, node: Int64, *, undo: bool) -> None:
        """Have nodes read as zeros from snapshot ``sequence`` on.

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
            sequence: Not older than what was forgotten.

        Returns:
            float32 (n, F), a fresh contiguous array.
        """
        out = np.empty((len(ids), self.features), np.float32)
        read(
            self._slots.at(ids, sequence), self._first_after(sequence), self._bounds, self._table, self._first, self._runs,
            self._values, self._small, len(self._marks), out,
        )  # fmt: skip
        return out

    def forget(self, sequence: int) -> None:
        """Drop what changes of snapshots up to ``sequence`` replaced: nothing before it is read again."""
        self._slots.forget(sequence)
        kept = bisect_right(self._marks, sequence, key=lambda mark: mark[0])
        self._after = {then: after for then, after in self._after.items() if then >= sequence}
        end = self._first + len(self._runs)
        dropped = (self._marks[kept][1] if kept < len(self._marks) else end) - self._first
        del self._marks[:kept]
        if dropped == 0:
            return
        slots = np.unique(self._runs[:dropped, SLOT])
        self._first += dropped
        self._runs = self._runs[dropped:].copy()
        start = self._runs[:, START]
        small = start >= SMALL
        numbers, bytes_ = start[~small], start[small] - SMALL
        rows = numbers[0] if len(numbers) else len(self._values)
        small_rows = bytes_[0] if len(bytes_) else len(self._small)
        start -= np.where(small, small_rows, rows).astype(np.int32)
        self._values = self._values[rows:].copy()
        self._small = self._small[small_rows:].copy()
        # A slot whose vector is zero now and has no version left is as good as none.
        idle = slots[(self._head[slots] < self._first) & ~self._table[slots].any(axis=1)]
        self._slots.free_idle(idle)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, index structures included."""
        held = self._table.nbytes + self._head.nbytes + self._runs.nbytes
        held += self._values.nbytes + self._small.nbytes
        after = sum(noted.nbytes for noted in self._after.values())
        return held + after + self._slots.memory_bytes + 16 * len(self._marks)

    def _first_after(self, sequence: int) -> Int32:
        """Of every row, its first run after a snapshot; empty where no run is."""
        if not self._marks or self._marks[-1][0] <= sequence:
            return np.empty(0, np.int32)
        if sequence not in self._after:
            begin = self._marks[bisect_right(self._marks, sequence, key=lambda mark: mark[0])][1]
            after = np.full(len(self._head), NO_RUN, np.int32)
            note(self._runs[begin - self._first :, SLOT], begin, after)
            self._after[sequence] = after
        return self._after[sequence]

    def _make_room(self, fresh: Int32) -> None:
        """Rows of zeros without a version for slots that were just taken."""
        used = self._slots.used
        if used > len(self._head):
            room = used if len(self._head) == 0 else used + used // 16 + 64
            more = room - len(self._head)
            self._table = np.concatenate([self._table, np.zeros((more, self.features), np.float32)])
            self._head = np.concatenate([self._head, np.full(more, NO_RUN, np.int64)])
            none = np.full(more, NO_RUN, np.int32)
            self._after = {then: np.concatenate([after, none]) for then, after in self._after.items()}
        self._table[fresh] = 0
