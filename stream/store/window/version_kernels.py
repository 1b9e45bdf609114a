"""Kernels of ``FeatureVersions`` that save the values a snapshot replaces in a row: a run of segments.

A run is several int32: its row of the table, its first row among the saved values, and a bit per segment; the values of its
segments follow each other there. Runs of at least half the segments whose values are whole numbers from 0 to 255 (binary
features, counts) are saved as bytes, in a separate table: ``SMALL`` marks their rows.
"""

import numpy as np

from stream.kernels import njit

ROW, START, MASK = 0, 1, 2
NUMBER = ROW
SMALL = 1 << 30

BEGUN = -1
"""Number of runs of a row taken by the current write: its node was zeros before, which needs no version."""

WORD = 32
"""Segments in a word of bits."""
_LARGEST_SMALL = 255


def run_columns(segments: int) -> int:
    """Columns of a run, for a number of segments."""
    return MASK + -(-segments // WORD)


@njit(cache=True, nogil=True)
def write(slots, segment, values, bounds, table, held, undo):  # type: ignore[no-untyped-def]  # compiled
    """Set segments of rows (ascending by node); returns the runs of replaced segments, and their values."""
    columns = MASK + (len(bounds) - 1 + WORD - 1) // WORD
    runs = np.zeros((len(slots) if undo else 0, columns), np.int32)
    replaced = np.zeros((len(slots) if undo else 0, values.shape[1]), np.float32)
    r = -1
    n = 0
    for i in range(len(slots)):
        row, start = slots[i], bounds[segment[i]]
        width = bounds[segment[i] + 1] - start
        if not undo or held[row] == BEGUN:  # the node was zeros before it had its row
            for j in range(width):
                table[row, start + j] = values[i, j]
            continue
        same = True
        for j in range(width):
            if table[row, start + j] != values[i, j]:
                same = False
                break
        if same:
            continue
        if r < 0 or runs[r, ROW] != row:
            r += 1
            runs[r, ROW] = row
            runs[r, START] = n
        runs[r, MASK + segment[i] // WORD] |= np.int32(1) << np.int32(segment[i] % WORD)
        for j in range(width):
            replaced[n, j] = table[row, start + j]
            table[row, start + j] = values[i, j]
        n += 1
    return runs[: r + 1].copy(), replaced[:n].copy()


@njit(cache=True, nogil=True)
def pack(runs, replaced, segments, rows, small_rows):  # type: ignore[no-untyped-def]  # compiled
    """Save the values of new runs after the existing rows of either table; returns the new rows of both."""
    small = np.ones(len(runs), np.bool_)
    width, small_count = replaced.shape[1], 0
    for r in range(len(runs)):
        low = runs[r, START]
        high = runs[r + 1, START] if r + 1 < len(runs) else len(replaced)
        small[r] = 2 * (high - low) >= segments  # short runs as bytes would slow reads down
        for e in range(low, high if small[r] else low):
            for j in range(width):
                value = replaced[e, j]
                whole = 0 <= value <= _LARGEST_SMALL and np.float32(np.uint8(value)) == value
                if not whole or (value == 0 and np.signbit(value)):
                    small[r] = False
                    break
            if not small[r]:
                break
        if small[r]:
            small_count += high - low
    numbers = np.empty((len(replaced) - small_count, width), np.float32)
    bytes_ = np.empty((small_count, width), np.uint8)
    n = b = 0
    for r in range(len(runs)):
        low = runs[r, START]
        high = runs[r + 1, START] if r + 1 < len(runs) else len(replaced)
        runs[r, START] = (small_rows + b) | SMALL if small[r] else rows + n
        for e in range(low, high):
            if small[r]:
                for j in range(width):
                    bytes_[b, j] = np.uint8(replaced[e, j])
                b += 1
            else:
                for j in range(width):
                    numbers[n, j] = replaced[e, j]
                n += 1
    return numbers, bytes_


@njit(cache=True, nogil=True)
def sort_by_row(runs, rows):  # type: ignore[no-untyped-def]  # compiled
    """Group the runs by row, oldest first; their numbers replace the rows.

    Returns where each row's runs begin, and where the last one's end, int32 (rows + 1,); and the runs.
    """
    begin, by_row = np.zeros(rows + 1, np.int32), np.empty_like(runs)
    for number in range(len(runs)):
        begin[runs[number, ROW] + 1] += 1
    for row in range(rows):
        begin[row + 1] += begin[row]
    for number in range(len(runs)):
        row = runs[number, ROW]
        at = begin[row]
        begin[row] = at + 1
        by_row[at, NUMBER] = number
        for column in range(START, runs.shape[1]):
            by_row[at, column] = runs[number, column]
    for row in range(rows, 0, -1):  # each begins where its predecessor has ended
        begin[row] = begin[row - 1]
    begin[0] = 0
    return begin, by_row
