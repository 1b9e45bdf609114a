"""``edge-classification``: the label of a node's next event, from embeddings learned without labels."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from freshet_graph.schemas.events import US_PER_S, Op, label_schema
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Bool, Float16, Float32, Float64, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns, event_columns
from freshet_graph.trainer.data.event_feed import LARGEST_FEATURE, MESSAGE
from freshet_graph.trainer.data.examples import Examples, Queries
from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.data.node_names import NodeNames
from freshet_graph.trainer.data.views import EventsView
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.labels.boosting import BoostedClassifier
from freshet_graph.trainer.labels.classifier import JudgedClassifier
from freshet_graph.trainer.labels.label_memory import DAY_US, LabelMemory
from freshet_graph.trainer.labels.report import LabelReport
from freshet_graph.trainer.labels.stability import Stability
from freshet_graph.trainer.labels.waiting import BEFORE_ALL, Events, VisibleLabels, Waiting, zeros_and_ones
from freshet_graph.trainer.models.interface import MODELS, Model
from freshet_graph.trainer.models.link_decoder import EncounterEncoder
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.calibration import Calibration, sigmoid
from freshet_graph.trainer.scoring.label_figures import (
    JudgedEvents,
    SlidingLabelFigures,
    brier,
    expected_calibration_error,
    inverse_propensity,
    label_rankings,
)
from freshet_graph.trainer.scoring.metrics import Figures, cautions, warn_of
from freshet_graph.trainer.scoring.predictions import Predictions, join
from freshet_graph.trainer.tasks.interface import TASKS, QueryAnswering
from freshet_graph.trainer.tasks.link_prediction import LinkPrediction, Links, Splits

log = structlog.get_logger()


BOOSTED = ("boosting", "boosting_vectors")
"""Baselines if they are asked for: trees over the model's rows, without its embeddings and with them."""

SCORERS = ("model", "random", "activity", "degree", "surprise", "label_share", "amount", *BOOSTED)
"""``random``: a classifier over a model with random weights. ``activity``: the fewer events a source has had, the likelier.
``degree``: the more events both ends have had. ``surprise``: how unlikely the model finds it that the pair meets.
``label_share``: the larger of both ends' shares of class 1 among their labels, of the longest half-life. ``amount``: the
event's first feature, or its weight."""

LEARNING = ("model", "random")
"""Scorers with a classifier."""

WATCHED = ("score", "surprise", "label_share", "weight")
"""Columns whose drift is watched, before those of the features."""

MOST_FEATURES = 16
"""Of an event, whose drift is watched."""

