"""AP and AUC of batches of consecutive events, and their standard errors, by one pass over the sorted scores."""

import numpy as np
from numpy.typing import NDArray

from stream.kernels import njit
from trainer.data.history import BATCH
from trainer.scoring.ranking import Scores

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
    found = _figures(positive, negative, [_NONE], batch)
    return {} if found is None else dict(zip(RANKINGS, found[0].tolist(), strict=True))


def jackknife(positive: Scores, negative: Scores) -> dict[str, float]:
    """Standard errors of ``batched_figures``, by leaving out every tenth event in turn.

    Returns:
        Empty if figures cannot be computed, or there are fewer events than tenths.
    """
    found = _figures(positive, negative, range(TENTHS), BATCH) if len(positive) >= TENTHS else None
    if found is None:
        return {}
    errors = np.sqrt((TENTHS - 1) * found.var(axis=0))
    return dict(zip(RANKINGS, errors.tolist(), strict=True))


def _figures(
    positive: Scores, negative: Scores, tenths: range | list[int], batch: int
) -> NDArray[np.float64] | None:
    """float64 (tenths, 2): AP and AUC without each of some tenths of the events."""
    scores = np.concatenate([positive, negative]).astype(np.float64)
    if not len(scores) or np.isnan(scores).any():
        return None
    found = np.zeros((len(tenths), len(RANKINGS)))
    order = np.argsort(-scores)  # equal scores are one threshold, whatever their order
    for row, tenth in zip(found, tenths, strict=True):
        _add_up(scores, order, tenth, batch, row)
    return found


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
