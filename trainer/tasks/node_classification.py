"""``node-classification``: the class of each node of a snapshot, which may change from one to the next (ESDG section 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Bool, Float64, Int64
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.views import EventsView
from freshet_graph.trainer.labels.node_labels import FileLabels, TopicLabels
from freshet_graph.trainer.models.interface import Head, Model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import Figures, cautions, classification
from freshet_graph.trainer.scoring.predictions import gather
from freshet_graph.trainer.tasks.interface import TASKS, QueryAnswering, Reduction, Subject
from freshet_graph.trainer.tasks.nodes import NodeExamples, NodeQueries

log = structlog.get_logger()

SCORERS = ("model", "random", "majority", "last_label")
"""``random`` has random weights. ``majority`` is the most frequent class so far, ``last_label`` the node's own last known one, or
else ``majority``."""

FIRST_SCORE = 4.0
"""Of a node's last label, at first: above what an embedding gives through weights as they are drawn."""


class Classes(Section):
    """Options of ``node-classification``."""

    labels: str | None = Field(
        None,
        exclude=True,  # a checkpoint continues with a longer file, wherever it lies
        description="File of labels, Parquet or CSV: node, t (seconds, or RFC 3339) and label, from which time on a node has "
        "it. Read at the start. Null: labels of the store's label topics.",
    )
    classes: int = Field(2, ge=2, le=10_000, description="K, number of classes; labels are 0 to K − 1.")


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Scores of classes by a model and the baselines.

    Attributes:
        scores: float64 (n, len(SCORERS), K); NaN where a scorer did not predict.
        label: int64 (n,).
        unlabelled: bool (n,), whether the node had no label before the snapshot.
        node: int64 (n,).
    """

    scores: Float64
    label: Int64
    unlabelled: Bool
    node: Int64

    @property
    def scored(self) -> int:
        """See ``Evaluation.scored``."""
        return len(self.label)

    @property
    def links(self) -> None:
        """See ``Evaluation.links``."""
        return None

    @property
    def cautions(self) -> list[dict[str, Any]]:
        """See ``Evaluation.cautions``."""
        if self.scores.shape[2] > 2:
            return []
        return cautions(self.label, "auroc", *(f"{scorer}_auroc" for scorer in SCORERS[1:]))

    def rows(self) -> dict[str, NDArray[Any]]:
        """See ``Evaluation.rows``: the predicted class of each scorer."""
        predicted = self.scores.argmax(axis=2)
        return {
            "node": self.node,
            "label": self.label,
            **{f"{scorer}_class": predicted[:, column] for column, scorer in enumerate(SCORERS)},
            "inductive": self.unlabelled,
        }

    def figures(self) -> Figures:
        """See ``Evaluation.figures``: those of ``classification``, of all nodes and of those without a label before."""
        figures: Figures = {}
        for subset, rows in (("all", np.ones(len(self.label), np.bool_)), ("inductive", self.unlabelled)):
            for column, scorer in enumerate(SCORERS):
                scores = self.scores[rows, column]
                if len(scores) and not np.isnan(scores).any():
                    for metric, value in classification(scores, self.label[rows]).items():
                        figures[metric, subset, scorer] = value
        return figures


class NodeClassifier(nn.Module):
    """One matrix from an embedding and, with ``encounters``, the node's last known label to the scores of classes.

    Without ``encounters`` it is the paper's U (ESDG section 2.2). With them the head begins as ``last_label`` for nodes that
    have one.

    Args:
        width: Of embeddings.
        hidden: Not used: there is no hidden layer.
        encounters: Whether it sees the label.
        classes: K.
    """

    def __init__(self, width: int, hidden: int, *, encounters: bool, classes: int = 2) -> None:
        super().__init__()
        del hidden
        self._columns = classes if encounters else 0
        self.projection = nn.Linear(width + self._columns, classes)
        if encounters:
            with torch.no_grad():
                self.projection.weight[:, width:] = FIRST_SCORE * torch.eye(classes)

    def forward(self, z: Tensor, known: Tensor) -> Tensor:
        """Scores (n, K) of embeddings (n, width) and last labels (n, K), of which one is 1 or all are 0."""
        scores: Tensor = self.projection(torch.cat([z, known[:, : self._columns].to(z.dtype)], dim=1))
        return scores


@TASKS.register
class NodeClassification:
    """The class at a snapshot's end of each node with an event in it, from the graph up to its end; the loss is cross-entropy.

    They are asked when the next snapshot arrives, so that, as in all tasks, embeddings have every snapshot before it. Labels
    with a time before the snapshot may be inputs; those of the snapshot itself are the answers. Baselines are the most frequent
    class so far and the node's last known label.

    Args:
        config: Of the trainer.
        lane: The lane.
        options: The classes, and the file of labels if they are not those of topics.
    """

    name: ClassVar[str] = "node-classification"
    Options: ClassVar[type[Section]] = Classes
    subject: ClassVar[Subject] = "nodes"
    query_class: ClassVar[type[Any]] = NodeQueries
    sees_labels: ClassVar[bool] = True
    selection_metric: ClassVar[tuple[str, int]] = ("macro_f1", 1)
    baseline: ClassVar[str] = "last_label"
    head: Head = NodeClassifier
    history: ClassVar[None] = None

    def __init__(self, config: TrainerConfig, lane: LaneReader, options: Classes) -> None:
        self._lane, self._options = lane, options
        self._labels: FileLabels | TopicLabels | None = (
            None  # a file is read when first needed: a predictor does without
        )
        if options.labels is None:
            self._labels = TopicLabels(lane.log, options.classes)
        self._warned_or_seen = False  # a label was seen, or a warning about missing labels given
        self.head = partial(NodeClassifier, classes=options.classes)

    def require_labels(self) -> None:
        """Check for ``evaluate`` that there are labels.

        Raises:
            Failure: No file is named, and the log has no label of a node.
        """
        if isinstance(self._labels, TopicLabels) and not any(self._lane.log.labels()["node"].is_valid()):
            raise Failure(
                "task node-classification needs labels, and no node of the data has one. Name a file of labels in task_params, "
                "or give a store with labels of nodes"
            )

    def rewind(self, model: Model) -> None:
        """See ``Task.rewind``; the baselines know all earlier snapshots, as every model does."""
        self._tau = -1  # the snapshot that is asked about next
        self._nodes = np.zeros(0, np.int64)  # with an event in it
        self._counts = np.zeros(self._options.classes, np.int64)  # of all targets so far
        self._wrong = 0  # labels of topics, as far as they are counted
        if self._labels is not None:
            self._labels.rewind()

    def forgot(self, nodes: int, kept_nodes: Int64 | None = None) -> None:
        """See ``Task.forgot``: models of nodes look at windows, which forget by themselves."""

    def examples(self, view: EventsView, strategy: QueryAnswering, *, epoch: int = 0) -> NodeExamples:
        """See ``Task.examples``: about the nodes of the snapshot before the newest one."""
        classes, interval_us = self._options.classes, self._lane.header.interval_us
        if self._labels is None:
            assert self._options.labels is not None
            self._labels = FileLabels(self._options.labels, self._lane.log, classes)
        last = self._labels.before(self._tau * interval_us, self._nodes)
        label = self._labels.before((self._tau + 1) * interval_us, self._nodes)
        has_label = label >= 0
        label, last, node = label[has_label], last[has_label], self._nodes[has_label]
        share = self._counts / max(1, self._counts.sum())
        self._counts += np.bincount(label, minlength=classes)
        is_first, tau = not len(self._nodes), view.taus[-1]
        self._take_in(tau, view.events(tau))
        excluded = {"unlabelled": int(np.count_nonzero(~has_label))}
        if isinstance(self._labels, TopicLabels):
            excluded["wrong_label"], self._wrong = self._labels.wrong - self._wrong, self._labels.wrong
            if not is_first and not self._warned_or_seen:
                self._warned_or_seen = True
                if not len(self._labels):
                    log.warning("no node has a label of a topic yet, so nothing is learned", tau=tau)
        return NodeExamples.of(
            view,
            strategy,
            interval_us,
            node=node,
            known=(last[:, None] == np.arange(classes)).astype(np.float32),
            target=label.astype(np.float32),
            past=share,
            excluded=excluded,
        )

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """See ``Task.remember``."""
        self._take_in(tau, events)

    def loss(self, answers: Tensor, truth: Tensor, reduction: Reduction = "sum") -> Tensor:
        """See ``Task.loss``: cross-entropy of scores (Q, K)."""
        return cross_entropy(answers, truth.long(), reduction=reduction)

    def evaluate(
        self,
        strategy: QueryAnswering,
        model: Model,
        untrained: Model | None,
        examples: NodeExamples,
        ranks: Ranks,
    ) -> ClassScores | None:
        """See ``Task.evaluate``."""
        queries, truth = examples.all_queries()
        (scores,) = strategy.answer(model, [queries])
        labelled: Bool = np.asarray(queries.known.any(axis=1))
        share = np.broadcast_to(examples.past, scores.shape)
        by_scorer: dict[str, NDArray[np.floating]] = {
            "model": scores,
            "majority": share,
            "last_label": np.where(labelled[:, None], queries.known, share),
        }
        if untrained is not None:
            (by_scorer["random"],) = strategy.answer(untrained, [queries])
        none = np.full(scores.shape, np.nan)
        columns = [by_scorer.get(scorer, none).astype(np.float64) for scorer in SCORERS]
        (rows,) = gather([np.column_stack([queries.node, truth, ~labelled, *columns])], ranks)
        if ranks.rank != 0:
            return None
        all_scores = rows[:, 3:].reshape(len(rows), len(SCORERS), self._options.classes)
        node, label = rows[:, :2].astype(np.int64).T
        return ClassScores(all_scores, label, rows[:, 2].astype(np.bool_), node)

    def join(self, parts: Sequence[ClassScores]) -> ClassScores:
        """See ``Task.join``."""
        return ClassScores(
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.label for part in parts]),
            np.concatenate([part.unlabelled for part in parts]),
            np.concatenate([part.node for part in parts]),
        )

    def state(self) -> dict[str, Any]:
        """See ``Stateful.state``."""
        labels = {"labels": self._labels.state()} if isinstance(self._labels, TopicLabels) else {}
        return {"classes": {"tau": self._tau, "nodes": self._nodes, "counts": self._counts, **labels}}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Stateful.restore``."""
        content = state["classes"]
        self._tau = int(content["tau"])
        self._nodes, self._counts = (np.asarray(content[name]).copy() for name in ("nodes", "counts"))
        if isinstance(self._labels, TopicLabels) and "labels" in content:
            self._labels.restore(content["labels"])

    @property
    def memory_bytes(self) -> int:
        """See ``Task.memory_bytes``."""
        return self._nodes.nbytes + (0 if self._labels is None else self._labels.memory_bytes)

    def _take_in(self, tau: int, events: EventColumns) -> None:
        """The next question is about the nodes of this snapshot."""
        inserts = events.op == int(Op.INSERT)
        self._tau, self._nodes = tau, distinct(events.src[inserts], events.dst[inserts])
