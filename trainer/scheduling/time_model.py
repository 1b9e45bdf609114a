"""Seconds of a snapshot group: t = α₁ N + α₂ E + α₃ (DyGNeX eq. 31) and a term for its questions, fitted to measured groups."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from stream.arrays.kinds import Float64, Int64


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
        weights, _ = nnls(sizes[ran] / scale / measured_s[ran, None], np.ones(int(ran.sum())))
        return cls(*(weights / scale).tolist())

    def predict(self, sizes: Float64) -> Float64:
        """float64 (n,), seconds of groups with sizes (n, 3) or (n, 4), see ``fit``."""
        weights = np.array([self.per_node_s, self.per_edge_s, self.per_snapshot_s, self.per_question_s])
        seconds: Float64 = sizes @ weights[: sizes.shape[1]]
        return seconds


def group_sizes(nodes: Int64 | Sequence[int], edges: Int64 | Sequence[int], window: int) -> Float64:
    """Sizes of each group of ``window`` snapshots in a row: float64 (T − window + 1, 3) of nodes, edges, snapshots.

    Args:
        nodes: (T,), live nodes of each snapshot.
        edges: (T,), live edges of each snapshot.
        window: w.
    """
    each = np.stack([nodes, edges, np.ones(len(nodes))], axis=1).astype(np.float64)
    if len(each) < window:
        return np.empty((0, 3))
    return np.lib.stride_tricks.sliding_window_view(each, window, axis=0).sum(axis=2)
