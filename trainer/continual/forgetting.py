"""Forgetting of event models: nodes and events unseen for longest, so that an endless stream fits into memory."""

from dataclasses import dataclass

import numpy as np

from freshet_graph.schemas.trainer_config import Budget
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.trainer.data.history import NEVER, History
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.strategies.interface import Forgets

SLACK = 8
"""Beyond the budget, an eighth of it is forgotten at once, because renumbering the rest is expensive."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Numbers of forgotten nodes, events of the temporal graph, and pairs of the history."""

    nodes: int = 0
    events: int = 0
    pairs: int = 0
    kept_nodes: Int64 | None = None


def longest_unseen(last_seen_us: Int64, most: int, since_us: int) -> Int64:
    """Nodes to keep.

    Args:
        last_seen_us: int64 (nodes,).
        most: Above so many nodes, those unseen for longest are dropped until seven eighths are left; of equal times those
            with the lowest number first.
        since_us: Nodes seen since then always stay.

    Returns:
        int64, ascending.
    """
    nodes = len(last_seen_us)
    if nodes <= most:
        return np.arange(nodes)
    stays = last_seen_us >= since_us
    stays[np.argsort(last_seen_us, kind="stable")[nodes - (most - most // SLACK) :]] = True
    return np.flatnonzero(stays)


def forget_beyond(
    budget: Budget, memory: Forgets, history: History, names: NodeNames, since_us: int
) -> Forgotten:
    """Bring the memory within the budget, between two snapshots.

    A node is forgotten with its state, its events and its pairs; an event beyond the budget of events with the pairs that
    did not meet since. All of this follows from the past alone and is the same on all ranks.

    Args:
        budget: Of nodes and events.
        memory: Of the strategy, with the events.
        history: Has the pairs and when nodes were last seen.
        names: Numbers of the remembered nodes.
        since_us: Begin of the newest snapshot, whose nodes and events always stay.
    """
    nodes, times = len(names), memory.event_times
    kept_nodes = np.arange(nodes)
    if budget.nodes is not None:
        kept_nodes = longest_unseen(history.last_seen_us[:nodes], budget.nodes, since_us)
    first = 0
    if budget.events is not None and len(times) > budget.events:
        first = len(times) - (budget.events - budget.events // SLACK)
        first = min(first, int(np.searchsorted(times, since_us)))
    if len(kept_nodes) == nodes and not first:
        return Forgotten()
    oldest_us = int(times[first]) if first else NEVER
    events = memory.forget(kept_nodes, first)
    pairs = history.forget(kept_nodes, oldest_us)
    names.keep(kept_nodes)
    return Forgotten(nodes - len(kept_nodes), events, pairs, kept_nodes)