AUROCS = ("auroc", *(f"{scorer}_auroc" for scorer in SCORERS[1:] if scorer not in BOOSTED))


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Scores of the events that were judged in a snapshot, by scorer, beside predictions of its links.

    Attributes:
        links: Predictions of the links that the model learns from.
        scores: float64 (n, len(SCORERS)); NaN: the scorer said nothing.
        label: int64 (n,), 0 or 1.
        src: int64 (n,), sources, numbered as they came first.
        time_us: int64 (n,), when the events were visible, microseconds.
        probabilities: float64 (n, len(LEARNING)), of label 1.
        weight: float64 (n,), how many events each stands for.
        window: Figures of the sliding window, as of this snapshot.
        report: How labels arrive.
    """

    links: Predictions
    scores: Float64
    label: Int64
    src: Int64
    time_us: Int64
    probabilities: Float64
    weight: Float64
    window: Figures = field(default_factory=dict)
    report: LabelReport | None = None

    @property
    def scored(self) -> int:
        """See ``Evaluation.scored``: links, which every snapshot has."""
        return self.links.scored

    @property
    def cautions(self) -> list[dict[str, Any]]:
        """See ``Evaluation.cautions``."""
        return cautions(self.label[self._said], *AUROCS)

    @property
    def _said(self) -> Bool:
        """Events that were scored after the classifier had begun: all figures are of them."""
        return ~np.isnan(self.scores[:, 0])

    def figures(self) -> Figures:
        """See ``Evaluation.figures``: those of links, of the labels judged in the snapshot, and of the window."""
        figures = self.links.figures() | self.window
        said = self._said
        if not said.any():
            return figures
        label, weight = self.label[said], self.weight[said]
        for column, scorer in enumerate(SCORERS):
            for name, value in label_rankings(self.scores[said, column], label, weight).items():
                if name != "base_rate" or scorer == "model":
                    figures[name, "all", scorer] = value
        for column, scorer in enumerate(LEARNING):
            probability = self.probabilities[said, column]
            for figure in (brier, expected_calibration_error):
                if (error := figure(probability, label, weight)) is not None:
                    figures[figure.__name__, "all", scorer] = error
        return figures


class EventClassifier(nn.Module):
    """A perceptron from a source's embedding and, for models with history, the pair's encounters to a label's logit.

    Widths 80 and 10 and the dropout are TGN's.

    Args:
        width: Of embeddings.
        history: Whether it sees encounters.
    """

    def __init__(self, width: int, *, history: bool) -> None:
        super().__init__()
        self.encounters = EncounterEncoder() if history else None
        inputs = width + (EncounterEncoder.width if history else 0)
        self.perceptron = nn.Sequential(
            nn.Linear(inputs, 80), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(80, 10), nn.ReLU(), nn.Dropout(0.1), nn.Linear(10, 1),
        )  # fmt: skip

    def forward(self, embeddings: Tensor, encounters: Tensor) -> Tensor:
        """Logits (n,) of embeddings (n, width) and encounters (n, len(Encounter))."""
        parts = [embeddings]
        if self.encounters is not None:
            parts.append(self.encounters(encounters))
        logits: Tensor = self.perceptron(torch.cat(parts, dim=1)).squeeze(1)
        return logits

    def scores(self, embeddings: Tensor, encounters: Tensor) -> Float64:
        """Logits without dropout, float64 (n,)."""
        self.eval()
        with torch.no_grad():
            return self(embeddings, encounters).numpy().astype(np.float64)

    def learn(
        self,
        optimiser: torch.optim.Optimizer,
        embeddings: Tensor,
        encounters: Tensor,
        label: Tensor,
        batches: Sequence[Tensor],
    ) -> None:
        """Pass once over labelled events.

        Args:
            optimiser: Of its weights.
            embeddings: (n, width).
            encounters: (n, len(Encounter)).
            label: Float (n,), 0 or 1.
            batches: int64, rows of each step.
        """
        self.train()
        for batch in batches:
            optimiser.zero_grad(set_to_none=True)
            logits = self(embeddings[batch], encounters[batch])
            binary_cross_entropy_with_logits(logits, label[batch]).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
            optimiser.step()


class Classifier(Links):
    """Options of ``edge-classification``: those of links, of the labels' arrival, and of the classifier of labels."""

    delay_s: float = Field(
        0, ge=0, description="Seconds after an event at which the label that came with it becomes visible."
    )
    negative_after_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after which an event without a label counts as 0, such as 90 days for chargebacks. Null: never.",
    )
    half_lives_s: list[Annotated[float, Field(gt=0)]] = Field(
        default=[86_400, 604_800, 2_592_000],
        min_length=1,
        max_length=8,
        description="Half-lives of the counts of events and labels that are kept for each node, seconds.",
    )
    messages: bool = Field(
        False,
        description="Whether a label 1 that becomes visible is also a message to the memory of both ends; event models under "
        "sequential.",
    )
    vectors: bool = Field(True, description="Whether the classifier sees the embeddings of both ends.")
    waiting: int = Field(
        200_000,
        ge=1,
        description="Most events that wait for a label, with the rows that they were scored with; beyond, the oldest are "
        "forgotten.",
    )
    sample: int = Field(
        65_536, ge=1, description="Judged events of each label that are kept to be learned again."
    )
    first: int = Field(256, ge=1, description="Judged events before the first score.")
    hidden: int = Field(64, ge=1, description="Width of the classifier's hidden layers.")
    label_learning_rate: float = Field(1e-3, gt=0, description="Of Adam, for the classifier in run.")
    label_batch_size: int = Field(256, ge=1, description="Judged events per step of the classifier in run.")
    baselines: list[Literal["boosting"]] = Field(
        default=[],
        description="Further baselines in run. boosting: LightGBM's trees over the model's rows, without its embeddings and with "
        "them; extra baselines.",
    )
    positive_weight: float = Field(
        1,
        gt=0,
        description="By how much more the classifier in run learns from a label 1 than from a label 0.",
    )
    calibrate: bool = Field(
        False, description="Whether probabilities are mended by what judged events show (Platt scaling)."
    )
    decision: int | None = Field(
        None,
        ge=0,
        description="Number, from 0, of the feature that is not 0 if the platform stopped the event. Such an event is never a 0 "
        "by negative_after_s.",
    )
    propensity: int | None = Field(
        None,
        ge=0,
        description="Number, from 0, of the feature that has the probability, above 0 and up to 1, with which the event gets a "
        "label. It counts by the inverse.",
    )
    window_s: float = Field(
        604_800,
        gt=0,
        description="Length of the sliding window of figures and of drift, in event time, seconds.",
    )
    window_events: int = Field(200_000, ge=1, description="Most events of the sliding window.")
    precision_k: int = Field(100, ge=1, description="Sources looked at per day, of precision at k.")
    review_budget: float = Field(100, gt=0, description="Events looked at per day, of the recall.")
    labels_expected_s: float = Field(
        259_200, gt=0, description="Seconds of event time without a label after which an alert fires."
    )
    epochs: int = Field(30, ge=1, description="evaluate: passes over the labelled training events.")
    batch_size: int = Field(200, ge=1, description="evaluate: labelled events per step.")
    learning_rate: float = Field(3e-4, gt=0, description="evaluate: of Adam.")


