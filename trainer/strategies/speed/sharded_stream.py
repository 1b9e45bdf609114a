"""A memory stream whose rows are spread over ranks: exact together, or alone on a sub-graph."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from freshet_graph.stream.arrays.kinds import Bool, Int32, Int64
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.tgn import MemoryModel
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.events.event_stream import ROWS_AT_ONCE
from freshet_graph.trainer.strategies.events.memory_stream import NEVER, Mailbox, MailboxRows, MemoryStream
from freshet_graph.trainer.strategies.request import Request
from freshet_graph.trainer.strategies.speed.part_groups import PartGroups

BORROWED_AT_ONCE = 65_536
"""Events before a snapshot that are delivered from rows borrowed at once: bounds memory."""


class ShardedStream(MemoryStream):
    """A ``MemoryStream`` of which every rank has the rows of its nodes.

    *Together*, the way it begins, all ranks deliver all events, each by itself: the rows that it lacks are lent by
    their owners before, in one exchange, and given back after. So what is embedded is what one rank would embed, and
    no rank waits for another between the first event and the last. ``ready`` and, outside it, ``deliver_before`` and
    ``embed_all`` are collectives then.

    *Alone*, from ``part`` to ``join``, a rank delivers some events only, of whose nodes it has all rows, and looks at
    the latest neighbours that it has, as in a graph of its own (SPEED section II-C). Nothing is sent.

    Args:
        model: As of a ``MemoryStream``.
        feed: The events, all of them on every rank.
        ranks: All ranks.
        group: As of a ``MemoryStream``.
        groups: Owners of nodes; may change between calls.
    """

    def __init__(
        self, model: MemoryModel, feed: EventFeed, ranks: Ranks, group: int, groups: PartGroups
    ) -> None:
        super().__init__(model, feed, ranks.device, group, partial=True)
        self._ranks = ranks
        self._groups = groups
        self._near: Bool | None = None  # alone: nodes that are here
        self._numbers: Int64 = np.empty(0, np.int64)
        self._lent = ranks.size == 1  # together: whether all that it lacks is here
        self.delivered = 0
        """Alone: how many of its events are delivered."""

    @property
    @override
    def place(self) -> int:
        return self.position if self._near is None else self.position + self.delivered

    def part(self, numbers: Int64) -> None:
        """Go on alone.

        Args:
            numbers: int64, ascending numbers of events, of which both ends have rows here or no events yet.
        """
        if self._near is None:
            self._near = self._groups.is_local()
            if self._ranks.size > 1:
                self._sampler.among, self._sampler.reach = self._near, self._ranks.size
        self._numbers = numbers
        self.delivered = 0

    def join(self, before_us: int) -> None:
        """Go on together, all ranks having delivered their events before a time."""
        self._near = self._sampler.among = None
        self.position += self._ahead(before_us)

    def ends(self, numbers: Int64) -> Int64:
        """Distinct ends of events, ascending."""
        return np.unique(np.concatenate([self._feed.src[numbers], self._feed.dst[numbers]]).astype(np.int64))

    @contextmanager
    def ready(self, wanted: Iterable[tuple[int, Int64]]) -> Iterator[None]:
        """See ``MemoryStream.ready``; together a collective, for which all ranks name the same moments."""
        if self._lent or self._near is not None:
            yield
            return
        self.mailbox.reserve(self._feed.graph.num_nodes)
        moments_and_nodes = list(wanted)
        if moments_and_nodes:
            ahead = (self._ahead(moments_and_nodes[0][0]) - BORROWED_AT_ONCE) // self._group * self._group
            self._deliver_until(self.position + ahead, self._group)  # long ago is caught up with first
        position, needed = self.position, list[Int64]()
        for before_us, nodes in moments_and_nodes:
            end = position + self._ahead(before_us, position)
            needed += self._to_deliver(position, end, self._group)
            needed.append(self._reached(nodes, before_us, self.model.layers, end))
            position = end
        with self._having(needed):
            yield

    @torch.no_grad()
    def embed_all(self, nodes: Int64, time_us: Int64, before_us: int) -> Tensor:
        """See ``MemoryStream.embed_all``; outside ``ready`` a collective, of as many parts on every rank."""
        if self._lent or self._near is not None:
            return super().embed_all(nodes, time_us, before_us)
        (most,) = self._ranks.maximum([len(nodes)])
        parts = []
        for begin in range(0, max(most, 1), ROWS_AT_ONCE):
            here = slice(begin, begin + ROWS_AT_ONCE)
            with self.ready([(before_us, nodes[here])]):
                parts.append(self.embed(nodes[here], time_us[here], before_us))
        return torch.cat(parts)

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

    def _deliver_until(self, end: int, group: int) -> None:
        if self._lent:
            super()._deliver_until(end, group)
            return
        while self.position < end:
            last = min(self.position + max(BORROWED_AT_ONCE // group, 1) * group, end)
            with self._having(self._to_deliver(self.position, last, group), known=True):
                super()._deliver_until(last, group)

    def _to_deliver(self, first: int, end: int, group: int) -> list[Int64]:
        """Nodes whose rows it takes to deliver some events in groups."""
        event_ends = [self.ends(np.arange(first, end))]
        for place in range(first, end if self.model.mail_layers else first, group):
            ends = self.ends(np.arange(place, min(place + group, end)))
            before_us = int(self._feed.time_us[place])
            event_ends.append(self._reached(ends, before_us, self.model.mail_layers, place))
        return event_ends

    @contextmanager
    def _having(self, nodes: list[Int64], *, known: bool = False) -> Iterator[None]:
        """Within it this rank has the rows of nodes, whichever rank owns them; a collective.

        Args:
            nodes: Parts of them, which may repeat some.
            known: Whether they are the same on all ranks.
        """
        every = np.unique(np.concatenate([*nodes, np.empty(0, np.int64)]))
        every = every[every < len(self.mailbox.event_us)]
        owners = self._groups.owners(every)
        foreign = every[owners != self._ranks.rank]
        has_mail = self.mailbox.event_us[every] != NEVER
        every, owners = every[has_mail], owners[has_mail]
        if known:
            wanted = [owners != rank for rank in range(self._ranks.size)]
            request = Request.of_known(
                [every[of] for of in wanted], [owners[of] for of in wanted], self._ranks
            )
        else:
            wanted = [owners != self._ranks.rank] * self._ranks.size
            request = Request(every[wanted[0]], owners[wanted[0]], self._ranks)
        self._borrow(every[wanted[self._ranks.rank]], request)
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            self.mailbox.release(foreign)

    def _reached(self, nodes: Int64, before_us: int, layers: int, place: int) -> Int64:
        """The nodes whose states embeddings are made of."""
        if not layers:
            return nodes
        distinct, _ = self.distinct(nodes)
        self._sampler.layers(distinct, before_us, layers, (self.batch << 40) + place)
        return self._sampler.below

    @torch.no_grad()
    def _borrow(self, nodes: Int64, request: Request) -> None:
        """Have the requested rows of some distinct nodes of other ranks, and lend them what they ask for."""
        mailbox, walks = self.mailbox, self.mailbox.walks
        rows = mailbox.rows_of(request.requested)
        mail = mailbox.mail.index_select(0, to_device(rows, self._device))
        sketch = sketch_us = None
        if walks is None:
            mail = request.answer(mail, "memory")
        else:
            packed_walks = torch.from_numpy(walks.packed(rows))
            mail, table = request.answer_tables([mail, packed_walks], "memory")
            lent = walks.unpacked(table.numpy())
            sketch, sketch_us = lent.sketch, lent.time_us
        mailbox.lend(
            MailboxRows(nodes, mail, mailbox.event_us[nodes], mailbox.former_us[nodes], sketch, sketch_us)
        )


def carry(mailbox: Mailbox, before: Int32, after: Int32, ranks: Ranks) -> None:
    """Send the rows of nodes with a new owner to it; a collective.

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
    if not len(moved):  # as all ranks see
        return
    going = moved[before[moved] == ranks.rank]
    going = going[np.argsort(after[going], kind="stable")]
    coming = moved[after[moved] == ranks.rank]
    coming = coming[np.argsort(before[coming], kind="stable")]
    sent = np.bincount(after[going], minlength=ranks.size).tolist()
    received = np.bincount(before[coming], minlength=ranks.size).tolist()
    rows = mailbox.rows(going)
    tables = [rows.mail]
    if rows.sketch is not None and rows.sketch_us is not None:
        tables += [torch.from_numpy(rows.sketch), torch.from_numpy(rows.sketch_us)]
    mail, *walks = ranks.exchange_tables(tables, sent, received, "memory")
    sketch, sketch_us = [table.numpy() for table in walks] or (None, None)
    mailbox.release(going)
    mailbox.write(
        MailboxRows(coming, mail, mailbox.event_us[coming], mailbox.former_us[coming], sketch, sketch_us)
    )
