"""Figures of scores of labelled events: how well they rank, how right they are as probabilities, what a review finds.

All functions take columns of n events in any order. ``score`` (n,) ranks, the higher the likelier label 1, and infinite ones
are fine. ``label`` (n,) is 0 or 1. ``weight`` float64 (n,) says how many events each stands for, 0 or more; None: one.
A figure without a meaning is None, or absent among several: without events, if a score is not a number, or if a class that
it needs is missing.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Float64, Int64
from freshet_graph.stream.kernels.mixing import mixed
from freshet_graph.trainer.scoring.metrics import Scores, rankings

Labels = NDArray[np.integer] | Bool

DAY_US = 86_400_000_000
BINS = 15
"""Of the calibration error, as in Guo et al. 2017."""

LEAST_PROPENSITY = 0.01
"""An event stands for at most a hundred, so that no single one decides a figure."""


def inverse_propensity(propensity: Float64) -> Float64:
    """Weights of events that got a label with some probability: 1 / max(propensity, ``LEAST_PROPENSITY``).

    Args:
        propensity: float64 (n,) in [0, 1]; NaN where it is unknown.

    Returns:
        float64 (n,), 1 where the propensity is unknown.
    """
    return np.where(np.isnan(propensity), 1.0, 1 / np.maximum(propensity, LEAST_PROPENSITY))


def label_rankings(score: Scores, label: Labels, weight: Float64 | None = None) -> dict[str, float]:
    """How well scores rank events of label 1 above those of label 0; equal scores are one threshold.

    Returns:
        ``auroc``: Σ w_i w_j [s_i > s_j, a tie one half] / Σ w_i w_j over events i of label 1 and j of label 0.
        ``average_precision``: Σ over thresholds, recall gained × precision there, both of weights, as scikit-learn has it
        with ``sample_weight``. ``base_rate``: share of label 1 by weight, which is the average precision of equal scores.
        The first two need both labels.
    """
    counts = np.ones(len(score), np.bool_) if weight is None else weight > 0
    true, false = (label == 1) & counts, (label != 1) & counts
    if not counts.any() or np.isnan(score[counts]).any():
        return {}
    every = counts.astype(np.float64) if weight is None else weight
    figures = {"base_rate": float(every[true].sum() / every[counts].sum())}
    if true.any() and false.any():
        weights = None if weight is None else (weight[true][None], weight[false][None])
        ((precision, area),) = rankings(score[true][None], score[false][None], weights=weights).tolist()
        figures |= {"auroc": area, "average_precision": precision}
    return figures


def brier(probability: Float64, label: Labels, weight: Float64 | None = None) -> float | None:
    """Brier score: Σ w (p − y)² / Σ w, in [0, 1]; 0 is best. That of the constant base rate r is r (1 − r).

    Args:
        probability: (n,) of label 1, in [0, 1]; not a logit.
        label: See the module.
        weight: See the module.
    """
    every = _checked(probability, weight)
    return None if every is None else float(every @ (probability - (label == 1)) ** 2 / every.sum())


def expected_calibration_error(
    probability: Float64, label: Labels, weight: Float64 | None = None, bins: int = BINS
) -> float | None:
    """Expected calibration error over bins of equal mass: Σ_b |Σ_{i in b} w_i (p_i − y_i)| / Σ w.

    Events are sorted by their probability, and each bin takes an equal share of the weight, because bins of equal width
    would put nearly all of a rare label into the first. Equal probabilities share the bin of the middle of their weight, so
    the order of events plays no part. With few events in a bin the figure of a perfect forecast is above 0.

    Args:
        probability: (n,) of label 1, in [0, 1]; not a logit.
        label: See the module.
        weight: See the module.
        bins: Their number, 1 or more.
    """
    every = _checked(probability, weight)
    if every is None:
        return None
    _, group = np.unique(probability, return_inverse=True)
    mass = np.bincount(group, every)
    excess = np.bincount(group, every * (probability - (label == 1)))
    total = np.cumsum(mass)
    place = (bins * (total - mass / 2) / total[-1]).astype(np.int64)
    return float(np.abs(np.bincount(place, excess)).sum() / total[-1])


@dataclass(frozen=True, slots=True)
class DailyFigure:
    """A figure of what is looked at each day.

    Attributes:
        value: In [0, ceiling].
        ceiling: Its largest value over all scores of the same events.
        days: Days with an event.
    """

    value: float
    ceiling: float
    days: int


def precision_at_k(
    score: Scores, label: Labels, source: Int64, day: Int64, k: int, *, leave_found: bool = True
) -> DailyFigure | None:
    """Precision at k per day and source node, such as *card precision at 100* of the Fraud Detection Handbook.

    Each day the k sources of highest score are looked at; a source's score is the highest of its events that day. Right
    are those with an event of label 1 that day. The figure is their number / k, a mean over the days. If a day has fewer
    sources, places that stay empty count as wrong, as in the handbook. Equal scores are ordered by a hash of day and
    source, which knows no label. There are no weights: k is a number of sources that somebody looks at.

    Args:
        score: See the module.
        label: See the module.
        source: int64 (n,), the node that is looked at.
        day: int64 (n,), number of the event's day.
        k: Sources per day, 1 or more.
        leave_found: Whether a source that was looked at and right is left out on all later days.
    """
    if not len(score) or np.isnan(score).any():
        return None
    order = np.lexsort((source, day))
    source, day = source[order], day[order]
    begins = np.flatnonzero(np.append(True, (source[1:] != source[:-1]) | (day[1:] != day[:-1])))
    right = np.logical_or.reduceat(label[order] == 1, begins)
    score, source, day = np.maximum.reduceat(score[order], begins), source[begins], day[begins]
    nodes, number = np.unique(source, return_inverse=True)
    days, starts = np.unique(day, return_index=True)
    is_left_out = np.zeros(len(nodes), np.bool_)
    right_sum = 0
    for of_day in np.split(np.arange(len(day)), starts[1:]):
        left = of_day[~is_left_out[number[of_day]]]
        order = np.lexsort((mixed(int(day[of_day[0]]), source[left]), -score[left]))
        rows = left[order[:k]]
        right_rows = rows[right[rows]]
        right_sum += len(right_rows)
        is_left_out[number[right_rows]] = leave_found
    if leave_found:
        most = _most_found(number[right], day[right], k)
    else:
        most = int(np.minimum(np.unique(day[right], return_counts=True)[1], k).sum())
    return DailyFigure(right_sum / (k * len(days)), most / (k * len(days)), len(days))


def recall_at_budget(
    score: Scores, label: Labels, day: Int64, budget: float, weight: Float64 | None = None
) -> DailyFigure | None:
    """Share of the events of label 1 that a review of so many events per day finds, of all days together.

    Each day events are looked at from the highest score down until their weights sum up to the budget. Of equal scores
    at its end the same share of each counts, which is the mean over all orders. Value: Σ w of label 1 looked at / Σ w of
    label 1. Ceiling: Σ over days min(budget, Σ w of label 1) / Σ w of label 1.

    Args:
        score: See the module.
        label: See the module.
        day: int64 (n,), number of the event's day.
        budget: Events per day.
        weight: See the module.
    """
    every = np.ones(len(score)) if weight is None else weight
    true = np.where(label == 1, every, 0.0)
    if np.isnan(score[every > 0]).any() or not true.sum() > 0:
        return None
    order = np.lexsort((-score, day))
    score, day, every, true = score[order], day[order], every[order], true[order]
    is_first = np.append(True, (score[1:] != score[:-1]) | (day[1:] != day[:-1]))
    begins = np.flatnonzero(is_first)
    days, starts = np.unique(day, return_index=True)
    mass, positives = np.add.reduceat(every, begins), np.add.reduceat(true, begins)
    first_of_day = np.searchsorted(begins, starts)
    before = np.cumsum(mass) - mass
    before -= np.repeat(before[first_of_day], np.diff(np.append(first_of_day, len(begins))))
    share = np.clip(np.divide(budget - before, mass, out=np.zeros_like(mass), where=mass > 0), 0, 1)
    most = np.minimum(np.add.reduceat(true, starts), budget)
    ceiling = float(most.sum() / true.sum())
    value = min(float(share @ positives / true.sum()), ceiling)  # above it by rounding only
    return DailyFigure(value, ceiling, len(days))


@dataclass(frozen=True, slots=True)
class JudgedEvents:
    """Events with a score and a label, n in any order.

    Attributes:
        score: float64 (n,), ranks; or (n, S), a column per scorer.
        probability: float64 (n,), of label 1; all NaN if there is none. Or (n, P), of the first P scorers.
        label: bool (n,).
        source: int64 (n,), the node that a review looks at.
        t_us: int64 (n,), the event's own time, microseconds since 1970.
        weight: float64 (n,), how many events it stands for.
    """

    score: Float64
    probability: Float64
    label: Bool
    source: Int64
    t_us: Int64
    weight: Float64

    @classmethod
    def of(
        cls,
        score: Scores,
        label: Labels,
        source: Int64,
        t_us: Int64,
        *,
        probability: Scores | None = None,
        weight: Scores | None = None,
    ) -> "JudgedEvents":
        """Columns of any of their types; without probabilities, or without weights, which are then 1."""
        return cls(
            np.asarray(score, np.float64),
            np.full(len(score), np.nan) if probability is None else np.asarray(probability, np.float64),
            np.asarray(label) == 1,
            np.asarray(source, np.int64),
            np.asarray(t_us, np.int64),
            np.ones(len(score)) if weight is None else np.asarray(weight, np.float64),
        )

    def __len__(self) -> int:
        return len(self.t_us)

    def select(self, rows: NDArray[Any]) -> "JudgedEvents":
        """Some of them, by their places or a mask."""
        return JudgedEvents(*(getattr(self, column)[rows] for column in COLUMNS))

    def of_scorer(self, column: int) -> "JudgedEvents":
        """One scorer's column of several."""
        has_probability = column < self.probability.shape[1]
        probability = self.probability[:, column] if has_probability else np.full(len(self), np.nan)
        return replace(self, score=self.score[:, column], probability=probability)

    def figures(self, k: int, budget: float, whole_days: Bool | None = None) -> dict[str, float]:
        """All figures that have a meaning, by name.

        Args:
            k: Sources per day; see ``precision_at_k``.
            budget: Events per day; see ``recall_at_budget``.
            whole_days: bool (n,), which events the figures of days are about; None: all.

        Returns:
            ``base_rate``, ``auroc``, ``average_precision``, ``brier``, ``expected_calibration_error``, ``precision_at_k``,
            ``recall_at_budget``, the ceilings of the last two (``precision_at_k_ceiling``, …), and ``days``.
        """
        figures = label_rankings(self.score, self.label, self.weight)
        for name, value in (
            ("brier", brier(self.probability, self.label, self.weight)),
            (
                "expected_calibration_error",
                expected_calibration_error(self.probability, self.label, self.weight),
            ),
        ):
            figures |= {} if value is None else {name: value}
        daily = self if whole_days is None else self.select(whole_days)
        day = daily.t_us // DAY_US
        for name, figure in (
            ("precision_at_k", precision_at_k(daily.score, daily.label, daily.source, day, k)),
            ("recall_at_budget", recall_at_budget(daily.score, daily.label, day, budget, daily.weight)),
        ):
            if figure is not None:
                figures |= {name: figure.value, f"{name}_ceiling": figure.ceiling, "days": figure.days}
        return figures


