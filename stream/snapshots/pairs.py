"""Live pairs as columns sorted by (src, dst), and what a snapshot's events make of them."""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.snapshots.delta import Float32, Int8, Int64

Scalar = TypeVar("Scalar", bound=np.generic)

KEY_BITS = 32
MAX_NODES = 1 << 31
"""Ids below this fit a pair key; a graph with more nodes does not fit one machine's memory anyway."""


class Change(IntEnum):
    """Net effect of a snapshot on a pair, against the snapshot before."""

    REMOVED = -1
    REFRESHED = 0
    ADDED = 1


@dataclass(frozen=True, slots=True)
class PairTable:
    """Live directed pairs, parallel arrays (n,) sorted by (src, dst).

    Attributes:
        src: int64 dense ids.
        dst: int64 dense ids.
        weight: float32, of the latest insert.
        t: int64 microseconds, of the latest insert.
        last_tau: int64, snapshot of the latest insert.
        features: float32 (n, edge_features), of the latest insert; zeros where it had none.
    """

    src: Int64
    dst: Int64
    weight: Float32
    t: Int64
    last_tau: Int64
    features: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True)
class PairChanges:
    """Pairs that a snapshot added, refreshed or removed, parallel arrays (n,) sorted by (src, dst).

    Attributes:
        src: int64 dense ids.
        dst: int64 dense ids.
        change: int8, a ``Change``: ADDED is live now and was not at the snapshot before, REMOVED the
            reverse, REFRESHED live at both and inserted again in between.
        event_row: int64, row in the delta's event arrays of the latest insert; of the last delete for a
            removed pair, −1 where it ended by edge life.
        weight: float32, the new one; for a removed pair its last one.
        t: int64 microseconds, as weight.
        features: float32 (n, edge_features), as weight.
    """

    src: Int64
    dst: Int64
    change: Int8
    event_row: Int64
    weight: Float32
    t: Int64
    features: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.src)


def pair_keys(src: Int64, dst: Int64) -> Int64:
    """One int64 a pair, ordered as (src, dst).

    Raises:
        ValueError: A dense id of 2³¹ or more.
    """
    if len(src) and max(int(src.max()), int(dst.max())) >= MAX_NODES:
        raise ValueError(f"dense node ids must be below {MAX_NODES}, found {max(src.max(), dst.max())}")
    return (src << KEY_BITS) | dst


def split_keys(keys: Int64) -> tuple[Int64, Int64]:
    """The (src, dst) of pair keys."""
    return keys >> KEY_BITS, keys & ((1 << KEY_BITS) - 1)


@njit(cache=True, nogil=True)
def merge_pairs(
    keys: Int64, last_tau: Int64, event_keys: Int64, event_rows: Int64, event_op: Int8, tau: int, life: int
) -> tuple[Int64, Int64, Int64, Int8, Int64, Int64, int]:
    """Merge a snapshot's events into the sorted pairs.

    Args:
        keys: int64 (n,) ascending keys of the pairs live at the snapshot before.
        last_tau: int64 (n,).
        event_keys: int64 (E,) ascending; equal keys in log order.
        event_rows: int64 (E,) rows of those events in the snapshot.
        event_op: int8 (E,) by row.
        tau: The snapshot.
        life: Intervals a pair lives after its last occurrence; 0: until deleted.

    Returns:
        origin int64 (m,), a live pair each in key order: its old row, or ~row of its latest insert;
        live keys int64 (m,);
        changed keys, change, event row (as ``PairChanges``), old row or −1 of each changed pair, all (c,);
        the number of deletes of pairs that were not there.
    """
    n, events = len(keys), len(event_keys)
    origin = np.empty(n + events, np.int64)
    live_keys = np.empty(n + events, np.int64)
    expiring = 0
    if life > 0:
        for i in range(n):
            expiring += tau - last_tau[i] >= life
    changed = np.empty(events + expiring, np.int64)
    change = np.empty(events + expiring, np.int8)
    change_row = np.empty(events + expiring, np.int64)
    old_row = np.empty(events + expiring, np.int64)
    m = c = missing = 0
    i = e = 0
    while i < n or e < events:
        if e == events or (i < n and keys[i] < event_keys[e]):
            if life > 0 and tau - last_tau[i] >= life:
                changed[c], change[c], change_row[c], old_row[c] = keys[i], -1, -1, i
                c += 1
            else:
                origin[m], live_keys[m] = i, keys[i]
                m += 1
            i += 1
            continue
        key = event_keys[e]
        known = i < n and keys[i] == key
        present = known and not (life > 0 and tau - last_tau[i] >= life)
        inserted = deleted = np.int64(-1)
        while e < events and event_keys[e] == key:
            row = event_rows[e]
            if event_op[row] > 0:
                present, inserted = True, row
            else:
                missing += not present
                deleted = row
                present = False
            e += 1
        if present:
            origin[m], live_keys[m] = ~inserted, key
            m += 1
        if present or known:
            changed[c] = key
            change[c] = (0 if known else 1) if present else -1
            change_row[c] = inserted if present else deleted
            old_row[c] = i if known else -1
            c += 1
        i += known
    return origin[:m], live_keys[:m], changed[:c], change[:c], change_row[:c], old_row[:c], missing


def carry(origin: Int64, old: NDArray[Scalar], new: NDArray[Scalar]) -> NDArray[Scalar]:
    """Column of the merged pairs: the old value where the old row stays, else the event's.

    Args:
        origin: int64 (m,) from ``merge_pairs``.
        old: Values of the old rows, (n,) or (n, F).
        new: Values of the event rows, (E,) or (E, F), of the same dtype.
    """
    out = np.empty((len(origin), *old.shape[1:]), old.dtype)
    if out.size:
        _carry(origin, old, new, out)
    return out


@njit(cache=True, nogil=True)
def _carry(origin: Int64, old: NDArray[Scalar], new: NDArray[Scalar], out: NDArray[Scalar]) -> None:
    for i in range(len(origin)):
        if origin[i] >= 0:
            out[i] = old[origin[i]]
        else:
            out[i] = new[~origin[i]]
