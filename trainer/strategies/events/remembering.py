"""The base of strategies for event models: streams along the events, maybe with memories, and their answers."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import structlog
import torch
from pydantic import Field
from torch import Tensor

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.examples import Examples, Queries
from freshet_graph.trainer.data.history import Encounter, History, Inserts
from freshet_graph.trainer.learning.step import Learner
from freshet_graph.trainer.models.event_model import EventModel, Question
from freshet_graph.trainer.models.interface import Kind
from freshet_graph.trainer.models.tgn import MemoryModel
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.events.event_stream import (
    ROWS_AT_ONCE,
    EventCursor,
    EventStream,
    answered,
    logits,
    looked,
    on_host,
)
from freshet_graph.trainer.strategies.events.memory_stream import MemoryStream
from freshet_graph.trainer.strategies.interface import Setting
from freshet_graph.trainer.tasks.interface import Subject, Task
from freshet_graph.trainer.tasks.link_prediction import sees_encounters

log = structlog.get_logger()

_FEWEST = 32
"""Events of the made-up batch: torch compiles other code for sizes 0 and 1."""
_VERSIONS = 64
"""Compiled versions of one method in this process: one per model, type and width. torch's own limit is 8."""


class _Compiled:
    """A method of a model by compiled code. Inputs that none fits, such as those of predictions, run it as it is."""

    def __init__(self, model: EventModel, method: str) -> None:
        self._model = model  # a copy of the model has a copy of this, which then leads to the copy
        # sizes differ in every batch
        self._call = torch.compile(getattr(type(model), method), dynamic=True, fullgraph=True)
        self.stance = "default"

    def __call__(self, given: Any) -> Any:
        with torch.compiler.set_stance(self.stance):
            return self._call(self._model, given)  # type: ignore[no-untyped-call]  # torch's


def compile_step(model: EventModel, device: torch.device, edge_features: int, batch: int) -> None:
    """Compile the dense methods of a model in place, by learning from made-up events; later nothing is compiled.

    Each is compiled once with its gradient, and once without if a step delivers mails with it. Weights and torch's
    generators stay as they are.

    Args:
        model: On its device, with the type of its products.
        device: The model's.
        edge_features: Width of an edge's features.
        batch: Events per step, from which code for a GPU is chosen.

    Raises:
        Failure: torch cannot compile it, or not here.
    """
    from torch._dynamo import config as tracing  # loading it takes seconds
    from torch.fx.experimental import _config as shapes

    began = time.perf_counter()
    parts = [_Compiled(model, method) for method in model.dense]
    for method, part in zip(model.dense, parts, strict=True):
        setattr(model, method, part)
    # equal sizes of two made-up inputs are no rule for later ones
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        tracing.patch(recompile_limit=_VERSIONS),
        shapes.patch(use_duck_shape=False),  # type: ignore[attr-defined]  # torch adds it
    ):
        try:
            _learn_made_up(model, device, edge_features, max(batch, _FEWEST))
        except Exception as error:
            reason = one_line(error).split(" Set TORCHDYNAMO_VERBOSE")[0][
                :300
            ]  # without hints for torch's developers
            raise Failure(
                f"key compile: torch cannot compile a training step of {model.name}: {reason}. "
                "Leave the key out, or install a C++ compiler if it is missing"
            ) from error
    for part in parts:
        part.stance = "eager_on_recompile"
    model.zero_grad()
    model.eval()
    log.info("compiled", model=model.name, seconds=round(time.perf_counter() - began, 1))


def _learn_made_up(model: EventModel, device: torch.device, edge_features: int, batch: int) -> None:
    """The gradient of one batch, after two whose mails are delivered, if there are any."""
    draw, count, nodes = np.random.default_rng(0), 3 * batch, 2 * batch
    src, dst = draw.integers(0, batch, count), draw.integers(batch, nodes, count)
    t = np.arange(count) * 1_000_000
    feed = EventFeed(edge_features)
    feed.append(
        EventColumns(
            op=np.ones(count, np.int8), src=src, dst=dst, t=t, visible_t=t, late=np.zeros(count, np.bool_),
            weight=np.zeros(count, np.float32), label=np.zeros(count, np.int32), has_label=np.zeros(count, np.bool_),
            features=np.zeros((count, edge_features), np.float32),
        ),
        nodes,
    )  # fmt: skip
    if isinstance(model, MemoryModel):
        stream: EventStream = MemoryStream(model, feed, device, group=batch)
    else:
        stream = EventStream(model, feed, device)
    last = slice(2 * batch, count)
    before = np.full(batch, t[last.start])
    encounters = np.zeros((batch, len(Encounter)), np.float32)
    queries = [
        Queries(np.arange(batch), src[last], ends, encounters, t[last], before)
        for ends in (dst[last], draw.permutation(dst[last]))
    ]
    beat()
    model.train()
    stream.deliver_before(int(t[last.start]), batch)
    model.train()  # as in a step: mails with embeddings are made in evaluation mode
    question = looked(stream, Queries.join(queries), slice(0, 2 * batch), int(t[last.start]))
    beat()
    model.answer(question).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    beat()


