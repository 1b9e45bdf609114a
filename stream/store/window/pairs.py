"""The directed pairs that some parts store, for every snapshot of a window, additively.

One sorted table holds the oldest snapshot of the window (or an earlier one), and every later snapshot only its changes (DistDy,
section 3.2). New pairs are held by key; pairs that leave or change their weight by row number: rows of the table, then those
of each change. Changes that have left the window are folded into the table when they have grown to a share of it, so that
advancing costs O(changes), amortised. Equal weights are held once.

``gone`` has a bit per row: bit ``row % 8`` of byte ``row // 8``. Search keys are ascending, so each search continues from the
end of the previous one, in doubling steps.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int8, Int64, UInt8
from freshet_graph.stream.kernels import njit, or_plain
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.store.window import plain


@or_plain(plain.oldest)
@njit(cache=True, nogil=True)
def oldest(run, start, gone, keys, rows):  # type: ignore[no-untyped-def]  # compiled
    """Set ``rows[i]``, if it is −1, to the first row of ``keys[i]`` in the run that isn't gone; each row is taken once."""
    place = 0
    for i in range(len(keys)):
        if rows[i] >= 0:
            continue
        place = _first_not_below(run, keys[i], place)
        while place < len(run) and run[place] == keys[i] and _bit(gone, start + place):
            place += 1
        if place < len(run) and run[place] == keys[i]:
            rows[i] = start + place
            place += 1


@or_plain(plain.newest)
@njit(cache=True, nogil=True)
def newest(run, start, gone, later, keys, rows):  # type: ignore[no-untyped-def]  # compiled
    """Set ``rows[i]``, if it is −1, to the last row of ``keys[i]`` in the run, unless it is gone.

    Rows in ``later``, ascending, are not gone yet at the snapshot that is asked about.
    """
    place = 0
    for i in range(len(keys)):
        if rows[i] >= 0:
            continue
        place = _first_not_below(run, keys[i], place)
        last = place
        while last + 1 < len(run) and run[last + 1] == keys[i]:
            last += 1
        if last < len(run) and run[last] == keys[i]:
            row = start + last
            if not _bit(gone, row) or _has(later, row):
                rows[i] = row


@njit(cache=True, nogil=True)
def _bit(bits, row):  # type: ignore[no-untyped-def]  # compiled
    return bits[row >> 3] >> (row & 7) & 1


@njit(cache=True, nogil=True)
def _has(ascending, number):  # type: ignore[no-untyped-def]  # compiled
    place = np.searchsorted(ascending, number)
    return place < len(ascending) and ascending[place] == number


@njit(cache=True, nogil=True)
def _first_not_below(run, key, begin):  # type: ignore[no-untyped-def]  # compiled
    step, end = 1, begin
    while end < len(run) and run[end] < key:
        begin = end + 1
        end += step
        step *= 2
    end = min(end, len(run))
    while begin < end:
        middle = (begin + end) >> 1
        if run[middle] < key:
            begin = middle + 1
        else:
            end = middle
    return begin


_BITS_A_NUMBER = 32


@dataclass(frozen=True, slots=True)
class RowSet:
    """Distinct rows below a limit.

    Attributes:
        limit: Number of rows of the table.
        numbers: uint32, the rows, ascending; None: they are in ``bits``.
        bits: uint8, bit ``row % 8`` of byte ``row // 8`` is set.
    """

    limit: int
    numbers: NDArray[np.uint32] | None
    bits: UInt8

    @classmethod
    def of(cls, rows: Int64, limit: int) -> "RowSet":
        """Hold ``rows``, distinct, in any order and below ``limit`` ≤ 2³²."""
        none = np.empty(0, np.uint8)
        if len(rows) * _BITS_A_NUMBER <= limit:
            return cls(limit, np.sort(rows.astype(np.uint32)), none)
        flags = np.zeros(limit, np.bool_)
        flags[rows] = True
        return cls(limit, None, np.packbits(flags, bitorder="little"))

    def rows(self) -> Int64:
        """The rows, int64 ascending."""
        return np.flatnonzero(self._flags()) if self.numbers is None else self.numbers.astype(np.int64)

    def mark(self, flags: Bool) -> None:
        """Set the flags of the rows, bool (≥ limit,)."""
        if self.numbers is not None:
            flags[self.numbers] = True
        else:
            flags[: self.limit] |= self._flags()

    def _flags(self) -> Bool:
        return np.unpackbits(self.bits, count=self.limit, bitorder="little").view(np.bool_)

    def mark_bits(self, bits: UInt8) -> None:
        """Set the bits of the rows, uint8 (≥ limit / 8,)."""
        if self.numbers is not None:
            np.bitwise_or.at(bits, self.numbers >> 3, np.uint8(1) << (self.numbers & 7).astype(np.uint8))
        else:
            bits[: len(self.bits)] |= self.bits

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.bits.nbytes + (0 if self.numbers is None else self.numbers.nbytes)


