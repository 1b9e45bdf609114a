"""Live pairs as columns, and their changes by a snapshot's events."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from freshet_graph.stream.arrays.kinds import Float32, Int8, Int64

KEY_BITS = 32
MAX_NODES = 1 << 31
"""Limit of ids in a pair key; a larger graph would not fit one machine's memory anyway."""


class Change(IntEnum):
    """Net effect of a snapshot on a pair, against the previous snapshot."""

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
        slot: int64, the pair's slot in the live graph.
    """

    src: Int64
    dst: Int64
    weight: Float32
    slot: Int64

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True)
class PairChanges:
    """Pairs that a snapshot added, refreshed or removed, parallel arrays (n,) sorted by (src, dst).

    Attributes:
        src: int64 dense ids.
        dst: int64 dense ids.
        change: int8, a ``Change``: ADDED is live now and was not at the previous snapshot, REMOVED the reverse, REFRESHED live
            at both and inserted again in between.
        event_row: int64, row of the latest insert in the delta's event arrays; of the last delete for a removed pair, −1 if it
            ended by edge life.
        weight: float32, the new one; the last one of a removed pair.
        weight_before: float32, at the previous snapshot; 0 for an added pair.
        slot: int64, the pair's slot in the live graph; a removed pair's is not reused before the next snapshot.
    """

    src: Int64
    dst: Int64
    change: Int8
    event_row: Int64
    weight: Float32
    weight_before: Float32
    slot: Int64

    def __len__(self) -> int:
        return len(self.src)

    @classmethod
    def none(cls) -> "PairChanges":
        """No changes."""
        ids, weight = np.empty(0, np.int64), np.empty(0, np.float32)
        return cls(ids, ids, np.empty(0, np.int8), ids, weight, weight, ids)


def pair_keys(src: Int64, dst: Int64) -> Int64:
    """One int64 per pair, ordered as (src, dst).

    Raises:
        ValueError: A dense id of 2³¹ or more.
    """
    if len(src) and max(int(src.max()), int(dst.max())) >= MAX_NODES:
        raise ValueError(f"dense node ids must be below {MAX_NODES}, found {max(src.max(), dst.max())}")
    return (src << KEY_BITS) | dst


def split_keys(keys: Int64) -> tuple[Int64, Int64]:
    """The (src, dst) of pair keys."""
    return keys >> KEY_BITS, keys & ((1 << KEY_BITS) - 1)
