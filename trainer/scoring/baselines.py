"""Baselines beside every model: predictors that learn nothing."""

import numpy as np

from freshet_graph.stream.arrays.kinds import Float32, Float64
from freshet_graph.trainer.data.history import Encounter

_UNSEEN_PAIR_S = 1e12  # longer than any age: 31,700 years
_LEAST_AGE_S = 1e-6  # the step of event times: a pair of this very moment has a finite product


def edgebank(encounters: Float32) -> Float32:
    """EdgeBank with unlimited memory (Poursafaei et al. 2022): 1 for a directed pair seen before, else 0.

    Args:
        encounters: float32 (Q, len(Encounter)).

    Returns:
        float32 (Q,).
    """
    return (encounters[:, Encounter.PAIR_COUNT] > 0).astype(np.float32)


def edgebank_window(encounters: Float32, window_s: float) -> Float32:
    """EdgeBank with a time window (Poursafaei et al. 2022): 1 for a directed pair seen within the last seconds, else 0.

    Args:
        encounters: float32 (Q, len(Encounter)).
        window_s: Seconds back from each query's own time.

    Returns:
        float32 (Q,).
    """
    return (encounters[:, Encounter.PAIR_AGE] <= window_s).astype(np.float32)


def recency(encounters: Float32) -> Float64:
    """Recency: rank by the pair's last time, else by the destination's last time.

    Every seen pair ranks above every unseen one. Among seen pairs (u, v) the most recent ranks highest; among unseen ones
    the pair whose v was most recently a destination; a v that never was a destination ranks lowest. Ages are relative to
    the query's own time, so scores of queries at different times are comparable.

    Args:
        encounters: float32 (Q, len(Encounter)).

    Returns:
        float64 (Q,), higher is likelier: −age for a seen pair, −1e12 − the destination's age for others.
    """
    pair_age = encounters[:, Encounter.PAIR_AGE].astype(np.float64)
    dst_age = encounters[:, Encounter.DST_IN_AGE].astype(np.float64)
    return np.where(np.isfinite(pair_age), -pair_age, -_UNSEEN_PAIR_S - dst_age)


def recency_popularity(encounters: Float32) -> Float64:
    """Recency times popularity: how lately the pair met, weighted by how often its destination was one.

    Local recency and global popularity as Cornell et al. 2025 define them ("On the Power of Heuristics in Temporal Graphs",
    ICLR workshops, arXiv:2502.04910). Recency is 1 / age here, so that the product depends neither on the unit nor on the
    zero of time. As in ``recency``, every seen pair ranks above every unseen one, whose age is that of its destination.

    Args:
        encounters: float32 (Q, len(Encounter)).

    Returns:
        float64 (Q,), higher is likelier: events of v / seconds since the pair's last for a seen pair. For others the
        negated inverse, −seconds since v's last event / events of v: it orders as the product does, and stays below 0.
    """
    pair_age = encounters[:, Encounter.PAIR_AGE].astype(np.float64)
    dst_age = encounters[:, Encounter.DST_IN_AGE].astype(np.float64)
    popularity = np.maximum(encounters[:, Encounter.DST_IN_COUNT].astype(np.float64), 1)
    seen = popularity / np.maximum(pair_age, _LEAST_AGE_S)
    return np.where(np.isfinite(pair_age), seen, -dst_age / popularity)
