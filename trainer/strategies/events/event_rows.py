"""Rows of nodes and of events as of any event of a log, one event at a time; nothing is learned."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Bool, Int64
from trainer.data.event_feed import EventFeed
from trainer.data.examples import Queries
from trainer.data.history import Encounter, History, Inserts
from trainer.models.event_model import EventModel
from trainer.models.tgn import MemoryModel
from trainer.strategies.events.event_cursor import looked
from trainer.strategies.events.event_stream import EventStream
from trainer.strategies.events.memory_stream import MemoryStream
from trainer.tasks.link_prediction import sees_encounters


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
