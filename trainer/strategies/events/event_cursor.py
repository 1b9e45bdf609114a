"""One model's position in a snapshot: its stream before the snapshot, and the logits of queries."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream.service.heartbeat import beat
from trainer.data.examples import Queries
from trainer.device import to_device
from trainer.models.event_model import EventModel, PairQueries, Question
from trainer.strategies.events.event_stream import EventStream


@dataclass(slots=True)
class EventCursor:
    """A model's stream, with its position before the newest snapshot."""

    model: EventModel
    stream: EventStream
    marked: int | None = None

    def restart(self) -> None:
        """Return to the position before the newest snapshot, where every pass over it begins."""
        if self.marked is not None:
            self.stream.back(self.marked)
        self.marked = self.stream.mark()

    def settle(self) -> None:
        """Make the last pass over the newest snapshot final."""
        self.stream.settle()
        self.marked = None


def logits(stream: EventStream, queries: Queries, here: slice, before_us: int) -> Tensor:
    """Logits of some queries; each (node, event) is embedded once, or each node."""
    question = looked(stream, queries, here, before_us)
    if stream.looked_up is not None:
        stream.looked_up.question = question
    return answered(stream.model, question)


def answered(model: EventModel, question: Question) -> Tensor:
    """Logits of a question."""
    beat()
    return model.answer(question)


def on_host(parts: list[Tensor]) -> NDArray[np.float32]:
    """Logits of several parts, fetched at once: the host waits for the device only here."""
    if not parts:
        return np.empty(0, np.float32)
    found: NDArray[np.float32] = torch.cat(parts).float().cpu().numpy()
    return found


def looked(stream: EventStream, queries: Queries, here: slice, before_us: int) -> Question:
    """The inputs of answers to some queries: what the ends look up at present, and the pairs."""
    src, dst, event, time_us = (getattr(queries, name)[here] for name in ("src", "dst", "event", "time_us"))
    if stream.model.once_a_batch:
        nodes, place = stream.distinct(np.concatenate([src, dst]))
        times = np.full(len(nodes), before_us)
    else:
        moments = np.concatenate([(event << 32) | src, (event << 32) | dst])
        keys, first, place = np.unique(moments, return_index=True, return_inverse=True)
        nodes, times = keys & 0xFFFFFFFF, np.tile(time_us, 2)[first]
    below, hops = stream.look(nodes, times, before_us)
    device = below.device
    at_src, at_dst = (to_device(half, device) for half in np.split(place, 2))
    encounters = to_device(queries.encounters[here], device)
    walks = stream.walk_features(src, dst, time_us)
    return Question(below, hops, PairQueries(at_src, at_dst, encounters, walks))
