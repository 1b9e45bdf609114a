"""The trainer's Prometheus series, listed in docs/metrics.md."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.schemas.version import version
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.labels.report import LabelReport
from freshet_graph.trainer.scoring.metrics import Figures
from freshet_graph.trainer.strategies.cost_model import AUTO, CANDIDATES
from freshet_graph.trainer.strategies.figures import TrainingFigure, Values, declared_by
from freshet_graph.trainer.strategies.interface import STRATEGIES
from freshet_graph.trainer.wire.traffic import Traffic

STEP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
FRESHNESS_BUCKETS = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21_600, 86_400, 604_800)

KINDS: dict[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}

Metric = TypeVar("Metric", bound=MetricWrapperBase)


class TrainerMetrics:
    """All series of one rank.

    Args:
        config: Its hash and lane are labels, and its strategy declares series of its own.
        rank: This rank.
        ranks: How many there are; None: only this one is known.
        up: Whether a rank lives, asked at every scrape.
        restarts: How often all ranks were started again before this start.

    Attributes:
        registry: Series for the endpoint.

    Raises:
        Failure: The strategy is unknown, or a figure of it has the name of another series, or a wrong one.
    """

    def __init__(
        self,
        config: TrainerConfig,
        rank: int,
        *,
        ranks: int | None = None,
        up: Callable[[int], bool] = lambda _: True,
        restarts: int = 0,
    ) -> None:
        self.registry = CollectorRegistry()
        self._graph = ""  # until the lane is open
        self._lane = config.lane
        self._rank = str(rank)
        self._ranks, self._is_up = [rank] if ranks is None else list(range(ranks)), up
        self._restarts_before = restarts
        self._max_lag = config.lag.max_snapshots
        self._traffic_before = Traffic()
        gauge, counter = partial(self._make, Gauge), partial(self._make, Counter)
        histogram = partial(self._make, Histogram)
        self._lag = gauge("trainer_lag_snapshots", "Lane snapshots not yet trained", "lane")
        self._freshness = histogram(
            "trainer_freshness_seconds",
            "Event time of a snapshot's newest event to its being in the weights",
            buckets=FRESHNESS_BUCKETS,
        )
        self._oldest_freshness = histogram(
            "trainer_oldest_freshness_seconds",
            "Event time of a snapshot's oldest event to its being in the weights",
            buckets=FRESHNESS_BUCKETS,
        )
        self._learned_time = gauge("trainer_learned_timestamp_seconds", "When a snapshot was last learned")
        self._interval = gauge("trainer_snapshot_interval_seconds", "Length of the lane's snapshots")
        self._lag_limit = gauge("trainer_max_lag_snapshots", "lag.max_snapshots", "lane")
        self._rank_count = gauge("trainer_ranks", "Ranks that there should be", "lane")
        self._restarts = counter(
            "trainer_restarts", "Times that all ranks were started again by their launcher"
        )
        self._unscored = gauge(
            "trainer_unscored_snapshots", "Snapshots learned since the model was last scored"
        )
        self._below = gauge(
            "trainer_below_recency_snapshots", "Newest snapshots in a row that the baseline predicted better"
        )
        self._weights_time = gauge(
            "trainer_weights_event_timestamp_seconds", "Event time of the newest event in the weights"
        )
        self._events = counter("trainer_events", "Insert events by use", "use")
        self._tracker_failures = counter(
            "trainer_tracker_failures", "Attempts to reach the experiment tracker that failed"
        )
        self._steps = histogram(
            "trainer_step_seconds", "A snapshot's phases", "phase", "rank", buckets=STEP_BUCKETS
        )
        self._loss = gauge("trainer_loss", "Mean loss of the last snapshot, nats a query")
        self._score = gauge(
            "trainer_score", "Prequential score of the last snapshot", "metric", "subset", "scorer"
        )
        self._score_error = gauge(
            "trainer_score_error",
            "Standard error of a score that is made of a sample of the last snapshot",
            "metric",
            "subset",
            "scorer",
        )
        self._score_events = gauge(
            "trainer_score_events", "Events of the last snapshot that scores are made of", "kind"
        )
        self._sliding = gauge(
            "trainer_sliding_score", "Prequential score over the sliding window", "metric", "scorer"
        )
        self._drop = gauge(
            "trainer_drift", "By how much the sliding score is worse than that of the reference before it"
        )
        self._drifts = counter("trainer_drifts", "Drops of the sliding score beyond the threshold")
        self._share = gauge("trainer_trained_ratio", "Share of the last snapshot's inserts that were learned")
        self._step_events = gauge(
            "trainer_step_events", "Events of all ranks that an optimiser step learns from, at most"
        )
        self._excluded = counter("trainer_eval_excluded", "Events left out of scores", "reason")
        self._labels = counter("trainer_labels", "Events whose label was decided", "label", "by")
        self._label_delay = gauge(
            "trainer_label_delay_seconds",
            "Quantiles from event to label, of the newest snapshot with labels",
            "quantile",
        )
        self._label_time = gauge(
            "trainer_label_timestamp_seconds", "Event time at which the newest label became visible"
        )
        self._labels_expected = gauge("trainer_labels_expected_seconds", "labels_expected_s")
        self._unjudged = gauge("trainer_unjudged_events", "Events that wait for a label")
        self._judged_until = gauge(
            "trainer_judged_until_timestamp_seconds", "Event time up to which all events are judged"
        )
        self._stability = gauge(
            "trainer_stability_index",
            "Population stability index of the newest window against the one before",
            "column",
        )
        self._nonfinite = counter("trainer_nonfinite", "Steps with non-finite loss or gradient")
        self._checkpoint = gauge(
            "trainer_checkpoint_timestamp_seconds", "When the newest checkpoint was written"
        )
        self._memory = gauge("trainer_memory_bytes", "Memory held", "rank", "kind")
        self._evicted = counter("trainer_evicted", "Forgotten to stay within the budget", "kind")
        self._remembered = gauge("trainer_remembered", "What event models remember", "kind")
        self._comm = counter("trainer_comm_bytes", "Payload bytes sent to other ranks", "op")
        self._comm_seconds = histogram(
            "trainer_comm_seconds",
            "A snapshot's time in collectives: for the slowest rank, and for bytes",
            "op",
            buckets=STEP_BUCKETS,
        )
        self._waits = counter(
            "trainer_wait_seconds",
            "Time in collectives while learning: for the slowest rank, and for bytes",
            "rank",
        )
        self._up = gauge("trainer_rank_up", "1 while the rank lives, as each rank sees it", "rank")
        self._waiting = gauge(
            "trainer_waiting", "1 while there is no snapshot to train: the store doesn't move", "lane"
        )
        self._export_held = gauge(
            "trainer_export_held", "1 while exports are held back for what the model predicts"
        )
        self._strategy = gauge(
            "trainer_strategy_info", "1, labelled with the strategy that trains", "strategy"
        )
        self._predicted = gauge(
            "trainer_predicted_seconds",
            "Predicted seconds of a pass over the newest snapshot, under strategy: auto",
            "strategy",
        )
        names = CANDIDATES if config.strategy == AUTO else (config.strategy,)
        declared = {figure: name for name in names for figure in declared_by(STRATEGIES.find(name))}
        self._figures = {figure: self._declared(name, figure) for figure, name in declared.items()}
        self._build = gauge("build_info", "1, labelled with the version", "version")
        self._config = gauge("config_info", "1, labelled with the configuration's hash", "hash")
        self._digest = config.digest()
        self.graph("")

    def graph(self, name: str, lane: str | None = None) -> None:
        """Name the graph, the label of every series, empty until the lane is open; and the lane if ``auto`` chose it."""
        self._graph, self._lane = name, lane or self._lane
        for gauge, label in (self._build, version()), (self._config, self._digest):
            gauge.clear()
            gauge.labels(name, label).set(1)
        for gauge, value in (
            (self._lag, 0),
            (self._waiting, 0),
            (self._lag_limit, self._max_lag),
            (self._rank_count, len(self._ranks)),
        ):
            gauge.clear()
            gauge.labels(name, self._lane).set(value)
        self._up.clear()
        for rank in self._ranks:
            self._up.labels(name, str(rank)).set_function(partial(self._is_up, rank))
        if self._rank != "0":
            return
        # Counters begin at zero: rate() and increase() do not see the first value of a series.
        for counter in (
            self._restarts,
            self._nonfinite,
            self._events,
            self._excluded,
            self._tracker_failures,
            self._labels,
        ):
            counter.clear()
        self._restarts.labels(name).inc(self._restarts_before)
        self._nonfinite.labels(name)
        self._tracker_failures.labels(name)
        for use in ("trained", "discarded", "replayed", "state_only"):
            self._events.labels(name, use)
        for reason in ("late", "delete", "no_negative", "wrong_label", "label_lost", "stopped"):
            self._excluded.labels(name, reason)

    def begins(self, interval_s: float, weights_event_us: int | None, checkpoint_s: float | None) -> None:
        """Training begins, on rank 0.

        Args:
            interval_s: Length of the lane's snapshots, seconds.
            weights_event_us: Time of the newest event in the resumed weights; None: they are new.
            checkpoint_s: When the resumed checkpoint was written; None: training begins without one.
        """
        self._interval.labels(self._graph).set(interval_s)
        if weights_event_us is not None:
            self._weights_time.labels(self._graph).set(weights_event_us / US_PER_S)
        self._checkpoint.labels(self._graph).set(time.time() if checkpoint_s is None else checkpoint_s)
        for gauge in (self._unscored, self._below):
            gauge.labels(self._graph).set(0)

    def strategy(self, name: str, predicted_s: Mapping[str, float]) -> None:
        """The strategy that trains, and predicted seconds by strategy under ``auto``, on rank 0."""
        self._strategy.clear()
        self._strategy.labels(self._graph, name).set(1)
        self._predicted.clear()
        for strategy, seconds in predicted_s.items():
            self._predicted.labels(self._graph, strategy).set(seconds)

    def waiting(self, *, yes: bool) -> None:
        """Whether there is nothing to train right now."""
        self._waiting.labels(self._graph, self._lane).set(int(yes))

    def export_held(self, *, yes: bool) -> None:
        """Whether the last snapshot's export was held back."""
        self._export_held.labels(self._graph).set(int(yes))

    def lag(self, snapshots: int) -> None:
        """Snapshots of the lane that are not yet trained."""
        self._lag.labels(self._graph, self._lane).set(snapshots)

    def scored(
        self, figures: Figures, selection_metric: tuple[str, int] = ("ap", 1), baseline: str = "recency"
    ) -> None:
        """Scores of the last snapshot; a figure that could not be computed disappears.

        Args:
            figures: All of them.
            selection_metric: The metric without which a snapshot counts as unscored, and 1 if more of it is better, else −1.
            baseline: Scorer that the model has to beat.
        """
        metric, sign = selection_metric
        model, least = (figures.get((metric, "all", scorer)) for scorer in ("model", baseline))
        unscored, below = self._unscored.labels(self._graph), self._below.labels(self._graph)
        if model is None:
            unscored.inc()
        else:
            unscored.set(0)
        if model is not None and least is not None:
            below.inc() if sign * (model - least) < 0 else below.set(0)
        self._score.clear()
        for (metric, subset, scorer), value in figures.items():
            self._score.labels(self._graph, metric, subset, scorer).set(value)

    def sampled(self, errors: Figures, sizes: Mapping[str, int]) -> None:
        """Uncertainty of the last snapshot's sampled scores.

        Args:
            errors: Their standard errors.
            sizes: Events by kind.
        """
        self._score_error.clear()
        for key, error in errors.items():
            self._score_error.labels(self._graph, *key).set(error)
        for kind, count in sizes.items():
            self._score_events.labels(self._graph, kind).set(count)

    def slid(self, metric: str, means: Mapping[str, float], drop: float | None, *, drifted: bool) -> None:
        """A metric over the sliding window by scorer, and its drop; None without a reference."""
        self._sliding.clear()
        for scorer, value in means.items():
            self._sliding.labels(self._graph, metric, scorer).set(value)
        self._drop.clear()
        if drop is not None:
            self._drop.labels(self._graph).set(drop)
        self._drifts.labels(self._graph).inc(int(drifted))

    def steps_of(self, events: int) -> None:
        """Events of a step, at most."""
        self._step_events.labels(self._graph).set(events)

    def trained_share(self, share: float) -> None:
        """Share of the last snapshot's inserts that were learned."""
        self._share.labels(self._graph).set(share)

    def excluded(self, reasons: Mapping[str, int]) -> None:
        """Events left out of scores."""
        for reason, count in reasons.items():
            self._excluded.labels(self._graph, reason).inc(count)

    def labels(self, report: LabelReport) -> None:
        """How labels arrived in the last snapshot."""
        graph = self._graph
        for (label, origin), count in report.judged.items():
            self._labels.labels(graph, label, origin).inc(count)
        for share, seconds in report.delay_s.items():
            self._label_delay.labels(graph, str(share)).set(seconds)
        if report.newest_s is not None:
            self._label_time.labels(graph).set(report.newest_s)
        self._labels_expected.labels(graph).set(report.expected_s)
        self._unjudged.labels(graph).set(report.unjudged)
        self._judged_until.labels(graph).set(report.judged_until_s)
        self._stability.clear()
        for column, index in report.stability.items():
            self._stability.labels(graph, column).set(index)

    def used(self, use: str, events: int) -> None:
        """Insert events by use: a label value of docs/metrics.md."""
        self._events.labels(self._graph, use).inc(events)

    def learned(
        self, loss: float | None, nonfinite: int, *, newest_event_us: int, oldest_event_us: int
    ) -> None:
        """A snapshot is in the weights."""
        now_s = time.time()
        if loss is not None:
            self._loss.labels(self._graph).set(loss)
        self._nonfinite.labels(self._graph).inc(nonfinite)
        self._weights_time.labels(self._graph).set(newest_event_us / US_PER_S)
        self._learned_time.labels(self._graph).set(now_s)
        for histogram, event_us in (
            (self._freshness, newest_event_us),
            (self._oldest_freshness, oldest_event_us),
        ):
            histogram.labels(self._graph).observe(max(0.0, now_s - event_us / US_PER_S))

    def seconds(self, phases: Mapping[str, float]) -> None:
        """Wall time of a snapshot's phases on this rank."""
        for phase, seconds in phases.items():
            self._steps.labels(self._graph, phase, self._rank).observe(seconds)

    def waited(self, seconds: float) -> None:
        """Time that this rank spent in collectives while it learned a snapshot."""
        self._waits.labels(self._graph, self._rank).inc(seconds)

    def figures(self, reported: Mapping[str, Values]) -> None:
        """The strategy's own figures of a snapshot, on this rank."""
        for figure, series in self._figures.items():
            if figure.name not in reported or (figure.shared and self._rank != "0"):
                continue
            if figure.kind == "gauge":
                series.clear()  # a value that could not be computed disappears
            rank = (self._rank,) if "rank" in figure.labels else ()
            for labels, value in reported[figure.name].items():
                of = series.labels(self._graph, *rank, *labels)
                if figure.kind == "histogram":
                    for observation in value:
                        of.observe(observation)
                else:
                    of.set(value) if figure.kind == "gauge" else of.inc(value)

    def checkpointed(self) -> None:
        """A checkpoint was written now."""
        self._checkpoint.labels(self._graph).set(time.time())

    def forgot(self, evicted: Mapping[str, int], left: Mapping[str, int]) -> None:
        """Counts forgotten since the last snapshot, and counts remembered now, by kind: node, event, pair."""
        for kind, count in evicted.items():
            self._evicted.labels(self._graph, kind).inc(count)
        for kind, count in left.items():
            self._remembered.labels(self._graph, kind).set(count)

    def resources(self, traffic: Traffic, bytes_held: Mapping[str, int]) -> None:
        """Traffic since this rank started, and the bytes that it holds now; called once per snapshot."""
        new, self._traffic_before = traffic.since(self._traffic_before), traffic.copy()
        for op, sent in new.sent_bytes.items():
            self._comm.labels(self._graph, op).inc(sent)
        for op, seconds in new.seconds.items():
            self._comm_seconds.labels(self._graph, op).observe(seconds)
        for kind, count in {**bytes_held, "rss": psutil.Process().memory_info().rss}.items():
            self._memory.labels(self._graph, self._rank, kind).set(count)

    def tracker_failed(self) -> None:
        """An attempt to reach the experiment tracker failed."""
        self._tracker_failures.labels(self._graph).inc()

    def _declared(self, strategy: str, figure: TrainingFigure) -> Any:
        """The series of a strategy's figure."""
        options = {} if figure.buckets is None else {"buckets": figure.buckets}
        name = f"trainer_{figure.name}"
        try:
            return self._make(KINDS[figure.kind], name, figure.meaning, *figure.labels, **options)
        except ValueError as error:
            raise Failure(f"figure {figure.name} of strategy {strategy}: {error}. Rename it") from None

    def _make(self, kind: type[Metric], name: str, text: str, *labels: str, **options: Any) -> Metric:
        return kind(f"freshet_{name}", text, ("graph", *labels), registry=self.registry, **options)
