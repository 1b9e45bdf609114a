"""Dynamic node classification: what a node's state says of the label of its next event, by AUROC.

The protocol of TGN's line of work (Rossi et al. 2020, section 5.2; Kumar et al. 2019, section 4.5): the event model is
first trained on links, without labels, and then frozen. From the first event on it goes along the stream once more, and
the source of each event is embedded at the event's time from what is strictly earlier: neither the event itself nor any
label is seen. A small perceptron learns the labels of the training events; the epoch is chosen by the AUROC of the
validation events, and the AUROC of the test events is told.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from schemas.events import Op
from schemas.trainer_config import Classifier
from stream.service.failure import Failure
from stream.store.lane.reader import LaneReader
from stream.store.log.event_columns import EventColumns, event_columns
from stream.store.window.view import WindowView
from trainer.data.examples import Examples
from trainer.data.history import Encounter
from trainer.data.split import Split
from trainer.models.interface import Model
from trainer.models.link_decoder import EncounterEncoder
from trainer.scoring.ranking import area_under_roc
from trainer.strategies.sequential import SequentialStrategy

log = structlog.get_logger()

Int64 = NDArray[np.int64]


class UnlabelledWindow(WindowView):
    """A window whose events have no labels: event models take them for inputs where there are any."""

    def events(self, tau: int) -> EventColumns:
        """As ``WindowView.events``, without labels."""
        events = super().events(tau)
        none = np.zeros(len(events), np.int32)
        return replace(events, label=none, has_label=none.astype(np.bool_))


def event_labels(lane: LaneReader) -> dict[int, Int64]:
    """Labels of the insert events of each snapshot, −1 where an event has none.

    Raises:
        Failure: There is none at all, or one that is neither 0 nor 1.
    """
    found = {}
    for snapshot in lane.log.snapshots:
        events = event_columns(lane.log.events(snapshot.tau), snapshot.tau, lane.header.interval_us, 0)
        if (events.has_label & (events.label == -1)).any():
            raise Failure("task node-classification knows labels 0 and 1, found -1 among the events")
        labels = np.where(events.has_label, events.label, -1)[events.op == int(Op.INSERT)]
        found[snapshot.tau] = labels.astype(np.int64)
    values = np.unique(np.concatenate(list(found.values())))
    if not (values >= 0).any():
        raise Failure(
            "task node-classification needs labels, and no event has one: give a column label of 0 and 1"
        )
    if values.max() > 1 or values.min() < -1:
        wrong = values.max() if values.max() > 1 else values.min()
        raise Failure(f"task node-classification knows labels 0 and 1, found {wrong} among the events")
    return found


def require_both_kinds(label: Int64, time_us: Int64, split: Split) -> None:
    """Check that there is something to learn and to judge by.

    Args:
        label: int64 (n,), 0, 1 or −1 for none.
        time_us: int64 (n,).
        split: By time.

    Raises:
        Failure: The training or the test events have labels of one kind only, or none.
    """
    for name, part in (("training", split.train), ("test", split.test)):
        ones, zeros = (int((label[part(time_us)] == kind).sum()) for kind in (1, 0))
        if not ones or not zeros:
            raise Failure(
                f"task node-classification needs labels 0 and 1 among the {name} events, found {ones} of 1 and {zeros} of 0: "
                "choose other shares with --split, or data with labels there"
            )


class NodeClassifier(nn.Module):
    """A perceptron from a source's embedding, and for models with history what was seen of the pair, to a logit.

    Widths 80 and 10 and the dropout are TGN's.

    Args:
        width: Of embeddings.
        history: Whether encounters are looked at.
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


@dataclass(frozen=True, slots=True)
class LabelledEvents:
    """Events with labels, in order of time.

    Attributes:
        embeddings: (n, width) of the source just before each event, for each model.
        encounters: float32 (n, len(Encounter)), just before it.
        label: int64 (n,), 0 or 1.
        time_us: int64 (n,).
    """

    embeddings: list[Tensor]
    encounters: Tensor
    label: Int64
    time_us: Int64


def embedded_sources(
    strategy: SequentialStrategy,
    models: Sequence[Model],
    snapshots: Iterable[tuple[Examples, Int64]],
    labels: dict[int, Int64],
) -> LabelledEvents:
    """Go along the stream once with frozen models, and embed the source of every labelled event just before it.

    Args:
        strategy: Rewound.
        models: As many as are compared.
        snapshots: Examples of every snapshot and the times of its inserts.
        labels: Of every snapshot's inserts, −1 for none.
    """
    embeddings: list[list[Tensor]] = [[] for _ in models]
    encounters, found, times = [], [], []
    for examples, time_us in snapshots:
        label = labels[examples.tau]
        asked = examples.positive.select(label[examples.positive.event] >= 0)
        for model, parts in zip(models, embeddings, strict=True):
            parts.append(strategy.embed_sources(model, asked).cpu())
        encounters.append(torch.from_numpy(asked.encounters))
        found.append(label[asked.event])
        times.append(time_us[asked.event])
    return LabelledEvents(
        [torch.cat(parts) for parts in embeddings],
        torch.cat(encounters),
        np.concatenate(found),
        np.concatenate(times),
    )


