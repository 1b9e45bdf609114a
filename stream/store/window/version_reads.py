"""Kernel of ``FeatureVersions`` that gathers rows as an earlier snapshot saw them."""

import numpy as np
from numba import njit

from stream.kernels.bits import count_bits, lowest_bit
from stream.snapshots.prefetch import prefetch
from stream.store.window.move import move
from stream.store.window.version_kernels import MASK, NUMBER, SMALL, START, WORD

_BLOCK = 64
"""Rows that are read together, so that their misses of the cache overlap."""
_LINE, _SMALL_LINE = 16, 64
"""Values in a line of the cache, and values that are saved as bytes."""
_LINES_AHEAD = 4
"""Lines of a row's runs that are fetched at once; who has more runs than that waits for the others."""

_MANY = 4
"""Neighbours among a run's new segments, in the mean, from which on they are copied together: each length that varies costs a
mispredicted branch."""

TO, AT, LENGTH = 0, 1, 2
"""Columns of a copy: its place in what is returned, in its source, and how many values; all of a segment where it isn't said."""


@njit(cache=True, nogil=True)
def read(  # type: ignore[no-untyped-def]  # compiled
    slots, since, begin, runs, bounds, table, values, small, out
):
    """Gather rows: each segment from the row's first run that has it and is numbered ``since`` or later, else from the table.

    Block by block, in four steps, so that no miss of the cache waits for another: where each row's runs are, the runs, which
    values to copy, and the copies. A row below 0 reads as zeros. In the loops over rows no function but intrinsics takes arrays:
    each such call counts references, which costs more than the copy.
    """
    segments, features, width, columns = len(bounds) - 1, out.shape[1], values.shape[1], runs.shape[1]
    rows, versions, records, target = table.reshape(-1), values.reshape(-1), runs.reshape(-1), out.reshape(-1)
    bytes_ = small.reshape(-1)
    words = columns - MASK
    one = np.uint64(1)
    even = (
        segments * width == features
    )  # all segments are of one width, and neighbours in a run without a gap
    apart = (
        width >= _LINE
    )  # else what is taken from the table shares its lines with what is not: whole rows cost no more
    low, high = np.zeros(_BLOCK, np.int64), np.zeros(_BLOCK, np.int64)
    known = np.empty(words, np.uint64)
    table_rows, table_segments = np.empty((_BLOCK, 3), np.int64), np.empty((_BLOCK * segments, 3), np.int64)
    value_ranges, value_segments = (
        np.empty((_BLOCK * segments, 3), np.int64),
        np.empty((_BLOCK * segments, 2), np.int64),
    )
    small_ranges, small_segments = (
        np.empty((_BLOCK * segments, 3), np.int64),
        np.empty((_BLOCK * segments, 2), np.int64),
    )
    for first in range(0, len(slots), _BLOCK):
        count = min(_BLOCK, len(slots) - first)
        if since < len(runs):
            for i in range(count):
                if slots[first + i] >= 0:
                    prefetch(begin, slots[first + i])
        for i in range(count):
            slot = slots[first + i]
            if slot < 0:
                continue
            if since < len(runs):
                low[i], high[i] = begin[slot], begin[slot + 1]
            if low[i] == high[i]:
                for j in range(0, features, _LINE):
                    prefetch(rows, slot * features + j)
                continue
            start, last = low[i] * columns, high[i] * columns - 1
            start = max(start, last - _LINES_AHEAD * _LINE)
            prefetch(records, start)
            for at in range(last, start, -_LINE):
                prefetch(records, at)
        n_rows = n_table = n_ranges = n_values = n_small = n_bytes = 0
        for i in range(count):
            slot, to = slots[first + i], (first + i) * features
            if slot < 0:
                for j in range(features):
                    out[first + i, j] = 0
                continue
            at, end = high[i], high[i]
            while at > low[i] and records[(at - 1) * columns + NUMBER] >= since:
                at -= 1
            missing = segments
            for word in range(words):
                known[word] = 0
            while at < end and missing > 0:
                record = at * columns
                at += 1
                entry = np.int64(records[record + START])
                for word in range(words):
                    mask = np.uint64(np.uint32(records[record + MASK + word]))
                    new = mask & ~known[word]
                    known[word] |= mask
                    missing -= count_bits(new)
                    together = not even or count_bits(new) >= _MANY * count_bits(new & ~(new << one))
                    while new != 0:
                        bit = lowest_bit(new)
                        segment, place = (
                            word * WORD + bit,
                            entry + count_bits(mask & ((one << np.uint64(bit)) - one)),
                        )
                        if together:
                            many = lowest_bit(~(new >> np.uint64(bit))) if even else 1
                            new &= ~(((one << np.uint64(many)) - one) << np.uint64(bit))
                            length = bounds[segment + many] - bounds[segment]
                            if place < SMALL:
                                value_ranges[n_ranges, TO] = to + bounds[segment]
                                value_ranges[n_ranges, AT] = place * width
                                value_ranges[n_ranges, LENGTH] = length
                                n_ranges += 1
                                for j in range(0, length, _LINE):
                                    prefetch(versions, place * width + j)
                            else:
                                small_ranges[n_small, TO] = to + bounds[segment]
                                small_ranges[n_small, AT] = (place - SMALL) * width
                                small_ranges[n_small, LENGTH] = length
                                n_small += 1
                                for j in range(0, length, _SMALL_LINE):
                                    prefetch(bytes_, (place - SMALL) * width + j)
                        elif place < SMALL:
                            new &= new - one
                            value_segments[n_values, TO] = to + segment * width
                            value_segments[n_values, AT] = place * width
                            n_values += 1
                            for j in range(0, width, _LINE):
                                prefetch(versions, place * width + j)
                        else:
                            new &= new - one
                            small_segments[n_bytes, TO] = to + segment * width
                            small_segments[n_bytes, AT] = (place - SMALL) * width
                            n_bytes += 1
                            for j in range(0, width, _SMALL_LINE):
                                prefetch(bytes_, (place - SMALL) * width + j)
                    entry += count_bits(mask)
            if missing == segments or (missing > 0 and not apart):
                table_rows[n_rows, TO] = to
                table_rows[n_rows, AT] = slot * features
                table_rows[n_rows, LENGTH] = features
                n_rows += 1
                if low[i] < high[i]:
                    for j in range(0, features, _LINE):
                        prefetch(rows, slot * features + j)
            elif missing > 0:
                for segment in range(segments):
                    if not (known[segment // WORD] >> np.uint64(segment % WORD)) & one:
                        begins = bounds[segment]
                        length = bounds[segment + 1] - begins
                        table_segments[n_table, TO] = to + begins
                        table_segments[n_table, AT] = slot * features + begins
                        table_segments[n_table, LENGTH] = length
                        n_table += 1
                        for j in range(0, length, _LINE):
                            prefetch(rows, slot * features + begins + j)
        _copy_ranges(table_rows[:n_rows], rows, target)
        if even:
            _copy_segments(table_segments[:n_table], rows, width, target)
        else:
            _copy_ranges(table_segments[:n_table], rows, target)
        _copy_ranges(value_ranges[:n_ranges], versions, target)
        _copy_segments(value_segments[:n_values], versions, width, target)
        _widen_segments(small_segments[:n_bytes], bytes_, width, target)
        for k in range(n_small):
            # unsigned: what is indexed by a number that may be negative is not moved in vectors
            to_value, at_byte = np.uint64(small_ranges[k, TO]), np.uint64(small_ranges[k, AT])
            for j in range(np.uint64(small_ranges[k, LENGTH])):
                target[to_value + j] = bytes_[at_byte + j]


@njit(cache=True, nogil=True)
def _copy_ranges(copies, source, target):  # type: ignore[no-untyped-def]  # compiled
    for k in range(len(copies)):
        move(target, copies[k, TO], source, copies[k, AT], copies[k, LENGTH])


@njit(cache=True, nogil=True)
def _copy_segments(copies, source, width, target):  # type: ignore[no-untyped-def]  # compiled
    """All of one width; one that is known is copied without a call."""
    if width == 4:
        for k in range(len(copies)):
            move(target, copies[k, TO], source, copies[k, AT], 4)
    elif width == 32:
        for k in range(len(copies)):
            move(target, copies[k, TO], source, copies[k, AT], 32)
    else:
        for k in range(len(copies)):
            move(target, copies[k, TO], source, copies[k, AT], width)


@njit(cache=True, nogil=True)
def _widen_segments(copies, source, width, target):  # type: ignore[no-untyped-def]  # compiled
    if width == 4:
        for k in range(len(copies)):
            to, at = np.uint64(copies[k, TO]), np.uint64(copies[k, AT])
            for j in range(np.uint64(4)):
                target[to + j] = source[at + j]
    elif width == 32:
        for k in range(len(copies)):
            to, at = np.uint64(copies[k, TO]), np.uint64(copies[k, AT])
            for j in range(np.uint64(32)):
                target[to + j] = source[at + j]
    else:
        for k in range(len(copies)):
            to, at = np.uint64(copies[k, TO]), np.uint64(copies[k, AT])
            for j in range(np.uint64(width)):
                target[to + j] = source[at + j]
