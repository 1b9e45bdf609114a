"""The base of strategies for event models: streams along the events, maybe with memories, and their answers."""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from schemas.section import Section
from stream.arrays.kinds import Float32, Int64
from trainer.data.event_feed import EventFeed
from trainer.data.examples import Queries
from trainer.learning.step import Learner
from trainer.models.event_model import EventModel, Question
from trainer.models.interface import Kind
from trainer.ranks import Ranks
from trainer.strategies.events.compiled_step import compile_step
from trainer.strategies.events.event_cursor import answered, looked, on_host
from trainer.strategies.events.event_rows import EventRows
from trainer.strategies.events.event_stream import ROWS_AT_ONCE, EventStream
from trainer.strategies.events.memories import Memories
from trainer.strategies.interface import Setting
from trainer.tasks.interface import Subject

ANSWERED_AT_ONCE = 2048
"""Rows after which questions of several moments are answered together. Their inputs are looked up moment by moment; the
arithmetic has no order, and takes less time in few large steps than in many small ones."""


class EventOptions(Section):
    """Options of strategies for event models."""

    group: int = Field(
        200,
        ge=1,
        description="Events whose mails are delivered together in predictions and when catching up; training delivers its "
        "batches.",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Of products with weights while training, half of a step. Weights, memory and predictions are float32 "
        "anyway. bfloat16 pays where the processor multiplies it itself.",
    )


class RememberingStrategy:
    """A strategy with memories; a subclass makes them, and says how they learn.

    Args:
        setting: See ``Strategy``.
        options: See ``Strategy``.

    Attributes:
        learner: See ``Strategy``.
        memories: Its memories, with their events.
    """

    trains: ClassVar[Kind] = "event"
    answers: ClassVar[frozenset[Subject]] = frozenset({"pairs"})
    resizes: ClassVar[bool] = True
    memories: Memories

    def __init__(self, setting: Setting, options: EventOptions) -> None:
        self._model: EventModel = setting.model
        if options.precision == "bfloat16":
            self._model.multiply_in(torch.bfloat16)
        if setting.compile:
            batch, device = setting.optimisation.batch, setting.ranks.device
            compile_step(self._model, device, setting.lane.edge_features, batch)
        self._setting, self._options = setting, options
        self._ranks = setting.ranks
        self.learner = Learner(self._model, setting.optimisation, setting.ranks)

    @torch.no_grad()
    def answer(self, model: EventModel, queries: Sequence[Queries]) -> list[Float32]:
        """See ``Strategy.answer``: moment after moment on all ranks together.

        All sets of queries are looked up at once, because most of them ask about the same ends at the same times.
        """
        stream = self.memories.restarted(model)
        every = Queries.join(list(queries))
        order = np.argsort(every.before_us, kind="stable")
        every = every.select(order)
        found, waiting, rows = list[Tensor](), list[Question](), 0
        moments = _moments(every, self._ranks)
        until_us = moments[-1][1] if moments else 0
        with stream.unchanged(until_us), stream.ready(_nodes(moments, every.src, every.dst)):
            for here, before_us in _by_moment(moments, stream, model):
                waiting.append(looked(stream, every, here, before_us))
                rows += len(waiting[-1])
                if rows >= ANSWERED_AT_ONCE:
                    found.append(answered(model, Question.join(waiting, stream.known)))
                    waiting, rows = [], 0
            if waiting:
                found.append(answered(model, Question.join(waiting, stream.known)))
        answers = np.empty(len(every), np.float32)
        answers[order] = on_host(found)
        return np.split(answers, np.cumsum([len(one) for one in queries])[:-1])

    @torch.no_grad()
    def embed_sources(self, model: EventModel, queries: Queries) -> Tensor:
        """See ``Strategy.embed_sources``."""
        stream = self.memories.restarted(model)
        found = [next(model.parameters()).new_empty(0, model.width)]
        moments = _moments(queries, self._ranks)
        with stream.ready(_nodes(moments, queries.src)):
            for here, before_us in _by_moment(moments, stream, model):
                moment_queries = queries.part(here)
                times = (
                    np.full(len(moment_queries), before_us) if model.once_a_batch else moment_queries.time_us
                )
                found.append(stream.embed_all(moment_queries.src, times, before_us))
        return torch.cat(found)

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``: a microsecond after the newest event, all events seen."""
        stream, feed = self.memories.trained.stream, self.memories.feed
        after = int(feed.time_us[-1]) + 1 if len(feed) else 0
        position = stream.mark()
        stream.deliver_before(after)
        stream.model.eval()
        found = stream.embed_all(nodes, np.full(len(nodes), after), after)
        stream.back(position)
        return found

    def _without_memory(self, model: EventModel, feed: EventFeed) -> EventStream:
        """The stream of a model without a memory: the same on one rank and on several, because every rank has all events."""
        by_event = self._setting.history_moment == "event"
        return EventStream(model, feed, self._ranks.device, by_event=by_event)

    def rows(self) -> EventRows:
        """Rows of the trained model as of any remembered event; see ``EventRows``. Not a collective."""
        return EventRows(self._model, self.memories.feed, self._ranks.device)

    def undo(self) -> None:
        """See ``Strategy.undo``."""
        self.memories.trained.restart()

    @property
    def memory(self) -> Self:
        """See ``Strategy.memory``: all of it."""
        return self

    @property
    def event_times(self) -> Int64:
        """See ``Forgets.event_times``."""
        return self.memories.feed.time_us

    def forget(self, kept: Int64, first: int) -> int:
        """See ``Forgets.forget``."""
        return self.memories.forget(kept, first)

    def close(self) -> None:
        """See ``Strategy.close``."""


def _moments(queries: Queries, ranks: Ranks) -> list[tuple[slice, int]]:
    """This rank's queries at each moment that any rank asks about, and the moment; a collective.

    Args:
        queries: Ordered by their moments.
        ranks: All ranks. The groups of delivered events depend on the moments of all ranks in between.
    """
    moments = ranks.union(np.unique(queries.before_us))
    ends = np.searchsorted(queries.before_us, moments + 1)
    begins = np.searchsorted(queries.before_us, moments)
    every = zip(begins.tolist(), ends.tolist(), moments.tolist(), strict=True)
    return [(slice(begin, end), before_us) for begin, end, before_us in every]


def _nodes(moments: list[tuple[slice, int]], *ends: Int64) -> Iterator[tuple[int, Int64]]:
    """Each moment, and its asked nodes."""
    for here, before_us in moments:
        yield before_us, np.concatenate([nodes[here] for nodes in ends])


def _by_moment(
    moments: list[tuple[slice, int]], stream: EventStream, model: EventModel
) -> Iterator[tuple[slice, int]]:
    """Deliver the events before each moment, and then yield the questions there, a few rows at a time."""
    for here, before_us in moments:
        stream.deliver_before(before_us)
        if model.training:  # to walk all modules takes as long as some of them
            model.eval()
        for first in range(here.start, here.stop, ROWS_AT_ONCE):
            yield slice(first, min(first + ROWS_AT_ONCE, here.stop)), before_us
