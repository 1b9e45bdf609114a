"""The events of a lane in order, and what models look up at a moment of it: neighbours, walks, pairs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.examples import Queries
from freshet_graph.trainer.data.temporal_sampler import SampledLayer, TemporalSampler
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.event_model import EventModel, Hop, PairQueries, Question
from freshet_graph.trainer.models.tgn import Mail

ROWS_AT_ONCE = 8192
"""Rows embedded at once without gradient, which bounds memory."""


@dataclass(slots=True)
class LookedUp:
    """A recorder: while it is a stream's ``looked_up``, it keeps what the stream looked up last.

    Attributes:
        question: All inputs of the answers.
        mails: Of a stream with a memory, what the states below are made of: number of nodes, int64 those with mail, mails.
    """

    question: Question | None = None
    mails: tuple[int, Tensor, Mail] | None = None


class EventStream:
    """The look-ups of one model, as of ``position`` events; this one has no memory (``MemoryStream`` has).

    Rows see the events strictly before a time, and never one of their own time: the caller first delivers up to a time.

    Args:
        model: Its weights may change between calls.
        feed: The events; may grow between calls.
        device: Where look-ups are wanted.
        by_event: Whether a row sees all that is strictly before its own time, if the model can, instead of before its batch.

    Attributes:
        by_event: As given, if the model can.
        position: Events delivered so far.
        looked_up: A recorder of look-ups, or None.
        batch: Number of the batch being learned; 0: none. Uniform neighbours follow from it and from ``place``.
    """

    def __init__(
        self, model: EventModel, feed: EventFeed, device: torch.device, *, by_event: bool = False
    ) -> None:
        self.model = model
        self.position = 0
        self.looked_up: LookedUp | None = None
        self.batch = 0
        self._feed = feed
        self._device = device
        self.by_event = by_event and model.sees_by_event
        self._type = next(model.parameters()).dtype
        self._float = np.dtype(str(self._type).removeprefix("torch."))
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
        self.position += self._ahead(before_us)

    @contextmanager
    def ready(self, wanted: Iterable[tuple[int, Int64]]) -> Iterator[None]:
        """Within it all is here that it takes to deliver the events before some moments and to embed nodes there.

        Args:
            wanted: Moments, ascending, microseconds, and int64 nodes that are embedded at each. It is gone through only
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
        yield

    def look(self, nodes: Int64, time_us: Int64, before_us: int) -> tuple[Tensor, list[Hop]]:
        """The inputs of embeddings of nodes at times: rows of the nodes below, and hops down to them.

        Args:
            nodes: int64 (R,), any dense ids.
            time_us: int64 (R,), at least ``before_us``.
            before_us: Time until which, exclusively, events are seen; after ``deliver_before`` of it.

        Returns:
            Rows (n, d), states with gradient to the model, within ``unchanged`` also those of earlier looks, and hops for
            ``EventModel.embed``.
        """
        return self._look(nodes, time_us, before_us, self.model.layers)

    def embed(self, nodes: Int64, time_us: Int64, before_us: int) -> Tensor:
        """Embeddings (R, width) of nodes at times, with gradient to the model; see ``look``."""
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
        return None

    @property
    def known(self) -> Tensor | None:
        """Within ``unchanged`` the table of states of all that was looked at; every look names rows of it. None: no table."""
        return None

    def mark(self) -> int:
        """From now on remember overwritten content; returns the position, for ``back``."""
        return self.position

    def back(self, position: int) -> None:
        """Go back to the newest ``mark``, and remove it."""
        self.position = position

    def settle(self) -> None:
        """Remove all marks; the present content stays."""

    def forget(self, kept_nodes: Int64, before: Int64) -> None:
        """Follow the feed, which forgot nodes and events; no mark is left.

        Args:
            kept_nodes: int64, ascending numbers of the nodes that stay.
            before: int64 (events before + 1,), how many of the events before each stay.
        """
        self.position = int(before[self.position])

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from, as tensors and arrays."""
        return {"position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.position = int(state["position"])

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return 0

    def _look(self, nodes: Int64, time_us: Int64, before_us: int, layers: int) -> tuple[Tensor, list[Hop]]:
        if self.by_event:  # the same node sees more at a later time
            distinct, row = nodes, np.arange(len(nodes))
        else:
            distinct, (row,) = self._sampler.distinct(nodes)
        if layers == 0:
            below, (row,) = self._below(distinct, row)
            none = torch.empty(0)
            return below, [
                Hop(to_device(row, self._device), none, none, none, none, self._gaps(nodes, time_us))
            ]
        before = time_us if self.by_event else before_us
        sampled = self._sampler.layers(distinct, before, layers, (self.batch << 40) + self.place)
        last = sampled[-1]
        below, (own_row, place) = self._below(self._sampler.below, last.own_place, last.place)
        sampled[-1] = replace(last, own_place=own_row, place=place)
        hops = [self._hop(sampled[0], row, time_us)]
        for layer in sampled[1:]:
            every = np.arange(len(layer.nodes))
            hops.append(self._hop(layer, every, np.full(len(every), before_us)))
        return below, hops

    def _hop(self, layer: SampledLayer, row: Int64, time_us: Int64) -> Hop:
        sampled = layer.sampled
        valid = sampled.event[row] >= 0
        event = np.where(valid, sampled.event[row], -1)
        age_s = np.where(valid, (time_us[:, None] - sampled.time_us[row]) / US_PER_S, 0.0)
        return Hop(
            own=to_device(layer.own_place[row], self._device),
            place=to_device(layer.place[row], self._device),
            age_s=to_device(age_s.astype(self._float), self._device),
            edge=self._edges(event.ravel()).view(*event.shape, self.model.edges),
            there=to_device(valid, self._device),
            gap_s=self._gaps(layer.nodes[row], time_us),
        )

    def _ahead(self, before_us: int, position: int | None = None) -> int:
        """Events from a position (None: the stream's) on that are strictly earlier than a time."""
        first = self.position if position is None else position
        return int(np.searchsorted(self._feed.time_us[first:], before_us))

    def _below(self, nodes: Int64, *places: Int64) -> tuple[Tensor, tuple[Int64, ...]]:
        """Rows of distinct nodes: a table of them, maybe of others too, and places among the nodes as rows of the table."""
        inputs = self.model.inputs(self._feed.born(nodes))
        return to_device(inputs.astype(self._float, copy=False), self._device), places

    def _gaps(self, nodes: Int64, time_us: Int64) -> Tensor:
        """Seconds from nodes' latest events to times (R,), as the memory has them; zeros without one."""
        return torch.zeros(len(nodes), dtype=self._type, device=self._device)

    def _edges(self, event: Int64) -> Tensor:
        """Edge inputs (m, edges) of entries as ``TemporalGraph.event`` has them; −1 gives zeros."""
        edges = np.zeros((len(event), self.model.edges), self._float)
        known = np.flatnonzero(event >= 0)
        if self.model.roles:
            edges[known, 0] = 1 - 2 * (event[known] & 1)  # the node as source or as destination
        edges[known, 1:] = self._feed.carried[event[known] >> 1]
        return to_device(edges, self._device)


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
    host_rows: NDArray[np.float32] = torch.cat(parts).float().cpu().numpy()
    return host_rows


def looked(
    stream: EventStream, queries: Queries, here: slice, before_us: int, *, own_times: bool = False
) -> Question:
    """The inputs of answers to some queries: what the ends look up at present, and the pairs.

    Args:
        stream: Delivered up to ``before_us``.
        queries: The queries.
        here: Which of them.
        before_us: Time until which, exclusively, events are seen.
        own_times: Whether nodes are embedded at each event's own time even if the model embeds them once a batch.
    """
    src, dst, event, time_us = (getattr(queries, name)[here] for name in ("src", "dst", "event", "time_us"))
    if stream.model.once_a_batch and not own_times:
        nodes, place = stream.distinct(np.concatenate([src, dst]))
        times = np.full(len(nodes), before_us)
    else:
        moments = np.concatenate([(event << 32) | src, (event << 32) | dst])
        keys, first, place = np.unique(moments, return_index=True, return_inverse=True)
        if own_times and stream.model.once_a_batch:  # in the order of ``distinct``: it decides the last bits
            order = np.argsort(first)
            keys, first, place = keys[order], first[order], np.argsort(order)[place]
        nodes, times = keys & 0xFFFFFFFF, np.tile(time_us, 2)[first]
    below, hops = stream.look(nodes, times, before_us)
    device = below.device
    at_src, at_dst = (to_device(half, device) for half in np.split(place, 2))
    encounters = to_device(queries.encounters[here], device)
    walks = stream.walk_features(src, dst, time_us)
    return Question(below, hops, PairQueries(at_src, at_dst, encounters, walks))