_FOLD_SHARE = 8
"""Changes older than the window are folded into the table once they are this fraction of its rows."""


@dataclass(frozen=True, slots=True)
class ChangedPairs:
    """Pairs whose value differs between two snapshots.

    Attributes:
        keys: int64 (n,), as ``freshet_graph.stream.snapshots.pairs.pair_keys``, ascending and distinct.
        before: float32 (n,), NaN if the pair did not exist.
        after: float32 (n,), NaN if it no longer exists.
    """

    keys: Int64
    before: Float32
    after: Float32

    def reversed(self) -> "ChangedPairs":
        """The way back."""
        return ChangedPairs(self.keys, self.after, self.before)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.before.nbytes + self.after.nbytes


@dataclass(frozen=True, slots=True)
class _Change:
    """The changes of one snapshot.

    Attributes:
        sequence: The snapshot's.
        start: The row of the first new pair; leaving and altered rows are below it.
        gone: Rows that leave.
        come: New keys, ascending.
        come_weight: Their weights, as ``_stored``.
        altered: Rows with a new weight.
        weight: Their weights, as ``_stored``.
        count: Number of changes given.
    """

    sequence: int
    start: int
    gone: RowSet
    come: Int64
    come_weight: Float32
    altered: RowSet
    weight: Float32
    count: int

    @property
    def nbytes(self) -> int:
        weights = self.come_weight.nbytes + self.weight.nbytes
        return self.gone.nbytes + self.come.nbytes + self.altered.nbytes + weights


