"""Streams, deltas and draws that the tests of SEP's two rules share."""

import numpy as np
from hypothesis import strategies as st

from freshet_graph.stream.partition.interface import Why
from freshet_graph.stream.snapshots.delta import Csr, delta_of

MASK = (1 << 64) - 1


def splitmix64(key):
    z = (key + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def first_draw(seed, key, parts):
    """Part that ties are broken from."""
    return ((splitmix64(splitmix64(seed) ^ key) >> 32) * parts) >> 32


def tie_order(seed, event):
    """Of parts with equal loads the event takes the one with the smallest of these."""
    bits = splitmix64(splitmix64(seed) ^ (event >> 3))
    return lambda p: p ^ (bits >> 8 * (event & 7) & 63)


def snapshot(tau, num_nodes, events):
    """A delta of (op, src, dst, t) rows, t in seconds; its graph is not looked at by SEP."""
    op, src, dst, t = (
        (np.array(column) for column in zip(*events, strict=True)) if events else [np.empty(0, int)] * 4
    )
    none = np.empty(0, np.int64)
    return delta_of(
        tau=tau,
        num_nodes=num_nodes,
        op=op.astype(np.int8),
        src=src.astype(np.int64),
        dst=dst.astype(np.int64),
        t=t.astype(np.int64) * 1_000_000,
        weight=np.ones(len(op), np.float32),
        graph=Csr(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)),
        live=none,
        touched=none,
        feature_nodes=none,
        changed_segments=np.empty(0, np.int32),
    )


def streams(num_nodes):
    node = st.integers(0, num_nodes - 1)
    event = st.tuples(st.sampled_from([1, 1, 1, 1, -1]), node, node, st.integers(0, 5))
    return st.lists(st.lists(event, max_size=25), min_size=1, max_size=5)


def batches(stream):
    """Times within a snapshot ascend, and equal ones occur."""
    return [
        (tau, [(op, i, j, 10 * tau + t) for op, i, j, t in sorted(events, key=lambda e: e[3])])
        for tau, events in enumerate(stream)
    ]


def seal(parts_of, assignment):
    """Sets of parts after a snapshot, from its assignment alone."""
    rows = zip(assignment.node.tolist(), assignment.part.tolist(), assignment.why, strict=True)
    for node, part, why in rows:
        held = parts_of.setdefault(node, set())
        held.remove(part) if why == Why.DEMOTED else held.add(part)
