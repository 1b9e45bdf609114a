"""``edge-classification``: the label of a node's next event, from embeddings learned without labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import structlog
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import event_columns
from freshet_graph.trainer.data.examples import Examples
from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.data.views import EventsView
from freshet_graph.trainer.models.interface import Model
from freshet_graph.trainer.models.link_decoder import EncounterEncoder
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import Figures, auroc, cautions, warn_of
from freshet_graph.trainer.scoring.predictions import Predictions, join
from freshet_graph.trainer.tasks.interface import TASKS, QueryAnswering
from freshet_graph.trainer.tasks.link_prediction import LinkPrediction, Links, Splits, sees_encounters

log = structlog.get_logger()


SCORERS = ("model", "random", "activity")
"""``random``: a classifier over a model with random weights. ``activity``: the fewer events a source has had, the likelier."""

AUROCS = ("auroc", "random_auroc", "activity_auroc")


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Scores of labelled events by scorer, beside predictions of links.

    Attributes:
        links: Predictions of the links that the model learns from.
        scores: float64 (n, len(SCORERS)).
        label: int64 (n,), 0 or 1.
    """

    links: Predictions
    scores: Float64
    label: Int64

    @property
    def scored(self) -> int:
        """See ``Evaluation.scored``: links, which every snapshot has."""
        return self.links.scored

    @property
    def cautions(self) -> list[dict[str, Any]]:
        """See ``Evaluation.cautions``."""
        return cautions(self.label, *AUROCS)

    def figures(self) -> Figures:
        """See ``Evaluation.figures``: those of links, and ``auroc`` of labels if both kinds occur."""
        figures = self.links.figures()
        every = np.ones(len(self.label), np.bool_)
        for column, scorer in enumerate(SCORERS):
            value = auroc(self.scores[:, column], self.label, every)
            if value is not None:
                figures["auroc", "all", scorer] = value
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
    """Options of ``edge-classification``: those of links, and the perceptron that learns labels from embeddings."""

    epochs: int = Field(
        30, ge=1, description="Passes over the labelled training events; run: over those of a snapshot."
    )
    batch_size: int = Field(200, ge=1, description="Labelled events per step.")
    learning_rate: float = Field(3e-4, gt=0, description="Of Adam.")


