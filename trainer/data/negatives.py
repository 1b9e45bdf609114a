"""Negatives: events that did not happen, drawn from a seed, equal on every rank and in every run and resume."""

from dataclasses import dataclass

import numpy as np

from stream.arrays.kinds import Bool, Int64
from trainer.data.history import History, Inserts, first_appearances

NONE = -1
"""In place of a node: no negative."""

_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Draw:
    """A stream of random numbers by seed, snapshot and purpose, so that no draw depends on another.

    Attributes:
        seed: The run's seed.
        tau: Snapshot.
        purpose: A small number per use; training adds its epoch.
    """

    seed: int
    tau: int
    purpose: int

    def generator(self) -> np.random.Generator:
        """A fresh generator at the stream's beginning."""
        return np.random.default_rng([self.seed, self.tau % (1 << 63), self.purpose])


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


def random_destinations(
    pool: Int64, true: Int64, draws: int, draw: Draw, weights: Int64 | None = None
) -> Int64:
    """Destinations other than the true one, uniform or by weight.

    Args:
        pool: Distinct ids, at least two.
        true: int64 (n,), each in the pool or not.
        draws: Negatives per event.
        draw: The stream of random numbers.
        weights: int64, as the pool, positive: relative likelihood of each. None, or all 1: uniform.

    Returns:
        int64 (n, draws), from the pool, never the event's own destination.
    """
    if weights is None:
        picked = draw.generator().integers(0, len(pool), (len(true), draws))
    else:
        ends = np.cumsum(weights)
        picked = np.searchsorted(ends, draw.generator().integers(0, ends[-1], (len(true), draws)), "right")
    collides = pool[picked] == true[:, None]
    drawn: Int64 = pool[(picked + collides) % len(pool)]
    return drawn


def historical_pairs(history: History, events: Inserts, draw: Draw) -> tuple[Int64, Int64, Bool]:
    """Pairs seen before this snapshot that do not occur in it (Poursafaei et al. 2022, historical negatives).

    Returns:
        src and dst int64 (E,), and whether each could be drawn: bool (E,). Without history none can.
    """
    known = history.pairs.size
    drawable = np.zeros(len(events), np.bool_)
    if not known:
        return events.src, events.dst, drawable
    position = np.zeros(len(events), np.int64)
    generator = draw.generator()
    now = np.unique((events.src << 32) | events.dst)
    for _ in range(_ATTEMPTS):
        candidates = generator.integers(0, known, len(events))
        absent = ~np.isin(history.pairs.keys[candidates], now)
        position = np.where(~drawable & absent, candidates, position)
        drawable |= absent
    src, dst = history.pairs.pairs(position)
    return src, dst, drawable
