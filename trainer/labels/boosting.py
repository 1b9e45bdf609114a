"""Gradient boosting over judged rows, fitted again as they grow: a baseline beside the classifier (extra ``baselines``)."""

from typing import Any

import numpy as np

from freshet_graph.stream.arrays.kinds import Float32, Float64, Int64
from freshet_graph.stream.optional import package
from freshet_graph.trainer.labels.classifier import JudgedSample

GROWTH = 1.25
"""The trees are fitted again when so many times as many rows are judged, so the work of all fits grows with their logarithm."""
TREES = 200
PARAMETERS = {
    "objective": "binary",
    "learning_rate": 0.05,
    "max_bin": 63,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.5,
    "lambda_l2": 5.0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
"""Of LightGBM. Few of the rows are of the rare class, so leaves are large and trees look at half of the columns."""


class BoostedClassifier:
    """Trees over a sample of each class, by LightGBM, with the interface of ``JudgedClassifier``.

    Args:
        columns: Numbers of a row; those behind them it does not see.
        seed: Of draws.
        first: Rows that are judged before it says anything.
        sample: Earlier rows of each class that are kept.

    Raises:
        MissingLibraryError: LightGBM is not installed.
    """

    def __init__(self, columns: int, seed: int, *, first: int, sample: int) -> None:
        self._library = package("lightgbm", "key task_params: baselines", "'freshet-graph[baselines]'")
        self._columns, self._seed, self._first = columns, seed, first
        self._sample = JudgedSample(sample, columns)
        self._fitted = 0  # rows that were judged when the trees were fitted
        self._trees: Any = None
        self._turns = 0

    def scores(self, rows: Float32) -> Float64:
        """Log-odds of class 1, float64 (n,), of rows (n, columns or more); NaN before it learned anything."""
        if self._trees is None or not len(rows):
            return np.full(len(rows), np.nan)
        log_odds: Float64 = self._trees.predict(
            np.ascontiguousarray(rows[:, : self._columns]), raw_score=True, num_threads=1
        )
        return log_odds

    def learn(self, rows: Float32, label: Int64, weight: Float64 | None = None) -> None:
        """Learn judged rows (n, columns or more) and their classes int64 (n,), 0 or 1; ``weight`` as for ``JudgedClassifier``."""
        self._turns += 1
        generator = np.random.default_rng([self._seed, self._turns])
        weights = np.ones(len(rows)) if weight is None else weight
        self._sample.add(
            np.column_stack([rows[:, : self._columns], weights, label]).astype(np.float32), generator
        )
        came = self._sample.came
        if came < max(self._first, GROWTH * self._fitted):
            return
        self._fitted = came
        judged = self._sample.all_rows()
        inputs, counts, targets = (
            np.ascontiguousarray(part) for part in (judged[:, :-2], judged[:, -2], judged[:, -1])
        )
        parameters = {**PARAMETERS, "seed": self._seed}
        data = self._library.Dataset(inputs, targets, weight=counts, params=parameters)
        self._trees = self._library.train(parameters, data, TREES)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        text = "" if self._trees is None else self._trees.model_to_string()
        trees = np.frombuffer(text.encode(), np.uint8).copy()
        return {"trees": trees, "sample": self._sample.state(), "fitted": self._fitted, "turns": self._turns}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        text = np.asarray(state["trees"]).tobytes().decode()
        self._trees = self._library.Booster(model_str=text) if text else None
        self._sample.restore(state["sample"])
        self._fitted, self._turns = int(state["fitted"]), int(state["turns"])

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._sample.memory_bytes