class PairWindow:
    """Pairs by key (``freshet_graph.stream.snapshots.pairs.pair_keys``) with weights, readable at any snapshot of a window."""

    def __init__(self) -> None:
        # A pair stored by several parts of the view has as many rows. The oldest leaves first, the newest has the weight.
        self._keys: Int64 = np.empty(0, np.int64)
        self._weight: Float32 = np.empty(0, np.float32)
        self._changes: list[_Change] = []
        self._gone: UInt8 = np.empty(0, np.uint8)  # at the newest snapshot, one bit per row

    def append(self, sequence: int, op: Int8, keys: Int64, weight: Float32, *, whole: bool = False) -> None:
        """Apply the changes of the next snapshot.

        Args:
            sequence: Above all before it.
            op: int8 (m,), 1: another part stores the pair, −1: one less, 0: a new weight.
            keys: int64 (m,), in any order.
            weight: float32 (m,), of op ≥ 0.
            whole: The pairs are a list of all after the snapshot; the changes are computed here, in O(pairs).
        """
        if whole:
            op, keys, weight = _difference(*self._joined(self._changes)[:2], keys, weight)
        start = self._end(self._changes)
        gone, come, new = (np.flatnonzero(op == kind) for kind in (-1, 1, 0))
        come, new = (rows[np.argsort(keys[rows], kind="stable")] for rows in (come, new))
        going = self._oldest_rows(np.sort(keys[gone], kind="stable"))
        going = going[going >= 0]
        altered, first = np.unique(self._newest_rows(keys[new], len(self._changes)), return_index=True)
        altered, first = altered[altered >= 0], first[altered >= 0]
        change = _Change(
            sequence, start,
            RowSet.of(going, start), keys[come], _stored(weight[come]),
            RowSet.of(altered, start), _stored(weight[new[first]]),
            len(keys),
        )  # fmt: skip
        self._changes.append(change)
        more = _bytes_of_bits(start + len(come)) - len(self._gone)
        self._gone = np.concatenate([self._gone, np.zeros(more, np.uint8)])
        change.gone.mark_bits(self._gone)

    def fold(self, sequence: int, *, always: bool = False) -> None:
        """Drop snapshots before ``sequence``, now or when it is worth it."""
        past = [change for change in self._changes if change.sequence <= sequence]
        if always or sum(change.count for change in past) * _FOLD_SHARE > len(self._keys):
            later = self._changes[len(past) :]
            self._keys, weight, place = self._joined(past, places=bool(later))
            self._weight = _stored(weight)
            self._changes = _moved(later, place, len(self._keys))
            self._gone = np.zeros(_bytes_of_bits(self._end(self._changes)), np.uint8)
            for change in self._changes:
                change.gone.mark_bits(self._gone)

    def as_of(self, sequence: int) -> tuple[Int64, Float32]:
        """The pairs at a snapshot of the window.

        Returns:
            Keys int64 (n,) ascending and weights float32 (n,). O(pairs + changes).
        """
        keys, weight, _ = self._joined([c for c in self._changes if c.sequence <= sequence])
        last = np.ones(len(keys), np.bool_)
        np.not_equal(keys[1:], keys[:-1], out=last[:-1])
        return (keys, weight) if last.all() else (keys[last], weight[last])

    def changes(self, sequence: int) -> ChangedPairs:
        """The difference between a snapshot and the one before it, over all copies of a pair.

        Args:
            sequence: Of a snapshot whose changes no ``fold`` has dropped.

        Returns:
            Pairs that exist at one of the two, or at both with other weights, bit for bit. O(changes · log pairs).
        """
        number = self._number(sequence) - 1
        change = self._changes[number]
        gone, altered = change.gone.rows(), change.altered.rows()
        keys = distinct(self._keys_of(gone), change.come, self._keys_of(altered))
        rows = self._newest_rows(keys, number)
        present = np.flatnonzero(rows >= 0)
        rows = rows[present]
        before = np.full(len(keys), np.nan, np.float32)
        before[present] = self._weights_of(rows, number)
        after = before.copy()
        # The oldest copy leaves first: if the newest is gone, all are.
        after[present[_located(gone, rows)[1]]] = np.nan
        place, is_altered = _located(altered, rows)
        after[present[is_altered]] = _chosen(change.weight, len(altered), place[is_altered])
        # All copies that come with a snapshot have the same weight.
        after[_located(keys, change.come)[0]] = _of_each(change.come_weight, len(change.come))
        differs = before.view(np.int32) != after.view(np.int32)
        return ChangedPairs(keys[differs], before[differs], after[differs])

    def holds(self, sequence: int, keys: Int64) -> Bool:
        """Which of ``keys``, ascending, are pairs at a snapshot of the window. O(keys · log pairs)."""
        return self._newest_rows(keys, self._number(sequence)) >= 0

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        table = self._keys.nbytes + self._weight.nbytes + self._gone.nbytes
        return table + sum(change.nbytes for change in self._changes)

    @property
    def weighted(self) -> bool:
        """Whether pairs have different weights, so that each has its own."""
        weights = [
            self._weight,
            *(w for change in self._changes for w in (change.come_weight, change.weight)),
        ]
        return any(len(weight) > 1 for weight in weights)

    def _end(self, changes: list[_Change]) -> int:
        """Number of rows of the table and of the given oldest changes."""
        return changes[-1].start + len(changes[-1].come) if changes else len(self._keys)

    def _runs(self) -> list[tuple[int, Int64]]:
        """Row of the first key of the table and of each change, and their keys."""
        return [(0, self._keys), *((change.start, change.come) for change in self._changes)]

    def _number(self, sequence: int) -> int:
        """How many of the changes lead to a snapshot."""
        return bisect_right(self._changes, sequence, key=lambda change: change.sequence)

    def _oldest_rows(self, keys: Int64) -> Int64:
        """For each key, ascending, the row of its oldest copy that is left; −1: none is. Equal keys get one row each."""
        rows = np.full(len(keys), -1, np.int64)
        for start, run in self._runs():
            oldest(run, start, self._gone, keys, rows)
        return rows

    def _newest_rows(self, keys: Int64, number: int) -> Int64:
        """For each key, ascending, the row of its newest copy after the first ``number`` changes; −1: there was none."""
        rows = np.full(len(keys), -1, np.int64)
        later = np.sort(
            np.concatenate([rows[:0], *(change.gone.rows() for change in self._changes[number:])])
        )
        for start, run in self._runs()[number::-1]:
            newest(run, start, self._gone, later, keys, rows)
        return rows

    def _keys_of(self, rows: Int64) -> Int64:
        """The keys of ascending rows."""
        runs = self._runs()
        borders = np.append(np.searchsorted(rows, [start for start, _ in runs]), len(rows))
        return np.concatenate(
            [
                run[rows[begin:end] - start]
                for (start, run), begin, end in zip(runs, borders[:-1], borders[1:], strict=True)
            ]
        )

    def _weights_of(self, rows: Int64, number: int) -> Float32:
        """The weights of rows after the first ``number`` changes."""
        weight = np.empty(len(rows), np.float32)
        changes = self._changes[:number]
        for (start, run), stored in zip(
            self._runs(), [self._weight, *(change.come_weight for change in changes)], strict=False
        ):
            inside = (rows >= start) & (rows < start + len(run))
            weight[inside] = _chosen(stored, len(run), rows[inside] - start)
        for change in changes:
            altered = change.altered.rows()
            place, is_altered = _located(altered, rows)
            weight[is_altered] = _chosen(change.weight, len(altered), place[is_altered])
        return weight

    def _joined(self, changes: list[_Change], *, places: bool = False) -> tuple[Int64, Float32, Int64]:
        """The remaining rows after the given oldest changes, by key; of one key the oldest first.

        Returns:
            Keys and weights, and with ``places`` the position of each former row among them.
        """
        end = self._end(changes)
        gone = np.zeros(end, np.bool_)
        come_weight = [_of_each(change.come_weight, len(change.come)) for change in changes]
        weight = np.concatenate([_of_each(self._weight, len(self._keys)), *come_weight])
        for change in changes:
            change.gone.mark(gone)
            altered = change.altered.rows()
            weight[altered] = _of_each(change.weight, len(altered))
        if not changes:
            return self._keys, weight, np.arange(end)
        rows = np.flatnonzero(~gone)
        keys = np.concatenate([self._keys, *(change.come for change in changes)])[rows]
        order = np.argsort(keys, kind="stable")  # merges ascending runs; equal keys stay in order of time
        rows = rows[order]
        place = np.empty(end if places else 0, np.int64)
        if places:
            place[rows] = np.arange(len(rows))
        return keys[order], weight[rows], place