@TASKS.register
class EdgeClassification(LinkPrediction):
    """A model learns links and never sees a label; a small perceptron learns the labels from its embeddings.

    The perceptron first predicts a snapshot's labelled events, and then learns them. It lives on rank 0; all ranks make
    embeddings. Offline, ``evaluate`` uses TGN's protocol instead (docs/training.md).

    Args:
        config: Of the trainer.
        lane: Has the labels.
        options: Of the perceptron.
    """

    sees_labels: ClassVar[bool] = False
    classifies: ClassVar[bool] = True
    name: ClassVar[str] = "edge-classification"
    Options: ClassVar[type[Section]] = Classifier

    def __init__(self, config: TrainerConfig, lane: LaneReader, options: Classifier) -> None:
        super().__init__(config, lane, options)
        self._lane = lane
        self._settings = options
        self._classifiers: dict[str, tuple[EventClassifier, torch.optim.Optimizer]] = {}
        self._resumed: dict[str, Any] = {}
        self._warned_or_seen = False  # a label was seen, or a warning about missing labels given
        self._warned_of_wrong = self._warned_of_few = False

    def offline(self, splits: Splits) -> LinkPrediction:
        """See ``LinkPrediction.offline``: links only, because ``evaluate`` judges labels after all epochs."""
        links = LinkPrediction(self._config, self._lane, self._settings)
        links.loss, links.head, links.sees_labels = self.loss, self.head, self.sees_labels  # type: ignore[misc, method-assign]  # of this one
        return links.offline(splits)

    def examples(self, view: EventsView, strategy: QueryAnswering, *, epoch: int = 0) -> Examples:
        """See ``Task.examples``; ``excluded`` also counts the events whose label is neither 0 nor 1."""
        examples = super().examples(view, strategy, epoch=epoch)
        wrong = len(labels_of(self._lane, examples.tau)[1])
        return replace(examples, excluded={**examples.excluded, "wrong_label": wrong})

    def evaluate(
        self, strategy: QueryAnswering, model: Model, baseline: Model | None, examples: Examples, ranks: Ranks
    ) -> LabelScores | None:
        """See ``Task.evaluate``; the perceptron then learns the judged events."""
        links = super().evaluate(strategy, model, baseline, examples, ranks)
        label, wrong = labels_of(self._lane, examples.tau)
        if ranks.rank == 0 and len(wrong) and not self._warned_of_wrong:
            self._warned_of_wrong = True
            log.warning(
                "labels other than 0 and 1 are left out. Mend them at their source; later ones are only counted",
                tau=examples.tau,
                events=len(wrong),
                label=int(wrong[0]),
            )
        on_time = examples.positive.select(~examples.inserts.late[examples.positive.event])
        queries = on_time.select(label[on_time.event] >= 0)
        encounters = first_ranks(torch.from_numpy(queries.encounters), queries.event, ranks)
        event = first_ranks(torch.from_numpy(queries.event), queries.event, ranks).numpy()
        truth = label[event]
        if ranks.rank == 0 and not self._warned_or_seen:
            self._warned_or_seen = True
            if not len(truth):
                log.warning("no event has a label yet, so only links are learned", tau=examples.tau)
        had = encounters[:, [Encounter.SRC_OUT_COUNT, Encounter.SRC_IN_COUNT]].sum(dim=1)
        columns = {"activity": -had.numpy().astype(np.float64)}
        for scorer, scorer_model in (("model", model), ("random", baseline)):
            if scorer_model is None:
                continue
            z = first_ranks(strategy.embed_sources(scorer_model, queries), queries.event, ranks)
            if ranks.rank == 0:
                columns[scorer] = self._tested_then_learned(
                    scorer, scorer_model, z, encounters, truth, examples.sequence
                )
        if links is None:
            return None
        none = np.full(len(truth), np.nan)
        label_scores = LabelScores(
            links, np.stack([columns.get(scorer, none) for scorer in SCORERS], axis=1), truth
        )
        for caution in () if self._warned_of_few else label_scores.cautions:
            self._warned_of_few = True
            warn_of(caution, tau=examples.tau)
        return label_scores

    @override
    def join(self, parts: Sequence[LabelScores]) -> LabelScores:
        return LabelScores(
            join([part.links for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.label for part in parts]),
        )

    @override
    def state(self) -> dict[str, Any]:
        live = {
            scorer: {"weights": classifier.state_dict(), "optimiser": optimiser.state_dict()}
            for scorer, (classifier, optimiser) in self._classifiers.items()
        }
        return {**super().state(), "classifiers": {**self._resumed, **live}}

    @override
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._resumed = dict(state.get("classifiers", {}))

    def _tested_then_learned(
        self, scorer: str, model: Model, z: Tensor, encounters: Tensor, truth: Int64, sequence: int
    ) -> Float64:
        """Logits of a snapshot's labelled events; then passes over them, in batches in the order of the log."""
        with torch.random.fork_rng([]), torch.enable_grad():
            torch.manual_seed(self._config.seed)
            classifier, optimiser = self._classifier(scorer, model, z.shape[1])
            # Dropout must not depend on whether the classifier was made just now or before.
            draw = np.random.default_rng([self._config.seed, sequence])
            torch.manual_seed(int(draw.integers(1 << 63)))
            scores = classifier.scores(z, encounters)
            target = torch.from_numpy(truth).float()
            in_order = torch.split(torch.arange(len(truth)), self._settings.batch_size)
            for _ in range(self._settings.epochs if len(truth) else 0):
                classifier.learn(optimiser, z, encounters, target, in_order)
        return scores

    def _classifier(
        self, scorer: str, model: Model, width: int
    ) -> tuple[EventClassifier, torch.optim.Optimizer]:
        if scorer not in self._classifiers:
            classifier = EventClassifier(width, history=sees_encounters(model))
            optimiser = torch.optim.Adam(classifier.parameters(), lr=self._settings.learning_rate)
            if scorer in self._resumed:
                resumed = self._resumed.pop(scorer)
                classifier.load_state_dict(resumed["weights"])
                optimiser.load_state_dict(resumed["optimiser"])
            self._classifiers[scorer] = classifier, optimiser
        return self._classifiers[scorer]


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