COLUMNS = tuple(column.name for column in fields(JudgedEvents))

OF_EVENTS = ("base_rate", "precision_at_k_ceiling", "recall_at_budget_ceiling", "days")
"""Figures that no scorer changes."""


class SlidingLabelFigures:
    """Figures of the newest judged events, within a bounded memory.

    Labels come late and out of order: label 1 after days, and label 0 only when its time is over. So the newest events that
    are judged are nearly all of label 1. The window therefore goes by the events' own times, and counts those up to a time
    before which all are judged. Figures of days are about days that lie in it as a whole.

    Args:
        events: At most so many are kept, those of the newest times; between two looks twice as many, of 25 bytes each and 8
            per score and probability.
        span_s: Only events of so many seconds before that time are kept; None: all.
    """

    def __init__(self, events: int, span_s: float | None = None) -> None:
        self._capacity = events
        self._span_us = None if span_s is None else round(span_s * 1e6)
        self._parts: list[JudgedEvents] = []
        self._judged_until_us = self._dropped_until_us = -(1 << 62)

    def add(self, events: JudgedEvents, judged_until_us: int) -> None:
        """Take in judged events.

        Args:
            events: Each once, in any order; arrays are not copied.
            judged_until_us: All events at or before this time have been judged, microseconds since 1970. It never falls:
                an earlier time than before changes nothing.
        """
        self._parts.append(events)
        self._judged_until_us = max(self._judged_until_us, judged_until_us)
        if sum(map(len, self._parts)) > 2 * self._capacity or len(self._parts) > 1000:
            self._trimmed()

    def skip_until(self, t_us: int) -> None:
        """Events up to this time are missing, so the days that they lie in do not count; it never falls, microseconds."""
        self._dropped_until_us = max(self._dropped_until_us, t_us)

    @property
    def judged_until_us(self) -> int:
        """See ``add``."""
        return self._judged_until_us

    def counted(self) -> JudgedEvents:
        """The events of the window, in order of time."""
        events = self._trimmed()
        return events.select(events.t_us <= self._judged_until_us)

    def figures(self, k: int, budget: float) -> dict[str, float]:
        """Figures of the window; see ``JudgedEvents.figures``."""
        events = self.counted()
        return events.figures(k, budget, self._of_whole_days(events))

    def figures_by_scorer(
        self, scorers: Sequence[str], k: int, budget: float
    ) -> dict[tuple[str, str], float]:
        """Figures by their name and scorer, of events whose scores have a column per scorer.

        Those of ``OF_EVENTS`` stand beside the first scorer only.
        """
        events = self.counted()
        if not len(events):
            return {}
        is_whole = self._of_whole_days(events)
        return {
            (name, scorer): value
            for column, scorer in enumerate(scorers)
            for name, value in events.of_scorer(column).figures(k, budget, is_whole).items()
            if column == 0 or name not in OF_EVENTS
        }

    def _of_whole_days(self, events: JudgedEvents) -> Bool:
        begins = events.t_us // DAY_US * DAY_US
        return (begins > self._dropped_until_us) & (begins + DAY_US - 1 <= self._judged_until_us)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return sum(getattr(part, column).nbytes for part in self._parts for column in COLUMNS)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        events = self._trimmed()
        return {
            **{column: getattr(events, column) for column in COLUMNS},
            "judged_until_us": self._judged_until_us,
            "dropped_until_us": self._dropped_until_us,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``, also of a window of another size."""
        events = JudgedEvents(*(np.asarray(state[column]).copy() for column in COLUMNS))
        self._parts = [events] if len(events) else []
        self._judged_until_us = int(state["judged_until_us"])
        self._dropped_until_us = int(state["dropped_until_us"])

    def _trimmed(self) -> JudgedEvents:
        """All kept events as one part, in order of time; of equal times in the order of adding."""
        if not self._parts:
            return JudgedEvents.of(*np.empty((4, 0)))
        events = JudgedEvents(
            *(np.concatenate([getattr(part, column) for part in self._parts]) for column in COLUMNS)
        )
        events = events.select(np.argsort(events.t_us, kind="stable"))
        first = max(0, len(events) - self._capacity)
        if self._span_us is not None:
            begins_us = self._judged_until_us - self._span_us
            first = max(first, int(np.searchsorted(events.t_us, begins_us, side="right")))
        if first:
            self._dropped_until_us = max(self._dropped_until_us, int(events.t_us[first - 1]))
            events = events.select(np.arange(first, len(events)))
        self._parts = [events]
        return events


def _checked(probability: Float64, weight: Float64 | None) -> Float64 | None:
    """Weights; None if there is no probability."""
    every = np.ones(len(probability)) if weight is None else weight
    if np.isnan(probability).any() or not every.sum() > 0:
        return None
    assert probability.min() >= 0, "a logit is no probability"
    assert probability.max() <= 1, "a logit is no probability"
    return every


def _most_found(source: Int64, day: Int64, k: int) -> int:
    """Most sources that are right, each on one of its days, k per day: a maximum matching, by augmenting paths (Kuhn 1955).

    Args:
        source: int64 (m,), of the rows with a label 1.
        day: int64 (m,).
        k: Sources per day.
    """
    days_of: dict[int, list[int]] = defaultdict(list)
    for node, its_day in zip(source.tolist(), day.tolist(), strict=True):
        days_of[node].append(its_day)
    chosen: dict[int, set[int]] = defaultdict(set)
    full: set[int] = set()  # no path from here leads to a free place, now or later
    for node in days_of:
        step_to: dict[int, tuple[int, int | None]] = {}  # day → who would move there, and from which day
        free = _free_day(node, days_of, chosen, full, step_to, k)
        if free is None:
            full |= step_to.keys()
        while free is not None:
            mover, free_before = step_to[free]
            chosen[free].add(mover)
            if free_before is not None:
                chosen[free_before].remove(mover)
            free = free_before
    return sum(map(len, chosen.values()))


def _free_day(
    node: int,
    days_of: dict[int, list[int]],
    chosen: dict[int, set[int]],
    full: set[int],
    step_to: dict[int, tuple[int, int | None]],
    k: int,
) -> int | None:
    """A day with a free place that a node reaches by moving others, step by step; None if there is no such day."""
    queue: list[tuple[int, int | None]] = [(node, None)]
    for mover, free_before in queue:  # grows
        for day in days_of[mover]:
            if day in full or day in step_to:
                continue
            step_to[day] = mover, free_before
            if len(chosen[day]) < k:
                return day
            queue.extend((other, day) for other in chosen[day])
    return None
