"""Inputs of rows, gathered in one pass: places, ages and edge inputs of sampled interactions, and times of mails."""

import numpy as np

from stream.kernels import njit


@njit(cache=True, nogil=True)
def gather_edges(event, carried, roles, out):  # type: ignore[no-untyped-def]  # compiled
    """Edge inputs of entries.

    Args:
        event: int64 (m,), as in ``TemporalGraph.entry``; −1 gives zeros.
        carried: float32 (events, c), inputs of each event.
        roles: Whether the first input is the role of the entry's node, 1 as source or −1; otherwise it is 0.
        out: float (m, 1 + c), filled.
    """
    for i in range(len(event)):
        entry = event[i]
        if entry < 0:
            out[i] = 0
            continue
        out[i, 0] = 1 - 2 * (entry & 1) if roles else 0
        number = np.uint64(entry >> 1)
        for j in range(carried.shape[1]):
            out[i, 1 + j] = carried[number, j]


@njit(cache=True, nogil=True)
def gather_hop(row, time_us, layer, there, out):  # type: ignore[no-untyped-def]  # compiled
    """Interactions of rows.

    Args:
        row: int64 (R,), place of each row's node in the layer.
        time_us: int64 (R,), each row's time.
        layer: ``event``, ``time_us`` and ``place``, int64 (n, K) each, of the layer's nodes.
        there: bool (n, K), which interactions are used.
        out: Of each row: ``event`` int64 (R, K), −1 for unused ones; ``place`` int64 (R, K); ``there`` bool (R, K);
            ``age`` float (R, K), seconds from the interaction to the row's time, 0 for unused ones.
    """
    layer_event, layer_time, layer_place = layer
    event, place, looked, age = out
    for r in range(len(row)):
        at = np.uint64(row[r])
        for k in range(event.shape[1]):
            seen = there[at, k]
            looked[r, k] = seen
            place[r, k] = layer_place[at, k]
            event[r, k] = layer_event[at, k] if seen else -1
            age[r, k] = (time_us[r] - layer_time[at, k]) / 1e6 if seen else 0.0


@njit(cache=True, nogil=True)
def mails_there(nodes, rows, event_us, former_us, never, there, row, gap):  # type: ignore[no-untyped-def]  # compiled
    """Find the nodes that have mail; returns how many.

    Args:
        nodes: int64 (n,).
        rows: int64 (n,), the mailbox's row of each; −1 for those without.
        event_us: int64, time of each node's latest event, ``never`` without one.
        former_us: int64, that of the event before.
        never: See above.
        there: int64 (n,), filled in front: which of the nodes have mail.
        row: int64 (n,), filled in front: their rows.
        gap: float (n,), filled in front: seconds between the two events.
    """
    count = 0
    for i in range(len(nodes)):
        if rows[i] < 0:
            continue
        node = np.uint64(nodes[i])
        if event_us[node] == never:
            continue
        there[count] = i
        row[count] = rows[i]
        gap[count] = (event_us[node] - former_us[node]) / 1e6
        count += 1
    return count