@TASKS.register
class EdgeClassification(LinkPrediction):
    """A model learns links; a classifier learns labels of events when they come, from the rows that it scored them with.

    A row has the event's values, the time of day and week, the pair's past, what ``LabelMemory`` knows of both ends, and
    their embeddings just before the event. The classifier lives on rank 0; all ranks make embeddings. Offline,
    ``evaluate`` does the same if labels come later, and follows TGN's protocol otherwise (docs/training.md).

    Args:
        config: Of the trainer.
        lane: Has the labels.
        options: Of the labels and the classifier.
    """

    sees_labels: ClassVar[bool] = False
    classifies: ClassVar[bool] = True
    name: ClassVar[str] = "edge-classification"
    Options: ClassVar[type[Section]] = Classifier

    def __init__(self, config: TrainerConfig, lane: LaneReader, options: Classifier) -> None:
        super().__init__(config, lane, options)
        self._lane = lane
        self._settings = options
        if options.messages and (
            MODELS.find(config.model).kind != "event" or config.strategy != "sequential"
        ):
            raise Failure(
                "key task_params: messages needs an event model under strategy sequential, found "
                f"{config.model} under {config.strategy}. Choose one, or leave it out"
            )
        width = lane.header.edge_features
        for key, feature in (("decision", options.decision), ("propensity", options.propensity)):
            if feature is not None and feature >= width:
                raise Failure(
                    f"key task_params: {key} is feature {feature}, but events have {width} features. Numbers begin with 0. "
                    "Choose another one, or leave the key out"
                )
        after_the_score = {options.decision, options.propensity}
        self._inputs = np.array([0, *(1 + f for f in range(width) if f not in after_the_score)])
        self._has_topics = False  # whether the log has labels of topics
        self._warned_or_seen = False  # a label was seen, or a warning about missing labels given
        self._warned_of_wrong = self._warned_of_few = False

    def links(self) -> LinkPrediction:
        """The task of its links alone."""
        links = LinkPrediction(self._config, self._lane, self._settings)
        links.loss, links.head, links.sees_labels = self.loss, self.head, self.sees_labels  # type: ignore[misc, method-assign]  # of this one
        return links

    def offline(self, splits: Splits) -> LinkPrediction:
        """See ``LinkPrediction.offline``: links only, because ``evaluate`` judges labels after all epochs."""
        return self.links().offline(splits)

    @override
    def rewind(self, model: Model) -> None:
        super().rewind(model)
        settings, features = self._settings, len(self._inputs)
        self._tau = BEFORE_ALL
        self._read_until, self._wrong, self._lost, self._left_out = -1, 0, 0, 0
        self._ahead = label_schema(self._lane.log.header.ids).empty_table()  # visible later
        self._labels = LabelMemory(settings.half_lives_s, features, self._lane.log)
        self._waiting = Waiting(settings.delay_s, settings.negative_after_s, settings.waiting)
        self._columns = _TIMES + features + len(Encounter) + self._labels.columns
        vectors = 2 * model.width if settings.vectors else 0
        self._width = self._columns + vectors
        self._sources = np.zeros(0, np.int64)  # of each node, numbers in the order of their first event
        self._next_source = 0
        self._newest_label_us: int | None = None  # somebody gave it
        self._window = SlidingLabelFigures(settings.window_events, settings.window_s)
        self._window_figures: dict[tuple[str, str], float] = {}
        self._figures_until_us = BEFORE_ALL
        watched = (
            *WATCHED,
            *(f"feature_{f}" for f in range(min(MOST_FEATURES, self._lane.header.edge_features))),
        )
        self._stability = Stability(watched, settings.window_s, self._config.seed)
        self._calibrations = {scorer: Calibration() for scorer in LEARNING}
        self._classifiers = {
            scorer: JudgedClassifier(
                self._columns, vectors, self._config.seed, first=settings.first, last=2 * settings.sample,
                sample=settings.sample, width=settings.hidden, learning_rate=settings.label_learning_rate,
                batch=settings.label_batch_size,
            )
            for scorer in LEARNING
        }  # fmt: skip
        widths = (self._columns, self._width)[: 1 + settings.vectors] if settings.baselines else ()
        self._boosted = {
            scorer: BoostedClassifier(width, self._config.seed, first=settings.first, sample=settings.sample)
            for scorer, width in zip(BOOSTED, widths, strict=False)
        }

    @property
    def sees_vectors(self) -> bool:
        """Whether the classifier sees embeddings."""
        return self._settings.vectors

    @property
    def sends_messages(self) -> bool:
        """Whether labels are messages to the model's memory."""
        return self._settings.messages

    @property
    def label_parts(self) -> tuple[LabelMemory, Waiting, JudgedClassifier]:
        """The memory of labels, the events that wait, and the model's classifier."""
        return self._labels, self._waiting, self._classifiers["model"]

    def label_messages(self, tau: int, events: EventColumns, names: NodeNames) -> EventColumns | None:
        """See ``label_messages`` of the interface: take in a snapshot, and the labels that become visible in it."""
        if tau <= self._tau:  # resumed after it
            return None
        interval_us = self._lane.header.interval_us
        since_us, until_us = (self._tau + 1) * interval_us, (tau + 1) * interval_us
        self._tau = tau
        inserts = np.flatnonzero(events.op == int(Op.INSERT))
        given, _ = labels_of(self._lane, tau)
        logged = self._lane.log.events(tau)
        ids = logged["event_id"].filter(pc.equal(logged["op"], int(Op.INSERT))).combine_chunks()
        count, src = len(inserts), events.src[inserts].copy()
        self._first = self._waiting.add(
            Events(
                src,
                events.dst[inserts].copy(),
                events.visible_t[inserts],
                given.astype(np.int8),
                values_of(events, inserts),
                np.full((count, len(LEARNING), self._width), np.nan, np.float16),
                np.full((count, len(SCORERS)), np.nan),
                np.full((count, len(LEARNING)), np.nan),
                self._sources_of(src),
                self.stopped(events, inserts),
                self._weights_of(events, inserts),
            ),
            ids,
        )
        self._visible = self._waiting.arrive(until_us, self._of_topics(since_us, until_us))
        dense_ids = self._lane.log.snapshot(tau).num_nodes
        self._wrong += self._labels.arrive(since_us, until_us, dense_ids, names)
        if not self._settings.messages or not (self._visible.label == 1).any():
            return None
        return messages_of(self._visible, self._waiting.of(self._visible.number), events)

    def _sources_of(self, src: Int64) -> Int64:
        """Numbers of sources that stay when nodes are forgotten and renumbered."""
        more = int(src.max(initial=-1)) + 1 - len(self._sources)
        if more > 0:
            new = np.arange(self._next_source, self._next_source + more)
            self._sources, self._next_source = np.concatenate([self._sources, new]), self._next_source + more
        return self._sources[src]

    def inputs_of(self, values: Float32) -> Float32:
        """Of an event's values (n, 1 + features) those that the classifier sees: what is known before its score."""
        return values[:, self._inputs]

    def unweighted(self, logits: Float64) -> Float64:
        """Scores of a classifier's logits: ``positive_weight`` shifts all of them by its logarithm."""
        return logits - np.log(self._settings.positive_weight)  # King and Zeng 2001, section 4.1

    def probabilities(self, scores: Float64, scorer: str = "model") -> Float64:
        """Of label 1, float64 (n,), as far as the calibration has learned."""
        return self._calibrations[scorer].probability(scores) if self._settings.calibrate else sigmoid(scores)

    def restore_calibrations(self, state: dict[str, Any]) -> None:
        """Continue with those of a ``state()``."""
        for scorer, calibration in self._calibrations.items():
            calibration.restore(state["labels"]["calibrations"][scorer])

    def stopped(self, events: EventColumns, inserts: Int64) -> Bool:
        """Whether the platform stopped some events, bool (n,), by the feature that ``decision`` names."""
        feature = self._settings.decision
        if feature is None or events.features is None:
            return np.zeros(len(inserts), np.bool_)
        return events.features[inserts, feature] != 0

    def _weights_of(self, events: EventColumns, inserts: Int64) -> Float64:
        feature = self._settings.propensity
        if feature is None or events.features is None:
            return np.ones(len(inserts))
        propensity = events.features[inserts, feature].astype(np.float64)
        return inverse_propensity(np.where((propensity > 0) & (propensity <= 1), propensity, np.nan))

    def _of_topics(self, since_us: int, until_us: int) -> pa.Table:
        """``LABELS`` of label topics that become visible within a snapshot; the log has all of them once it is sealed."""
        log_reader = self._lane.log
        new = log_reader.labels(self._read_until)
        self._has_topics |= len(new) > 0
        if log_reader.last is not None:
            self._read_until = log_reader.last.n
        every = pa.concat_tables(
            [self._ahead, new.filter(pc.greater_equal(new["visible_us"], max(since_us, -(1 << 62))))]
        )
        is_due = pc.less(every["visible_us"], until_us)
        self._ahead, due = every.filter(pc.invert(is_due)), every.filter(is_due)
        due = due.filter(due["event_id"].is_valid())
        right = zeros_and_ones(due)
        self._wrong += len(due) - len(right)
        return right

    @override
    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        super().remember(tau, events, num_nodes)
        inserts = np.flatnonzero(events.op == int(Op.INSERT))
        self._look(
            events.src[inserts],
            events.dst[inserts],
            events.visible_t[inserts],
            values_of(events, inserts),
            num_nodes,
        )
        self._take_judged()
        self._waiting.clear_judged()

    def examples(self, view: EventsView, strategy: QueryAnswering, *, epoch: int = 0) -> Examples:
        """See ``Task.examples``; ``excluded`` also counts events and labels that no figure is about."""
        examples = super().examples(view, strategy, epoch=epoch)
        self._values = values_of(view.events(examples.tau), view.events(examples.tau).op == int(Op.INSERT))
        self._num_nodes = view.num_nodes
        wrong = labels_of(self._lane, examples.tau)[1]
        of_topics, self._wrong = self._wrong, 0
        lost = self._waiting.unknown + self._waiting.forgotten
        newly_lost, self._lost = lost - self._lost, lost
        stopped, self._left_out = self._waiting.left_out - self._left_out, self._waiting.left_out
        if len(wrong) and not self._warned_of_wrong:
            self._warned_of_wrong = True
            log.warning(
                "labels other than 0 and 1 are left out. Mend them at their source; later ones are only counted",
                tau=examples.tau,
                events=len(wrong),
                label=int(wrong[0]),
            )
        return replace(
            examples,
            excluded={
                **examples.excluded,
                "wrong_label": len(wrong) + of_topics,
                "label_lost": newly_lost,
                "stopped": stopped,
            },
        )

    def evaluate(
        self, strategy: QueryAnswering, model: Model, baseline: Model | None, examples: Examples, ranks: Ranks
    ) -> LabelScores | None:
        """See ``Task.evaluate``: all events are scored; then those judged within the snapshot are learned."""
        links = super().evaluate(strategy, model, baseline, examples, ranks)
        queries, inserts = examples.positive, examples.inserts
        encounters = first_ranks(torch.from_numpy(queries.encounters), queries.event, ranks).numpy()
        vectors = {
            scorer: self._vectors_of(strategy, scorer_model, queries, ranks)
            if self._settings.vectors
            else np.empty((len(inserts), 0), np.float32)
            for scorer, scorer_model in (("model", model), ("random", baseline))
            if scorer_model is not None
        }
        known = self._look(inserts.src, inserts.dst, inserts.visible_us, self._values, self._num_nodes)
        if links is None:
            self._take_judged()
            self._waiting.clear_judged()
            return None
        values = self.inputs_of(self._values)
        rows = {
            scorer: rows_of(inserts.visible_us, values, encounters, known, z) for scorer, z in vectors.items()
        }
        columns = {
            **{
                scorer: self.unweighted(self._classifiers[scorer].scores(one.astype(np.float32)))
                for scorer, one in rows.items()
            },
            **{
                scorer: self.unweighted(one.scores(rows["model"].astype(np.float32)))
                for scorer, one in self._boosted.items()
            },
            "activity": -encounters[:, [Encounter.SRC_OUT_COUNT, Encounter.SRC_IN_COUNT]].sum(axis=1),
            "degree": encounters[:, Encounter.SRC_OUT_COUNT :].sum(axis=1),
            "label_share": self._labels.shares(known)[:, :, -1].max(axis=1),
            "amount": values[:, min(1, values.shape[1] - 1)],
            "surprise": _surprise(links, len(inserts)),
        }
        unknown = np.full(len(inserts), np.nan)
        scores = np.stack([columns.get(scorer, unknown) for scorer in SCORERS], axis=1).astype(np.float64)
        none = np.full((len(inserts), self._width), np.nan, np.float16)
        inputs = np.stack([rows.get(scorer, none) for scorer in LEARNING], axis=1)
        probabilities = np.stack(
            [self.probabilities(said, scorer) for scorer, said in zip(LEARNING, scores.T, strict=False)],
            axis=1,
        )
        self._waiting.scored(self._first, inputs, scores, probabilities)
        if np.isnan(scores[:, 0]).any():
            self._window.skip_until(int(inserts.visible_us[-1]))
        watched = [scores[:, SCORERS.index(name)] for name in ("model", "surprise", "label_share")]
        self._stability.add(
            np.column_stack([*watched, self._values[:, : 1 + MOST_FEATURES]]).astype(np.float32),
            inserts.visible_us,
        )
        return self._judge(links, examples)

    def _take_judged(self) -> tuple[VisibleLabels, Events]:
        """Events judged within a snapshot; they are in the window from now on."""
        visible = self._visible.judging
        judged = self._waiting.of(visible.number)
        if visible.given.any():
            self._newest_label_us = int(visible.visible_us[visible.given][-1])
        said = ~np.isnan(judged.scores[:, 0])
        self._window.add(
            JudgedEvents(
                judged.scores[said],
                judged.probabilities[said],
                visible.label[said] == 1,
                judged.source[said],
                judged.time_us[said],
                judged.weight[said],
            ),
            self._waiting.judged_until_us,
        )
        return visible, judged

    def _figures_of_window(self) -> Figures:
        """Figures of the window, made again each time it has moved by a part of ``_LOOKS``, which bounds their cost."""
        settings, until_us = self._settings, self._window.judged_until_us
        moved_us = until_us - self._figures_until_us
        if not self._window_figures or moved_us >= settings.window_s * US_PER_S / _LOOKS:
            self._figures_until_us = until_us
            self._window_figures = self._window.figures_by_scorer(
                SCORERS, settings.precision_k, settings.review_budget
            )
        return {(name, "window", scorer): value for (name, scorer), value in self._window_figures.items()}

    def _judge(self, links: Predictions, examples: Examples) -> LabelScores:
        """Figures of the events judged within a snapshot, and their lesson."""
        visible, judged = self._take_judged()
        label_scores = LabelScores(
            links,
            judged.scores,
            visible.label,
            judged.source,
            judged.time_us,
            judged.probabilities,
            judged.weight,
            self._figures_of_window(),
            LabelReport.of(
                visible.label,
                visible.given,
                visible.visible_us,
                judged.time_us,
                unjudged=self._waiting.unjudged,
                judged_until_us=self._waiting.judged_until_us,
                newest_us=self._newest_label_us,
                expected_s=self._settings.labels_expected_s,
                stability=self._stability.index,
            ),
        )
        factor = np.where(visible.label == 1, self._settings.positive_weight, 1.0)
        for column, scorer in enumerate(LEARNING):
            rows = judged.rows[:, column]
            chosen = ~np.isnan(rows[:, 0])
            label, weight = visible.label[chosen], judged.weight[chosen]
            learning = [self._classifiers[scorer], *(self._boosted.values() if scorer == "model" else ())]
            for one in learning:
                one.learn(rows[chosen].astype(np.float32), label, weight * factor[chosen])
            if self._settings.calibrate:
                self._calibrations[scorer].learn(judged.scores[chosen, column], label, weight)
        self._waiting.clear_judged()
        if not self._warned_or_seen:
            self._warned_or_seen = True
            if not len(judged) and self._settings.delay_s == 0 and not self._has_topics:
                log.warning("no event has a label yet, so only links are learned", tau=examples.tau)
        for caution in () if self._warned_of_few else label_scores.cautions:
            self._warned_of_few = True
            warn_of(caution, tau=examples.tau)
        return label_scores

    @property
    def judged_numbers(self) -> Int64:
        """Numbers of the events that the last snapshot judged, int64 (n,), counted over all inserts of the log from 0."""
        return self._visible.judging.number

    def judge_rest(self, links: Predictions, examples: Examples) -> LabelScores:
        """Judge what waits as if time ran on without events, until every label is visible; nothing is predicted."""
        since_us = (self._tau + 1) * self._lane.header.interval_us
        self._visible = self._waiting.arrive(AFTER_ALL, self._of_topics(since_us, AFTER_ALL))
        return self._judge(links, examples)

    @override
    def join(self, parts: Sequence[LabelScores]) -> LabelScores:
        columns = ("scores", "label", "src", "time_us", "probabilities", "weight")
        return LabelScores(
            join([part.links for part in parts]),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns},
            window=parts[-1].window,
            report=parts[-1].report,
        )

    @override
    def state(self) -> dict[str, Any]:
        classifiers = {scorer: one.state() for scorer, one in (self._classifiers | self._boosted).items()}
        labels = {
            "memory": self._labels.state(),
            "waiting": self._waiting.state(),
            "tau": self._tau,
            "sources": self._sources,
            "next_source": self._next_source,
            "newest_label_us": self._newest_label_us,
            "window": self._window.state(),
            "window_figures": self._window_figures,
            "figures_until_us": self._figures_until_us,
            "stability": self._stability.state(),
            "calibrations": {scorer: one.state() for scorer, one in self._calibrations.items()},
        }
        return {**super().state(), "classifiers": classifiers, "labels": labels}

    @override
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if "window" not in state.get("labels", {}):
            log.warning("the checkpoint is older than the classifier of labels, which begins without any")
            return
        for scorer, classifier in (self._classifiers | self._boosted).items():
            classifier.restore(state["classifiers"][scorer])
        labels = state["labels"]
        self.restore_calibrations(state)
        self._labels.restore(labels["memory"])
        self._waiting.restore(labels["waiting"])
        self._window.restore(labels["window"])
        self._stability.restore(labels["stability"])
        self._window_figures = dict(labels["window_figures"])
        self._figures_until_us = labels["figures_until_us"]
        self._sources, self._next_source = np.asarray(labels["sources"]).copy(), labels["next_source"]
        self._newest_label_us = labels["newest_label_us"]
        self._tau = int(labels["tau"])
        self._lost = self._waiting.unknown + self._waiting.forgotten
        self._left_out = self._waiting.left_out

    @override
    def forgot(self, nodes: int, kept_nodes: Int64 | None = None) -> None:
        super().forgot(nodes, kept_nodes)
        if kept_nodes is not None:
            self._labels.keep(kept_nodes)
            self._sources_of(kept_nodes)
            self._sources = self._sources[kept_nodes]
            self._waiting.keep(kept_nodes)

    @property
    @override
    def memory_bytes(self) -> int:
        learned = sum(one.memory_bytes for one in (self._classifiers | self._boosted).values())
        parts = (self._labels, self._waiting, self._window, self._stability)
        return (
            super().memory_bytes + sum(part.memory_bytes for part in parts) + self._sources.nbytes + learned
        )

    def _vectors_of(self, strategy: QueryAnswering, model: Model, queries: Queries, ranks: Ranks) -> Float32:
        """Embeddings of both ends just before each event, (E, 2 · width), on rank 0 of all events."""
        both = Queries.join([queries, replace(queries, src=queries.dst)])
        order = np.argsort(both.before_us, kind="stable")
        z = strategy.embed_sources(model, both.select(order))
        by_end = torch.empty_like(z)
        by_end[to_device(order, z.device)] = z
        vectors = torch.cat(by_end.chunk(2), dim=1).float()
        return first_ranks(vectors, queries.event, ranks).numpy()

    def _look(self, src: Int64, dst: Int64, time_us: Int64, values: Float32, num_nodes: int) -> Float32:
        """See ``LabelMemory.look``, beside the labels of this snapshot."""
        judged = self._waiting.of(self._visible.number)
        label_ends = np.stack([judged.src, judged.dst], axis=1)
        ends = np.stack([src, dst], axis=1)
        return self._labels.look(
            ends,
            time_us,
            values[:, self._inputs],
            label_ends,
            self._visible.visible_us,
            self._visible.change,
            num_nodes,
        )


