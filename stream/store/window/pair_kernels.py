"""Compiled loops over the rows of a window's pairs: sorted runs of keys, some of whose rows are gone.

``gone`` has a bit per row: bit ``row % 8`` of byte ``row // 8``. Search keys are ascending, so each search continues from the
end of the previous one, in doubling steps.
"""

import numpy as np

from stream.kernels import njit


@njit(cache=True, nogil=True)
def oldest(run, start, gone, keys, rows):  # type: ignore[no-untyped-def]  # compiled
    """Set ``rows[i]``, if it is −1, to the first row of ``keys[i]`` in the run that isn't gone; each row is taken once."""
    at = 0
    for i in range(len(keys)):
        if rows[i] >= 0:
            continue
        at = _first_not_below(run, keys[i], at)
        while at < len(run) and run[at] == keys[i] and _bit(gone, start + at):
            at += 1
        if at < len(run) and run[at] == keys[i]:
            rows[i] = start + at
            at += 1


@njit(cache=True, nogil=True)
def newest(run, start, gone, later, keys, rows):  # type: ignore[no-untyped-def]  # compiled
    """Set ``rows[i]``, if it is −1, to the last row of ``keys[i]`` in the run, unless it is gone.

    Rows in ``later``, ascending, are not gone yet at the snapshot that is asked about.
    """
    at = 0
    for i in range(len(keys)):
        if rows[i] >= 0:
            continue
        at = _first_not_below(run, keys[i], at)
        last = at
        while last + 1 < len(run) and run[last + 1] == keys[i]:
            last += 1
        if last < len(run) and run[last] == keys[i]:
            row = start + last
            if not _bit(gone, row) or _has(later, row):
                rows[i] = row


@njit(cache=True, nogil=True)
def mark(bits, rows):  # type: ignore[no-untyped-def]  # compiled
    """Set the bits of rows."""
    for row in rows:
        bits[row >> 3] |= np.uint8(1 << (row & 7))


@njit(cache=True, nogil=True)
def join(keys, gone, weight, come, come_row, left, place):  # type: ignore[no-untyped-def]  # compiled
    """Merge a table's remaining rows (``gone`` is bool) with new pairs; rows of the table precede new ones of the same key.

    Returns the ``left`` keys and the weights of their rows, and sets ``place`` of each row, unless it is empty.
    """
    out_keys = np.empty(left, np.int64)
    out_weight = np.empty(left, np.float32)
    i = j = 0
    for n in range(left):
        while i < len(keys) and gone[i]:
            i += 1
        if j == len(come) or (i < len(keys) and keys[i] <= come[j]):
            key, row = keys[i], i
            i += 1
        else:
            key, row = come[j], come_row[j]
            j += 1
        out_keys[n] = key
        out_weight[n] = weight[row]
        if len(place):
            place[row] = n
    return out_keys, out_weight


@njit(cache=True, nogil=True)
def _bit(bits, row):  # type: ignore[no-untyped-def]  # compiled
    return bits[row >> 3] >> (row & 7) & 1


@njit(cache=True, nogil=True)
def _has(ascending, number):  # type: ignore[no-untyped-def]  # compiled
    at = np.searchsorted(ascending, number)
    return at < len(ascending) and ascending[at] == number


@njit(cache=True, nogil=True)
def _first_not_below(run, key, at):  # type: ignore[no-untyped-def]  # compiled
    step, end = 1, at
    while end < len(run) and run[end] < key:
        at = end + 1
        end += step
        step *= 2
    end = min(end, len(run))
    while at < end:
        middle = (at + end) >> 1
        if run[middle] < key:
            at = middle + 1
        else:
            end = middle
    return at
