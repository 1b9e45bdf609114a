"""Measured seconds of trained groups, and predictions for groups that never ran."""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from stream.arrays.kinds import Float64
from trainer.scheduling.time_model import TimeModel

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
        found = self._model.predict(sizes)
        for at, name in enumerate(names):
            runs = self._runs.get(name, ())
            if len(runs) >= TRUSTED:
                found[at] = median(runs)
        return found

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