@dataclass(frozen=True, slots=True)
class EventRow:
    """A pair of nodes at a moment.

    Attributes:
        ends: (2, width), embeddings of source and destination.
        logit: That they meet then: log-odds against a random destination.
    """

    ends: Tensor
    logit: float


class EventRows:
    """What a model says of nodes and pairs just before any event of a feed, with its weights as they are.

    A row sees everything strictly earlier than the event's time: neighbours, memory, walks and encounters alike. A memory
    takes in one event after another, so a row does not depend on which were asked for before. To go forward costs the
    events in between. To go back begins at the first event again, unless the model has neither memory nor encounters.
    Rows of another stream, such as a strategy's, are not touched.

    Args:
        model: Its weights may change between calls: with a memory, rows are of a memory that went through all of them.
        feed: The events; it must not forget any between calls.
        device: The model's.
    """

    def __init__(self, model: EventModel, feed: EventFeed, device: torch.device) -> None:
        self._model, self._feed, self._device = model, feed, device
        self._sees = sees_encounters(model)
        self._begin()

    @torch.no_grad()
    def nodes(self, nodes: Int64, number: int) -> Tensor:
        """Embeddings (n, width) of nodes, int64 (n,), just before event ``number`` of the feed."""
        time_us = self._go(number)
        return self._stream.embed_all(nodes, np.full(len(nodes), time_us), time_us)

    @torch.no_grad()
    def pair(self, src: int, dst: int, number: int) -> EventRow:
        """Two nodes just before event ``number`` of the feed."""
        time_us = self._go(number)
        ends, when = (np.array([src]), np.array([dst])), np.array([time_us])
        encounters = np.zeros((1, len(Encounter)), np.float32)
        if self._sees:
            encounters = self._history.look(*ends, time_us)
        queries = Queries(np.zeros(1, np.int64), *ends, encounters, when, when)
        question = looked(self._stream, queries, slice(0, 1), time_us)
        return EventRow(torch.cat(self._model.ends(question)), float(self._model.answer(question)))

    def event(self, number: int) -> EventRow:
        """Event ``number`` of the feed just before it happened."""
        return self.pair(int(self._feed.src[number]), int(self._feed.dst[number]), number)

    def _begin(self) -> None:
        if isinstance(self._model, MemoryModel):
            self._stream: EventStream = MemoryStream(self._model, self._feed, self._device, group=1)
        else:
            self._stream = EventStream(self._model, self._feed, self._device, by_event=True)
        self._history, self._known = History("event"), 0

    def _go(self, number: int) -> int:
        """Go to the moment of an event, microseconds."""
        feed, time_us = self._feed, int(self._feed.time_us[number])
        end = int(np.searchsorted(feed.time_us, time_us))
        if end < self._stream.position:
            self._begin()
        self._model.eval()
        self._stream.deliver_before(time_us)
        if self._sees and end > self._known:
            new = slice(self._known, end)
            src, dst = (column[new].astype(np.int64) for column in (feed.src, feed.dst))
            on_time: Bool = np.zeros(end - self._known, np.bool_)
            self._history.remember(Inserts(src, dst, feed.time_us[new], on_time), feed.graph.num_nodes)
            self._known = end
        return time_us


MakeStream = Callable[[EventModel, EventFeed], EventStream]
RestoreStream = Callable[[EventStream, dict[str, Any]], None]


