"""The directed pairs that some parts store, for every snapshot of a window, additively.

One sorted table holds the oldest snapshot of the window (or one before it), every later snapshot only its
changes (DistDy, section 3.2). Changes that have left the window are folded into the table when they have grown to a
share of it, so that advancing costs O(changes), amortised.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from stream.snapshots.delta import Float32, Int8, Int64

_FOLD_SHARE = 8
"""Changes older than the window are folded into the table once they are this fraction of its rows."""


@dataclass(frozen=True, slots=True)
class _Changes:
    sequence: int
    op: Int8
    keys: Int64
    weight: Float32

    @property
    def nbytes(self) -> int:
        return self.op.nbytes + self.keys.nbytes + self.weight.nbytes


class PairWindow:
    """Pairs by key (``stream.snapshots.pairs.pair_keys``) with weights, readable at any snapshot of a window."""

    def __init__(self) -> None:
        self._keys: Int64 = np.empty(0, np.int64)
        self._weight: Float32 = np.empty(0, np.float32)
        self._copies: Int8 = np.empty(0, np.int8)  # parts of the view that store the pair: 1 or 2
        self._changes: list[_Changes] = []

    def append(self, sequence: int, op: Int8, keys: Int64, weight: Float32) -> None:
        """Take in the changes of the next snapshot.

        Args:
            sequence: Above all before it.
            op: int8 (m,), 1: one more part stores the pair, −1: one less, 0: a new weight.
            keys: int64 (m,), in any order.
            weight: float32 (m,), of op ≥ 0.
        """
        order = np.argsort(keys, kind="stable")
        self._changes.append(_Changes(sequence, op[order], keys[order], weight[order]))

    def fold(self, sequence: int, *, always: bool = False) -> None:
        """Let go of snapshots before ``sequence``, now or when it is worth it."""
        past = [changes for changes in self._changes if changes.sequence <= sequence]
        if always or sum(len(changes.keys) for changes in past) * _FOLD_SHARE > len(self._keys):
            self._keys, self._weight, self._copies = self._merged(past)
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
                return changes.keys
        return np.empty(0, np.int64)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        table = self._keys.nbytes + self._weight.nbytes + self._copies.nbytes
        return table + sum(changes.nbytes for changes in self._changes)

    def _merged(self, changes: list[_Changes]) -> tuple[Int64, Float32, Int8]:
        if not changes:
            return self._keys, self._weight, self._copies
        if len(changes) == 1:
            op, keys, weight = changes[0].op, changes[0].keys, changes[0].weight
        else:
            keys = np.concatenate([c.keys for c in changes])
            order = np.argsort(keys, kind="stable")  # equal keys stay in order of time
            keys = keys[order]
            op = np.concatenate([c.op for c in changes])[order]
            weight = np.concatenate([c.weight for c in changes])[order]
        merged: tuple[Int64, Float32, Int8] = _merge(self._keys, self._weight, self._copies, keys, op, weight)
        return merged


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
