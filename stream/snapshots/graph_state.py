"""The live pairs as arrays and back: rows in their order, pairs in the order in which rows name them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream.arrays.kinds import Float32, Int32, Int64, UInt8
from stream.kernels import njit
from stream.snapshots.delta import Rows
from stream.snapshots.pair_index import (
    AT_HIGH,
    AT_LOW,
    DEAD,
    HIGH,
    LOW,
    SEEN,
    WEIGHT,
    PairIndex,
    find,
    put,
    slot_weights,
)
from stream.snapshots.row_blocks import LiveRows

_RECORD = np.int64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Dump:
    """All live pairs. Pairs of two nodes come in the order of the rows of their lower ends, then self-loops by node.

    Attributes:
        length: int32 (num_nodes,), of each row.
        neighbours: int32, row after row.
        loops: int32, nodes with a live self-loop, ascending.
        directions: uint8, one per pair of two nodes: 1 live from the lower node, 2 back, 3 both.
        slots: int64, of the live directed pairs in this order.
    """

    length: Int32
    neighbours: Int32
    loops: Int32
    directions: UInt8
    slots: Int64


def dump(index: PairIndex, adjacency: LiveRows) -> Dump:
    """The live pairs."""
    rows = adjacency.rows()
    neighbours, directions, slots = _dump(rows, adjacency.records, index.records)
    loops = _loops(index.records, index.used)
    loops = loops[np.argsort(index.records[loops, LOW])]
    return Dump(
        (rows.end - rows.start).astype(np.int32),
        neighbours,
        index.records[loops, LOW],
        directions,
        np.concatenate([slots, 2 * loops]),
    )


def dump_arrays(index: PairIndex, adjacency: LiveRows, *, seen: bool) -> dict[str, NDArray[Any]]:
    """Input of ``load``, by name; with ``seen``, also the snapshot that last saw each pair."""
    found = dump(index, adjacency)
    arrays: dict[str, NDArray[Any]] = {
        "length": found.length,
        "neighbours": found.neighbours,
        "loops": found.loops,
        "directions": found.directions,
        "weight": slot_weights(found.slots, index.weights),
    }
    if seen:
        arrays["seen"] = index.records[found.slots >> 1, SEEN + (found.slots & 1)]
    return arrays


def load(arrays: dict[str, NDArray[Any]], index: PairIndex, adjacency: LiveRows) -> tuple[Int64, Int32]:
    """Fill an empty index and empty rows from ``dump_arrays``.

    Returns:
        Slots of the live directed pairs in the order of the dump, and the snapshot that last saw each (0 if the arrays lack
        it).
    """
    directions, loops, weight = arrays["directions"], arrays["loops"], arrays["weight"]
    index.reserve(len(directions) + len(loops))
    seen = arrays.get("seen", np.zeros(len(weight), np.int32))
    entries, slots = _load(
        arrays["length"], arrays["neighbours"], loops, directions, weight, seen,
        index.table, index.bits, index.records, index.weights,
    )  # fmt: skip
    index.used = len(directions) + len(loops)
    adjacency.restore(arrays["length"], arrays["neighbours"], entries)
    return slots, seen


@njit(cache=True, nogil=True)
def _dump(rows: Rows, entries: Int32, records: Int32) -> tuple[Int32, UInt8, Int64]:
    total = (rows.end - rows.start).sum()
    out = np.empty(total, np.int32)
    directions = np.empty(total // 2, np.uint8)
    slots = np.empty(total, np.int64)
    at = pairs = n = 0
    for v in range(len(rows.start)):
        for k in range(rows.start[v], rows.end[v]):
            out[at] = rows.indices[k]
            at += 1
            if rows.indices[k] < v:
                continue
            record, live = entries[k], 0
            for back in range(2):
                if records[record, SEEN + back] != DEAD:
                    live |= 1 << back
                    slots[n] = 2 * np.int64(record) + back
                    n += 1
            directions[pairs] = live
            pairs += 1
    return out, directions, slots[:n].copy()


@njit(cache=True, nogil=True)
def _loops(records: Int32, used: int) -> Int64:
    out = np.empty(used, np.int64)
    n = 0
    for record in range(used):
        if records[record, LOW] == records[record, HIGH] and records[record, SEEN] != DEAD:
            out[n] = record
            n += 1
    return out[:n].copy()


@njit(cache=True, nogil=True)
def _load(
    length: Int32, neighbours: Int32, loops: Int32, directions: UInt8, weight: Float32, seen: Int32,
    table: Int64, bits: int, records: Int32, weights: Float32,
) -> tuple[Int32, Int64]:  # fmt: skip
    entries = np.empty(len(neighbours), np.int32)
    slots = np.empty(len(weight), np.int64)
    at = used = n = 0
    for v in range(len(length)):
        for k in range(length[v]):
            if neighbours[at] > v:
                records[used, LOW], records[used, HIGH], records[used, AT_LOW] = v, neighbours[at], k
                records[used, SEEN], records[used, SEEN + 1] = DEAD, DEAD
                put(table, ~find(table, bits, records, v, neighbours[at]), v, neighbours[at], used)
                for back in range(2):
                    if directions[used] >> back & 1:
                        weights[used, WEIGHT + back], records[used, SEEN + back] = weight[n], seen[n]
                        slots[n] = 2 * np.int64(used) + back
                        n += 1
                entries[at] = used
                used += 1
            at += 1
    at = 0
    for v in range(len(length)):
        for k in range(length[v]):
            if neighbours[at] < v:
                record = table[find(table, bits, records, neighbours[at], v)] & _RECORD
                records[record, AT_HIGH] = k
                entries[at] = record
            at += 1
    for v in loops:
        records[used, LOW], records[used, HIGH] = v, v
        records[used, SEEN + 1] = DEAD
        put(table, ~find(table, bits, records, v, v), v, v, used)
        weights[used, WEIGHT], records[used, SEEN] = weight[n], seen[n]
        slots[n] = 2 * np.int64(used)
        n += 1
        used += 1
    return entries, slots
