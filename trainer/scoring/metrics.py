"""Figures of predictions: average precision, area under the ROC curve, reciprocal rank, hits.

AP and AUC of batches of consecutive events, and their standard errors, take one pass over the sorted scores.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from stream.kernels import njit
from trainer.data.history import BATCH

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


TENTHS = 10

RANKINGS = ("ap", "auc")
"""Figures of scores of what happened and what did not, in the order of the kernel's sums."""

_NONE = -1


def batched_figures(positive: Scores, negative: Scores, batch: int = BATCH) -> dict[str, float]:
    """``batched`` of ``average_precision`` and of ``area_under_roc``, by their names in results.

    Args:
        positive: (P,) in log order.
        negative: (P,), the negative of each positive.
        batch: Events per batch.

    Returns:
        Empty without events, or if a score is not a number.
    """
    figures = _figures(positive, negative, [_NONE], batch)
    return {} if figures is None else dict(zip(RANKINGS, figures[0].tolist(), strict=True))


def jackknife(positive: Scores, negative: Scores) -> dict[str, float]:
    """Standard errors of ``batched_figures``, by leaving out every tenth event in turn.

    Returns:
        Empty if figures cannot be computed, or there are fewer events than tenths.
    """
    by_tenth = _figures(positive, negative, range(TENTHS), BATCH) if len(positive) >= TENTHS else None
    if by_tenth is None:
        return {}
    errors = np.sqrt((TENTHS - 1) * by_tenth.var(axis=0))
    return dict(zip(RANKINGS, errors.tolist(), strict=True))


def _figures(
    positive: Scores, negative: Scores, tenths: range | list[int], batch: int
) -> NDArray[np.float64] | None:
    """float64 (tenths, 2): AP and AUC without each of some tenths of the events."""
    scores = np.concatenate([positive, negative]).astype(np.float64)
    if not len(scores) or np.isnan(scores).any():
        return None
    by_tenth = np.zeros((len(tenths), len(RANKINGS)))
    order = np.argsort(-scores)  # equal scores are one threshold, whatever their order
    for row, tenth in zip(by_tenth, tenths, strict=True):
        _add_up(scores, order, tenth, batch, row)
    return by_tenth


@njit(cache=True, nogil=True)
def _add_up(scores, order, tenth, batch, figures):  # type: ignore[no-untyped-def]  # compiled
    """Fill the figures float64 (2,): one pass over the thresholds of all batches, from the highest score down.

    Args:
        scores: float64 (2 n,), of n events and then of their negatives.
        order: int64 (2 n,), places of scores that fall.
        tenth: Events whose number has this remainder are left out; −1: none.
        batch: Events per batch.
        figures: See above.
    """
    n = len(scores) // 2
    left = n if tenth < 0 else n - (n + TENTHS - 1 - tenth) // TENTHS
    batches = -(-left // batch)
    latest = np.empty(batches)
    # of each batch, how many true ones and how many in all: down to here, and down to the threshold before
    true, every = np.zeros(batches, np.int64), np.zeros(batches, np.int64)
    true_before, every_before = np.zeros(batches, np.int64), np.zeros(batches, np.int64)
    sums = np.zeros((batches, 2))
    for place in order:
        event = place % n
        if tenth >= 0:
            if event % TENTHS == tenth:
                continue
            event -= (event + TENTHS - 1 - tenth) // TENTHS
        b = event // batch
        if every[b] > 0 and scores[place] != latest[b]:
            _pass_threshold(sums[b], true[b], every[b], true_before[b], every_before[b])
            true_before[b], every_before[b] = true[b], every[b]
        latest[b] = scores[place]
        true[b] += place < n
        every[b] += 1
    for b in range(batches):
        _pass_threshold(sums[b], true[b], every[b], true_before[b], every_before[b])
        figures[0] += sums[b, 0]
        figures[1] += sums[b, 1] / true[b]
    figures /= left  # once, so that a perfect scorer has exactly 1


@njit(cache=True, nogil=True)
def _pass_threshold(sums, true, every, true_before, every_before):  # type: ignore[no-untyped-def]  # compiled
    sums[0] += (true - true_before) * (true / every)
    sums[1] += ((every - true) - (every_before - true_before)) * (true_before + true) / 2
