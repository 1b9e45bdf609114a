"""A memory model along the events: mails are delivered in groups, with embeddings in between."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Bool, Int64
from stream.service.heartbeat import beat
from trainer.data.event_feed import EventFeed
from trainer.data.hop_rows import gather_edges, gather_hop
from trainer.data.temporal_sampler import Layer, TemporalSampler
from trainer.data.walks import WalkSketches
from trainer.device import to_device
from trainer.models.memory.embeddings import Hop
from trainer.models.memory.model import MemoryModel
from trainer.strategies.events.known_states import KnownStates
from trainer.strategies.events.looked_up import LookedUp
from trainer.strategies.events.mailbox import Mailbox

ROWS_AT_ONCE = 8192
"""Rows embedded at once without gradient, which bounds memory."""


class MemoryStream:
    """The mails of one model, as of ``position`` events.

    Events are delivered in groups of at most ``group``, in log order. All mails of a group are made of states and
    embeddings before the group; a node keeps the aggregate of its mails. Embeddings see the events delivered before, and
    never one of their own time: the caller first delivers up to a time.

    Args:
        model: Its weights may change between calls.
        feed: The events; may grow between calls.
        device: Where mails live.
        group: Events delivered at once.
        partial: Whether the mailbox has rows for some nodes only.

    Attributes:
        position: Events delivered so far.
        mailbox: Their mails.
        looked_up: A recorder of look-ups, or None.
        batch: Number of the batch being learned; 0: none. Uniform neighbours follow from it and from ``place``.
    """

    def __init__(
        self,
        model: MemoryModel,
        feed: EventFeed,
        device: torch.device,
        group: int,
        *,
        partial: bool = False,
    ) -> None:
        self.model = model
        self.position = 0
        self.looked_up: LookedUp | None = None
        self.batch = 0
        self._known: KnownStates | None = None
        self._until = 0  # while states are known: the last position
        walks = WalkSketches(model.seed) if model.walks else None
        self.mailbox = Mailbox(
            model.width, model.mail_width, next(model.parameters()).dtype, device, walks, partial=partial
        )
        self._feed = feed
        self._device = device
        self._group = group
        self._float = np.dtype(str(self.mailbox.mail.dtype).removeprefix("torch."))
        self._sampler = TemporalSampler(feed.graph, model.neighbours, model.how, model.seed)

    @property
    def place(self) -> int:
        """Number of events that it has passed, even if ``position`` does not move."""
        return self.position

    def deliver_before(self, before_us: int, group: int | None = None) -> None:
        """Deliver all events of the feed that are strictly earlier than a time.

        Args:
            before_us: Microseconds.
            group: Events delivered at once; None: the stream's own.
        """
        self.mailbox.reserve(self._feed.graph.num_nodes)
        self._deliver_until(self.position + self._ahead(before_us), group or self._group)

    @contextmanager
    def ready(self, asked: Iterable[tuple[int, Int64]]) -> Iterator[None]:
        """Within it all is here that it takes to deliver the events before some moments and to embed nodes there.

        Args:
            asked: Moments, ascending, microseconds, and int64 nodes that are embedded at each. It is gone through only
                if something is elsewhere.
        """
        yield

    def distinct(self, ids: Int64) -> tuple[Int64, Int64]:
        """Distinct ids int64 (n,) in order of first appearance, and the place of every id among them."""
        nodes, (place,) = self._sampler.distinct(ids)
        return nodes, place

    @contextmanager
    def unchanged(self, before_us: int) -> Iterator[None]:
        """A context without gradients in which weights do not change, so each state is computed once until new mail.

        Args:
            before_us: Time until which, exclusively, events will be delivered.
        """
        self._until = self.position + self._ahead(before_us)
        self._known = KnownStates(self.mailbox.mail.new_empty(0, self.model.width))
        try:
            yield
        finally:
            self._known = None

    def look(self, nodes: Int64, time_us: Int64, before_us: int) -> tuple[Tensor, list[Hop]]:
        """The inputs of embeddings of nodes at times: states, with gradient to the model, and hops down to them.

        Args:
            nodes: int64 (R,), any dense ids.
            time_us: int64 (R,), at least ``before_us``.
            before_us: Time until which, exclusively, events are seen; after ``deliver_before`` of it.

        Returns:
            States (n, d), within ``unchanged`` also those of earlier looks, and hops for ``MemoryModel.embed``.
        """
        return self._look(nodes, time_us, before_us, self.model.layers)

    def embed(self, nodes: Int64, time_us: Int64, before_us: int) -> Tensor:
        """Embeddings (R, d) of nodes at times, with gradient to the model; see ``look``."""
        return self.model.embed(*self.look(nodes, time_us, before_us))

    @torch.no_grad()
    def embed_all(self, nodes: Int64, time_us: Int64, before_us: int) -> Tensor:
        """As ``embed``, in parts and without gradient."""
        parts = [
            self.embed(nodes[here], time_us[here], before_us)
            for begin in range(0, max(len(nodes), 1), ROWS_AT_ONCE)
            for here in [slice(begin, begin + ROWS_AT_ONCE)]
        ]
        return torch.cat(parts)

    def walk_features(self, src: Int64, dst: Int64, time_us: Int64) -> Tensor | None:
        """Walk features of pairs at times (q, walk_width()); None for a model without."""
        if self.mailbox.walks is None:
            return None
        rows = self.mailbox.rows_of(src), self.mailbox.rows_of(dst)
        born = self._feed.born
        features = self.mailbox.walks.features(born(src), born(dst), time_us, rows)
        return to_device(features, self._device).to(self.mailbox.own.dtype)

    @property
    def known(self) -> Tensor | None:
        """Within ``unchanged`` the table of states of all that was looked at; every look names rows of it."""
        return None if self._known is None else self._known.states

    def mark(self) -> int:
        """From now on remember overwritten content; returns the position, for ``back``."""
        self.mailbox.mark()
        return self.position

    def back(self, position: int) -> None:
        """Go back to the newest ``mark``, and remove it."""
        self.mailbox.back()
        self.position = position

    def forget(self, kept: Int64, before: Int64) -> None:
        """Follow the feed, which forgot nodes and events; no mark is left.

        Args:
            kept: int64, ascending numbers of the nodes that stay.
            before: int64 (events before + 1,), how many of the events before each stay.
        """
        self.mailbox.forget()
        self.mailbox.keep(kept)
        self.position = int(before[self.position])

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from, as tensors and arrays."""
        return {"position": self.position, **self.mailbox.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.position = int(state["position"])
        self.mailbox.restore(state)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
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
            told, (told_at,) = self._states(nodes, place)
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

    def _look(self, nodes: Int64, time_us: Int64, before_us: int, layers: int) -> tuple[Tensor, list[Hop]]:
        distinct, (row,) = self._sampler.distinct(nodes)
        if layers == 0:
            states, (row,) = self._states(distinct, row)
            own = to_device(row, self._device)
            none = torch.empty(0)
            gap_s = self._seconds(self.mailbox.age_us(nodes, time_us))
            return states, [Hop(own, none, none, none, none, gap_s)]
        sampled = self._sampler.layers(distinct, before_us, layers, (self.batch << 40) + self.place)
        last = sampled[-1]
        states, (own_row, place) = self._states(self._sampler.below, last.own, last.place)
        sampled[-1] = replace(last, own=own_row, place=place)
        hops = [self._hop(sampled[0], row, time_us)]
        for layer in sampled[1:]:
            every = np.arange(len(layer.nodes))
            hops.append(self._hop(layer, every, np.full(len(every), before_us)))
        return states, hops

    def _hop(self, layer: Layer, row: Int64, time_us: Int64) -> Hop:
        shape, sampled = (len(row), layer.place.shape[1]), layer.sampled
        event, place = np.empty(shape, np.int64), np.empty(shape, np.int64)
        there, age_s = np.empty(shape, np.bool_), np.empty(shape, self._float)
        gather_hop(
            row, time_us, (sampled.event, sampled.time_us, layer.place), self._there(layer),
            (event, place, there, age_s),
        )  # fmt: skip
        return Hop(
            own=to_device(layer.own[row], self._device),
            place=to_device(place, self._device),
            age_s=to_device(age_s, self._device),
            edge=self._edges(event.ravel()).view(*shape, self.model.edges),
            there=to_device(there, self._device),
            gap_s=self._seconds(self.mailbox.age_us(layer.nodes[row], time_us)),
        )

    def _ahead(self, before_us: int, position: int | None = None) -> int:
        """Events from a position (None: the stream's) on that are strictly earlier than a time."""
        first = self.position if position is None else position
        return int(np.searchsorted(self._feed.time_us[first:], before_us))

    def _there(self, layer: Layer) -> Bool:
        """Whether sampled interactions are used, bool (n, k)."""
        return layer.sampled.event >= 0

    def _states(self, nodes: Int64, *places: Int64) -> tuple[Tensor, tuple[Int64, ...]]:
        """States of distinct nodes: a table of them, maybe of others too, and places among the nodes as rows of the table."""
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
            self.looked_up.states = len(nodes), to_device(there, self._device), mail
        if len(there) == len(nodes) > 0:
            return self.model.states(mail)
        states = self.mailbox.own.new_zeros(len(nodes), self.model.width)
        if not len(there):
            return states
        return states.index_copy(0, to_device(there, self._device), self.model.states(mail))

    def _edges(self, event: Int64) -> Tensor:
        """Edge inputs (m, edges) of entries as ``TemporalGraph.event`` has them; −1 gives zeros."""
        edges = np.empty((len(event), self.model.edges), self._float)
        gather_edges(event, self._feed.carried, self.model.roles, edges)
        return to_device(edges, self._device)

    def _seconds(self, age_us: Int64) -> Tensor:
        return to_device((age_us / 1e6).astype(self._float), self._device)
