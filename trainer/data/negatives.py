"""Negatives: events that did not happen, drawn from a seed, equal on every rank and in every run and resume.

Every draw is uniform over what is possible: one number below the count of what is left, which then steps over what is
excluded. So nothing is drawn again, and nothing is likelier for standing beside an excluded destination.
"""

from dataclasses import dataclass

import numpy as np

from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.trainer.data.history import History, Inserts, first_appearances

NONE = -1
"""In place of a node: no negative."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A stream of random numbers by seed, snapshot and purpose, so that no draw depends on another.

    Attributes:
        seed: The run's seed.
        sequence: Number of the snapshot in its log, from 0: it does not change if all times are shifted by whole intervals.
        purpose: A small number per use; training adds its epoch.
    """

    seed: int
    sequence: int
    purpose: int

    def generator(self) -> np.random.Generator:
        """A fresh generator at the stream's beginning."""
        return np.random.default_rng([self.seed, self.sequence, self.purpose])


@dataclass(frozen=True, slots=True)
class Negatives:
    """The negatives of one snapshot's events, for figures; ``NONE`` for events without.

    Attributes:
        random: int64 (E,), destinations.
        historical_src: int64 (E,).
        historical_dst: int64 (E,).
        ranked: int64 (r,), ascending: events that are ranked among candidates.
        candidates: int64 (r, M), destinations.
    """

    random: Int64
    historical_src: Int64
    historical_dst: Int64
    ranked: Int64
    candidates: Int64


def destination_pool(history: History, events: Inserts) -> Int64:
    """Nodes that have been a destination up to and including this snapshot, in order of first appearance.

    It includes the snapshot's own new destinations. Otherwise a model could recognise every event to a new destination by
    its newness alone.
    """
    return first_appearances(np.concatenate([history.destinations, events.dst]))


class NegativePool:
    """Destinations that could stand in the place of an event's own: those that its source does not meet at its time.

    The time is the visible one, in a file and in a live snapshot alike: that of the event, or the snapshot's begin if the
    event is late. A source may meet a negative's destination at another time of the same snapshot.

    Args:
        events: The snapshot's inserts.
        pool: int64, distinct ids.
        weights: int64, as the pool, positive: relative likelihood of each. None: all alike.
    """

    def __init__(self, events: Inserts, pool: Int64, weights: Int64 | None = None) -> None:
        self._pool = pool
        self._ends = None if weights is None else np.cumsum(weights)
        size = len(pool) if self._ends is None else int(self._ends[-1]) if len(pool) else 0
        self._group = _occasions(events)
        groups = int(self._group.max(initial=-1)) + 1
        # What each group meets, as intervals of [0, size), ascending within the group.
        place = np.full(max(pool.max(initial=-1), events.dst.max(initial=-1)) + 1, NONE)
        place[pool] = np.arange(len(pool))
        in_pool = place[events.dst] >= 0
        met = np.unique(self._group[in_pool] * max(len(pool), 1) + place[events.dst[in_pool]])
        group, met_place = np.divmod(met, max(len(pool), 1))
        width = np.ones(len(met), np.int64) if weights is None else weights[met_place]
        begin = met_place if self._ends is None else self._ends[met_place] - width
        self._first = np.searchsorted(group, np.arange(groups + 1))
        self._passed = np.concatenate([[0], np.cumsum(width)])  # widths before each interval, over all groups
        self._free: Int64 = size - np.diff(self._passed[self._first])
        self._stride = size + 1
        self._steps = group * self._stride + begin - (self._passed[:-1] - self._passed[self._first[group]])

    @property
    def possible(self) -> Bool:
        """Events with a negative, bool (E,)."""
        has_negative: Bool = self._free[self._group] > 0
        return has_negative

    def draw(self, of: Int64, draws: int, draw: Draw) -> Int64:
        """Negatives of some events, independent of each other.

        Args:
            of: int64 (n,), places of events.
            draws: Negatives per event.
            draw: The stream of random numbers.

        Returns:
            int64 (n, draws), from the pool; ``NONE`` for an event without a possible one.
        """
        group = self._group[of][:, None]
        free = self._free[group]
        drawn = draw.generator().integers(0, np.maximum(free, 1), (len(of), draws))
        last = np.searchsorted(self._steps, group * self._stride + drawn, "right")  # intervals up to there
        drawn += self._passed[last] - self._passed[self._first[group]]
        if self._ends is not None:
            drawn = np.searchsorted(self._ends, drawn, "right")
        drawn = np.where(free > 0, drawn, len(self._pool))
        negatives: Int64 = np.append(self._pool, NONE)[drawn]
        return negatives


def meets(events: Inserts, of: Int64, dst: Int64) -> Bool:
    """Whether the source of an event meets a destination at the event's time.

    Args:
        events: Inserts.
        of: int64 (n,), places of events.
        dst: int64 (n,), a destination for each.

    Returns:
        bool (n,).
    """
    group = _occasions(events)
    width = max(events.dst.max(initial=0), dst.max(initial=0)) + 1
    met: Bool = np.isin(group[of] * width + dst, group * width + events.dst)
    return met


def _occasions(events: Inserts) -> Int64:
    """A number for each event, from 0, equal for those of one source at one time."""
    moment = np.cumsum(np.diff(events.visible_us, prepend=events.visible_us[:1]) != 0)
    sources, source = np.unique(events.src, return_inverse=True)
    occasion: Int64 = np.unique(moment * len(sources) + source, return_inverse=True)[1]
    return occasion


def historical_pairs(history: History, events: Inserts, draw: Draw) -> tuple[Int64, Int64, Bool]:
    """Pairs seen before this snapshot that do not occur in it (Poursafaei et al. 2022, historical negatives).

    Returns:
        src and dst int64 (E,), and whether each could be drawn: bool (E,). Without such a pair none can.
    """
    pairs = history.pairs
    now = np.unique((events.src << 32) | events.dst)
    excluded = pairs.table.find(pairs.keys, now)
    excluded = np.sort(excluded[excluded >= 0])
    left = pairs.size - len(excluded)
    if not left:
        return events.src, events.dst, np.zeros(len(events), np.bool_)
    position = draw.generator().integers(0, left, len(events))
    position += np.searchsorted(excluded - np.arange(len(excluded)), position, "right")
    src, dst = pairs.pairs(position)
    return src, dst, np.ones(len(events), np.bool_)
