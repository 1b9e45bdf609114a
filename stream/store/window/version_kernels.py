"""Kernels of ``FeatureVersions``: what a snapshot replaces in a row is a run of segments, and reading gathers from runs.

A run is a row of int32: the slot that it belongs to, how many runs lie between it and the next of its slot (0: it is the last),
its first row among the saved values, and a bit for each segment that it has, whose values follow each other there. Runs of
all segments that are whole numbers from 0 to 255 (binary features, counts) are saved as bytes, in a table of their own:
``SMALL`` marks their rows.
"""

import numpy as np
from numba import njit

from stream.partition.part_sets import lowest_bit
from stream.snapshots.prefetch import prefetch
from stream.store.window.move import move

SLOT, NEXT, START, MASK = 0, 1, 2, 3
SMALL = 1 << 30

NO_RUN = -1
BEGUN = -2
"""Head of a slot that this very write has taken: before it the node was zeros, which needs no version."""

_WORD = 32
_WRAP = 2**31 - 1
_BLOCK = 32
"""Rows that are read together: their lines fit the first cache."""
_LINE, _SMALL_LINE = 16, 64
"""Values in a line of the cache, and values that are saved as bytes."""
_LARGEST_SMALL = 255


def run_columns(segments: int) -> int:
    """Columns of a run of up to so many segments."""
    return MASK + -(-segments // _WORD)


@njit(cache=True, nogil=True)
def write(slots, segment, values, bounds, table, head, undo):  # type: ignore[no-untyped-def]  # compiled
    """Set segments of rows (ascending by node); returns the runs of what that replaced, and its values."""
    columns = MASK + (len(bounds) - 1 + _WORD - 1) // _WORD
    runs = np.zeros((len(slots) if undo else 0, columns), np.int32)
    replaced = np.zeros((len(slots) if undo else 0, values.shape[1]), np.float32)
    r = -1
    n = 0
    for i in range(len(slots)):
        row, start = slots[i], bounds[segment[i]]
        width = bounds[segment[i] + 1] - start
        if not undo or head[row] == BEGUN:  # before it had its slot the node was zeros
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
        if r < 0 or runs[r, SLOT] != row:
            r += 1
            runs[r, SLOT] = row
            runs[r, START] = n
        runs[r, MASK + segment[i] // _WORD] |= np.int32(1) << np.int32(segment[i] % _WORD)
        for j in range(width):
            replaced[n, j] = table[row, start + j]
            table[row, start + j] = values[i, j]
        n += 1
    return runs[: r + 1].copy(), replaced[:n].copy()


@njit(cache=True, nogil=True)
def pack(runs, replaced, segments, rows, small_rows):  # type: ignore[no-untyped-def]  # compiled
    """Save the values of new runs after so many rows of either table; returns the new rows of both."""
    small = np.ones(len(runs), np.bool_)
    width, small_count = replaced.shape[1], 0
    for r in range(len(runs)):
        low = runs[r, START]
        high = runs[r + 1, START] if r + 1 < len(runs) else len(replaced)
        small[r] = high - low == segments  # short ones are read slower than they are worth
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
def link(slot, number, first, head, runs):  # type: ignore[no-untyped-def]  # compiled
    """Have the runs from ``number`` on follow those that their slots had, and be the last of them."""
    for i in range(len(slot)):
        before = head[slot[i]]
        if before >= first:
            runs[before - first, NEXT] = number + i - before
        head[slot[i]] = number + i


@njit(cache=True, nogil=True)
def note(slot, number, after):  # type: ignore[no-untyped-def]  # compiled
    """Note the runs from ``number`` on where their slots have none after a snapshot yet."""
    for i in range(len(slot)):
        if after[slot[i]] < 0:
            after[slot[i]] = (number + i) & _WRAP


@njit(inline="always")
def _copy(target, at, versions, bytes_, entry, width, count):  # type: ignore[no-untyped-def]  # compiled
    if entry < SMALL:
        move(target, at, versions, entry * width, count)
    else:
        to, start = np.uint64(at), np.uint64((entry - SMALL) * width)
        for j in range(np.uint64(count)):  # unsigned: an index that may be negative is not moved in vectors
            target[to + j] = bytes_[start + j]


@njit(cache=True, nogil=True)
def read(slots, after, bounds, table, first, runs, values, small, out):  # type: ignore[no-untyped-def]  # compiled
    """Gather rows as a snapshot saw them: each segment from the first run after it that has it, else from the table.

    Block by block, so that no miss of the cache waits for another: first runs, then what they have, run after run for all rows
    together, then all copies.
    """
    segments, features, width, columns = len(bounds) - 1, out.shape[1], values.shape[1], runs.shape[1]
    rows, versions, records, target = table.reshape(-1), values.reshape(-1), runs.reshape(-1), out.reshape(-1)
    bytes_ = small.reshape(-1)
    unpadded = segments * width == features
    run = np.empty(_BLOCK, np.int64)
    active = np.empty(_BLOCK, np.int64)
    whole = np.empty(_BLOCK, np.int64)  # first of a row's values that stand in one piece, else −1
    # What was found of a row: how many segments and which; each with its row among the values.
    number = np.empty(_BLOCK, np.int64)
    found = np.empty((_BLOCK, columns - MASK), np.uint64)
    piece = np.empty((_BLOCK, segments, 2), np.int64)
    for begin in range(0, len(slots), _BLOCK):
        count = min(_BLOCK, len(slots) - begin)
        if len(after):
            for i in range(count):
                if slots[begin + i] >= 0:
                    prefetch(after, slots[begin + i])
        left = 0
        for i in range(count):
            slot = slots[begin + i]
            run[i] = -1
            if slot >= 0 and len(after) and after[slot] >= 0:
                run[i] = (after[slot] - first) & _WRAP
                prefetch(records, run[i] * columns)
                whole[i], number[i], found[i] = -1, 0, 0
                active[left] = i
                left += 1
            elif slot >= 0:
                for j in range(0, features, _LINE):
                    prefetch(rows, slot * features + j)
        while left > 0:
            going = left
            left = 0
            for k in range(going):
                i = active[k]
                record, before = run[i] * columns, number[i]
                low, step = np.int64(records[record + START]), records[record + NEXT]
                entry, n = low, before
                for word in range(columns - MASK):
                    mask, known = np.uint64(np.uint32(records[record + MASK + word])), found[i, word]
                    found[i, word] = known | mask
                    while mask != 0:
                        bit = mask & (~mask + np.uint64(1))
                        if known & bit == 0:
                            piece[i, n, 0], piece[i, n, 1] = word * _WORD + lowest_bit(mask), entry
                            if entry < SMALL:
                                for j in range(0, width, _LINE):
                                    prefetch(versions, entry * width + j)
                            else:
                                for j in range(0, width, _SMALL_LINE):
                                    prefetch(bytes_, (entry - SMALL) * width + j)
                            n += 1
                        mask ^= bit
                        entry += 1
                number[i] = n
                if n == segments:
                    if before == 0 and unpadded:
                        whole[i] = low
                    continue
                if before == 0:
                    for j in range(0, features, _LINE):
                        prefetch(rows, slots[begin + i] * features + j)
                if step > 0:
                    run[i] += step
                    prefetch(records, run[i] * columns)
                    active[left] = i
                    left += 1
        for i in range(count):
            slot, to = slots[begin + i], (begin + i) * features
            if slot < 0:
                for j in range(features):
                    out[begin + i, j] = 0
            elif run[i] < 0:
                move(target, to, rows, slot * features, features)
            elif whole[i] >= 0:
                _copy(target, to, versions, bytes_, whole[i], width, features)
            else:
                if number[i] < segments:
                    move(target, to, rows, slot * features, features)
                for n in range(number[i]):
                    s = piece[i, n, 0]
                    _copy(
                        target,
                        to + bounds[s],
                        versions,
                        bytes_,
                        piece[i, n, 1],
                        width,
                        bounds[s + 1] - bounds[s],
                    )
