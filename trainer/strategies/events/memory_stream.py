"""A memory model along the events: mails are delivered in groups, with embeddings in between."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Int64
from stream.service.heartbeat import beat
from trainer.data.event_feed import EventFeed
from trainer.data.walks import WalkSketches
from trainer.device import to_device
from trainer.models.tgn import MemoryModel
from trainer.strategies.events.event_stream import EventStream
from trainer.strategies.events.known_states import KnownStates
from trainer.strategies.events.mailbox import Mailbox


class MemoryStream(EventStream):
    """The mails of one model, as of ``position`` events.

    Events are delivered in groups of at most ``group``, in log order. All mails of a group are made of states and
    embeddings before the group; a node keeps the aggregate of its mails. Embeddings see the events delivered before.

    Args:
        model: Its weights may change between calls.
        feed: The events; may grow between calls.
        device: Where mails live.
        group: Events delivered at once.
        partial: Whether the mailbox has rows for some nodes only.

    Attributes:
        mailbox: The mails of the events delivered so far.
    """

    model: MemoryModel

    def __init__(
        self,
        model: MemoryModel,
        feed: EventFeed,
        device: torch.device,
        group: int,
        *,
        partial: bool = False,
    ) -> None:
        super().__init__(model, feed, device)
        self._group = group
        self._known: KnownStates | None = None
        self._until = 0  # while states are known: the last position
        walks = WalkSketches(model.seed) if model.walks else None
        self.mailbox = Mailbox(model.width, model.mail_width, self._type, device, walks, partial=partial)

    def deliver_before(self, before_us: int, group: int | None = None) -> None:
        """See ``EventStream.deliver_before``."""
        self.mailbox.reserve(self._feed.graph.num_nodes)
        self._deliver_until(self.position + self._ahead(before_us), group or self._group)

    @contextmanager
    def unchanged(self, before_us: int) -> Iterator[None]:
        """See ``EventStream.unchanged``."""
        self._until = self.position + self._ahead(before_us)
        self._known = KnownStates(self.mailbox.mail.new_empty(0, self.model.width))
        try:
            yield
        finally:
            self._known = None

    def walk_features(self, src: Int64, dst: Int64, time_us: Int64) -> Tensor | None:
        """See ``EventStream.walk_features``."""
        if self.mailbox.walks is None:
            return None
        rows = self.mailbox.rows_of(src), self.mailbox.rows_of(dst)
        born = self._feed.born
        features = self.mailbox.walks.features(born(src), born(dst), time_us, rows)
        return to_device(features, self._device).to(self.mailbox.own.dtype)

    @property
    def known(self) -> Tensor | None:
        """See ``EventStream.known``."""
        return None if self._known is None else self._known.states

    def mark(self) -> int:
        """See ``EventStream.mark``."""
        self.mailbox.mark()
        return self.position

    def back(self, position: int) -> None:
        """See ``EventStream.back``."""
        self.mailbox.back()
        self.position = position

    def settle(self) -> None:
        """See ``EventStream.settle``."""
        self.mailbox.forget()

    def forget(self, kept: Int64, before: Int64) -> None:
        """See ``EventStream.forget``."""
        self.mailbox.forget()
        self.mailbox.keep(kept)
        super().forget(kept, before)

    def state(self) -> dict[str, Any]:
        """See ``EventStream.state``."""
        return {**super().state(), **self.mailbox.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``EventStream.restore``."""
        super().restore(state)
        self.mailbox.restore(state)

    @property
    def memory_bytes(self) -> int:
        """See ``EventStream.memory_bytes``."""
        return self.mailbox.memory_bytes

    def _deliver_until(self, end: int, group: int) -> None:
        """Deliver the events before a position in groups."""
        while self.position < end:
            beat()
            next_position = min(self.position + group, end)
            self._deliver(np.arange(self.position, next_position))
            self.position = next_position

    @torch.no_grad()
    def _deliver(self, numbers: Int64) -> None:
        """Deliver a group of events, by their ascending numbers."""
        feed = self._feed
        src, dst = (column[numbers].astype(np.int64) for column in (feed.src, feed.dst))
        time_us = feed.time_us[numbers]
        ends = np.stack([src, dst], axis=1).ravel()  # two mails an event, the source's first
        times: Int64 = np.repeat(time_us, 2)
        nodes, (place,) = self._sampler.distinct(ends)
        before = int(time_us[0])
        chosen = self.model.mails(place, len(nodes))
        if self.model.source == "memory":
            told, (told_at,) = self._below(nodes, place)
        else:
            told, told_at = self._tell(ends, times, before), np.arange(len(ends))
        events = 2 * np.repeat(numbers, 2) + np.tile([0, 1], len(numbers))
        mails = self._mails(told, told_at[chosen], told_at[chosen ^ 1], events[chosen])
        mails = self.model.aggregate(mails, place[chosen], len(nodes))
        newest = np.empty(len(nodes), np.int64)
        newest[place] = times  # of repeated places the last value stays
        self.mailbox.put(nodes, mails, newest)
        if self._known is not None:
            self._known.drop(nodes)
        if self.mailbox.walks is not None:
            rows = self.mailbox.rows_of(src), self.mailbox.rows_of(dst)
            self.mailbox.walks.add(feed.born(src), feed.born(dst), time_us, rows)

    def _mails(self, told: Tensor, own_at: Int64, other_at: Int64, event: Int64) -> Tensor:
        """Mails (m, width) from rows of the ends and of the other ends; a row begins with the end's own vector."""
        mine = told[:, : self.model.width].index_select(0, to_device(own_at, self._device))
        other = told.index_select(0, to_device(other_at, self._device))
        return torch.cat([mine, other, self._edges(event)], dim=1)

    def _tell(self, ends: Int64, time_us: Int64, before_us: int) -> Tensor:
        """Vectors (m, other) that ends of events send to the other ends, if these are more than their states."""
        if self.model.training:
            self.model.eval()
        states, hops = self._look(ends, time_us, before_us, self.model.mail_layers)
        return self.model.tell(states, hops)

    def _below(self, nodes: Int64, *places: Int64) -> tuple[Tensor, tuple[Int64, ...]]:
        if self._known is None:
            return self._made(nodes), places
        rows = self._known.rows(nodes, self._soon, self._made)
        return self._known.states, tuple(rows[place] for place in places)

    def _soon(self) -> Int64:
        """Distinct ends of the next events."""
        here = slice(self.position, min(self.position + self._group, self._until))
        nodes, _ = self._sampler.distinct(self._feed.src[here], self._feed.dst[here])
        return nodes

    def _made(self, nodes: Int64) -> Tensor:
        """States (n, d) of distinct nodes; only those with mail pass through the updater."""
        there, mail = self.mailbox.take(nodes)
        if self.looked_up is not None:
            self.looked_up.mails = len(nodes), to_device(there, self._device), mail
        if len(there) == len(nodes) > 0:
            return self.model.states(mail)
        states = self.mailbox.own.new_zeros(len(nodes), self.model.width)
        if not len(there):
            return states
        return states.index_copy(0, to_device(there, self._device), self.model.states(mail))

    def _gaps(self, nodes: Int64, time_us: Int64) -> Tensor:
        age_us = self.mailbox.age_us(nodes, time_us)
        return to_device((age_us / 1e6).astype(self._float), self._device)
