"""A memory stream whose rows are spread over ranks: exact together, or alone on a sub-graph."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream.arrays.kinds import Bool, Int32, Int64
from trainer.data.event_feed import EventFeed
from trainer.data.temporal_sampler import Layer
from trainer.device import to_device
from trainer.models.memory.model import MemoryModel
from trainer.ranks import Ranks
from trainer.strategies.events.mailbox import Mailbox, Rows
from trainer.strategies.events.memory_stream import ROWS_AT_ONCE, MemoryStream
from trainer.strategies.events.part_groups import PartGroups
from trainer.strategies.request import Request


class ShardedStream(MemoryStream):
    """A ``MemoryStream`` of which every rank has the rows of its nodes.

    *Together*, the way it begins, all ranks deliver the same groups: each makes the mails of its own nodes, from
    states that the owners compute and send. What is embedded is what one rank would embed. Every method is a
    collective then.

    *Alone*, from ``part`` to ``join``, a rank delivers some events only, of whose nodes it has all rows, and looks at
    neighbours only that it has. Nothing is sent.

    Args:
        model: As of a ``MemoryStream``.
        feed: The events, all of them on every rank.
        ranks: All ranks.
        group: As of a ``MemoryStream``.
        groups: Who owns which node; may change between calls.
    """

    def __init__(
        self, model: MemoryModel, feed: EventFeed, ranks: Ranks, group: int, groups: PartGroups
    ) -> None:
        super().__init__(model, feed, ranks.device, group, partial=True)
        self._ranks = ranks
        self._groups = groups
        self._near: Bool | None = None  # alone: nodes that are here
        self._numbers: Int64 = np.empty(0, np.int64)
        self.delivered = 0
        """Alone: how many of its events are delivered."""

    @property
    def place(self) -> int:
        """See ``MemoryStream.place``."""
        return self.position if self._near is None else self.position + self.delivered

    def part(self, numbers: Int64) -> None:
        """Go on alone.

        Args:
            numbers: int64, ascending numbers of events, of which both ends have rows here or no events yet.
        """
        if self._near is None:
            self._near = self._groups.held()
        self._numbers = numbers
        self.delivered = 0

    def join(self, before_us: int) -> None:
        """Go on together, all ranks having delivered their events before a time."""
        self._near = None
        self.position += int(np.searchsorted(self._feed.time_us[self.position :], before_us))

    def ends(self, numbers: Int64) -> Int64:
        """Distinct ends of events, ascending."""
        return np.unique(np.concatenate([self._feed.src[numbers], self._feed.dst[numbers]]).astype(np.int64))

    def deliver_before(self, before_us: int, group: int | None = None) -> None:
        """See ``MemoryStream.deliver_before``; alone, of its events only."""
        if self._near is None:
            super().deliver_before(before_us, group)
            return
        times = self._feed.time_us[self._numbers[self.delivered :]]
        end = self.delivered + int(np.searchsorted(times, before_us))
        while self.delivered < end:
            last = min(self.delivered + (group or self._group), end)
            self._deliver(self._numbers[self.delivered : last])
            self.delivered = last

    @torch.no_grad()
    def embed_all(self, nodes: Int64, time_us: Int64, before_us: int) -> Tensor:
        """See ``MemoryStream.embed_all``; as many parts on every rank."""
        (most,) = self._ranks.maximum([len(nodes)])
        parts = [
            self.embed(nodes[here], time_us[here], before_us)
            for begin in range(0, max(most, 1), ROWS_AT_ONCE)
            for here in [slice(begin, begin + ROWS_AT_ONCE)]
        ]
        return torch.cat(parts)

    def walk_features(self, src: Int64, dst: Int64, time_us: Int64) -> Tensor | None:
        """See ``MemoryStream.walk_features``."""
        walks = self.mailbox.walks
        if walks is None or self._near is not None or self._ranks.size == 1:
            return super().walk_features(src, dst, time_us)
        nodes, place = np.unique(np.concatenate([src, dst]), return_inverse=True)
        request = Request(nodes, self._groups.owners(nodes), self._ranks)
        rows = self.mailbox.rows_of(request.asked)
        fetched = walks.unpacked(request.answer_array(walks.packed(rows), "walks"))
        at_src, at_dst = np.split(place, 2)
        born = self._feed.born
        features = fetched.features(born(src), born(dst), time_us, (at_src, at_dst))
        return to_device(features, self._device).to(self.mailbox.own.dtype)

    @torch.no_grad()
    def _deliver(self, numbers: Int64) -> None:
        if self._near is not None or self._ranks.size == 1:
            super()._deliver(numbers)
            return
        feed = self._feed
        src, dst = (column[numbers].astype(np.int64) for column in (feed.src, feed.dst))
        ends = np.stack([src, dst], axis=1).ravel()
        times: Int64 = np.repeat(feed.time_us[numbers], 2)
        nodes, (place,) = self._sampler.distinct(ends)
        mine = self._groups.owners(nodes) == self._groups.rank
        mine_of_ends = mine[place]
        if self.model.source != "embedding":
            states = self._everyones(MemoryStream._states(self, nodes[mine]), mine)
            own = told = states[to_device(place, self._device)]
        if self.model.source != "memory":
            telling = self._tell(ends[mine_of_ends], times[mine_of_ends], int(times[0]))
            told = self._everyones(telling, mine_of_ends)
            own = told if self.model.source == "embedding" else own
        kept = np.flatnonzero(mine_of_ends)
        events = 2 * np.repeat(numbers, 2) + np.tile([0, 1], len(numbers))
        mails = self._mails(own, kept, told, kept ^ 1, events[kept])
        place_of_mine = (np.cumsum(mine) - 1)[place[kept]]
        newest = np.empty(len(nodes), np.int64)
        newest[place] = times
        aggregated = self.model.aggregate(mails, place_of_mine, int(mine.sum()))
        self.mailbox.put(nodes[mine], aggregated, newest[mine])
        if self._known is not None:
            self._known.drop(nodes[mine])
        self.mailbox.see(nodes[~mine], newest[~mine])
        if self.mailbox.walks is not None:
            self._walk(src, dst, feed.time_us[numbers], nodes[mine], mine, (place[0::2], place[1::2]))

    def _walk(
        self,
        src: Int64,
        dst: Int64,
        time_us: Int64,
        nodes: Int64,
        mine: Bool,
        places: tuple[Int64, Int64],
    ) -> None:
        """Take the group's walks in one event after the other, on a copy of all its nodes' sketches."""
        walks = self.mailbox.walks
        assert walks is not None
        rows = self.mailbox.rows_of(nodes)
        here = np.full(len(mine), -1, np.int64)
        here[mine] = rows
        everyones = walks.unpacked(self._ranks.sum_array(walks.packed(here), "walks"))
        everyones.add(self._feed.born(src), self._feed.born(dst), time_us, places)
        walks.sketch[rows], walks.time_us[rows] = everyones.sketch[mine], everyones.time_us[mine]

    def _everyones(self, rows: Tensor, here: Bool) -> Tensor:
        """A table (n, d) of which every rank has the rows that are ``here``, bool (n,), each row on one rank."""
        table = rows.new_zeros(len(here), self.model.width)
        table[to_device(np.flatnonzero(here), table.device)] = rows
        return self._ranks.sum_rows(table, "memory")

    def _states(self, nodes: Int64) -> Tensor:
        if self._near is not None or self._ranks.size == 1:
            return super()._states(nodes)
        request = Request(nodes, self._groups.owners(nodes), self._ranks)
        distinct, place = np.unique(request.asked, return_inverse=True)
        rows = super()._states(distinct)[to_device(place, self._device)]
        return request.answer(rows, "memory")

    def _there(self, layer: Layer) -> Bool:
        there = super()._there(layer)
        return there if self._near is None else there & self._near[layer.sampled.node]


def carry(mailbox: Mailbox, before: Int32, after: Int32, ranks: Ranks) -> None:
    """Send the rows of nodes that have another owner to it; a collective.

    Args:
        mailbox: This rank's.
        before: int32 (n,), who owned each node.
        after: int32 (m,), m ≥ n, who owns it now.
        ranks: All ranks.
    """
    if ranks.size == 1:
        return
    known = min(len(before), len(mailbox.event_us))
    moved = np.flatnonzero((before[:known] != after[:known]) & (mailbox.event_us[:known] >= 0))
    going = moved[before[moved] == ranks.rank]
    going = going[np.argsort(after[going], kind="stable")]
    coming = moved[after[moved] == ranks.rank]
    coming = coming[np.argsort(before[coming], kind="stable")]
    sent = np.bincount(after[going], minlength=ranks.size).tolist()
    received = np.bincount(before[coming], minlength=ranks.size).tolist()
    rows = mailbox.rows(going)

    def exchanged(table: NDArray[np.generic] | None, purpose: str) -> NDArray[np.generic] | None:
        if table is None:
            return None
        return ranks.exchange_array(table, sent, received, purpose)

    mail = ranks.exchange(rows.mail, sent, received, "memory")
    sketch, sketch_us = exchanged(rows.sketch, "walks"), exchanged(rows.sketch_us, "walks")
    mailbox.release(going)
    mailbox.write(
        Rows(coming, mail, mailbox.event_us[coming], mailbox.former_us[coming], sketch, sketch_us)  # type: ignore[arg-type]  # of the kinds they were sent with
    )
