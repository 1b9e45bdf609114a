"""The records of live pairs: the effect of a snapshot's events on them, and their state as arrays and back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int8, Int32, Int64, UInt8
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.snapshots.adjacency import LiveRows
from freshet_graph.stream.snapshots.delta import NeighbourRows
from freshet_graph.stream.snapshots.pair_index import (
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
    slot_keys,
    slot_weights,
    take_out,
)
from freshet_graph.stream.snapshots.pairs import PairChanges, split_keys

_RECORD = np.int64(0xFFFFFFFF)
_NAMED = -2
"""``SEEN`` of the i-th direction named by the snapshot is −2 − i while its events are applied."""


@dataclass(frozen=True, slots=True)
class PairStep:
    """A snapshot's effect on live pairs.

    Attributes:
        changes: Changes of directed pairs.
        joined: int64, records of the pairs of two nodes that became live in some direction, ascending by the lower of their
            changed directed pairs.
        parted: int64, records of the pairs that ceased to be live in both.
        freed: int32, records out of use; they hold their last pair until they are given back.
        degrees: Nodes whose number of directed pairs left or reached 0: +1 each time a node became live, −1 each time it
            ceased to be, as parallel arrays (node int64, change int8).
        missing: Deletes of missing pairs.
    """

    changes: PairChanges
    joined: Int64
    parted: Int64
    freed: Int32
    degrees: tuple[Int64, Int8]
    missing: int


def apply_events(
    index: PairIndex,
    op: Int8,
    src: Int64,
    dst: Int64,
    weight: Float32,
    degree: Int32,
    expiring: tuple[Int64, Int32],
    number: int,
) -> PairStep:
    """Apply a snapshot.

    Args:
        index: The live pairs.
        op: int8 (E,), 1 insert or −1 delete, in log order.
        src: int64 (E,), ids below 2³¹.
        dst: int64 (E,).
        weight: float32 (E,).
        degree: int32 (num_nodes,), directed pairs at each node, a self-loop counting once; updated.
        expiring: Slots whose pairs end unless they are inserted again, and the number of the snapshot that last saw them,
            (x,) each; pairs seen since then don't end.
        number: Number of this snapshot, above all before it.
    """
    index.reserve(int((op > 0).sum()))
    slots, seen, present, inserted, deleted, counts = _take_in(
        op,
        src,
        dst,
        index.table,
        index.bits,
        index.records,
        index.free,
        index.num_free,
        index.used,
        *expiring,
    )
    index.num_free, index.used, missing = (int(x) for x in counts)
    keys = slot_keys(slots, index.records)
    order = np.argsort(keys)
    named = slots[order], seen[order], present[order], inserted[order], deleted[order]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    changed_idx, change, row, new, old, joined, parted, freed, node, turn = _settle(
        *named, place, weight, index.table, index.bits, index.records, index.weights, degree, number
    )
    changed_src, changed_dst = split_keys(keys[order][changed_idx])
    changes = PairChanges(changed_src, changed_dst, change, row, new, old, named[0][changed_idx])
    return PairStep(changes, joined, parted, freed, (node, turn), missing)


@njit(cache=True, nogil=True)
def _take_in(
    op: Int8, src: Int64, dst: Int64, table: Int64, bits: int, records: Int32, free: Int32, num_free: int,
    used: int, expiring: Int64, seen_at: Int32,
) -> tuple[Int64, Int32, Bool, Int64, Int64, Int64]:  # fmt: skip
    """Every directed pair that the snapshot names.

    Returns its slot, the snapshot that saw it before, whether it is live now, and the rows of its last insert and delete, −1 for
    none; then the numbers of free and used records, and of deletes of missing pairs.
    """
    most = len(op) + len(expiring)
    slots, seen = np.empty(most, np.int64), np.empty(most, np.int32)
    present = np.empty(most, np.bool_)
    inserted, deleted = np.full(most, -1), np.full(most, -1)
    n = missing = 0
    for i in range(len(expiring)):
        record, back = expiring[i] >> 1, expiring[i] & 1
        if records[record, SEEN + back] == seen_at[i]:
            slots[n], seen[n], present[n] = expiring[i], seen_at[i], False
            records[record, SEEN + back] = _NAMED - n
            n += 1
    for i in range(len(op)):
        low, high = min(src[i], dst[i]), max(src[i], dst[i])
        back = np.int64(src[i] > dst[i])
        place = find(table, bits, records, low, high)
        if place >= 0:
            record = table[place] & _RECORD
        elif op[i] > 0:
            if num_free > 0:
                num_free -= 1
                record = np.int64(free[num_free])
            else:
                record = np.int64(used)
                used += 1
            records[record, LOW], records[record, HIGH] = low, high
            records[record, SEEN], records[record, SEEN + 1] = DEAD, DEAD
            put(table, ~place, low, high, record)
        else:
            missing += 1
            continue
        then = records[record, SEEN + back]
        if then > _NAMED:
            k = np.int64(n)
            slots[k], seen[k], present[k] = 2 * record + back, then, then != DEAD
            records[record, SEEN + back] = _NAMED - k
            n += 1
        else:
            k = np.int64(_NAMED - then)
        if op[i] > 0:
            present[k], inserted[k] = True, i
        else:
            missing += not present[k]
            present[k], deleted[k] = False, i
    counts = np.array([num_free, used, missing])
    return slots[:n], seen[:n], present[:n], inserted[:n], deleted[:n], counts


@njit(cache=True, nogil=True)
def _settle(
    slots: Int64, seen: Int32, present: Bool, inserted: Int64, deleted: Int64, place: Int64,
    weight: Float32, table: Int64, bits: int, records: Int32, weights: Float32, degree: Int32, number: int,
) -> tuple[Int64, Int8, Int64, Float32, Float32, Int64, Int64, Int32, Int64, Int8]:  # fmt: skip
    """Process named pairs in order of their keys: return the changes, and update their records."""
    n = len(slots)
    changed_idx, change, row = np.empty(n, np.int64), np.empty(n, np.int8), np.empty(n, np.int64)
    new, old = np.zeros(n, np.float32), np.zeros(n, np.float32)
    joined, parted, freed = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int32)
    node, turn = np.empty(2 * n, np.int64), np.empty(2 * n, np.int8)
    settled = np.zeros(n, np.bool_)  # one direction of a record that was updated with the other
    c = j = p = f = d = 0
    for k in range(n):
        record, back = slots[k] >> 1, slots[k] & 1
        known = seen[k] != DEAD
        other = records[record, SEEN + 1 - back]
        if not settled[k] and not known and not present[k] and other <= _NAMED:
            # It came and went. The other direction decides about the record.
            records[record, SEEN + back] = DEAD
        elif not settled[k]:
            other_was = other_is = other >= 0
            if other <= _NAMED:
                other_idx = place[_NAMED - other]
                settled[other_idx] = True
                other_was, other_is = seen[other_idx] != DEAD, present[other_idx]
                records[record, SEEN + 1 - back] = number if other_is else DEAD
            was, lives = known or other_was, present[k] or other_is
            loop = records[record, LOW] == records[record, HIGH]
            if lives and not was and not loop:
                joined[j] = record
                j += 1
            elif was and not lives and not loop:
                parted[p] = record
                p += 1
            if not lives:
                take_out(table, bits, find(table, bits, records, records[record, LOW], records[record, HIGH]))
                freed[f] = record
                f += 1
            records[record, SEEN + back] = number if present[k] else DEAD
        if not (known or present[k]):
            continue
        changed_idx[c] = k
        change[c] = (0 if known else 1) if present[k] else -1
        row[c] = inserted[k] if present[k] else deleted[k]
        old[c] = weights[record, WEIGHT + back] if known else 0
        if present[k]:
            weights[record, WEIGHT + back] = weight[inserted[k]]
        new[c] = weights[record, WEIGHT + back]
        if change[c] != 0:
            for end in range(2):
                v = records[record, LOW + end]
                if end == 1 and v == records[record, LOW]:
                    continue
                degree[v] += change[c]
                if degree[v] == (1 if change[c] > 0 else 0):
                    node[d], turn[d] = v, change[c]
                    d += 1
        c += 1
    return (
        changed_idx[:c], change[:c], row[:c], new[:c], old[:c],
        joined[:j], parted[:p], freed[:f], node[:d], turn[:d],
    )  # fmt: skip


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
    used = index.records[: index.used]
    loops = np.flatnonzero((used[:, LOW] == used[:, HIGH]) & (used[:, SEEN] != DEAD))
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
    dumped = dump(index, adjacency)
    arrays: dict[str, NDArray[Any]] = {
        "length": dumped.length,
        "neighbours": dumped.neighbours,
        "loops": dumped.loops,
        "directions": dumped.directions,
        "weight": slot_weights(dumped.slots, index.weights),
    }
    if seen:
        arrays["seen"] = index.records[dumped.slots >> 1, SEEN + (dumped.slots & 1)]
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
def _dump(rows: NeighbourRows, entries: Int32, records: Int32) -> tuple[Int32, UInt8, Int64]:
    total = (rows.end - rows.start).sum()
    out = np.empty(total, np.int32)
    directions = np.empty(total // 2, np.uint8)
    slots = np.empty(total, np.int64)
    position = pairs = n = 0
    for v in range(len(rows.start)):
        for k in range(rows.start[v], rows.end[v]):
            out[position] = rows.indices[k]
            position += 1
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
def _load(
    length: Int32, neighbours: Int32, loops: Int32, directions: UInt8, weight: Float32, seen: Int32,
    table: Int64, bits: int, records: Int32, weights: Float32,
) -> tuple[Int32, Int64]:  # fmt: skip
    entries = np.empty(len(neighbours), np.int32)
    slots = np.empty(len(weight), np.int64)
    position = used = n = 0
    for v in range(len(length)):
        for k in range(length[v]):
            if neighbours[position] > v:
                records[used, LOW], records[used, HIGH], records[used, AT_LOW] = v, neighbours[position], k
                records[used, SEEN], records[used, SEEN + 1] = DEAD, DEAD
                put(
                    table, ~find(table, bits, records, v, neighbours[position]), v, neighbours[position], used
                )
                for back in range(2):
                    if directions[used] >> back & 1:
                        weights[used, WEIGHT + back], records[used, SEEN + back] = weight[n], seen[n]
                        slots[n] = 2 * np.int64(used) + back
                        n += 1
                entries[position] = used
                used += 1
            position += 1
    position = 0
    for v in range(len(length)):
        for k in range(length[v]):
            if neighbours[position] < v:
                record = table[find(table, bits, records, neighbours[position], v)] & _RECORD
                records[record, AT_HIGH] = k
                entries[position] = record
            position += 1
    for v in loops:
        records[used, LOW], records[used, HIGH] = v, v
        records[used, SEEN + 1] = DEAD
        put(table, ~find(table, bits, records, v, v), v, v, used)
        weights[used, WEIGHT], records[used, SEEN] = weight[n], seen[n]
        slots[n] = 2 * np.int64(used)
        n += 1
        used += 1
    return entries, slots