def _moved(changes: list[_Change], place: Int64, table: int) -> list[_Change]:
    """Changes with renumbered rows, after the rows before them became a table."""
    moved, less = [], len(place) - table
    for change in changes:
        start = change.start - less
        gone, altered = (_places(rows.rows(), place, less) for rows in (change.gone, change.altered))
        order = np.argsort(altered)
        weight = change.weight if len(change.weight) < len(order) else change.weight[order]
        moved.append(
            replace(
                change, start=start, weight=weight,
                gone=RowSet.of(gone, start), altered=RowSet.of(altered[order], start),
            )
        )  # fmt: skip
    return moved


def _places(rows: Int64, place: Int64, less: int) -> Int64:
    early = np.searchsorted(rows, len(place))
    return np.concatenate([place[rows[:early]], rows[early:] - less])


def _difference(
    before: Int64, weight_before: Float32, keys: Int64, weight: Float32
) -> tuple[Int8, Int64, Float32]:
    """Rows (op, key, weight) that turn pairs into a list; both repeat a pair per copy, and the former is ascending."""
    after, first, number = np.unique(keys, return_index=True, return_counts=True)
    both = np.union1d(before, after)
    was, now = np.zeros(len(both), np.int64), np.zeros(len(both), np.int64)
    old, new = np.zeros(len(both), np.float32), np.zeros(len(both), np.float32)
    place = np.searchsorted(both, before)
    was += np.bincount(place, minlength=len(both))
    old[place] = weight_before  # the newest copy's, which is the last
    place = np.searchsorted(both, after)
    now[place], new[place] = number, weight[first]
    more = now - was
    reweighted = (was > 0) & (now > 0) & (more <= 0) & (old != new)
    row = np.repeat(np.arange(len(both)), np.abs(more))
    op = np.concatenate([np.sign(more[row]).astype(np.int8), np.zeros(np.count_nonzero(reweighted), np.int8)])
    row = np.concatenate([row, np.flatnonzero(reweighted)])
    return op, both[row], new[row]


def _bytes_of_bits(rows: int) -> int:
    return (rows + 7) // 8


def _stored(weight: Float32) -> Float32:
    """Weights as held: a single one if all are equal."""
    bits = weight.view(np.int32)
    return weight[:1].copy() if len(weight) > 1 and (bits == bits[0]).all() else weight


def _of_each(stored: Float32, count: int) -> Float32:
    """The weights of ``count`` pairs, from those held."""
    return stored if len(stored) == count else np.full(count, stored[0], np.float32)


def _chosen(stored: Float32, count: int, place: Int64) -> Float32:
    """Some of the weights of ``count`` pairs, from those held."""
    return stored[place] if len(stored) == count else np.full(len(place), stored[0], np.float32)


def _located(ascending: Int64, numbers: Int64) -> tuple[Int64, Bool]:
    """Places of numbers among ascending ones, int64 (n,), and bool (n,), whether they are there."""
    place = np.searchsorted(ascending, numbers)
    if len(ascending) == 0:
        return place, np.zeros(len(numbers), np.bool_)
    return place, ascending[np.minimum(place, len(ascending) - 1)] == numbers
