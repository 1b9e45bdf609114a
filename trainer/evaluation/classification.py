"""Edge classification: how well a node's state predicts the label of its next event, by AUROC.

The protocol of TGN's line of work, which calls it dynamic node classification (Rossi et al. 2020, section 5.2; Kumar et al.
2019, section 4.5): the model is first trained on links, without labels, and then frozen. It passes over the stream once more
from the first event, and the source of each event is embedded at the event's time from strictly earlier events: it sees neither
the event itself nor any label. A small perceptron learns the labels of the training events; the epoch is chosen by the AUROC of
the validation events, and the AUROC of the test events is reported.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.data.history import Encounter
from freshet_graph.trainer.evaluation.split import Split
from freshet_graph.trainer.models.interface import Model
from freshet_graph.trainer.scoring.metrics import Figures, auroc, cautions
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.tasks.edge_classification import (
    Classifier,
    EventClassifier,
    first_ranks,
    labels_of,
)
from freshet_graph.trainer.tasks.link_prediction import sees_encounters

log = structlog.get_logger()


def event_labels(lane: LaneReader) -> dict[int, Int64]:
    """Labels of the insert events of each snapshot, −1 for events without.

    Raises:
        Failure: No event has a label, or a label is neither 0 nor 1.
    """
    by_tau: dict[int, Int64] = {}
    for snapshot in lane.log.snapshots:
        by_tau[snapshot.tau], wrong = labels_of(lane, snapshot.tau)
        if len(wrong):  # run leaves it out, but a figure must not be of a part of the data
            raise Failure(
                f"task edge-classification knows labels 0 and 1, found {wrong[0]} among the events of snapshot "
                f"{snapshot.tau}. Mend the labels at their source, or choose task link-prediction"
            )
    if not any((labels >= 0).any() for labels in by_tau.values()):
        raise Failure(
            "task edge-classification needs labels, and no event has one. Give a column label of 0 and 1"
        )
    return by_tau


def require_both_kinds(label: Int64, time_us: Int64, split: Split) -> None:
    """Check that training and test have labels of both kinds, given labels int64 (n,), −1 for none, and times.

    Raises:
        Failure: The training or the test events have labels of one kind only, or none.
    """
    for name, part in (("training", split.train), ("test", split.test)):
        ones, zeros = (int((label[part(time_us)] == kind).sum()) for kind in (1, 0))
        if not ones or not zeros:
            raise Failure(
                f"task edge-classification needs labels 0 and 1 among the {name} events, found {ones} of 1 and {zeros} of 0. "
                "Choose other shares with --split, or data with labels there"
            )


AUROCS = ("auroc", "random_auroc", "activity_auroc")


def label_cautions(label: Int64, time_us: Int64, split: Split) -> list[dict[str, Any]]:
    """Cautions about the figures of ``label_figures``, given labels int64 (n,), −1 for none, and times."""
    test, validation = label[split.test(time_us)], label[split.validate(time_us)]
    return [*cautions(test, *AUROCS), *cautions(validation, "validation_auroc")]


@dataclass(frozen=True, slots=True)
class LabelledEvents:
    """Events with labels, in order of time.

    Attributes:
        embeddings: (n, width) of the source just before each event, for each model.
        encounters: float32 (n, len(Encounter)), just before each event.
        label: int64 (n,), 0 or 1.
        time_us: int64 (n,).
        tau: int64 (n,), snapshot of each event.
        event: int64 (n,), its place among the snapshot's inserts.
    """

    embeddings: list[Tensor]
    encounters: Tensor
    label: Int64
    time_us: Int64
    tau: Int64
    event: Int64


@dataclass(frozen=True, slots=True)
class SnapshotLabels:
    """Scores of a test snapshot's labelled events; an ``Evaluation`` without predictions of links.

    Attributes:
        tau: Snapshot.
        scores: float64 (n,) of each scorer, by its name.
        label: int64 (n,), 0 or 1.
        event: int64 (n,), place of each event among the snapshot's inserts.
    """

    tau: int
    scores: dict[str, Float64]
    label: Int64
    event: Int64

    @property
    def scored(self) -> int:
        """See ``Evaluation.scored``."""
        return len(self.label)

    def rows(self) -> dict[str, NDArray[Any]]:
        """See ``Evaluation.rows``."""
        scores = {f"{scorer}_score".removeprefix("model_"): values for scorer, values in self.scores.items()}
        return {"event": self.event, "label": self.label, **scores}

    def figures(self) -> Figures:
        """See ``Evaluation.figures``."""
        every = np.ones(len(self.label), np.bool_)
        aurocs = {scorer: auroc(values, self.label, every) for scorer, values in self.scores.items()}
        return {("auroc", "all", scorer): value for scorer, value in aurocs.items() if value is not None}


def embedded_sources(
    session: Session, models: Sequence[Model], snapshots: Iterable[Any], labels: dict[int, Int64]
) -> LabelledEvents:
    """Pass over the stream once with frozen models, and embed the source of every labelled event; a collective.

    Args:
        session: Its strategy is rewound.
        models: Those to compare.
        snapshots: Examples of every snapshot, this rank's.
        labels: Of every snapshot's inserts, −1 for none.

    Returns:
        On rank 0 the events of all ranks, elsewhere this rank's.
    """
    embeddings: list[list[Tensor]] = [[] for _ in models]
    encounters, source_labels, times, taus, events = [], [], [], [], []
    for examples in snapshots:
        label = labels[examples.tau]
        queries = examples.positive.select(label[examples.positive.event] >= 0)
        for model, parts in zip(models, embeddings, strict=True):
            parts.append(
                first_ranks(session.strategy.embed_sources(model, queries), queries.event, session.ranks)
            )
        encounters.append(first_ranks(torch.from_numpy(queries.encounters), queries.event, session.ranks))
        event = first_ranks(torch.from_numpy(queries.event), queries.event, session.ranks).numpy()
        source_labels.append(label[event])
        times.append(examples.times[event])
        taus.append(np.full(len(event), examples.tau))
        events.append(event)
    return LabelledEvents(
        [torch.cat(parts) for parts in embeddings],
        torch.cat(encounters),
        np.concatenate(source_labels),
        np.concatenate(times),
        np.concatenate(taus),
        np.concatenate(events),
    )


def classify(
    events: LabelledEvents, which: int, split: Split, settings: Classifier, *, history: bool, seed: int
) -> tuple[dict[str, float], Float64]:
    """Learn the training events' labels from one model's embeddings, pick by validation, judge by the test.

    Args:
        events: All labelled events.
        which: The model.
        split: By time.
        settings: Of the classifier.
        history: Whether it sees encounters.
        seed: Of weights, order and dropout.

    Returns:
        ``auroc`` and ``validation_auroc``, which is absent if the validation events have labels of one kind only; and the
        scores of all events, float64 (n,).
    """
    z, label = events.embeddings[which], torch.from_numpy(events.label).float()
    train = np.flatnonzero(split.train(events.time_us))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        classifier = EventClassifier(z.shape[1], history=history)
        optimiser = torch.optim.Adam(classifier.parameters(), lr=settings.learning_rate)
        best: dict[str, float] = {}
        best_scores = np.zeros(0)
        for _ in range(settings.epochs):
            order = torch.from_numpy(train)[torch.randperm(len(train))]
            batches = torch.split(order, settings.batch_size)
            classifier.learn(optimiser, z, events.encounters, label, batches)
            scores = classifier.scores(z, events.encounters)
            aurocs = {
                name: value
                for name, part in (("validation_auroc", split.validate), ("auroc", split.test))
                if (value := auroc(scores, events.label, part(events.time_us))) is not None
            }
            validation = aurocs.get("validation_auroc")
            if validation is None and "validation_auroc" in best:
                continue
            if validation is None or validation > best.get("validation_auroc", -1.0):
                best, best_scores = aurocs, scores  # without a figure to pick by, the last epoch
    return best, best_scores


def activity(events: LabelledEvents) -> Float64:
    """Scores (n,) of the baseline that learns nothing: the fewer events a source has had, the likelier it is labelled."""
    had = events.encounters[:, [Encounter.SRC_OUT_COUNT, Encounter.SRC_IN_COUNT]].sum(dim=1).numpy()
    return -had.astype(np.float64)


def label_figures(
    session: Session,
    snapshots: Callable[[], Iterable[Any]],
    labels: dict[int, Int64],
    split: Split,
    settings: Classifier,
    seed: int,
) -> tuple[dict[str, float], list[SnapshotLabels]]:
    """Figures of a session's trained model and of the baselines.

    Args:
        session: Has the model, and the same model with random weights.
        snapshots: Begins a pass from the first snapshot.
        labels: Of ``event_labels``.
        split: By time.
        settings: Of the classifier.
        seed: Of the classifier.

    Returns:
        On rank 0 ``auroc``, ``validation_auroc``, ``random_auroc`` and ``activity_auroc``, without those that cannot be
        computed; and the scores of the test, by snapshot.
    """
    models = {"model": session.model, "random": session.untrained}
    session.strategy.rewind()
    events = embedded_sources(session, list(models.values()), snapshots(), labels)
    if session.ranks.rank != 0:
        return {}, []
    figures: dict[str, float] = {}
    scores: dict[str, Float64] = {}
    for which, (scorer, model) in enumerate(models.items()):
        history = sees_encounters(model)
        prefix = "" if scorer == "model" else f"{scorer}_"
        aurocs, scores[scorer] = classify(events, which, split, settings, history=history, seed=seed)
        figures |= {
            f"{prefix}{name}": value for name, value in aurocs.items() if not prefix or name == "auroc"
        }
    scores["activity"] = activity(events)
    test = split.test(events.time_us)
    baseline = auroc(scores["activity"], events.label, test)
    if baseline is not None:
        figures["activity_auroc"] = baseline
    parts = {"train": split.train, "validation": split.validate, "test": split.test}
    counts = {name: int(events.label[part(events.time_us)].sum()) for name, part in parts.items()}
    log.info("labels", events=len(events.label), **counts)
    by_snapshot = [
        SnapshotLabels(
            int(tau),
            {scorer: values[here] for scorer, values in scores.items()},
            events.label[here],
            events.event[here],
        )
        for tau in np.unique(events.tau[test])
        if len(here := np.flatnonzero(test & (events.tau == tau)))
    ]
    return figures, by_snapshot
