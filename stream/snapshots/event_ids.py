"""Recent event ids: an event with the ``event_id`` of an event accepted within a window is a duplicate.

The memory is a pure function of the set of accepted events (semantics.md, "Duplicates"), so it isn't stored: a process that
opens the log reads it from there.
"""

import numpy as np
import pyarrow as pa

from freshet_graph.stream.arrays.kinds import Bool, Int32, Int64, UInt8, UInt64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.snapshots.string_dictionary import is_valid, new_key, siphash, text_buffers

_FIRST_SLOTS = 1 << 10
_FREE = np.iinfo(np.int64).min
_AGAIN = 16
"""A full table is searched for expired ids again after this part of the window."""


class EventIds:
    """Accepted event ids of the last ``window_us`` of event time.

    The table has open addressing and is at most half full: 24 bytes per slot and at most 144 per id in the window. Ids are kept
    as 128 bits of their SipHash; the probability that two of a billion collide is 10⁻²¹.

    Args:
        window_us: How long an id is remembered, event time.
        most: Most ids remembered; further ones are counted by ``missed``.
        newest_us: Largest event time accepted so far. A reader of a log must give it at the start, because in the log's order
            an event may follow one that it was never compared with.
    """

    def __init__(self, window_us: int, most: int, newest_us: int | None = None) -> None:
        self._window_us = window_us
        self._most = most
        self._key = new_key()
        self._slots, self._times = _empty(_FIRST_SLOTS)
        self._used = 0
        # Differences to it stay within int64.
        self._newest_us = _FREE // 4 if newest_us is None else newest_us
        self._looked_us = self._newest_us
        self.missed = 0

    @property
    def size(self) -> int:
        """Ids in the table; some may have expired already."""
        return self._used

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return int(self._slots.nbytes + self._times.nbytes)

    def duplicates(self, event_ids: pa.ChunkedArray, t_us: Int64, refused: Bool) -> Bool:
        """Find the duplicates among new events, in order, and remember the others.

        Args:
            event_ids: Ids as text, shape (E,); null: never a duplicate.
            t_us: Event times, shape (E,), microseconds.
            refused: Events refused regardless of their id: they may be duplicates, but aren't remembered.

        Returns:
            Mask of shape (E,).
        """
        is_duplicate = np.zeros(len(t_us), bool)
        begin = 0
        for chunk in event_ids.chunks:
            span = slice(begin, begin + len(chunk))
            begin = span.stop
            self._add(chunk, t_us[span], refused[span], is_duplicate[span])
        return is_duplicate

    def _add(self, chunk: pa.Array, t_us: Int64, refused: Bool, is_duplicate: Bool) -> None:
        if chunk.null_count == len(chunk):
            if not refused.all():
                self._newest_us = max(self._newest_us, int(t_us[~refused].max()))
            return
        ends, text, valid = *text_buffers(chunk), is_valid(chunk)
        row = 0
        if self._used >= self._most and self._newest_us - self._looked_us > self._window_us // _AGAIN:
            self._rebuild()
        while True:
            row, self._used, self._newest_us, missed = _add(
                ends,
                text,
                valid,
                t_us,
                refused,
                row,
                self._key,
                self._slots,
                self._times,
                self._used,
                self._most,
                self._window_us,
                self._newest_us,
                is_duplicate,
            )
            self.missed += missed
            if row == len(chunk):
                return
            self._rebuild()

    def _rebuild(self) -> None:
        """Drop expired ids; the new table is less than half full."""
        oldest = self._newest_us - self._window_us
        alive = int(np.count_nonzero(self._times >= oldest))
        slots, times = _empty(max(_FIRST_SLOTS, 1 << int(3 * alive - 1).bit_length() if alive else 0))
        _move(self._slots, self._times, oldest, slots, times)
        self._slots, self._times, self._used = slots, times, alive
        self._looked_us = self._newest_us


def _empty(count: int) -> tuple[UInt64, Int64]:
    return np.zeros((count, 2), np.uint64), np.full(count, _FREE, np.int64)


@njit(cache=True, nogil=True)
def _add(
    ends: Int32,
    text: UInt8,
    valid: Bool,
    t_us: Int64,
    refused: Bool,
    row: int,
    key: UInt64,
    slots: UInt64,
    times: Int64,
    used: int,
    most: int,
    window_us: int,
    newest_us: int,
    is_duplicate: Bool,
) -> tuple[int, int, int, int]:
    """Process rows from ``row`` on, until done or the table is half full; returns (next row, used, newest, missed)."""
    mask = np.uint64(len(slots) - 1)
    half = len(slots) // 2
    missed = 0
    while row < len(t_us):
        t = t_us[row]
        oldest = max(newest_us, t) - window_us
        if valid[row] and t >= oldest:
            first, second = siphash(text, np.int64(ends[row]), np.int64(ends[row + 1] - ends[row]), key)
            slot = first & mask
            while times[slot] != _FREE and (slots[slot, 0] != first or slots[slot, 1] != second):
                slot = (slot + np.uint64(1)) & mask
            if times[slot] >= oldest:
                is_duplicate[row] = True
                row += 1
                continue
            if not refused[row]:
                if times[slot] != _FREE:
                    times[slot] = t
                elif used >= most:
                    missed += 1
                elif used >= half:
                    break
                else:
                    slots[slot, 0], slots[slot, 1], times[slot] = first, second, t
                    used += 1
        if not refused[row]:
            newest_us = max(newest_us, t)
        row += 1
    return row, used, newest_us, missed


@njit(cache=True, nogil=True)
def _move(old: UInt64, old_times: Int64, oldest: int, slots: UInt64, times: Int64) -> None:
    mask = np.uint64(len(slots) - 1)
    for i in range(len(old)):
        if old_times[i] >= oldest:
            slot = old[i, 0] & mask
            while times[slot] != _FREE:
                slot = (slot + np.uint64(1)) & mask
            slots[slot, 0], slots[slot, 1], times[slot] = old[i, 0], old[i, 1], old_times[i]
