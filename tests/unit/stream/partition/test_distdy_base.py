"""DistDy's base partition: what stays, and where the rest goes."""

import numpy as np

from freshet_graph.stream.partition.vertex.distdy import REFERENCE_BYTES, base_partition


def base(before, stay_bytes, free, most):
    """Owners, free bytes and nodes without a place after Alg. 1; a whole vector is 20 bytes."""
    before, stay = np.array(before, np.int32), np.array(stay_bytes, np.int64)
    known, free = np.stack([before, before], axis=1).astype(np.int32), np.array(free, np.int64)
    old = before >= 0
    _, without = base_partition(
        np.flatnonzero(~old),
        before,
        known,
        stay - REFERENCE_BYTES,
        np.bincount(before[old], stay[old], len(free)).astype(np.int64),
        20,
        free,
        np.bincount(before[old], minlength=len(free)),
        most,
    )
    return known[:, 0].tolist(), free.tolist(), without


def test_the_base_partition_keeps_what_fits_and_spreads_the_rest():
    """Server 0 has no room for node 2's change, so node 2 goes like a new node to the emptiest server."""
    assert base([0, 1, 0, -1], [6, 1, 5, 1], [10, 30, 29], 4) == ([0, 1, 1, 2], [4, 9, 9], 0)


def test_the_base_partition_fills_no_server_past_the_bound_while_memory_allows():
    """Two nodes a server: of the three on server 0 the youngest leaves, and the new one goes past the roomy server 0.

    server 1 is left with room for one whole node, server 2 with room for none.
    """
    owner, _, without = base([0, 0, 0, -1, -1], [1] * 5, [100, 30, 10], 2)
    assert without == 0
    assert owner == [0, 0, 0, 1, 0], "memory goes before balance"
    assert base([0, 0, 0, -1], [1] * 4, [100, 60, 10], 2) == ([0, 0, 1, 1], [98, 20, 10], 0)
