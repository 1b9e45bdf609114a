"""Prometheus series of hybrid batches, listed in docs/metrics.md."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from trainer.strategies.batches import Batches

WAIT_BUCKETS = (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class BatchMetrics:
    """The series of one rank.

    Args:
        make: Makes a metric from its kind, name, text and labels; the first label of each is the graph.
        rank: This rank.
    """

    def __init__(self, make: Callable[..., Any], rank: str) -> None:
        self._rank = rank
        gauge, counter = partial(make, Gauge), partial(make, Counter)
        self._size = gauge("trainer_batch_size", "Mean size of a hybrid batch", "rank", "of")
        self._epsilon = gauge("trainer_adjuster_epsilon", "Probability that the size of batches is drawn")
        self._reward = gauge("trainer_adjuster_reward", "What the adjuster learned from last")
        self._reservoir = gauge(
            "trainer_reservoir_batches", "Batches that may be learned again", "rank", "size"
        )
        self._reads = counter("trainer_reservoir_reads", "Batches by outcome", "rank", "outcome")
        self._waits = make(
            Histogram,
            "trainer_generator_wait_seconds",
            "Training's wait for a batch that was not there",
            "rank",
            buckets=WAIT_BUCKETS,
        )
        self._averages = counter("trainer_averages", "Averages of all ranks' weights")
        self._divergence = gauge(
            "trainer_divergence_ratio", "Largest distance of a rank's weights from their mean, to its norm"
        )

    def observe(self, graph: str, parts: Sequence[Batches]) -> None:
        """Take in the passes over a snapshot; rank 0 exports the figures that all ranks share."""
        for part in parts:
            for of, value in part.size.items():
                self._size.labels(graph, self._rank, of).set(value)
            for size, count in part.reservoir.items():
                self._reservoir.labels(graph, self._rank, size).set(count)
            for outcome, count in part.reads.items():
                self._reads.labels(graph, self._rank, outcome).inc(count)
            for wait_s in part.waits_s:
                self._waits.labels(graph, self._rank).observe(wait_s)
            if self._rank == "0":
                self._epsilon.labels(graph).set(part.epsilon)
                self._reward.labels(graph).set(part.reward)
                self._averages.labels(graph).inc(part.averages)
        if parts and self._rank == "0":
            self._divergence.labels(graph).set(max(part.divergence for part in parts))
