"""The state of strategies for event models: the events so far, and the memory of every model along them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Int64
from stream.store.log.event_columns import EventColumns
from trainer.data.event_feed import EventFeed
from trainer.data.examples import Examples, Queries
from trainer.models.event_model import EventModel
from trainer.strategies.events.event_cursor import EventCursor, logits
from trainer.strategies.events.event_stream import EventStream
from trainer.tasks.interface import Task

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
        cursor = next((each for each in self._cursors if each.model is model), None)
        if cursor is None:
            cursor = self._resumed.pop(0) if self._resumed else self._cursor(model)
            cursor.model = cursor.stream.model = model
            self._cursors.append(cursor)
        cursor.restart()
        return cursor.stream

    def forget(self, kept: Int64, first: int) -> int:
        """See ``Forgets.forget``."""
        events = len(self.feed)
        before = self.feed.forget(kept, min(first, *(cursor.stream.position for cursor in self.every)))
        for cursor in self.every:
            cursor.settle()
            cursor.stream.forget(kept, before)
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
