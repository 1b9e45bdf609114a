"""Seconds of a snapshot group: t = α₁ N + α₂ E + α₃ (DyGNeX eq. 31) and a term for its questions, fitted to measured groups."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from freshet_graph.stream.arrays.kinds import Float64, Int64


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Seconds of a group from the sizes of its snapshots.

    Attributes:
        per_node_s: α₁.
        per_edge_s: α₂.
        per_snapshot_s: α₃.
        per_question_s: α₄, for each question about the next snapshot. The paper has no such term. If days differ, as they do
            in e-mail, questions take a large part of a group's time.
    """

    per_node_s: float
    per_edge_s: float
    per_snapshot_s: float
    per_question_s: float = 0.0

    @classmethod
    def fit(cls, sizes: Float64, measured_s: Float64) -> "TimeModel":
        """Fit to measured groups by non-negative least squares of relative errors.

        Args:
            sizes: float64 (n, 3) or (n, 4), nodes, edges and snapshots of each group, and its questions if they are known.
            measured_s: float64 (n,), seconds of each; for a group that ran several times, the median.
        """
        ran = measured_s > 0
        scale = np.maximum(sizes[ran].max(axis=0, initial=0.0), 1.0)
        weights = _non_negative(sizes[ran] / scale / measured_s[ran, None])
        return cls(*(weights / scale).tolist())

    def predict(self, sizes: Float64) -> Float64:
        """float64 (n,), seconds of groups with sizes (n, 3) or (n, 4), see ``fit``."""
        weights = np.array([self.per_node_s, self.per_edge_s, self.per_snapshot_s, self.per_question_s])
        seconds: Float64 = sizes @ weights[: sizes.shape[1]]
        return seconds


def _non_negative(rows: Float64) -> Float64:
    """The x ≥ 0 with the least ‖rows x − 1‖²: the best of the solutions with every choice of columns, of which there are 16."""
    best, least = np.zeros(rows.shape[1]), float(len(rows))
    for size in range(1, rows.shape[1] + 1):
        for columns in combinations(range(rows.shape[1]), size):
            chosen = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)))[0]
            error = float(np.square(rows[:, columns] @ chosen - 1).sum())
            if (chosen >= 0).all() and error < least:
                best, least = np.zeros(rows.shape[1]), error
                best[list(columns)] = chosen
    return best


def group_sizes(nodes: Int64 | Sequence[int], edges: Int64 | Sequence[int], window: int) -> Float64:
    """Sizes of each group of ``window`` snapshots in a row: float64 (T − window + 1, 3) of nodes, edges, snapshots.

    Args:
        nodes: (T,), live nodes of each snapshot.
        edges: (T,), live edges of each snapshot.
        window: w.
    """
    by_snapshot = np.stack([nodes, edges, np.ones(len(nodes))], axis=1).astype(np.float64)
    if len(by_snapshot) < window:
        return np.empty((0, 3))
    return np.lib.stride_tricks.sliding_window_view(by_snapshot, window, axis=0).sum(axis=2)


SIZES = 4
"""Columns of a group's sizes."""
KEPT = 256
"""Groups with kept measurements; the oldest are dropped first."""
RUNS = 5
"""Newest measurements of a group; their median is its time."""
TRUSTED = 3
"""Number of measurements with which a group's median replaces the fitted model."""
OUTLIER = 3.0
"""Groups farther from the fit than this many times the median are left out of a second fit (the paper's profiler)."""


class Profile:
    """Fits the time model again after every pass.

    Attributes:
        error: Median relative error of predicted seconds over the groups of the last pass; NaN before the first.
    """

    def __init__(self) -> None:
        self.error = float("nan")
        self._sizes: dict[int, Float64] = {}
        self._runs: dict[int, deque[float]] = {}
        self._model = TimeModel(1.0, 1.0, 1.0, 1.0)  # before the first measurement only ratios count

    def predict(self, names: Sequence[int], sizes: Float64) -> Float64:
        """Seconds float64 (n,) of groups; before the first pass without a unit.

        Args:
            names: Of the groups, the same in every pass.
            sizes: float64 (n, 4), nodes, edges, snapshots and questions of each.
        """
        predicted_s = self._model.predict(sizes)
        for number, name in enumerate(names):
            runs = self._runs.get(name, ())
            if len(runs) >= TRUSTED:
                predicted_s[number] = median(runs)
        return predicted_s

    def measured(self, names: Sequence[int], sizes: Float64, seconds: Float64) -> None:
        """Take in a pass: seconds float64 (n,) of groups, 0 for groups that did not run."""
        ran = seconds > 0
        if self._runs and ran.any():
            predicted = self.predict(names, sizes)
            self.error = float(np.median(np.abs(predicted - seconds)[ran] / seconds[ran]))
        for name, size, took_s in zip(names, sizes, seconds.tolist(), strict=True):
            if took_s > 0:
                self._sizes[name] = size
                self._runs.setdefault(name, deque(maxlen=RUNS)).append(took_s)
        for name in list(self._runs)[:-KEPT]:
            del self._runs[name], self._sizes[name]
        self._fit()

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {
            str(name): np.concatenate([self._sizes[name], np.array(runs)])
            for name, runs in self._runs.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self._runs, self._sizes = {}, {}
        for name, row in state.items():
            values = np.asarray(row)
            self._sizes[int(name)] = values[:SIZES]
            self._runs[int(name)] = deque(values[SIZES:].tolist(), maxlen=RUNS)
        self._fit()

    @property
    def model(self) -> TimeModel:
        """The last fit."""
        return self._model

    def _fit(self) -> None:
        if not self._runs:
            return
        sizes = np.stack(list(self._sizes.values()))
        seconds = np.array([median(runs) for runs in self._runs.values()])
        fitted = TimeModel.fit(sizes, seconds)
        error = np.abs(fitted.predict(sizes) / seconds - 1)
        near = error <= OUTLIER * np.median(error)
        self._model = fitted if near.all() else TimeModel.fit(sizes[near], seconds[near])
