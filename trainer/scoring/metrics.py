"""Figures of predictions: average precision, area under the ROC curve, reciprocal rank, hits."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.trainer.data.history import BATCH

Figures = dict[tuple[str, str, str], float]
"""(metric, subset, scorer) → value; a figure that cannot be computed is absent."""


def flat_figures(figures: Figures, suffix: str = "") -> dict[str, float]:
    """Figures by the keys of results and score files, such as ``ap``, ``random_ap`` and ``recency_inductive_ap``."""
    return {
        "_".join(
            [
                *([] if scorer == "model" else [scorer]),
                *([] if subset == "all" else [subset]),
                metric + suffix,
            ]
        ): value
        for (metric, subset, scorer), value in figures.items()
    }


log = structlog.get_logger()

Scores = NDArray[np.floating]


RANKINGS = ("ap", "auc")
"""Figures of scores of what happened and what did not, in the order of the columns of ``rankings``."""


def rankings(
    positive: Scores, negative: Scores, *, weights: tuple[Float64, Float64] | None = None
) -> Float64:
    """AP and AUC of several rankings; see ``average_precision`` and ``area_under_roc``.

    Args:
        positive: (r, P) scores of events.
        negative: (r, N) scores of negatives.
        weights: How many events each of them stands for, (r, P) and (r, N), positive; None: one.

    Returns:
        float64 (r, len(RANKINGS)).
    """
    scores, count = np.concatenate([positive, negative], axis=1), positive.shape[1]
    order = np.argsort(-scores, axis=1)
    scores = np.take_along_axis(scores, order, axis=1)
    is_positive = order < count
    true: NDArray[Any]
    every: NDArray[Any]
    positives: NDArray[Any] | int
    negatives: NDArray[Any] | int
    if weights is None:
        true = np.cumsum(is_positive, axis=1)
        every = np.broadcast_to(np.arange(1, scores.shape[1] + 1), scores.shape)
        positives, negatives = count, negative.shape[1]
    else:
        weight = np.take_along_axis(np.concatenate(weights, axis=1), order, axis=1)
        true, every = np.cumsum(np.where(is_positive, weight, 0), axis=1), np.cumsum(weight, axis=1)
        positives, negatives = (of_some.sum(axis=1) for of_some in weights)
    # equal scores are one threshold, which counts where the last of them is
    is_last = np.ones(scores.shape, np.bool_)
    is_last[:, :-1] = scores[:, 1:] != scores[:, :-1]
    row, _ = np.nonzero(is_last)
    true, every = true[is_last], every[is_last]
    is_first = np.append(True, row[1:] != row[:-1])
    true_before, every_before = (np.where(is_first, 0, np.append(0, seen[:-1])) for seen in (true, every))
    gained, false_gained = true - true_before, every - every_before - (true - true_before)
    ap = np.bincount(row, gained * (true / every)) / positives
    auc = np.bincount(row, false_gained * (true_before + true) / 2) / (positives * negatives)
    return np.stack([ap, auc], axis=1)


def average_precision(positive: Scores, negative: Scores) -> float:
    """Average precision: Σ (recall gained at a threshold) × precision there; equal scores are one threshold.

    Args:
        positive: (P,) scores of events, P ≥ 1.
        negative: (N,) scores of negatives.

    Returns:
        In (0, 1]; the value of scikit-learn's ``average_precision_score``.
    """
    return float(rankings(positive[None], negative[None])[0, 0])


def area_under_roc(positive: Scores, negative: Scores) -> float:
    """Probability that a positive ranks above a negative; a tie counts one half."""
    return float(rankings(positive[None], negative[None])[0, 1])


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


def auroc(scores: Scores, label: NDArray[np.int64], part: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve over some events at once; None if it cannot be computed."""
    positive, negative = scores[part & (label == 1)], scores[part & (label == 0)]
    if not len(positive) or not len(negative) or np.isnan(scores[part]).any():
        return None
    return area_under_roc(positive, negative)


