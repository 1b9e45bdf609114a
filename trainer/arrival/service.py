"""``freshet-trainer score``: signals, endpoint and topic around the scorer."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.schemas.version import version
from freshet_graph.stream.arrays.kinds import Float32
from freshet_graph.stream.service.endpoint import Endpoint
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.files.follow import FolderWatch
from freshet_graph.stream.store.log.arrivals import Arrived
from freshet_graph.stream.store.log.layout import COMMITS, log_folder
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.arrival.http_questions import QuestionMetrics, QuestionServer
from freshet_graph.trainer.arrival.memory import Scored
from freshet_graph.trainer.arrival.messages import Percentiles, messages
from freshet_graph.trainer.arrival.questions import Desk
from freshet_graph.trainer.arrival.scorer import NOTHING, Scorer
from freshet_graph.trainer.session.checkpoint import lane_of_checkpoint
from freshet_graph.trainer.session.session import join_ranks
from freshet_graph.trainer.shutdown import Shutdown
from freshet_graph.trainer.strategies.cost_model import AUTO

if TYPE_CHECKING:
    from freshet_graph.stream.kafka.scored_topic import ScoredTopic

WAIT_S = 0.5
LATENCY_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

log = structlog.get_logger()


class ScorerMetrics:
    """The scorer's Prometheus series, listed in docs/metrics.md.

    Attributes:
        questions: Those of questions over HTTP.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix: dict[str, Any] = {"namespace": "freshet", "registry": self.registry}
        labels = ("graph",)
        self._graph = ""  # until the log is open
        self.questions = QuestionMetrics(self.registry, lambda: self._graph)
        self._events = Counter("scorer_events", "Events scored", labels, **prefix)
        self._latency = Histogram(
            "scorer_latency_seconds",
            "From an event's commit to brokers having its score",
            labels,
            buckets=LATENCY_BUCKETS,
            **prefix,
        )
        self._checkpoint = Gauge(
            "scorer_checkpoint_sequence",
            "Number of the snapshot of the checkpoint that scores",
            labels,
            **prefix,
        )
        self._takeovers = Gauge(
            "scorer_takeovers", "Checkpoints that took over since the start", labels, **prefix
        )
        self._dropped = Gauge(
            "scorer_dropped_snapshots",
            "Snapshots since the start that retention dropped before their events were looked at",
            labels,
            **prefix,
        )
        self._behind = Gauge(
            "scorer_behind_seconds",
            "Age of the newest known commit without scores; 0: all have them",
            labels,
            **prefix,
        )

    def begin(self, graph: str, scorer: Scorer) -> None:
        """Show a scorer."""
        self._graph = graph
        self._events.labels(graph)
        self._checkpoint.labels(graph).set_function(lambda: scorer.sequence)
        self._takeovers.labels(graph).set_function(lambda: scorer.takeovers)
        self._dropped.labels(graph).set_function(lambda: scorer.dropped)
        self._behind.labels(graph).set_function(lambda: scorer.behind_s(time.time()))

    def scored(self, events: int, latency_s: float | None) -> None:
        """A commit's scores are in the topic; its latency is None if the commit is older than this process."""
        self._events.labels(self._graph).inc(events)
        if latency_s is not None and events:
            self._latency.labels(self._graph).observe(latency_s)


