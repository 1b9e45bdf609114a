"""What a checkpoint's classifier says of events as they arrive, with the labels that came before them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.stream.arrays.kinds import Float32, Float64, Int64
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.trainer.labels.waiting import (
    BEFORE_ALL,
    LABELS,
    NO_LABEL,
    Events,
    VisibleLabels,
    zeros_and_ones,
)
from freshet_graph.trainer.models.interface import Model
from freshet_graph.trainer.tasks.edge_classification import (
    EdgeClassification,
    event_values,
    rows_of,
    values_of,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a memory knows of events just before them: ``Scored.encounters`` and ``Scored.vectors``."""

    encounters: Float32
    vectors: Float32


class ArrivalLabels:
    """The classifier of a checkpoint, and its memory of events and labels, which continues in order of arrival.

    An event knows the labels that came with earlier commits and are visible before its time in the memory; of the label that
    came with an event, and of its silence, later events know as in ``run``.

    Args:
        task: Newly made; its parts are taken.
        model: The width of its embeddings.
        log_reader: Has the labels of topics; refreshed elsewhere.
        state: Of a checkpoint.
        learned: Whether to begin with the checkpoint's memory; otherwise with an empty one.
    """

    def __init__(
        self,
        task: EdgeClassification,
        model: Model,
        log_reader: LogReader,
        state: Mapping[str, Any],
        *,
        learned: bool,
    ) -> None:
        task.rewind(model)
        self._task = task
        self._memory, self._waiting, self._classifier = task.label_parts
        self.sees_vectors = task.sees_vectors
        self._log, self._read_until, since_us = log_reader, -1, BEFORE_ALL
        if "window" in state.get("labels", {}):  # checkpoints from before have none
            self._classifier.restore(state["classifiers"]["model"])
            task.restore_calibrations(dict(state))
            labels = state["labels"]
            if learned:
                self._memory.restore(labels["memory"])
                self._waiting.restore(_without_rows(labels["waiting"]))
                since_us = max(since_us, (int(labels["tau"]) + 1) * log_reader.header.interval_us)
        self._since_us = since_us  # the memory has the labels that were visible before
        self._ahead = LABELS.empty_table()  # came, and are visible later

    def before(self, commit: int) -> None:
        """Read the labels that came with commits before one."""
        new = self._log.labels(self._read_until)
        if len(new):
            new = zeros_and_ones(new.filter(pc.less(new["commit"], commit)))
            new = new.filter(pc.greater_equal(new["visible_us"], self._since_us))
            self._ahead = pa.concat_tables([self._ahead, new])
        self._read_until = max(self._read_until, commit - 1)

    def take(
        self, ids: pa.Array, events: EventColumns, time_us: Int64, num_nodes: int, seen: Seen | None
    ) -> Float64 | None:
        """Take in a commit's inserts, and the labels before each; returns probabilities of class 1, float64 (E,).

        Args:
            ids: Their ``event_id`` (E,).
            events: Their ends are numbers of nodes.
            time_us: int64 (E,), their times in the memory, ascending.
            num_nodes: All nodes are below.
            seen: What is known of them otherwise; None: probabilities are not wanted.

        Returns:
            NaN: the classifier has not begun.
        """
        count, every = len(events), np.arange(len(events))
        values = self._task.inputs_of(values_of(events, every))
        if not count:
            return None if seen is None else np.empty(0)
        given = np.where(events.has_label & np.isin(events.label, [0, 1]), events.label, NO_LABEL)
        self._waiting.add(
            Events(
                events.src.astype(np.int64), events.dst.astype(np.int64), time_us, given.astype(np.int8), *_no_rows(count),
                source=every, stopped=self._task.stopped(events, every), weight=np.ones(count),
            ),
            ids,
        )  # fmt: skip
        until_us = int(time_us[-1])
        visible = self._waiting.arrive(until_us, self._due(until_us))
        self._ahead = self._ahead.filter(pc.greater_equal(self._ahead["visible_us"], until_us))
        ends = np.stack([events.src, events.dst], axis=1)
        known = self._memory.look(ends, time_us, values, *self._said(visible), num_nodes)
        self._waiting.clear_judged()
        return None if seen is None else self._probabilities(time_us, values, known, seen)

    def ask(self, src: Int64, dst: Int64, time_us: Int64, values: Float32, seen: Seen) -> Float64:
        """The probabilities of events (E,), each as if it alone came now; nothing changes. E > 0."""
        values, until_us = self._task.inputs_of(values), int(time_us.max())
        visible = self._waiting.preview(until_us, self._due(until_us))
        known = self._memory.peek(np.stack([src, dst], axis=1), time_us, values, *self._said(visible))
        return self._probabilities(time_us, values, known, seen)

    def _due(self, until_us: int) -> pa.Table:
        return self._ahead.filter(pc.less(self._ahead["visible_us"], until_us))

    def _said(self, visible: VisibleLabels) -> tuple[Int64, Int64, Float64]:
        """Ends of the labelled events, times and changes of labels."""
        if not len(visible):
            return np.empty((0, 2), np.int64), visible.visible_us, visible.change
        labelled = self._waiting.of(visible.number)
        return np.stack([labelled.src, labelled.dst], axis=1), visible.visible_us, visible.change

    def _probabilities(self, time_us: Int64, values: Float32, known: Float32, seen: Seen) -> Float64:
        vectors = seen.vectors if self.sees_vectors else seen.vectors[:, :0]
        rows = rows_of(time_us, values, seen.encounters, known, vectors)
        scores = self._task.unweighted(self._classifier.scores(rows.astype(np.float32)))
        return self._task.probabilities(scores)


def values_asked(weight: list[float | None], features: list[list[float] | None], width: int) -> Float32:
    """``event_values`` of events as questions have them: weight 1 and features 0 where they have none.

    Args:
        weight: Of each.
        features: Of each, as many as ``width``.
        width: Edge features of the graph.
    """
    weights = np.array([1.0 if one is None else one for one in weight], np.float32)
    vectors = np.array([[0.0] * width if one is None else one for one in features], np.float32)
    return event_values(weights, vectors.reshape(len(weight), width) if width else None)


def _no_rows(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, rows, scores and probabilities that are not kept: events are not learned here."""
    none = np.empty((count, 0))
    return none.astype(np.float32), np.empty((count, 0, 0), np.float16), none, none


def _without_rows(waiting: Mapping[str, Any]) -> dict[str, Any]:
    """The state of waiting events, without what only their learning needs."""
    events = waiting["events"]
    if not events:
        return dict(waiting)
    none = dict(zip(("values", "rows", "scores", "probabilities"), _no_rows(len(events["src"])), strict=True))
    return {**waiting, "events": {**events, **none}}