_TIMES = 4
_LOOKS = 14
"""At the window, while it moves by its length: twice a day for a week. With 56,000 events one takes .3 s."""


def times_of(time_us: Int64) -> Float32:
    """Time of day and of week as points on circles, float32 (n, 4)."""
    turns = [time_us % span / span * 2 * np.pi for span in (DAY_US, 7 * DAY_US)]
    return np.stack([wave(turn) for turn in turns for wave in (np.sin, np.cos)], axis=1).astype(np.float32)


def rows_of(
    time_us: Int64, values: Float32, encounters: Float32, known: Float32, vectors: Float32
) -> Float16:
    """Inputs of the classifier, float16 (n, width): of each event its time, values, past, labels and embeddings."""
    columns = [times_of(time_us), values, finite(encounters), known, vectors]
    return np.concatenate(columns, axis=1).astype(np.float16)


def values_of(events: EventColumns, chosen: NDArray[Any]) -> Float32:
    """``event_values`` of some events."""
    return event_values(events.weight[chosen], None if events.features is None else events.features[chosen])


def event_values(weight: Float32, features: Float32 | None) -> Float32:
    """Signed logarithms of weights (n,) and features (n, F), float32 (n, 1 + F)."""
    raw = [weight[:, None]]
    if features is not None:
        raw.append(features.clip(-LARGEST_FEATURE, LARGEST_FEATURE))
    values = np.concatenate(raw, axis=1)
    logarithms: Float32 = np.sign(values) * np.log1p(np.abs(values))
    return logarithms


