"""The paths of a topic's fields as arrays, for the scanner: levels of keys, each leading to a level or a field."""

from dataclasses import dataclass

import numpy as np

from stream.arrays.kinds import Int8, Int64, UInt8
from stream.decode.mapping import FIELDS, Level, Mapping
from stream.kernels import njit

SRC, DST, T, OP, WEIGHT, FEATURES, LABEL, EVENT_ID, NODE, OFFSET, VALUES = (
    1 << slot for slot in range(len(FIELDS))
)
"""Bits of ``Columns.given``, in the order of ``FIELDS``."""

FEATURE_PART = len(FIELDS)
"""Slot of one of the paths that features are put together from."""

CHILD, SLOT, PART, ALSO = 2, 3, 4, 5
"""Columns of ``PathTable.entries`` after the key's start and end."""


@dataclass(frozen=True, slots=True)
class PathTable:
    """Entries are meaningful keys, level by level.

    Attributes:
        keys: uint8, the keys' bytes.
        levels: int64 [levels + 1], first entry of each level; level 0 is the message.
        entries: int64 [entries, 6]: start and end in ``keys``; the level below or −1; slot of the field (as in
            ``FIELDS``) or −1; place among the paths of features; another entry that reads the same value or −1.
        names: Each entry's path, keys joined by dots.
    """

    keys: UInt8
    levels: Int64
    entries: Int64
    names: tuple[str, ...]

    @classmethod
    def of(cls, mapping: Mapping) -> "PathTable":
        """The table of a mapping."""
        keys = b""
        levels: list[int] = []
        rows: list[list[int]] = []
        more: list[tuple[int, list[int]]] = []
        names: list[str] = []
        waiting: list[tuple[str, Level]] = [("", mapping.tree)]
        while waiting:
            above, level = waiting.pop(0)
            levels.append(len(rows))
            for key, below in level.items():
                text = key.encode("utf-8", "surrogatepass")
                row = [len(keys), len(keys) + len(text), -1, -1, 0, -1]
                keys += text
                if isinstance(below, dict):
                    waiting.append((f"{above}{key}.", below))
                    row[CHILD] = len(levels) + len(waiting) - 1
                else:
                    for target, part in below:
                        is_part = target == "features" and mapping.feature_parts > 0
                        slot = FEATURE_PART if is_part else FIELDS.index(target)
                        if row[SLOT] < 0:
                            row[SLOT], row[PART] = slot, part
                        else:
                            more.append((len(rows), [0, 0, -1, slot, part, -1]))
                rows.append(row)
                names.append(f"{above}{key}")
        levels.append(len(rows))
        for owner, row in more:  # beyond all levels, so no key leads to them
            row[ALSO], rows[owner][ALSO] = rows[owner][ALSO], len(rows)
            rows.append(row)
        return cls(
            np.frombuffer(keys, np.uint8).copy(),
            np.array(levels, np.int64),
            np.array(rows, np.int64),
            tuple(names),
        )


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A topic's mapping as the scanner takes it.

    Attributes:
        paths: Keys and fields.
        words: uint8, the words of op side by side.
        word_ends: int64, their ends.
        word_ops: int8, what each means.
        numbers: Bits of the ids that may be numbers although ids are text: those that get a prefix.
        parts: Paths that features are put together from.
        time_texts: Whether ``t`` may be an RFC 3339 text in a unit of numbers.
    """

    paths: PathTable
    words: UInt8
    word_ends: Int64
    word_ops: Int8
    numbers: int
    parts: int
    time_texts: bool

    @classmethod
    def of(cls, mapping: Mapping) -> "ScanPlan":
        """The plan of a mapping."""
        words = [word.encode("utf-8", "surrogatepass") for word in mapping.ops]
        prefix = mapping.prefix
        numbers = (SRC if prefix.src else 0) | (DST if prefix.dst else 0) | (NODE if prefix.node else 0)
        return cls(
            paths=PathTable.of(mapping),
            words=np.frombuffer(b"".join(words), np.uint8).copy(),
            word_ends=np.cumsum([len(word) for word in words]).astype(np.int64),
            word_ops=np.array(list(mapping.ops.values()), np.int8),
            numbers=numbers,
            parts=mapping.feature_parts,
            time_texts=mapping.time_texts,
        )


@njit(cache=True, nogil=True)
def find_entry(
    data: UInt8, i: int, end: int, keys: UInt8, entries: Int64, first: int, last: int, guess: int
) -> int:
    """The entry among [first, last) with the key ``data[i:end]``, looked for from ``guess``; −1: none."""
    size = end - i
    e = guess
    for _ in range(last - first):
        if e >= last:
            e = first
        start = entries[e, 0]
        if entries[e, 1] - start == size:
            k = 0
            while k < size and keys[start + k] == data[i + k]:
                k += 1
            if k == size:
                return e
        e += 1
    return -1
