"""The memory of every event so far, in order of arrival, under the weights of one checkpoint; and the scores that it gives."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Float32, Float64, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.snapshots.dictionary import new_dictionary
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns, event_columns
from freshet_graph.trainer.arrival.labels import ArrivalLabels, Seen
from freshet_graph.trainer.data.examples import Queries
from freshet_graph.trainer.data.history import Encounter, first_appearances
from freshet_graph.trainer.data.temporal_sampler import sample_before
from freshet_graph.trainer.data.views import without_labels
from freshet_graph.trainer.models.event_model import EventModel, Question
from freshet_graph.trainer.models.tgn import MemoryModel
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.events.event_stream import answered, looked, on_host
from freshet_graph.trainer.strategies.events.remembering import ANSWERED_AT_ONCE, Memories
from freshet_graph.trainer.tasks.edge_classification import EdgeClassification
from freshet_graph.trainer.tasks.interface import create_task
from freshet_graph.trainer.tasks.link_prediction import LinkPrediction

RUN = 256
"""Most events scored at a time."""

NEAR = 10
"""Newest events of a node by which its surroundings are gone through."""

RECENT = 10
"""Newest events of a source among which a destination may be usual."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The insert events of a commit, and their scores.

    Attributes:
        rows: int64 (E,), their rows among the commit's events.
        score: float32 (E,), logits: log-odds against a random destination.
        encounters: float32 (E, len(Encounter)), the past of each pair and its ends.
        recent: float32 (E,), share of the source's last ``RECENT`` events that were with this destination; NaN without any.
        vectors: float32 (E, 2 · width), the embeddings of both ends just before the event; None unless wanted.
        snapshot: Number of the snapshot after which the embeddings are; None: just before the event.
        label_probability: float64 (E,), of class 1; NaN: nothing is said yet. None: the task has no labels.
    """

    rows: Int64
    score: Float32
    encounters: Float32
    recent: Float32
    vectors: Float32 | None
    snapshot: int | None = None
    label_probability: Float64 | None = None

    @property
    def seen(self) -> Seen:
        """What the classifier of labels sees of the memory."""
        none = np.empty((len(self.rows), 0), np.float32)
        return Seen(self.encounters, none if self.vectors is None else self.vectors)


class ArrivalMemory:
    """An event model with one checkpoint's weights, and its memory of all events that arrived.

    An event is scored with the memory of all events before it in order of arrival (``Arrivals``). Its time in the memory is
    its visible time, but at least a microsecond after that of the event before, so that "strictly earlier" is "before it".

    Consecutive events of a commit that read nothing of each other are scored together, which gives what one after the other
    would: a run ends at the first event that has an end, or a neighbour of an end that the model looks up, in common with the
    ends of an earlier one in the run.

    Args:
        config: Of the trainer; its strategy is not ``auto``.
        lane: A reader of the lane.
        ranks: This process alone.
        state: Of a checkpoint.
        learned: Whether to begin with the checkpoint's memory, after its snapshot; otherwise with an empty one, before the
            first event of the log.
        vectors: Whether embeddings are wanted beside scores.

    Attributes:
        model: With the checkpoint's weights.
        between: Makes a context at each run, within which ``ask`` may be called from another thread.
        rows: Within ``take``: rows of the commit that are in the memory; None outside, where all are.
        labels: What labels say, under ``edge-classification``; it reads those before each commit by its own ``before``.

    Raises:
        Failure: The model has another task.
    """

    def __init__(
        self,
        config: TrainerConfig,
        lane: LaneReader,
        ranks: Ranks,
        state: Mapping[str, Any],
        *,
        learned: bool = True,
        vectors: bool = False,
    ) -> None:
        session, self.labels = session_of(config, lane, ranks, state, learned=learned)
        model = session.model
        assert isinstance(model, EventModel), "others have a SnapshotMemory"
        assert session.task.history is not None, "it is of links"
        self._history = session.task.history
        self.model, self._session, self._wants_vectors = model, session, vectors
        self._vectors = vectors or (self.labels is not None and self.labels.sees_vectors)
        self._header = lane.log.header
        self._ids = new_dictionary(self._header.ids)
        if learned:
            session.restore(state)
            self._ids.extend(lane.log.external_ids()[: int(state["names"]["seen"])].combine_chunks())
        else:
            model.load_state_dict(state["model"])
        model.eval()
        memories: Memories = session.strategy.memories  # type: ignore[attr-defined]  # all strategies of event models
        self._feed, self._stream = memories.feed, memories.trained.stream
        self._reach = max(model.layers, model.mail_layers if isinstance(model, MemoryModel) else 0)
        self._marks: Int32 = np.zeros(0, np.int32)
        self._mark = 0
        self._known = len(self._feed)  # events of the feed that are in the memory
        self.between: Callable[[], AbstractContextManager[object]] = nullcontext
        self.rows: int | None = None
        self._deliver_rest()

    @torch.no_grad()
    def take(self, events: pa.Table, *, scored: bool = True) -> Scored | None:
        """Take in the events of a commit, in order; returns the scores of its inserts, or None if they are not wanted.

        Args:
            events: As ``Arrived.events``.
            scored: Whether scores are wanted. The memory is the same, bit for bit, with and without.
        """
        rows = np.flatnonzero(events["op"].to_numpy() == int(Op.INSERT))
        inserts = events.take(pa.array(rows))
        if not len(rows):
            return self._scores(rows, [], [], [], []) if scored else None
        appended = self._append(inserts)
        src, dst, time_us = appended.src, appended.dst, appended.visible_t
        questions, answers, vectors = list[Question](), list[Tensor](), list[Tensor]()
        encounters, recent = list[Float32](), list[Float32]()
        first, size = 0, 0
        before = len(self._feed) - len(rows)
        while first < len(rows):
            last = first + self._run(src[first:], dst[first:], int(time_us[first]))
            here, before_us = slice(first, last), int(time_us[first])
            self._stream.deliver_before(before_us, RUN)
            if scored:
                seen = self._history.look(src[here], dst[here], time_us[here])
                moments = np.full(last - first, before_us)
                queries = Queries(np.arange(last - first), src[here], dst[here], seen, time_us[here], moments)
                encounters.append(seen)
                recent.append(self._recent(src[here], dst[here], before_us))
                questions.append(looked(self._stream, queries, slice(0, last - first), before_us))
                size += len(questions[-1])
                self._known, self.rows = before + first, int(rows[first])
                with self.between():
                    if size >= ANSWERED_AT_ONCE or last == len(rows):
                        self._answer(Question.join(questions), answers, vectors)
                        questions, size = [], 0
            self._history.see(src[here], dst[here], time_us[here])
            first = last
        self._known, self.rows = len(self._feed), None
        result = self._scores(rows, answers, encounters, recent, vectors) if scored else None
        if self.labels is not None:
            known = None if result is None else result.seen
            ids = inserts["event_id"].combine_chunks()
            probability = self.labels.take(ids, appended, time_us, len(self._session.names), known)
            result = result and replace(result, label_probability=probability)
        return result and self._without_unwanted(result)

    @property
    def known_us(self) -> int | None:
        """Time of the newest event in the memory, microseconds; None without one."""
        return int(self._feed.time_us[self._known - 1]) if self._known else None

    @torch.no_grad()
    def ask(self, src: pa.Array, dst: pa.Array, visible_us: Int64, values: Float32 | None = None) -> Scored:
        """The scores of events that may happen next, each as if it alone came now; the memory stays as it is.

        A score is that of ``take``, bit for bit, if the event is the only insert of the next commit.

        Args:
            src: Ids (E,), in the graph's kind; unknown ones are new nodes.
            dst: Ids (E,), in the same way.
            visible_us: Microseconds (E,), E > 0.
            values: ``event_values`` (E, 1 + features), which probabilities of labels need; None: these are not wanted.
        """
        seen_us = None if self.known_us is None else self.known_us + 1
        time_us = visible_us if seen_us is None else np.maximum(visible_us, seen_us)
        if seen_us is not None:
            self._stream.deliver_before(seen_us, RUN)  # what the next event would have delivered
        src_number, dst_number = self._numbers(src, dst)
        moments, event = np.unique(time_us, return_inverse=True)
        encounters = self._history.look(src_number, dst_number, time_us)
        recent, questions = np.empty(len(event), np.float32), list[Question]()
        groups = [np.arange(len(event))]
        if self.model.layers > 1:  # second hops have one time
            groups = [np.flatnonzero(event == moment) for moment in range(len(moments))]
        with torch.inference_mode():  # a quarter less than without gradients; nothing of it stays
            for here in groups:
                earliest_us = int(time_us[here].min())
                before_us = earliest_us if self.rows is None or seen_us is None else seen_us
                ends = src_number[here], dst_number[here]
                recent[here] = self._recent(*ends, before_us)
                before = np.full(len(here), before_us)
                # a model that sees all before its own time would see the rest of the commit
                time = before if self._stream.by_event and before_us < earliest_us else time_us[here]
                queries = Queries(event[here], *ends, encounters[here], time, before)
                questions.append(
                    looked(self._stream, queries, slice(0, len(here)), before_us, own_times=True)
                )
            question, rows = Question.join(questions), np.argsort(np.concatenate(groups))
            score = on_host([self.model.answer(question)])  # without a beat, which is the main thread's
            vectors = on_host([torch.cat(self.model.ends(question), dim=1)])[rows] if self._vectors else None
        scored = Scored(np.arange(len(event)), score[rows], encounters, recent, vectors)
        if self.labels is not None and values is not None:
            probability = self.labels.ask(src_number, dst_number, time_us, values, scored.seen)
            scored = replace(scored, label_probability=probability)
        return self._without_unwanted(scored)

    def destinations(self, src: pa.Array, most: int, *, unmet: bool) -> tuple[pa.Array, int]:
        """Known destinations that a source may meet next, and the number of all known ones.

        All of them, or if these are more than ``most``: those of nodes that are two and three events away, up to a half, and
        then the ones with the most events.

        Args:
            src: The source's id (1,).
            most: How many.
            unmet: Whether those are left out that the source has met.

        Returns:
            Ids (n,), n ≤ ``most``, without the source.
        """
        names, counts = self._session.names, self._history.count_in
        number, _ = self._numbers(src, src)
        known = np.flatnonzero(counts)
        chosen = known
        if len(known) > most:
            chosen = np.concatenate([self._near(number)[: most // 2], known[_largest(counts[known], most)]])
            chosen = first_appearances(chosen)[:most]
        chosen = chosen[chosen != number[0]]
        if unmet and len(chosen):
            pair = self._history.look(np.repeat(number, len(chosen)), chosen, 0)
            chosen = chosen[pair[:, Encounter.PAIR_COUNT] == 0]
        return self._ids.of(names.ids(chosen)), len(known)

    def _near(self, number: Int64) -> Int64:
        """Destinations that the partners of a node's partners met, and its own, the nearest first; int64 (n,)."""
        assert self.known_us is not None, "there are known destinations"
        before_us = self.known_us + 1
        nodes, near = number, list[Int64]()
        for _ in range(3):
            nodes = np.unique(sample_before(self._feed.graph, nodes, before_us, NEAR).node)
            nodes = nodes[nodes >= 0].astype(np.int64)
            near.append(nodes)
        reached = first_appearances(np.concatenate(near))
        return reached[self._history.count_in[reached] > 0]

    def _numbers(self, src: pa.Array, dst: pa.Array) -> tuple[Int64, Int64]:
        """Numbers of the ends of events, each of which alone comes next: a new node would get the next number."""
        names, before = self._session.names, self._ids.size
        dense = self._ids.encode(pa.chunked_array([src]), pa.chunked_array([dst]))
        self._ids.truncate(before)
        fresh = [ends >= before for ends in dense]
        numbers = [
            np.where(new, -1, names.find(np.where(new, 0, ends)) if before else -1)
            for new, ends in zip(fresh, dense, strict=True)
        ]
        new_src, new_dst = (ends < 0 for ends in numbers)
        other = new_src & new_dst & (dense[0] != dense[1])
        later = other & ~fresh[0] & fresh[1]  # ids that are new get numbers before forgotten ones
        return (
            np.where(new_src, len(names) + later, numbers[0]),
            np.where(new_dst, len(names) + (other & ~later), numbers[1]),
        )

    def _scores(
        self,
        rows: Int64,
        answers: list[Tensor],
        encounters: list[Float32],
        recent: list[Float32],
        vectors: list[Tensor],
    ) -> Scored:
        none = np.empty((0, len(Encounter)), np.float32)
        return Scored(
            rows,
            on_host(answers),
            np.concatenate([none, *encounters]),
            np.concatenate([np.empty(0, np.float32), *recent]),
            on_host(vectors) if self._vectors else None,
        )

    def _recent(self, src: Int64, dst: Int64, before_us: int) -> Float32:
        """See ``Scored.recent``."""
        with_source = sample_before(self._feed.graph, src, before_us, RECENT)
        share = (with_source.node == dst[:, None]).sum(axis=1) / np.maximum(with_source.count, 1)
        return np.where(with_source.count > 0, share, np.nan).astype(np.float32)

    def _answer(self, question: Question, answers: list[Tensor], vectors: list[Tensor]) -> None:
        answers.append(answered(self.model, question))
        if self._vectors:
            vectors.append(torch.cat(self.model.ends(question), dim=1))

    def _without_unwanted(self, scored: Scored) -> Scored:
        return scored if self._wants_vectors else replace(scored, vectors=None)

    def _append(self, inserts: pa.Table) -> EventColumns:
        """Give the ends numbers, and the events their times, which are the visible ones of what is returned."""
        names, interval_us = self._session.names, self._header.interval_us
        dense = self._ids.encode(inserts["src"], inserts["dst"])
        names.meet(self._ids.size)
        src, dst = (names.numbers(ends) for ends in dense)
        time_us = arrival_times(inserts, int(self._feed.time_us[-1]) if len(self._feed) else -1, interval_us)
        for name, column in (("src_node", src), ("dst_node", dst)):
            inserts = inserts.append_column(name, pa.array(column))
        columns = event_columns(
            inserts.set_column(3, "t", pa.array(time_us)), 0, 1, self._header.edge_features
        )
        self._feed.append(columns if self.labels is None else without_labels(columns), len(names))
        return columns

    def _run(self, src: Int64, dst: Int64, before_us: int) -> int:
        """How many of the next events read nothing of each other, at least one."""
        if self._reach > 1:
            return 1
        src, dst = src[:RUN], dst[:RUN]
        ends = np.concatenate([src, dst])
        if self._reach == 0:
            near = np.empty((len(ends), 0), np.int32)
        else:
            near = sample_before(self._feed.graph, ends, before_us, self.model.neighbours).node
        more = self._feed.graph.num_nodes - len(self._marks)
        if more > 0:
            self._marks = np.concatenate([self._marks, np.zeros(max(more, len(self._marks) // 4), np.int32)])
        self._mark += 1
        return _apart(src, dst, near, self._marks, self._mark)

    def _deliver_rest(self) -> None:
        """Deliver the checkpoint's last events, as its trainer would."""
        if len(self._feed):
            self._stream.deliver_before(int(self._feed.time_us[-1]) + 1)


def _largest(counts: Int32, most: int) -> Int64:
    """Places of the largest numbers, the largest first; of equal ones the first."""
    places = np.argpartition(-counts, most - 1)[:most]
    ordered: Int64 = places[np.lexsort((places, -counts[places]))]
    return ordered


def session_of(
    config: TrainerConfig, lane: LaneReader, ranks: Ranks, state: Mapping[str, Any], *, learned: bool
) -> tuple[Session, ArrivalLabels | None]:
    """A session of links, and what labels say if the task asks for them.

    Raises:
        Failure: It is a task of nodes, or labels are messages to the model's memory.
    """
    task = create_task(config, lane)
    if not isinstance(task, LinkPrediction):
        raise Failure(
            f"key task: scores on arrival are of link-prediction and edge-classification, found {config.task}"
        )
    config = config.model_copy(update={"compile": False})
    if not isinstance(task, EdgeClassification):
        return Session(config, lane, ranks, task=task), None
    if task.sends_messages:
        raise Failure(
            "key task_params: messages is true, and scores on arrival do not send labels to the model's memory. "
            "Leave it out"
        )
    session = Session(config, lane, ranks, task=task.links())
    return session, ArrivalLabels(task, session.model, lane.log, state, learned=learned)


def arrival_times(inserts: pa.Table, newest_us: int, interval_us: int) -> Int64:
    """Times of events in order of arrival: visible times, but at least a microsecond after the event before.

    Args:
        inserts: Rows as ``Arrived.events``.
        newest_us: Time of the event before the first; −1: there is none.
        interval_us: Length of a snapshot.

    Returns:
        int64 (E,), microseconds.
    """
    visible_us = np.maximum(inserts["t"].to_numpy(), inserts["tau"].to_numpy() * interval_us)
    step = np.arange(1, len(inserts) + 1)
    times: Int64 = np.maximum.accumulate(np.append(newest_us, visible_us - step))[1:] + step
    return times


@njit(cache=True, nogil=True)
def _apart(src, dst, near, marks, mark):  # type: ignore[no-untyped-def]  # compiled
    """Number of leading events that touch no end of an earlier one; ``marks`` of those ends become ``mark``."""
    size = len(src)
    for i in range(size):
        for row, end in ((i, src[i]), (size + i, dst[i])):
            if marks[end] == mark:
                return i
            for other in near[row]:
                if other >= 0 and marks[other] == mark:
                    return i
        marks[src[i]] = mark
        marks[dst[i]] = mark
    return size
