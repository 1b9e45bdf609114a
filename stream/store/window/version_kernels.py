"""Kernels of ``FeatureVersions``: what a snapshot replaces in a row is a run of segments, and reading gathers from runs.

A run is a row of int32: the slot that it belongs to, how many runs lie between it and the next of its slot (0: it is the last),
its first row among the saved values, and a bit for each segment that it has, whose values follow each other there. Runs of
all segments that are whole numbers from 0 to 255 (binary features, counts) are saved as bytes, in a table of their own:
``SMALL`` marks their rows.
"""

import numpy as np
from numba import njit

from stream.partition.part_sets import count_bits, lowest_bit
from stream.snapshots.prefetch import prefetch
from stream.store.window.move import move

SLOT, NEXT, START, MASK = 0, 1, 2, 3
SMALL = 1 << 30

NO_RUN = -1
BEGUN = -2
"""Head of a slot that this very write has taken: before it the node was zeros, which needs no version."""

_WORD = 32
_WRAP = 2**31 - 1
_BLOCK = 64
"""Rows that are read together, so that their misses of the cache overlap."""
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


@njit(cache=True, nogil=True)
def read(  # type: ignore[no-untyped-def]  # compiled
    slots, after, bounds, table, first, runs, values, small, depth, out
):
    """Gather rows as a snapshot saw them: each segment from the first run after it that has it, else from the table.

    Block by block, so that no miss of the cache waits for another: first runs, then what they have, run after run for all rows
    together, then all copies, later runs first and earlier ones over them. No slot has more than ``depth`` runs. In the loops no
    function but intrinsics takes arrays: each such call counts references, which costs more than the copy.
    """
    segments, features, width, columns = len(bounds) - 1, out.shape[1], values.shape[1], runs.shape[1]
    rows, versions, records, target = table.reshape(-1), values.reshape(-1), runs.reshape(-1), out.reshape(-1)
    bytes_ = small.reshape(-1)
    unpadded = segments * width == features
    words = columns - MASK
    one = np.uint64(1)
    run = np.empty(_BLOCK, np.int64)
    length = np.zeros(_BLOCK, np.int64)
    full = np.zeros(_BLOCK, np.bool_)
    active = np.empty(_BLOCK, np.int64)
    chain = np.empty(_BLOCK * depth, np.int64)
    known = np.empty(_BLOCK * words, np.uint64)
    apart = width >= _LINE
    for begin in range(0, len(slots), _BLOCK):
        count = min(_BLOCK, len(slots) - begin)
        if len(after):
            for i in range(count):
                if slots[begin + i] >= 0:
                    prefetch(after, slots[begin + i])
        left = 0
        for i in range(count):
            slot = slots[begin + i]
            length[i] = 0
            full[i] = False
            if slot >= 0:
                if len(after) and after[slot] >= 0:
                    run[i] = ((after[slot] - first) & _WRAP) * columns
                    prefetch(records, run[i])
                    for word in range(words):
                        known[i * words + word] = 0
                    active[left] = i
                    left += 1
                else:
                    for j in range(0, features, _LINE):
                        prefetch(rows, slot * features + j)
        while left > 0:
            going, left = left, 0
            for k in range(going):
                i = active[k]
                record = run[i]
                start, step = np.int64(records[record + START]), np.int64(records[record + NEXT])
                held = all_known = 0
                new = np.uint64(0)
                for word in range(words):
                    mask = np.uint64(np.uint32(records[record + MASK + word]))
                    before = known[i * words + word]
                    known[i * words + word] = before | mask
                    held += count_bits(mask)
                    all_known += count_bits(mask | before)
                    new |= mask & ~before
                if new != 0:
                    if start < SMALL:
                        for j in range(0, held * width, _LINE):
                            prefetch(versions, start * width + j)
                    else:
                        for j in range(0, held * width, _SMALL_LINE):
                            prefetch(bytes_, (start - SMALL) * width + j)
                full[i] = held == segments
                chain[i * depth + length[i]] = record
                length[i] += new != 0
                run[i] = record + step * columns
                prefetch(records, run[i])
                active[left] = i
                left += int(step > 0 and all_known < segments)
        for i in range(count):
            slot = slots[begin + i]
            if length[i] > 0 and not full[i]:
                at = slot * features
                if not apart:
                    for j in range(0, features, _LINE):
                        prefetch(rows, at + j)
                    continue
                for s in range(segments):
                    if not (known[i * words + (s >> 5)] >> np.uint64(s & 31)) & one:
                        for j in range(bounds[s], bounds[s + 1], _LINE):
                            prefetch(rows, at + j)
        for i in range(count):
            slot, to = slots[begin + i], (begin + i) * features
            if slot < 0:
                for j in range(features):
                    out[begin + i, j] = 0
                continue
            n = length[i]
            if full[i]:
                n -= 1
                start = np.int64(records[chain[i * depth + n] + START])
                if unpadded:
                    if start < SMALL:
                        move(target, to, versions, start * width, features)
                    else:
                        # unsigned: what is indexed by a number that may be negative is not moved in vectors
                        at_byte, at_value = np.uint64((start - SMALL) * width), np.uint64(to)
                        for j in range(np.uint64(features)):
                            target[at_value + j] = bytes_[at_byte + j]
                else:
                    n += 1
            elif not apart or n == 0:
                move(target, to, rows, slot * features, features)
            else:
                for s in range(segments):
                    if not (known[i * words + (s >> 5)] >> np.uint64(s & 31)) & one:
                        move(
                            target,
                            to + bounds[s],
                            rows,
                            slot * features + bounds[s],
                            bounds[s + 1] - bounds[s],
                        )
            while n > 0:
                n -= 1
                record = chain[i * depth + n]
                entry = np.int64(records[record + START])
                for word in range(words):
                    mask = np.uint64(np.uint32(records[record + MASK + word]))
                    while mask != 0:
                        s = word * _WORD + lowest_bit(mask)
                        if unpadded:
                            at, many = s * width, width
                        else:
                            at = bounds[s]
                            many = bounds[s + 1] - at
                        if entry < SMALL:
                            if many == 4:  # a length that is known is copied without a call
                                move(target, to + at, versions, entry * width, 4)
                            elif many == 32:
                                move(target, to + at, versions, entry * width, 32)
                            else:
                                move(target, to + at, versions, entry * width, many)
                        else:
                            at_byte, at_value = np.uint64((entry - SMALL) * width), np.uint64(to + at)
                            for j in range(np.uint64(many)):
                                target[at_value + j] = bytes_[at_byte + j]
                        mask &= mask - one
                        entry += 1
