"""The directed pairs that some parts store, for every snapshot of a window, additively.

One sorted table holds the oldest snapshot of the window (or one before it), every later snapshot only its
changes (DistDy, section 3.2). Changes that have left the window are folded into the table when they have grown to a
share of it, so that advancing costs O(changes), amortised. Weights that are all the same are held once.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from stream.arrays.kinds import Float32, Int8, Int64

_FOLD_SHARE = 8
"""Changes older than the window are folded into the table once they are this fraction of its rows."""


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes of one snapshot: keys that go, then keys that come, then keys with a new weight, each ascending."""

    sequence: int
    keys: Int64
    weight: Float32  # of those that come or have a new one, ``_held``
    gone: int
    come: int

    @classmethod
    def of(cls, sequence: int, op: Int8, keys: Int64, weight: Float32) -> "_Changes":
        kinds = [np.flatnonzero(op == kind) for kind in (-1, 1, 0)]
        rows = np.concatenate([kind[np.argsort(keys[kind], kind="stable")] for kind in kinds])
        gone, come, _ = (len(kind) for kind in kinds)
        return cls(sequence, keys[rows], _held(weight[rows[gone:]]), gone, come)

    def columns(self) -> tuple[Int64, Int8, Float32]:
        """Keys, op and weight of all rows."""
        op = np.zeros(len(self.keys), np.int8)
        op[: self.gone] = -1
        op[self.gone : self.gone + self.come] = 1
        weight = _of_each(self.weight, len(self.keys) - self.gone)
        return self.keys, op, np.concatenate([np.zeros(self.gone, np.float32), weight])

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.weight.nbytes


class PairWindow:
    """Pairs by key (``stream.snapshots.pairs.pair_keys``) with weights, readable at any snapshot of a window."""

    def __init__(self) -> None:
        self._keys: Int64 = np.empty(0, np.int64)
        self._weight: Float32 = np.empty(0, np.float32)
        self._twice: Int64 = np.empty(0, np.int64)  # keys that two parts of the view store, ascending
        self._changes: list[_Changes] = []

    def append(self, sequence: int, op: Int8, keys: Int64, weight: Float32, *, whole: bool = False) -> None:
        """Take in the changes of the next snapshot.

        Args:
            sequence: Above all before it.
            op: int8 (m,), 1: one more part stores the pair, −1: one less, 0: a new weight.
            keys: int64 (m,), in any order.
            weight: float32 (m,), of op ≥ 0.
            whole: The pairs are all there are after the snapshot; what changed is found here, in O(pairs).
        """
        if whole:
            op, keys, weight = _difference(*self._merged(self._changes), keys, weight)
        self._changes.append(_Changes.of(sequence, op, keys, weight))

    def fold(self, sequence: int, *, always: bool = False) -> None:
        """Let go of snapshots before ``sequence``, now or when it is worth it."""
        past = [changes for changes in self._changes if changes.sequence <= sequence]
        if always or sum(len(changes.keys) for changes in past) * _FOLD_SHARE > len(self._keys):
            self._keys, weight, copies = self._merged(past)
            self._weight = _held(weight)
            self._twice = self._keys[copies > 1]
            self._changes = self._changes[len(past) :]

    def at(self, sequence: int) -> tuple[Int64, Float32]:
        """The pairs at a snapshot of the window.

        Returns:
            Keys int64 (n,) ascending and weights float32 (n,). O(pairs + changes).
        """
        keys, weight, _ = self._merged([c for c in self._changes if c.sequence <= sequence])
        return keys, weight

    def changed(self, sequence: int) -> Int64:
        """Keys of the pairs that snapshot ``sequence`` changed, int64, ascending, not distinct."""
        for changes in self._changes:
            if changes.sequence == sequence:
                return np.sort(changes.keys)
        return np.empty(0, np.int64)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        table = self._keys.nbytes + self._weight.nbytes + self._twice.nbytes
        return table + sum(changes.nbytes for changes in self._changes)

    @property
    def weighted(self) -> bool:
        """Whether pairs have different weights, so that each is held with its own."""
        return any(len(weight) > 1 for weight in (self._weight, *(change.weight for change in self._changes)))

    def _merged(self, changes: list[_Changes]) -> tuple[Int64, Float32, Int8]:
        copies = np.ones(len(self._keys), np.int8)
        copies[np.searchsorted(self._keys, self._twice)] = 2
        before = _of_each(self._weight, len(self._keys))
        if not changes:
            return self._keys, before, copies
        rows = [change.columns() for change in changes]
        keys = np.concatenate([keys for keys, _, _ in rows])
        order = np.argsort(keys, kind="stable")  # equal keys stay in order of time
        op = np.concatenate([op for _, op, _ in rows])[order]
        weight = np.concatenate([weight for _, _, weight in rows])[order]
        merged: tuple[Int64, Float32, Int8] = _merge(self._keys, before, copies, keys[order], op, weight)
        return merged


def _difference(
    before: Int64, before_weight: Float32, copies: Int8, keys: Int64, weight: Float32
) -> tuple[Int8, Int64, Float32]:
    """Rows (op, key, weight) that lead from some pairs, ascending with copies, to a list that has a pair once a copy."""
    after, first, number = np.unique(keys, return_index=True, return_counts=True)
    both = np.union1d(before, after)
    was, now = np.zeros(len(both), np.int64), np.zeros(len(both), np.int64)
    old, new = np.zeros(len(both), np.float32), np.zeros(len(both), np.float32)
    at = np.searchsorted(both, before)
    was[at], old[at] = copies, before_weight
    at = np.searchsorted(both, after)
    now[at], new[at] = number, weight[first]
    more = now - was
    reweighted = (was > 0) & (now > 0) & (more <= 0) & (old != new)
    row = np.repeat(np.arange(len(both)), np.abs(more))
    op = np.concatenate([np.sign(more[row]).astype(np.int8), np.zeros(np.count_nonzero(reweighted), np.int8)])
    row = np.concatenate([row, np.flatnonzero(reweighted)])
    return op, both[row], new[row]


def _held(weight: Float32) -> Float32:
    """Weights as they are held: one where all are the same."""
    bits = weight.view(np.int32)
    return weight[:1].copy() if len(weight) > 1 and (bits == bits[0]).all() else weight


def _of_each(held: Float32, count: int) -> Float32:
    """The weights of so many pairs, from what is held of them."""
    return held if len(held) == count else np.full(count, held[0], np.float32)


@njit(cache=True, nogil=True)
def _merge(keys, weight, copies, change, op, new_weight):  # type: ignore[no-untyped-def]  # compiled
    out_keys = np.empty(len(keys) + len(change), np.int64)
    out_weight = np.empty(len(out_keys), np.float32)
    out_copies = np.empty(len(out_keys), np.int8)
    i = j = n = 0
    while i < len(keys) or j < len(change):
        if j == len(change) or (i < len(keys) and keys[i] < change[j]):
            key, w, count = keys[i], weight[i], np.int64(copies[i])
            i += 1
        else:
            key, w, count = change[j], np.float32(0), np.int64(0)
            if i < len(keys) and keys[i] == key:
                w, count = weight[i], np.int64(copies[i])
                i += 1
            while j < len(change) and change[j] == key:
                count += op[j]
                if op[j] >= 0:
                    w = new_weight[j]
                j += 1
        if count > 0:
            out_keys[n] = key
            out_weight[n] = w
            out_copies[n] = count
            n += 1
    return out_keys[:n].copy(), out_weight[:n].copy(), out_copies[:n].copy()