def classification(scores: Scores, label: NDArray[np.int64]) -> dict[str, float]:
    """Figures of the classes with the highest scores, and of the scores if there are two classes.

    Args:
        scores: (n, K), n ≥ 1; of equal ones the first class counts.
        label: (n,), 0 to K − 1.

    Returns:
        ``accuracy``; ``macro_f1``, the mean over all classes that occur or are predicted of 2 TP / (2 TP + FP + FN), as
        scikit-learn has it; for two classes that both occur ``auroc``.
    """
    classes, predicted = scores.shape[1], scores.argmax(axis=1)
    right = np.bincount(label[predicted == label], minlength=classes)
    either = np.bincount(label, minlength=classes) + np.bincount(predicted, minlength=classes)
    figures = {
        "accuracy": float(right.sum() / len(label)),
        "macro_f1": float((2 * right[either > 0] / either[either > 0]).mean()),
    }
    if classes == 2:
        value = auroc(scores[:, 1] - scores[:, 0], label, np.ones(len(label), np.bool_))
        figures |= {} if value is None else {"auroc": value}
    return figures


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
        "an AUROC is from so few events of a label that each of them may move it by a tenth or more", **caution, **where,
    )  # fmt: skip


TENTHS = 10


def batched_figures(positive: Scores, negative: Scores, batch: int = BATCH) -> dict[str, Float64]:
    """Means of AP and AUC over batches of consecutive events, each weighted by its events, by their names in results.

    Args:
        positive: (n, …) in log order; further axes are scorers.
        negative: (n, …), the negative of each positive.
        batch: Events per batch.

    Returns:
        float64 (…); NaN without events, or if a score is not a number.
    """
    every = [np.arange(len(positive))] if len(positive) else []
    figures = _of_some(positive, negative, every, batch)
    return {name: figures[..., 0, column] for column, name in enumerate(RANKINGS)}


def jackknife(positive: Scores, negative: Scores) -> dict[str, Float64]:
    """Standard errors of ``batched_figures``, by leaving out every tenth event in turn; NaN with fewer events than tenths."""
    tenth = np.arange(len(positive)) % TENTHS
    left = [np.flatnonzero(tenth != out) for out in range(TENTHS)] if len(positive) >= TENTHS else []
    errors = np.sqrt((TENTHS - 1) * _of_some(positive, negative, left, BATCH).var(axis=-2))
    return {name: errors[..., column] for column, name in enumerate(RANKINGS)}


def _of_some(positive: Scores, negative: Scores, chosen: Sequence[Int64], batch: int) -> Float64:
    """float64 (…, max(1, len(chosen)), len(RANKINGS)): figures of some of the events, by their places; NaN without any."""
    shape = (*positive.shape[1:], max(1, len(chosen)), len(RANKINGS))
    if not chosen:
        return np.full(shape, np.nan)
    by_scorer = [scores.reshape(len(scores), -1).T for scores in (positive, negative)]
    batches = [
        (row, part)
        for row, places in enumerate(chosen)
        for part in np.split(places, range(batch, len(places), batch))
    ]
    sums = np.zeros((len(by_scorer[0]), len(chosen), len(RANKINGS)))
    for size in {len(part) for _, part in batches}:  # one pass over all batches of a length
        alike = [(row, part) for row, part in batches if len(part) == size]
        places = np.stack([part for _, part in alike])
        figures = rankings(*(scores[:, places].reshape(-1, size) for scores in by_scorer))
        figures = figures.reshape(len(sums), len(alike), len(RANKINGS))
        for number, (row, _) in enumerate(alike):
            sums[:, row] += size * figures[:, number]
    lengths = np.array([len(places) for places in chosen])
    figures = sums / lengths[:, None]  # once, so that a perfect scorer has exactly 1
    figures[np.isnan(by_scorer[0]).any(axis=1) | np.isnan(by_scorer[1]).any(axis=1)] = np.nan
    return figures.reshape(shape)
