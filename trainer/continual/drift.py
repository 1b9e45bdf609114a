"""Drift of predictions: the task's figure over a sliding window against the reference before it."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from freshet_graph.schemas.trainer_config import Drift

DRIFTED = "drifted"
"""Key of a line of the score file: the snapshot's predictions showed a drift."""

_BASELINES = (
    "random", "recency", "recency_popularity", "edgebank", "zero", "mean", "persistence", "age_persistence",
)  # fmt: skip
"""Baselines of all tasks; a task has some of them."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """The newest window.

    Attributes:
        means: Mean of the task's figure by scorer, over the window's snapshots, each weighted by its events.
        drop: Difference by which the model's mean is worse than over the reference before the window; None without one.
        drifted: Whether this is a drift; earlier snapshots then leave the reference.
    """

    means: dict[str, float]
    drop: float | None = None
    drifted: bool = False


class DriftWatch:
    """Watches the task's figure of every snapshot that has one.

    Args:
        config: Lengths of window and reference, and the drop that is a drift.
        selection_metric: See ``Task.selection_metric``.
        lines: Those of the score file so far, so that a restart sees the same as an uninterrupted run.
    """

    def __init__(
        self,
        config: Drift,
        selection_metric: tuple[str, int] = ("ap", 1),
        lines: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._config = config
        self._metric, self._sign = selection_metric
        self._keys = {
            "model": self._metric,
            **{baseline: f"{baseline}_{self._metric}" for baseline in _BASELINES},
        }
        self._window: deque[dict[str, Any]] = deque()
        self._before: deque[dict[str, Any]] = deque()
        for line in lines:
            self._take(line)
            if line.get(DRIFTED):
                self._before.clear()

    def see(self, line: Mapping[str, Any]) -> Sliding:
        """Take in a snapshot's figures: ``scored`` items, and ``ap``, ``recency_ap``, … as in the score file."""
        self._take(line)
        window, before = list(self._window), list(self._before)
        scorer_means = {scorer: weighted_mean(window, key, "scored") for scorer, key in self._keys.items()}
        means = {scorer: mean for scorer, mean in scorer_means.items() if mean is not None}
        was = weighted_mean(before, self._metric, "scored")
        if was is None or "model" not in means or _events(self._before) < self._config.reference_events:
            return Sliding(means)
        drop = self._sign * (was - means["model"])
        drifted = drop > self._config.threshold
        if drifted:
            self._before.clear()
        return Sliding(means, drop, drifted)

    def _take(self, line: Mapping[str, Any]) -> None:
        if line.get(self._metric) is None or not line.get("scored"):
            return
        self._window.append({key: line.get(key) for key in ("scored", *self._keys.values())})
        while _events(self._window) - self._window[0]["scored"] >= self._config.window_events:
            self._before.append(self._window.popleft())
        while (
            self._before
            and _events(self._before) - self._before[0]["scored"] >= self._config.reference_events
        ):
            self._before.popleft()


def _events(lines: Iterable[Mapping[str, Any]]) -> int:
    return sum(line["scored"] for line in lines)


def weighted_mean(lines: list[dict[str, Any]], key: str, weight: str) -> float | None:
    """Mean of a key over the lines that have it, weighted by another; None where none has it."""
    pairs = [(line[key], line[weight]) for line in lines if line.get(key) is not None and line.get(weight)]
    total = sum(share for _, share in pairs)
    return math.fsum(value * share for value, share in pairs) / total if total else None
