"""How labels arrive: a line of the score file, and series."""

from collections.abc import Mapping

import numpy as np
from prometheus_client import CollectorRegistry

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.trainer.labels.report import LabelReport
from freshet_graph.trainer.metrics import TrainerMetrics

SECOND = 1_000_000


def report(given: list[bool], newest_us: int | None = None, **stability: float) -> LabelReport:
    """Events of seconds 0, 1, …, with labels 1, 0, 1, … at second 100."""
    count = len(given)
    return LabelReport.of(
        1 - np.arange(count) % 2, np.array(given, np.bool_), np.full(count, 100 * SECOND), np.arange(count) * SECOND,
        unjudged=7, judged_until_us=50 * SECOND, newest_us=newest_us, expected_s=60.0, stability=stability,
    )  # fmt: skip


def exported(registry: CollectorRegistry) -> dict[str, float]:
    """Samples of labels, by name and values of labels without the graph."""
    return {
        " ".join([sample.name.removeprefix("freshet_trainer_"), *_values(sample.labels)]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if any(word in sample.name for word in ("label", "judged", "stability"))
        if not sample.name.endswith("_created")
    }


def _values(labels: Mapping[str, str]) -> list[str]:
    return [labels[name] for name in sorted(labels) if name != "graph"]


def test_a_line_counts_labels_and_has_quantiles_of_the_delay_of_given_ones() -> None:
    assert report([True, True, False, True, False], 100 * SECOND, score=0.5).line() == {
        "waiting": 7,
        "judged_until": 50.0,
        "given": 3,
        "silence": 2,
        "delay_s": {"p50": 99.0, "p90": 99.8, "p99": 99.98},
        "psi": {"score": 0.5},
    }
    assert report([False]).line()["delay_s"] == {}


def test_series_count_on_and_keep_what_the_last_snapshot_does_not_say() -> None:
    metrics = TrainerMetrics(TrainerConfig(), 0)
    metrics.graph("g")
    metrics.labels(report([True, True, False], 100 * SECOND, score=0.5, weight=0.1))
    metrics.labels(report([False, True, False], 100 * SECOND, score=0.4))
    metrics.labels(report([], 100 * SECOND, score=0.4))
    assert exported(metrics.registry) == {
        "labels_total given 0": 2, "labels_total given 1": 1, "labels_total silence 0": 0, "labels_total silence 1": 3,
        "label_delay_seconds 0.5": 99, "label_delay_seconds 0.9": 99, "label_delay_seconds 0.99": 99,
        "label_timestamp_seconds": 100, "labels_expected_seconds": 60, "unjudged_events": 7,
        "judged_until_timestamp_seconds": 50, "stability_index score": 0.4,
    }  # fmt: skip


def test_before_the_first_label_no_series_says_when_it_came() -> None:
    metrics = TrainerMetrics(TrainerConfig(), 0)
    metrics.labels(report([False]))
    assert not [name for name in exported(metrics.registry) if name.startswith(("label_delay", "label_time"))]