class Memories:
    """A feed of events and a cursor per model: first the trained one, then those predicted beside it.

    Args:
        model: The trained one.
        make: Makes the stream of a model.
        edge_features: Width of an edge's feature vector.

    Attributes:
        feed: All remembered events.
        tau: The newest snapshot; None before the first.
        num_nodes: Nodes after it.
    """

    def __init__(self, model: EventModel, make: MakeStream, edge_features: int) -> None:
        self._model, self._make = model, make
        self.feed = EventFeed(edge_features)
        self.tau: int | None = None
        self.num_nodes = 0
        self._cursors = [self._cursor(model)]
        self._resumed: list[EventCursor] = []  # of other models, in the order in which they came before

    def has(self, tau: int) -> bool:
        """Whether a snapshot was already taken in, because the checkpoint was made after it."""
        return self.tau is not None and tau <= self.tau

    def take_in(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """Append a snapshot's events; the last pass over the one before becomes final."""
        for cursor in self._cursors:
            cursor.settle()
        self.feed.append(events, num_nodes)
        self.tau, self.num_nodes = tau, num_nodes

    @property
    def trained(self) -> EventCursor:
        """The trained model's cursor."""
        return self._cursors[0]

    @property
    def every(self) -> list[EventCursor]:
        """All cursors."""
        return [*self._cursors, *self._resumed]

    def restarted(self, model: EventModel) -> EventStream:
        """A model's stream as it was before the newest snapshot."""
        cursor = next((known for known in self._cursors if known.model is model), None)
        if cursor is None:
            cursor = self._resumed.pop(0) if self._resumed else self._cursor(model)
            cursor.model = cursor.stream.model = model
            self._cursors.append(cursor)
        cursor.restart()
        return cursor.stream

    def forget(self, kept_nodes: Int64, first: int) -> int:
        """See ``Forgets.forget``."""
        events = len(self.feed)
        before = self.feed.forget(kept_nodes, min(first, *(cursor.stream.position for cursor in self.every)))
        for cursor in self.every:
            cursor.settle()
            cursor.stream.forget(kept_nodes, before)
        return events - len(self.feed)

    def state(self) -> dict[str, Any]:
        """The events with their graph, and every model's memory."""
        return {
            "tau": self.tau,
            "num_nodes": self.num_nodes,
            "feed": self.feed.state(),
            "streams": {str(place): cursor.stream.state() for place, cursor in enumerate(self.every)},
        }

    def restore(self, state: dict[str, Any], restore_stream: RestoreStream) -> None:
        """Continue from a ``state()``, in fresh memories.

        Args:
            state: The state.
            restore_stream: Restores each stream from its part of it.
        """
        self.tau, self.num_nodes = state["tau"], state["num_nodes"]
        self.feed.restore({name: np.asarray(column) for name, column in state["feed"].items()})
        cursors = [self._cursor(self._model) for _ in state["streams"]]
        for place, cursor in enumerate(cursors):
            restore_stream(cursor.stream, state["streams"][str(place)])
        self._cursors, self._resumed = cursors[:1], cursors[1:]

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        return {
            "events": self.feed.memory_bytes,
            "memory": sum(cursor.stream.memory_bytes for cursor in self.every),
        }

    def _cursor(self, model: EventModel) -> EventCursor:
        return EventCursor(model, self._make(model, self.feed))


def batch_loss(
    task: Task, stream: EventStream, examples: Examples, here: slice, *, batch: int, draw: int
) -> Tensor:
    """Mean loss of consecutive events and their negatives, from events strictly before the first.

    Args:
        task: Has the loss.
        stream: Of the trained model.
        examples: The examples.
        here: Its events.
        batch: Events whose mails are delivered together before.
        draw: Distinguishes draws of neighbours.
    """
    positive, negative = examples.learned, examples.training
    before_us = int(positive.time_us[here.start])
    stream.batch = draw
    stream.deliver_before(before_us, batch)
    if not stream.model.training:
        stream.model.train()
    both = Queries.join([positive.part(here), negative.part(here)])
    answers = logits(stream, both, slice(0, len(both)), before_us)
    stream.batch = 0
    truth = torch.zeros_like(answers)
    truth[: here.stop - here.start] = 1
    return task.loss(answers, truth, "mean")


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
        answered_parts, waiting, rows = list[Tensor](), list[Question](), 0
        moments = _moments(every, self._ranks)
        until_us = moments[-1][1] if moments else 0
        with stream.unchanged(until_us), stream.ready(_nodes(moments, every.src, every.dst)):
            for here, before_us in _by_moment(moments, stream, model):
                waiting.append(looked(stream, every, here, before_us))
                rows += len(waiting[-1])
                if rows >= ANSWERED_AT_ONCE:
                    answered_parts.append(answered(model, Question.join(waiting, stream.known)))
                    waiting, rows = [], 0
            if waiting:
                answered_parts.append(answered(model, Question.join(waiting, stream.known)))
        answers = np.empty(len(every), np.float32)
        answers[order] = on_host(answered_parts)
        return np.split(answers, np.cumsum([len(one) for one in queries])[:-1])

    @torch.no_grad()
    def embed_sources(self, model: EventModel, queries: Queries) -> Tensor:
        """See ``Strategy.embed_sources``."""
        stream = self.memories.restarted(model)
        embedded = [next(model.parameters()).new_empty(0, model.width)]
        moments = _moments(queries, self._ranks)
        with stream.ready(_nodes(moments, queries.src)):
            for here, before_us in _by_moment(moments, stream, model):
                moment_queries = queries.part(here)
                times = (
                    np.full(len(moment_queries), before_us) if model.once_a_batch else moment_queries.time_us
                )
                embedded.append(stream.embed_all(moment_queries.src, times, before_us))
        return torch.cat(embedded)

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``: a microsecond after the newest event, all events seen."""
        stream, feed = self.memories.trained.stream, self.memories.feed
        after = int(feed.time_us[-1]) + 1 if len(feed) else 0
        position = stream.mark()
        stream.deliver_before(after)
        stream.model.eval()
        embedded = stream.embed_all(nodes, np.full(len(nodes), after), after)
        stream.back(position)
        return embedded

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

    def forget(self, kept_nodes: Int64, first: int) -> int:
        """See ``Forgets.forget``."""
        return self.memories.forget(kept_nodes, first)

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
