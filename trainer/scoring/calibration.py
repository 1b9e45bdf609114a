"""Probabilities of label 1 from logits, learned online from judged events."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Float64

LEAST_SLOPE = 0.01
"""Keeps the order of scores, also while a model ranks worse than chance."""

_PRIOR = 0.1  # precision of slope and intercept: a standard deviation of 3.2 around 1 and 0
_PARTS = 8  # of a half-life, which are learned one after the other


class Calibration:
    """Platt scaling, p = σ(a · logit + b) with a > 0, learned online.

    Two numbers suffice: a mends the scale of the logits, and b the base rate that class weights and replay of the rare label
    have moved. The order of events stays, so figures of ranks do not change. Isotonic regression only keeps it up to ties,
    and needs many events of the rare label; a temperature alone cannot mend the base rate.

    Each part of the events moves (a, b) to the minimum of its weighted cross-entropy + ½ δᵀPδ, δ the move (a Laplace
    approximation of all events before). P then gains the Hessian of the part, and is halved every ``half_life`` events, so
    that the figures of weights that are no longer used are forgotten. Memory does not grow.

    Args:
        half_life: In judged events.

    Attributes:
        slope: a.
        intercept: b.
    """

    def __init__(self, half_life: float = 100_000.0) -> None:
        self._half_life = half_life
        self.slope, self.intercept = 1.0, 0.0
        self._precision = _PRIOR * np.eye(2)

    def probability(self, score: NDArray[np.floating]) -> Float64:
        """Probabilities of label 1, float64 (n,), of logits (n,); NaN for those that are not numbers.

        They keep the order of logits, and are equal only for logits closer than float64 tells apart, as from 37 / a up.
        """
        return sigmoid(self.slope * np.asarray(score, np.float64) + self.intercept)

    def learn(self, score: NDArray[np.floating], label: NDArray[Any], weight: Float64 | None = None) -> None:
        """Learn judged events; those whose logit is not finite are left out.

        Args:
            score: (n,), logits, in the order in which they were judged.
            label: (n,), 0 or 1.
            weight: (n,), 0 or more; None: 1.
        """
        every = np.ones(len(score)) if weight is None else np.asarray(weight, np.float64)
        rows = np.flatnonzero(np.isfinite(score))
        step = max(1, int(self._half_life / _PARTS))
        for part in np.split(rows, range(step, len(rows), step)) if len(rows) else []:
            self._learn_part(np.asarray(score[part], np.float64), label[part] == 1, every[part])

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {"slope": self.slope, "intercept": self.intercept, "precision": self._precision.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.slope, self.intercept = float(state["slope"]), float(state["intercept"])
        self._precision = np.asarray(state["precision"]).copy()

    def _learn_part(self, score: Float64, label: Bool, weight: Float64) -> None:
        stays = 0.5 ** (len(score) / self._half_life)
        prior = stays * self._precision + (1 - stays) * _PRIOR * np.eye(2)
        inputs, before = (
            np.stack([score, np.ones(len(score))], axis=1),
            np.array([self.slope, self.intercept]),
        )
        after = _minimum(before, inputs, label, weight, before, prior, free=slice(0, 2))
        if after[0] < LEAST_SLOPE:  # the cost is convex, so the least one with the bound is on the bound
            start = np.array([LEAST_SLOPE, before[1]])
            after = _minimum(start, inputs, label, weight, before, prior, free=slice(1, 2))
        self.slope, self.intercept = after.tolist()
        self._precision = prior + _hessian(after, inputs, weight)


def sigmoid(logit: Float64) -> Float64:
    """1 / (1 + exp(−logit)), float64 of its shape, without overflow."""
    small = np.exp(-np.abs(logit))
    return np.where(logit >= 0, 1.0, small) / (1 + small)


def _hessian(weights: Float64, inputs: Float64, weight: Float64) -> Float64:
    p = sigmoid(inputs @ weights)
    return (inputs * (weight * p * (1 - p))[:, None]).T @ inputs


def _minimum(
    start: Float64,
    inputs: Float64,
    label: Bool,
    weight: Float64,
    centre: Float64,
    prior: Float64,
    free: slice,
) -> Float64:
    """(a, b) of the least cost, by Newton's method with halved steps; only the free ones of the two move."""

    def cost(weights: Float64) -> float:
        logit, delta = inputs @ weights, weights - centre
        return float(weight @ (np.logaddexp(0, logit) - label * logit) + delta @ prior @ delta / 2)

    now, cost_now = start.copy(), cost(start)
    for _ in range(100):
        gradient = inputs.T @ (weight * (sigmoid(inputs @ now) - label)) + prior @ (now - centre)
        hessian = _hessian(now, inputs, weight) + prior
        step = np.zeros(2)
        step[free] = np.linalg.solve(hessian[free, free], gradient[free])
        fall = float(gradient @ step)
        share = 1.0
        while (lower := cost(now - share * step)) > cost_now - share * fall / 4 and share > 1e-9:
            share /= 2
        if not lower < cost_now:
            break
        now, cost_now = now - share * step, lower
    return now