def finite(encounters: Float32) -> Float32:
    """Encounters (n, len(Encounter)) as logarithms, −1 for "never"."""
    logarithms = np.log1p(encounters)
    return np.where(np.isfinite(logarithms), logarithms, np.float32(-1))


def _surprise(links: Predictions, events: int) -> Float64:
    """Minus the link's logit of each event of a snapshot, −inf if it was late, because late links are not predicted."""
    surprise = np.full(events, -np.inf)
    surprise[links.event] = -links.positive[:, 0]
    return surprise


def messages_of(arrived: VisibleLabels, labelled: Events, events: EventColumns) -> EventColumns:
    """The labels of class 1 as messages between the ends of their events, at the times at which they became visible.

    A message has the values of its event, and as ``label`` 1 plus its age in hours.

    Args:
        arrived: The labels.
        labelled: Their events.
        events: Of the snapshot in which they became visible, for the shape of its columns.
    """
    chosen = np.flatnonzero((arrived.label == 1) & (labelled.src >= 0) & (labelled.dst >= 0))
    values = labelled.values[chosen]
    raw = np.sign(values) * np.expm1(np.abs(values))
    age_h = (arrived.visible_us[chosen] - labelled.time_us[chosen]) // (DAY_US // 24)
    visible_us = arrived.visible_us[chosen]
    return EventColumns(
        op=np.full(len(chosen), MESSAGE, np.int8),
        src=labelled.src[chosen],
        dst=labelled.dst[chosen],
        t=visible_us,
        visible_t=visible_us,
        late=np.zeros(len(chosen), np.bool_),
        weight=raw[:, 0],
        label=(1 + age_h).astype(np.int32),
        has_label=np.ones(len(chosen), np.bool_),
        features=None if events.features is None else raw[:, 1:],
    )


