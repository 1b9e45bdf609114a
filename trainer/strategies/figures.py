"""Figures of training that a strategy declares: one table, from which the score file, metrics and ``evaluate`` follow."""

import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Values = dict[tuple[str, ...], Any]
"""A figure by the values of its labels, ``rank`` excepted; ``()`` if it has no others."""

MERGES: dict[str, Callable[[list[Any]], Any]] = {
    "sum": functools.partial(functools.reduce, operator.add),  # and observations one after the other
    "mean": statistics.fmean,
    "most": max,
    "last": lambda values: values[-1],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFigure:
    """A figure that a strategy reports in ``StepReport.figures``; it is absent if it cannot be computed.

    Attributes:
        name: With its unit. The series is ``freshet_trainer_<name>``, a counter's with ``_total``.
        meaning: Help text of the series.
        kind: Of the series; a histogram has observations.
        labels: Of the series, besides the graph. ``rank``, the first if it is there, is filled in.
        merge: How several passes become one value. ``last`` drops labels that the last pass does not have.
        key: In a line of the score file, ``group.key`` for a key within another; None: the name.
        shared: Whether all ranks have the same value, so that only rank 0 exports it.
        buckets: Of a histogram.
    """

    name: str
    meaning: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...] = ()
    merge: Literal["sum", "mean", "most", "last"] = "last"
    key: str | None = None
    shared: bool = False
    buckets: tuple[float, ...] | None = None


def declared_by(strategy: Any) -> tuple[TrainingFigure, ...]:
    """The figures of a strategy or of its class; strategies of other packages may have none."""
    figures: tuple[TrainingFigure, ...] = getattr(strategy, "figures", ())
    return figures


def merged(declared: Sequence[TrainingFigure], reports: Iterable[Mapping[str, Any]]) -> dict[str, Values]:
    """The figures of several passes as one; values that are not finite are left out.

    Raises:
        ValueError: A figure is not declared, or has other labels.
    """
    passes = list(reports)
    if unknown := {name for reported in passes for name in reported} - {figure.name for figure in declared}:
        raise ValueError(f"{', '.join(sorted(unknown))} is reported, but no figure of the strategy")
    every = {
        figure: [_by_label(figure, reported[figure.name]) for reported in passes if figure.name in reported]
        for figure in declared
    }
    return {figure.name: _merged(figure.merge, parts) for figure, parts in every.items() if parts}


def shown(declared: Sequence[TrainingFigure], merged_values: Mapping[str, Values]) -> dict[str, Any]:
    """Merged figures as keys of a line of the score file; labels' values are joined by a space."""
    line: dict[str, Any] = {}
    for figure in declared:
        values = merged_values.get(figure.name)
        if not values:
            continue
        group, _, name = (figure.key or figure.name).rpartition(".")
        place = line.setdefault(group, {}) if group else line
        place[name] = values[()] if () in values else {" ".join(key): values[key] for key in sorted(values)}
    return line


def means_of(lines: Sequence[Any]) -> Any:
    """The mean of each number in nested dictionaries, over those that have it; of observations the mean as well."""
    if isinstance(lines[0], dict):
        keys = dict.fromkeys(key for line in lines for key in line)
        return {key: means_of([line[key] for line in lines if key in line]) for key in keys}
    return statistics.fmean(statistics.fmean(one) if isinstance(one, list) else one for one in lines)


def _merged(merge: str, passes: list[Values]) -> Values:
    parts = [part for part in passes if part]
    by_key: dict[tuple[str, ...], list[Any]] = {}
    for part in parts[-1:] if merge == "last" else parts:
        for key, value in part.items():
            by_key.setdefault(key, []).append(value)
    return {key: MERGES[merge](values) for key, values in by_key.items()}


def _by_label(figure: TrainingFigure, reported: Any) -> Values:
    """Finite values of a pass, as plain numbers."""
    given = reported if isinstance(reported, Mapping) else {(): reported}
    by_label: Values = {}
    for label, value in given.items():
        key = (label,) if isinstance(label, str) else tuple(label)
        if len(key) != len(figure.labels) - ("rank" in figure.labels):
            raise ValueError(
                f"figure {figure.name} has labels {figure.labels}, and is reported for {label!r}"
            )
        plain = value.tolist() if hasattr(value, "tolist") else value  # of NumPy, which JSON does not know
        if figure.kind == "histogram":
            if observations := [float(observation) for observation in plain if math.isfinite(observation)]:
                by_label[key] = observations
        elif math.isfinite(plain):
            by_label[key] = plain
    return by_label
