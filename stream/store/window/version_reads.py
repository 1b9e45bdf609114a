"""Kernel of ``FeatureVersions`` that gathers rows at an earlier snapshot."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from stream.kernels import njit
from stream.kernels.bits import count_bits, lowest_bit
from stream.snapshots.prefetch import prefetch
from stream.store.window.version_kernels import MASK, NUMBER, SMALL, START, WORD

_BLOCK = 64
"""Rows read together, so that their cache misses overlap."""
_LINE, _SMALL_LINE = 16, 64
"""Values per cache line, as float32 and as bytes."""
_LINES_AHEAD = 4
"""Lines of a row's runs that are prefetched; further runs are waited for."""

_MANY = 4
"""From this mean number of adjacent segments on, new segments of a run are copied together; a varying length costs a
mispredicted branch."""

TO, AT, LENGTH = 0, 1, 2
"""Columns of a copy: its place in the result and in the source, and the number of values (a whole segment if absent)."""


@intrinsic
def _move(_typing: Any, target: Any, at: Any, source: Any, start: Any, count: Any) -> Any:
    """Compiled ``target[at : at + count] = source[start : start + count]``.

    1-d contiguous arrays of one type, without bounds checks. A copy of slices would make two arrays first, and a loop checks
    every index for being negative, which prevents vector moves.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, at_index, given, start_index, length = arguments
        pointers = [
            builder.gep(context.make_array(kind)(context, builder, array).data, [index])
            for kind, array, index in ((target, to, at_index), (source, given, start_index))
        ]
        size = context.get_abi_sizeof(context.get_data_type(target.dtype))
        cgutils.raw_memcpy(builder, *pointers, builder.sext(length, ir.IntType(64)), size)
        return context.get_dummy_value()

    return types.void(target, at, source, start, count), generate


@njit(cache=True, nogil=True)
def read(slots, since, begin, runs, bounds, table, values, small, out):  # type: ignore[no-untyped-def]  # compiled
    """Gather rows: each segment from the row's first run that has it and is numbered ``since`` or later, else from the table.

    Works block by block in four steps, so that cache misses overlap: where each row's runs are, the runs, which values to copy,
    and the copies. A row below 0 reads as zeros. In the loops over rows only intrinsics take arrays, because any other call
    counts references, which costs more than the copy.
    """
    segments, features, width, columns = len(bounds) - 1, out.shape[1], values.shape[1], runs.shape[1]
    rows, versions, records, target = table.reshape(-1), values.reshape(-1), runs.reshape(-1), out.reshape(-1)
    bytes_ = small.reshape(-1)
    words = columns - MASK
    one = np.uint64(1)
    # Whether all segments have one width, and are adjacent in a run without a gap.
    even = segments * width == features
    # Narrower segments share their cache lines with others, so copying whole rows of the table costs no more.
    apart = width >= _LINE
    low, high = np.zeros(_BLOCK, np.int64), np.zeros(_BLOCK, np.int64)
    known = np.empty(words, np.uint64)
    most = _BLOCK * segments
    table_rows, table_segments = np.empty((_BLOCK, 3), np.int64), np.empty((most, 3), np.int64)
    value_ranges, value_segments = np.empty((most, 3), np.int64), np.empty((most, 2), np.int64)
    small_ranges, small_segments = np.empty((most, 3), np.int64), np.empty((most, 2), np.int64)
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
                        segment = word * WORD + bit
                        place = entry + count_bits(mask & ((one << np.uint64(bit)) - one))
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
            # Unsigned, because indexing by a number that may be negative prevents vector moves.
            to_value, at_byte = np.uint64(small_ranges[k, TO]), np.uint64(small_ranges[k, AT])
            for j in range(np.uint64(small_ranges[k, LENGTH])):
                target[to_value + j] = bytes_[at_byte + j]


@njit(cache=True, nogil=True)
def _copy_ranges(copies, source, target):  # type: ignore[no-untyped-def]  # compiled
    for k in range(len(copies)):
        _move(target, copies[k, TO], source, copies[k, AT], copies[k, LENGTH])


@njit(cache=True, nogil=True)
def _copy_segments(copies, source, width, target):  # type: ignore[no-untyped-def]  # compiled
    """Copy segments of one width; a constant width is copied without a call."""
    if width == 4:
        for k in range(len(copies)):
            _move(target, copies[k, TO], source, copies[k, AT], 4)
    elif width == 32:
        for k in range(len(copies)):
            _move(target, copies[k, TO], source, copies[k, AT], 32)
    else:
        for k in range(len(copies)):
            _move(target, copies[k, TO], source, copies[k, AT], width)


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