AFTER_ALL = 1 << 62
"""Microseconds, after every label."""


def labels_of(lane: LaneReader, tau: int) -> tuple[Int64, Int64]:
    """Labels of a snapshot's insert events, −1 if an event has neither 0 nor 1; and all labels that are neither."""
    events = event_columns(lane.log.events(tau), tau, lane.header.interval_us, 0)
    inserts = events.op == int(Op.INSERT)
    label, given = events.label[inserts].astype(np.int64), events.has_label[inserts]
    known = given & ((label == 0) | (label == 1))
    return np.where(known, label, -1), label[given & ~known]


def first_ranks(rows: Tensor, event: Int64, ranks: Ranks) -> Tensor:
    """On rank 0 all ranks' rows in the order of their events, elsewhere this rank's; on the host; a collective.

    Args:
        rows: (n, …), one row per event of this rank.
        event: int64 (n,), place of each event in its snapshot.
        ranks: All ranks.
    """
    if ranks.size == 1:
        return rows.cpu()
    sent = [len(rows), *[0] * (ranks.size - 1)]
    places, received = ranks.exchange_blocks(event, sent, "labels", to=0)
    all_rows = ranks.exchange(rows.detach().contiguous(), sent, received, "labels").cpu()
    return all_rows[torch.from_numpy(np.argsort(places, kind="stable"))] if ranks.rank == 0 else rows.cpu()