class _Service:
    """One run of the command."""

    def __init__(self, config: TrainerConfig, until_idle_s: float | None, topic: type["ScoredTopic"]) -> None:
        self._config, self._until_idle_s, self._make_topic = config, until_idle_s, topic
        self._shutdown = Shutdown()
        self._obstacle: str | None = "starting"
        self._graph = ""
        self._metrics = ScorerMetrics()
        self._moved_s = time.monotonic()
        self._commits = 0
        self._began = NOTHING  # newest commit when scoring began
        self._percentiles = Percentiles(config.scoring.among)
        self._topic: ScoredTopic | None = None
        self._server: QuestionServer | None = None
        self.events = 0

    def run(self) -> dict[str, Any]:
        self._shutdown.on_signals()
        config = self._config
        log.info("starting", version=version(), config=config.digest(), store=config.store)
        endpoint = Endpoint(config.metrics, self._metrics.registry, self._not_ready)
        log.info("metrics", url=endpoint.url)
        scorer: Scorer | None = None
        try:
            self._serve()
            log_reader = self._log()
            if log_reader is not None:
                scorer = self._scorer(log_reader)
            if scorer is not None:
                self._follow(scorer)
            return {
                "events": self.events,
                "commits": self._commits,
                "checkpoint": None if scorer is None else scorer.sequence,
                "takeovers": 0 if scorer is None else scorer.takeovers,
            }
        finally:
            if self._server is not None:
                self._server.close()
            if scorer is not None:
                scorer.close()
            if self._topic is not None:
                self._topic.close()
            endpoint.close()

    def _serve(self) -> None:
        if self._config.serve is not None:
            self._server = QuestionServer(self._config.serve, self._metrics.questions, lambda: self._obstacle)
            log.info("questions", url=self._server.url)

    def _not_ready(self) -> str | None:
        reason = self._obstacle or (self._topic.obstacle if self._topic is not None else None)
        if self._server is None:
            return reason
        unanswered = self._server.questions.not_ready
        if reason is None:
            return unanswered and f"questions are not answered: {unanswered}"
        return reason if unanswered else f"{reason} (questions are answered)"

    def _over(self) -> bool:
        beat()
        idle = self._until_idle_s is not None and time.monotonic() - self._moved_s > self._until_idle_s
        return self._shutdown.wanted or idle

    def _waited(self, reason: str) -> bool:
        """Wait a while for something; False: it is time to end."""
        if reason != self._obstacle:
            log.info("waiting", reason=reason)
        self._obstacle = reason
        time.sleep(WAIT_S)
        return not self._over()

    def _log(self) -> LogReader | None:
        """The log, once there is one."""
        while True:
            try:
                assert self._config.store is not None
                return LogReader(self._config.store)
            except ConfigMissingError as error:
                if not self._waited(str(error)):
                    return None

    def _scorer(self, log_reader: LogReader) -> Scorer | None:
        """The scorer, once there is a checkpoint."""
        scoring, config = self._config.scoring, self._config
        assert scoring.topic is not None and scoring.kafka is not None
        self._graph = log_reader.header.graph
        self._topic = self._make_topic(
            scoring.kafka, scoring.topic, scoring.format, log_reader.header.ids, self._over
        )
        newest = self._topic.newest(scoring.among)
        self._percentiles.of(_scores_of(newest))
        while (lane := lane_of_checkpoint(config)) is None:
            if not self._waited(
                f"{config.checkpoint} has no checkpoint yet. freshet-trainer run makes the first"
            ):
                return None
        if config.lane == AUTO:
            config = config.model_copy(update={"lane": lane})
        log_reader.refresh()
        last = NOTHING if log_reader.last is None else log_reader.last.n
        done = resumed(newest, self._graph, scoring.topic, last)
        if done is None:
            done = last if scoring.start == "latest" else NOTHING
        self._began = last
        scorer = Scorer(config, join_ranks(config), done)
        self._metrics.begin(self._graph, scorer)
        if self._server is not None:
            self._server.questions.open(Desk(scorer, self._percentiles, config.model))
        log.info("scoring", topic=scoring.topic, after_commit=done, **scorer.known.said)
        return scorer

    def _follow(self, scorer: Scorer) -> None:
        self._obstacle, self._moved_s = None, time.monotonic()
        with FolderWatch(log_folder(str(self._config.store)) / COMMITS) as watch:
            while not self._over():
                try:
                    events = scorer.new(lambda arrived, scored: self._emit(scorer, arrived, scored))
                    self._obstacle = None
                except (
                    OSError
                ) as error:  # a disk or a bucket that is away for a while: its content does not change
                    self._waited(f"the store does not answer: {one_line(error)}")
                    continue
                if events:
                    self._moved_s = time.monotonic()
                else:
                    watch.wait(WAIT_S)

    def _emit(self, scorer: Scorer, arrived: Arrived, scored: Scored) -> bool:
        assert self._topic is not None
        percentiles, now_s = self._percentiles.of(scored.score), time.time()
        content = list(messages(arrived, scored, percentiles, scorer.known.said, now_s))
        if content and not self._topic.send(content):
            return False
        self.events += len(content)
        self._commits += 1
        self._metrics.scored(
            len(content), scorer.behind_s(time.time()) if arrived.commit > self._began else None
        )
        return not self._shutdown.wanted


def follow(
    config: TrainerConfig, topic: type["ScoredTopic"], *, until_idle_s: float | None
) -> dict[str, Any]:
    """Score until SIGTERM, or until nothing new came for so many seconds.

    Args:
        config: Names store, checkpoints, brokers and topic.
        topic: Sends the scores; given, because not every installation has a client of Kafka.
        until_idle_s: Seconds; None: no limit.

    Returns:
        The keys of docs/cli.md.

    Raises:
        Failure: The topic has scores of another graph or store, the checkpoint cannot score, or no broker answers at the start.
    """
    return _Service(config, until_idle_s, topic).run()


def resumed(newest: list[dict[str, Any]], graph: str, topic: str, last: int) -> int | None:
    """The last commit whose scores are all in a topic, by its newest messages; None: it has none.

    A commit's messages are sent once all of the commit before have arrived. So only the newest commit may be incomplete.

    Raises:
        Failure: The messages are of another graph, or of commits that the log lacks.
    """
    commits = [message["commit"] for message in newest if isinstance(message.get("commit"), int)]
    others = {str(message["graph"]) for message in newest if "graph" in message} - {graph}
    if others:
        raise Failure(
            f"key scoring.topic: topic {topic} has scores of graph {', '.join(sorted(others))}, and the store is of {graph}. "
            "Choose another topic"
        )
    if not commits:
        return None
    if max(commits) > last:
        raise Failure(
            f"key scoring.topic: topic {topic} has scores of commit {max(commits)}, and the log ends with {last}: they are of "
            "another store. Choose another topic"
        )
    return max(commits) - 1


def _scores_of(newest: list[dict[str, Any]]) -> Float32:
    scores = [message["score"] for message in newest if isinstance(message.get("score"), float)]
    return np.array(scores, np.float32)
