"""Ranking figures: average precision, area under the ROC curve, reciprocal rank, hits."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from trainer.data.history import BATCH

log = structlog.get_logger()

Scores = NDArray[np.floating]
Figure = Callable[[Scores, Scores], float]


def average_precision(positive: Scores, negative: Scores) -> float:
    """Average precision: Σ (recall gained at a threshold) × precision there; equal scores are one threshold.

    Args:
        positive: (P,) scores of events, P ≥ 1.
        negative: (N,) scores of negatives.

    Returns:
        In (0, 1]; the value of scikit-learn's ``average_precision_score``.
    """
    true_at, all_at = _thresholds(positive, negative)
    gained = np.diff(true_at, prepend=0)
    return float((gained * (true_at / all_at)).sum() / len(positive))


def area_under_roc(positive: Scores, negative: Scores) -> float:
    """Probability that a positive ranks above a negative; a tie counts one half."""
    true_at, all_at = _thresholds(positive, negative)
    false_at = all_at - true_at
    true_before = np.concatenate([[0], true_at[:-1]])
    gained = np.diff(false_at, prepend=0)
    return float((gained * (true_before + true_at) / 2).sum() / (len(positive) * len(negative)))


def ranks_among(positive: Scores, candidates: NDArray[np.floating]) -> NDArray[np.float64]:
    """Rank of each positive among its own candidates, 1 is best, a tie counts one half.

    Args:
        positive: (P,).
        candidates: (P, M) scores of its negatives; NaN marks a candidate that does not count.

    Returns:
        float64 (P,) in [1, M + 1]; NaN for a positive that is NaN.
    """
    above = (candidates > positive[:, None]).sum(axis=1)
    equal = (candidates == positive[:, None]).sum(axis=1)
    ranks: NDArray[np.float64] = np.where(np.isnan(positive), np.nan, 1.0 + above + equal / 2.0)
    return ranks


def batched(figure_of: Figure, positive: Scores, negative: Scores, batch: int = BATCH) -> float | None:
    """Mean of a figure over batches of consecutive events, each batch weighted by its events.

    Args:
        figure_of: ``average_precision`` or ``area_under_roc``.
        positive: (P,) in log order.
        negative: (P,), the negative of each positive.
        batch: Events per batch.

    Returns:
        None without events, or if a score is not a number.
    """
    if not len(positive) or np.isnan(positive).any() or np.isnan(negative).any():
        return None
    total = 0.0
    for begin in range(0, len(positive), batch):
        here = slice(begin, begin + batch)
        total += figure_of(positive[here], negative[here]) * len(positive[here])
    return total / len(positive)


def _thresholds(positive: Scores, negative: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    scores = np.concatenate([positive, negative])
    truth = np.concatenate([np.ones(len(positive), np.int64), np.zeros(len(negative), np.int64)])
    order = np.argsort(-scores, kind="stable")
    scores, truth = scores[order], truth[order]
    last = np.append(np.nonzero(scores[1:] != scores[:-1])[0], len(scores) - 1)
    return np.cumsum(truth)[last], last + 1


def auroc(scores: Scores, label: NDArray[np.int64], part: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve over some events at once; None if it cannot be computed."""
    positive, negative = scores[part & (label == 1)], scores[part & (label == 0)]
    if not len(positive) or not len(negative) or np.isnan(scores[part]).any():
        return None
    return area_under_roc(positive, negative)


FEW_LABELS = 10
"""One event of n with a label moves an AUROC by up to 1 / n."""


def cautions(label: NDArray[np.int64], *figures: str) -> list[dict[str, Any]]:
    """What to know about AUROCs of some events before relying on them.

    Args:
        label: (n,), 0 or 1; other values are no labels.
        figures: Names of the AUROCs.

    Returns:
        ``figures``, ``label``, and its number of ``events``, for each label of fewer than ``FEW_LABELS`` events. Empty if
        a label has none, because then there is no AUROC.
    """
    events = {kind: int((label == kind).sum()) for kind in (1, 0)}
    if not all(events.values()):
        return []
    return [
        {"figures": list(figures), "label": kind, "events": count}
        for kind, count in events.items()
        if count < FEW_LABELS
    ]


def warn_of(caution: Mapping[str, Any], **where: object) -> None:
    """Log a warning about one of ``cautions``."""
    log.warning(
        f"an AUROC is from fewer than {FEW_LABELS} events of a label, so each of them may move it by a tenth or more",
        **caution, **where,
    )  # fmt: skip
