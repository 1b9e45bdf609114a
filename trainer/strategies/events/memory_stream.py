"""Events with a memory: mails that wait in mailboxes, the states that they make, and the stream that delivers them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.walks import WalkSketches
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.tgn import Mail, MemoryModel
from freshet_graph.trainer.strategies.events.event_stream import EventStream


class RowPlaces:
    """Rows of nodes; returned rows are used again.

    Attributes:
        end: Number of rows of the table.
    """

    def __init__(self) -> None:
        self.end = 0
        self._row = np.empty(0, np.int32)  # −1: no row
        self._free: Int64 = np.empty(0, np.int64)

    def grow(self, num_nodes: int) -> None:
        """Make room for ids below ``num_nodes``."""
        more = num_nodes - len(self._row)
        if more > 0:
            self._row = np.concatenate([self._row, np.full(more, -1, np.int32)])

    def rows_of(self, nodes: Int64) -> Int64:
        """int64 (n,) rows of nodes; −1 for nodes without one, and for unknown ids."""
        if len(nodes) and int(nodes.max()) >= len(self._row):
            inside = nodes < len(self._row)
            rows = np.full(len(nodes), -1, np.int64)
            rows[inside] = self._row[nodes[inside]]
            return rows
        return self._row[nodes].astype(np.int64)

    def hold(self, nodes: Int64) -> Int64:
        """Give rows to those of some distinct, known nodes that have none; returns the new rows."""
        bare = nodes[self._row[nodes] < 0]
        again = min(len(bare), len(self._free))
        rows = np.concatenate(
            [self._free[len(self._free) - again :], np.arange(self.end, self.end + len(bare) - again)]
        )
        self._free = self._free[: len(self._free) - again]
        self.end += len(bare) - again
        self._row[bare] = rows
        return rows

    def release(self, nodes: Int64) -> None:
        """Take the rows of some distinct nodes back."""
        rows = self.rows_of(nodes)
        self._free = np.concatenate([self._free, rows[rows >= 0]])
        self._row[nodes[rows >= 0]] = -1

    def keep(self, kept_nodes: Int64) -> None:
        """Forget all nodes except these, ascending, which are renumbered in their order and keep their rows."""
        gone = self._row >= 0
        gone[kept_nodes] = False
        self.release(np.flatnonzero(gone))
        self._row[: len(kept_nodes)] = self._row[kept_nodes]
        self._row[len(kept_nodes) :] = -1

    def nodes(self) -> Int64:
        """Nodes with a row, ascending."""
        return np.flatnonzero(self._row >= 0)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._row.nbytes + self._free.nbytes


NEVER = -1

_AT_ONCE = 1 << 16

LARGEST_MAIL = 1e6
"""Mails are clipped to this and NaN becomes 0, so that one hostile event cannot spread through the memory."""


@dataclass(frozen=True, slots=True)
class MailboxRows:
    """The content of a mailbox for n nodes.

    Attributes:
        nodes: int64 (n,), distinct.
        mail: (n, width).
        event_us: int64 (n,).
        former_us: int64 (n,).
        sketch: float32 (n, …), walks; None without.
        sketch_us: int64 (n,); None without.
    """

    nodes: Int64
    mail: Tensor
    event_us: Int64
    former_us: Int64
    sketch: Float32 | None
    sketch_us: Int64 | None


@dataclass(slots=True)
class _Journal:
    """Rows and times at a mark, each saved once."""

    saved: Bool
    rows: list[MailboxRows]
    times: list[tuple[Int64, Int64, Int64]]


class Mailbox:
    """One mail per node, from its latest group of events.

    Args:
        memory: d, width of states.
        width: Of a mail, the first d of which are the node's own.
        dtype: Of mails.
        device: Of mails; times stay on the host, which uses them to choose look-ups.
        walks: Sketches that are put back with the mails; None without.
        partial: Whether only some nodes have a row, as on one of several ranks. Times of all nodes are always known.

    Attributes:
        mail: (rows, width): own, other, edge; a row per node, unless ``partial``.
        event_us: int64 (nodes,), time of the latest event, −1 without one.
        former_us: int64 (nodes,), time of the node's latest event in an earlier group, or else in this one.
        places: The rows of nodes; None unless ``partial``.
    """

    def __init__(
        self,
        memory: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        walks: WalkSketches | None,
        *,
        partial: bool = False,
    ) -> None:
        self._memory = memory
        self.walks = walks
        self.mail = torch.zeros(0, width, dtype=dtype, device=device)
        self.event_us: Int64 = np.zeros(0, np.int64)
        self.former_us: Int64 = np.zeros(0, np.int64)
        self.places = RowPlaces() if partial else None
        self._marks: list[_Journal] = []

    @property
    def vectors(self) -> Tensor:
        """(rows, memory), states or embeddings just before the latest events."""
        return self.mail[:, : self._memory]

    def reserve(self, num_nodes: int) -> None:
        """Make room for ids below ``num_nodes``, with rows unless ``partial``."""
        more = num_nodes - len(self.event_us)
        if more <= 0:
            return
        more = max(more, len(self.event_us) // 4)
        self.event_us = np.concatenate([self.event_us, np.full(more, NEVER, np.int64)])
        self.former_us = np.concatenate([self.former_us, np.full(more, NEVER, np.int64)])
        if self.places is None:
            self._grow(len(self.event_us))
        else:
            self.places.grow(len(self.event_us))
        for mark in self._marks:
            mark.saved = np.concatenate([mark.saved, np.zeros(more, np.bool_)])

    def rows_of(self, nodes: Int64) -> Int64:
        """int64 (n,) rows of nodes; −1 for those without."""
        if self.places is not None:
            return self.places.rows_of(nodes)
        return np.where(nodes < len(self.event_us), nodes, -1)

    def hold(self, nodes: Int64) -> None:
        """Give rows to some distinct nodes; new rows are empty."""
        if self.places is None:
            return
        fresh = self.places.hold(nodes)
        if not len(fresh):
            return
        if self.places.end > len(self.mail):
            self._grow(max(self.places.end, len(self.mail) * 5 // 4))
        self.mail.index_fill_(0, to_device(fresh, self.mail.device), 0)
        if self.walks is not None:
            self.walks.sketch[fresh] = 0
            self.walks.time_us[fresh] = 0

    def release(self, nodes: Int64) -> None:
        """Drop the rows of some distinct nodes; their times stay."""
        assert self.places is not None
        self.places.release(nodes)

    def put(self, nodes: Int64, mails: Tensor, time_us: Int64) -> None:
        """Put a mail for each of some distinct nodes.

        Args:
            nodes: int64 (n,).
            mails: (n, width).
            time_us: int64 (n,), of the latest event of each.
        """
        self.hold(nodes)
        self.see(nodes, time_us)
        sound = mails.nan_to_num(0.0).clamp(-LARGEST_MAIL, LARGEST_MAIL)
        rows = nodes if self.places is None else self.places.rows_of(nodes)
        self.mail.index_copy_(0, to_device(rows, self.mail.device), sound)

    def see(self, nodes: Int64, time_us: Int64) -> None:
        """Note the latest events of some distinct nodes whose mails are elsewhere."""
        self._keep(nodes)
        former = self.event_us[nodes]
        self.former_us[nodes] = np.where(former == NEVER, time_us, former)
        self.event_us[nodes] = time_us

    def mails_of(self, nodes: Int64) -> tuple[Int64, Mail]:
        """The present mails of nodes: int64 (m,), places in ``nodes`` of those with one, and the mails."""
        rows = self.rows_of(nodes)
        with_mail = np.flatnonzero(rows >= 0)
        with_mail = with_mail[self.event_us[nodes[with_mail]] != NEVER]
        known = nodes[with_mail]
        gap_s = (self.event_us[known] - self.former_us[known]) / US_PER_S
        mail = self.mail.index_select(0, to_device(rows[with_mail], self.mail.device))
        return with_mail, Mail(
            mail, to_device(gap_s.astype(str(mail.dtype).removeprefix("torch.")), mail.device)
        )

    def age_us(self, nodes: Int64, time_us: Int64) -> Int64:
        """Microseconds from each node's latest event to a time; 0 without one, or if that was later."""
        inside = nodes < len(self.event_us)
        last = (
            np.where(inside, self.event_us[np.where(inside, nodes, 0)], NEVER)
            if len(self.event_us)
            else NEVER
        )
        return np.where(last == NEVER, 0, np.maximum(time_us - last, 0))

    def rows(self, nodes: Int64) -> MailboxRows:
        """Copies of the content for some distinct nodes, all of which have a row."""
        row = nodes if self.places is None else self.places.rows_of(nodes)
        walks = self.walks
        return MailboxRows(
            nodes,
            self.mail[to_device(row, self.mail.device)],
            self.event_us[nodes],
            self.former_us[nodes],
            walks.sketch[row] if walks is not None else None,
            walks.time_us[row] if walks is not None else None,
        )

    def write(self, rows: MailboxRows) -> None:
        """Set the content of nodes; those without a row get one."""
        self.hold(rows.nodes)
        self._keep(rows.nodes)
        self._set(rows)

    def lend(self, rows: MailboxRows) -> None:
        """As ``write``, of nodes that have no row, until they are released; going back to a mark leaves them alone."""
        self.hold(rows.nodes)
        self._set(rows)

    def set_times(self, nodes: Int64, event_us: Int64, former_us: Int64) -> None:
        """Set the times of some distinct nodes."""
        self._keep(nodes)
        self.event_us[nodes] = event_us
        self.former_us[nodes] = former_us

    def mark(self) -> None:
        """From now on remember overwritten content, until ``back``, ``fold`` or ``forget``."""
        self._marks.append(_Journal(np.zeros(len(self.event_us), np.bool_), [], []))

    def back(self) -> None:
        """Put back everything since the newest mark, and remove the mark; rows dropped since stay dropped."""
        mark = self._marks.pop()
        for rows in mark.rows:
            self._set(rows)
        for nodes, event_us, former_us in mark.times:
            self.event_us[nodes] = event_us
            self.former_us[nodes] = former_us

    def fold(self) -> None:
        """Merge the newest mark into the one before: going back there undoes both."""
        newest = self._marks.pop()
        if not self._marks:
            return
        mark = self._marks[-1]
        for rows in newest.rows:
            fresh = ~mark.saved[rows.nodes]
            mark.rows.append(_some(rows, fresh))
        for nodes, event_us, former_us in newest.times:
            fresh = ~mark.saved[nodes]
            mark.times.append((nodes[fresh], event_us[fresh], former_us[fresh]))
        mark.saved |= newest.saved

    def forget(self) -> None:
        """Remove all marks; the present content stays."""
        self._marks.clear()

    def keep(self, kept_nodes: Int64) -> None:
        """Forget all nodes except these, ascending, which are renumbered in their order. There must be no mark."""
        assert not self._marks
        kept_nodes = kept_nodes[kept_nodes < len(self.event_us)]
        for times in (self.event_us, self.former_us):
            times[: len(kept_nodes)] = times[kept_nodes]
            times[len(kept_nodes) :] = NEVER
        if self.places is not None:
            self.places.keep(kept_nodes)
            return
        tables: list[Any] = (
            [self.mail] if self.walks is None else [self.mail, self.walks.sketch, self.walks.time_us]
        )
        for table in tables:
            for begin in range(0, len(kept_nodes), _AT_ONCE):  # in place: a copy would double the peak
                part = kept_nodes[begin : begin + _AT_ONCE]
                table[begin : begin + len(part)] = table[part]
            table[len(kept_nodes) :] = 0

    def changed(self) -> Int64:
        """Nodes with a row that changed since the newest mark."""
        parts = [rows.nodes for rows in self._marks[-1].rows]
        return np.concatenate([*parts, np.empty(0, np.int64)])

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from, as tensors and arrays."""
        times = {"event_us": self.event_us, "former_us": self.former_us}
        if self.places is not None:
            rows = self.rows(self.places.nodes())
            walks = {} if rows.sketch is None else {"sketch": rows.sketch, "sketch_us": rows.sketch_us}
            return {"nodes": rows.nodes, "mail": rows.mail.cpu(), **times, **walks}
        walks = {} if self.walks is None else {"sketch": self.walks.sketch, "sketch_us": self.walks.time_us}
        return {"mail": self.mail.cpu(), **times, **walks}

    def restore(self, state: dict[str, Any], local_nodes: Bool | None = None) -> None:
        """Continue from a ``state()``.

        Args:
            state: Of this mailbox, or, if it is ``partial``, of any part of the nodes.
            local_nodes: bool (nodes,), if it is ``partial``: the nodes to hold here.
        """
        self.forget()
        self.event_us = np.asarray(state["event_us"]).copy()
        self.former_us = np.asarray(state["former_us"]).copy()
        if self.places is None:
            self.mail = state["mail"].to(self.mail.device, self.mail.dtype, copy=True)
            if self.walks is not None:
                self.walks.sketch = np.asarray(state["sketch"]).copy()
                self.walks.time_us = np.asarray(state["sketch_us"]).copy()
            return
        assert local_nodes is not None
        self.places = RowPlaces()
        self.places.grow(len(self.event_us))
        nodes = np.asarray(state["nodes"])
        ours = np.flatnonzero(local_nodes[nodes])
        self.write(
            MailboxRows(
                nodes[ours],
                state["mail"][torch.from_numpy(ours)].to(self.mail.device, self.mail.dtype),
                self.event_us[nodes[ours]],
                self.former_us[nodes[ours]],
                np.asarray(state["sketch"])[ours] if self.walks is not None else None,
                np.asarray(state["sketch_us"])[ours] if self.walks is not None else None,
            )
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        walks = 0 if self.walks is None else self.walks.sketch.nbytes + self.walks.time_us.nbytes
        places = 0 if self.places is None else self.places.memory_bytes
        return self.mail.nbytes + self.event_us.nbytes + self.former_us.nbytes + walks + places

    def _grow(self, rows: int) -> None:
        more = rows - len(self.mail)
        self.mail = torch.cat([self.mail, self.mail.new_zeros(more, self.mail.shape[1])])
        if self.walks is not None:
            self.walks.reserve(rows)

    def _set(self, rows: MailboxRows) -> None:
        row = self.rows_of(rows.nodes)
        if self.places is not None and (row < 0).any():
            rows, row = _some(rows, row >= 0), row[row >= 0]
        self.mail[to_device(row, self.mail.device)] = rows.mail
        self.event_us[rows.nodes] = rows.event_us
        self.former_us[rows.nodes] = rows.former_us
        if self.walks is not None and rows.sketch is not None and rows.sketch_us is not None:
            self.walks.sketch[row] = rows.sketch
            self.walks.time_us[row] = rows.sketch_us

    def _keep(self, nodes: Int64) -> None:
        if not self._marks:
            return
        mark = self._marks[-1]
        fresh = nodes[~mark.saved[nodes]]
        mark.saved[fresh] = True
        if self.places is None:
            mark.rows.append(self.rows(fresh))
            return
        mark.times.append((fresh, self.event_us[fresh], self.former_us[fresh]))
        mark.rows.append(self.rows(fresh[self.places.rows_of(fresh) >= 0]))


def _some(rows: MailboxRows, chosen: Bool) -> MailboxRows:
    return MailboxRows(
        rows.nodes[chosen],
        rows.mail[to_device(np.flatnonzero(chosen), rows.mail.device)],
        rows.event_us[chosen],
        rows.former_us[chosen],
        None if rows.sketch is None else rows.sketch[chosen],
        None if rows.sketch_us is None else rows.sketch_us[chosen],
    )


NONE, ASKED = -1, -2


class KnownStates:
    """Each node's state, computed on first use and again after new mail.

    Predictions of a snapshot are made batch after batch with the same weights, and most nodes of a batch were in the batch
    before.

    Args:
        none: (0, d), of the type and where states are.
    """

    def __init__(self, none: Tensor) -> None:
        self._slot: Int64 = np.empty(0, np.int64)  # of each node, its row below; NONE without
        self._states = none
        self._used = 0

    @property
    def states(self) -> Tensor:
        """All states computed so far, (m, d). A row stays the same, whatever is added or dropped."""
        return self._states[: self._used]

    def rows(self, nodes: Int64, soon: Callable[[], Int64], compute: Callable[[Int64], Tensor]) -> Int64:
        """Rows of the nodes' states in ``states``, int64 (n,).

        Args:
            nodes: int64 (n,), distinct.
            soon: Distinct nodes of the next question; if any state has to be computed, theirs are computed with it.
            compute: Makes the states (k, d) of distinct nodes.
        """
        self._reserve(nodes)
        unknown = nodes[self._slot[nodes] == NONE]
        if len(unknown):
            self._slot[unknown] = ASKED
            later = soon()
            self._reserve(later)
            unknown = np.concatenate([unknown, later[self._slot[later] == NONE]])
            self._take(unknown, compute(unknown))
        return self._slot[nodes]

    def drop(self, nodes: Int64) -> None:
        """Forget the states of nodes that get new mail."""
        self._slot[nodes[nodes < len(self._slot)]] = NONE

    def _reserve(self, nodes: Int64) -> None:
        more = int(nodes.max(initial=-1)) + 1 - len(self._slot)
        if more > 0:
            self._slot = np.concatenate([self._slot, np.full(max(more, len(self._slot) // 4), NONE)])

    def _take(self, nodes: Int64, states: Tensor) -> None:
        end = self._used + len(nodes)
        if end > len(self._states):
            room = states.new_empty(max(end, 2 * len(self._states)), states.shape[1])
            room[: self._used] = self._states[: self._used]
            self._states = room
        self._states[self._used : end] = states
        self._slot[nodes] = np.arange(self._used, end)
        self._used = end


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

    @override
    def deliver_before(self, before_us: int, group: int | None = None) -> None:
        self.mailbox.reserve(self._feed.graph.num_nodes)
        self._deliver_until(self.position + self._ahead(before_us), group or self._group)

    @contextmanager
    @override
    def unchanged(self, before_us: int) -> Iterator[None]:
        self._until = self.position + self._ahead(before_us)
        self._known = KnownStates(self.mailbox.mail.new_empty(0, self.model.width))
        try:
            yield
        finally:
            self._known = None

    @override
    def walk_features(self, src: Int64, dst: Int64, time_us: Int64) -> Tensor | None:
        if self.mailbox.walks is None:
            return None
        rows = self.mailbox.rows_of(src), self.mailbox.rows_of(dst)
        born = self._feed.born
        features = self.mailbox.walks.features(born(src), born(dst), time_us, rows)
        return to_device(features, self._device).to(self.mailbox.vectors.dtype)

    @property
    @override
    def known(self) -> Tensor | None:
        return None if self._known is None else self._known.states

    @override
    def mark(self) -> int:
        self.mailbox.mark()
        return self.position

    @override
    def back(self, position: int) -> None:
        self.mailbox.back()
        self.position = position

    @override
    def settle(self) -> None:
        self.mailbox.forget()

    @override
    def forget(self, kept_nodes: Int64, before: Int64) -> None:
        self.mailbox.forget()
        self.mailbox.keep(kept_nodes)
        super().forget(kept_nodes, before)

    @override
    def state(self) -> dict[str, Any]:
        return {**super().state(), **self.mailbox.state()}

    @override
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.mailbox.restore(state)

    @property
    @override
    def memory_bytes(self) -> int:
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
            vectors, (vector_row,) = self._below(nodes, place)
        else:
            vectors, vector_row = self._tell(ends, times, before), np.arange(len(ends))
        events = 2 * np.repeat(numbers, 2) + np.tile([0, 1], len(numbers))
        mails = self._mails(vectors, vector_row[chosen], vector_row[chosen ^ 1], events[chosen])
        mails = self.model.aggregate(mails, place[chosen], len(nodes))
        newest = np.empty(len(nodes), np.int64)
        newest[place] = times  # of repeated places the last value stays
        self.mailbox.put(nodes, mails, newest)
        if self._known is not None:
            self._known.drop(nodes)
        if self.mailbox.walks is not None:
            rows = self.mailbox.rows_of(src), self.mailbox.rows_of(dst)
            self.mailbox.walks.add(feed.born(src), feed.born(dst), time_us, rows)

    def _mails(self, vectors: Tensor, own_at: Int64, other_at: Int64, event: Int64) -> Tensor:
        """Mails (m, width) from rows of the ends and of the other ends; a row begins with the end's own vector."""
        mine = vectors[:, : self.model.width].index_select(0, to_device(own_at, self._device))
        other = vectors.index_select(0, to_device(other_at, self._device))
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
        with_mail, mail = self.mailbox.mails_of(nodes)
        if self.looked_up is not None:
            self.looked_up.mails = len(nodes), to_device(with_mail, self._device), mail
        if len(with_mail) == len(nodes) > 0:
            return self.model.states(mail)
        states = self.mailbox.vectors.new_zeros(len(nodes), self.model.width)
        if not len(with_mail):
            return states
        return states.index_copy(0, to_device(with_mail, self._device), self.model.states(mail))

    def _gaps(self, nodes: Int64, time_us: Int64) -> Tensor:
        age_us = self.mailbox.age_us(nodes, time_us)
        return to_device((age_us / 1e6).astype(self._float), self._device)