def classify(
    events: LabelledEvents, which: int, split: Split, settings: Classifier, *, history: bool, seed: int
) -> dict[str, float]:
    """Learn the training events' labels from one model's embeddings, pick by validation, judge by the test.

    Args:
        events: All labelled events.
        which: The model.
        split: By time.
        settings: Of the classifier.
        history: Whether it looks at encounters.
        seed: Of weights, order and dropout.

    Returns:
        ``auroc`` and ``validation_auroc``, which is absent where the validation events have labels of one kind only.
    """
    z, label = events.embeddings[which], torch.from_numpy(events.label).float()
    train = np.flatnonzero(split.train(events.time_us))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        classifier = NodeClassifier(z.shape[1], history=history)
        optimiser = torch.optim.Adam(classifier.parameters(), lr=settings.learning_rate)
        best: dict[str, float] = {}
        for _ in range(settings.epochs):
            classifier.train()
            order = torch.from_numpy(train)[torch.randperm(len(train))]
            for batch in torch.split(order, settings.batch_size):
                loss = binary_cross_entropy_with_logits(
                    classifier(z[batch], events.encounters[batch]), label[batch]
                )
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
                optimiser.step()
            classifier.eval()
            with torch.no_grad():
                scores = classifier(z, events.encounters).numpy().astype(np.float64)
            found = {
                name: value
                for name, part in (("validation_auroc", split.validate), ("auroc", split.test))
                if (value := auroc(scores, events.label, part(events.time_us))) is not None
            }
            validation = found.get("validation_auroc")
            if validation is None and "validation_auroc" in best:
                continue
            if validation is None or validation > best.get("validation_auroc", -1.0):
                best = found  # without a figure to pick by, the last epoch
    return best


def activity_auroc(events: LabelledEvents, split: Split) -> float | None:
    """The floor that learns nothing: a source is the likelier labelled, the fewer events it has had."""
    had = events.encounters[:, [Encounter.SRC_OUT_COUNT, Encounter.SRC_IN_COUNT]].sum(dim=1).numpy()
    return auroc(-had.astype(np.float64), events.label, split.test(events.time_us))


def auroc(scores: NDArray[np.float64], label: Int64, part: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve over some events at once; None where it cannot be computed."""
    positive, negative = scores[part & (label == 1)], scores[part & (label == 0)]
    if not len(positive) or not len(negative) or np.isnan(scores[part]).any():
        return None
    return area_under_roc(positive, negative)


def node_figures(
    strategy: SequentialStrategy,
    models: dict[str, Model],
    snapshots: Callable[[], Iterable[tuple[Examples, Int64]]],
    labels: dict[int, Int64],
    split: Split,
    settings: Classifier,
    seed: int,
) -> dict[str, float]:
    """Figures of a trained model and of the floors.

    Args:
        strategy: Of the models.
        models: ``model`` and ``random``, by the names of scorers.
        snapshots: Begins with the first snapshot.
        labels: Of ``event_labels``.
        split: By time.
        settings: Of the classifier.
        seed: Of the classifier.

    Returns:
        ``auroc``, ``validation_auroc``, ``random_auroc``, ``activity_auroc``; one that cannot be computed is absent.
    """
    strategy.rewind()
    events = embedded_sources(strategy, list(models.values()), snapshots(), labels)
    figures: dict[str, float] = {}
    for which, (scorer, model) in enumerate(models.items()):
        history = getattr(getattr(model, "decoder", None), "encounters", None) is not None
        found = classify(events, which, split, settings, history=history, seed=seed)
        prefix = "" if scorer == "model" else f"{scorer}_"
        figures |= {
            f"{prefix}{name}": value for name, value in found.items() if not prefix or name == "auroc"
        }
    floor = activity_auroc(events, split)
    if floor is not None:
        figures["activity_auroc"] = floor
    counts = {name: int(events.label[part(events.time_us)].sum()) for name, part in _parts(split)}
    log.info("labels", events=len(events.label), **counts)
    return figures


def _parts(split: Split) -> Sequence[tuple[str, Callable[[Int64], NDArray[np.bool_]]]]:
    return ("train", split.train), ("validation", split.validate), ("test", split.test)
