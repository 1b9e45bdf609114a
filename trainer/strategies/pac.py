"""``pac``: ranks learn sub-graphs side by side, made of shuffled and combined parts (SPEED section II-C)."""

import math
import time
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.events import Op
from schemas.store import LaneHeader
from stream.service.failure import Failure
from stream.store.log.event_columns import EventColumns
from trainer.data.examples import Examples, Lesson, Queries
from trainer.data.graph_window import GraphWindow
from trainer.data.history import Inserts
from trainer.models.interface import Model
from trainer.models.memory.model import MemoryModel
from trainer.ranks import Ranks
from trainer.strategies.interface import Reads, StepReport, register
from trainer.strategies.mailbox import Rows
from trainer.strategies.memory_stream import ROWS_AT_ONCE
from trainer.strategies.memory_way import MemoryWay, logits, on_host
from trainer.strategies.part_groups import PartGroups
from trainer.strategies.sequential import SequentialStrategy
from trainer.strategies.sharded_stream import ShardedStream, carry
from trainer.strategies.shared_copies import SYNCHRONISE, SharedCopies, Synchronise
from trainer.strategies.soundness import outcome, spoil, told

Int64 = NDArray[np.int64]

GATHERED_AT_ONCE = 65_536
"""Rows a rank sends at once for a checkpoint: bounds what the first rank must take at once."""

_ROUNDS = 1 << 32
"""Shuffles of one pass over a stream, at most."""


@register
class PacStrategy(SequentialStrategy):
    """SPEED's PAC: parts of a lane are combined to sub-graphs, one a rank; shared nodes are in all of them.

    Each rank has the memory of its nodes. It learns the events of its sub-graph batch after batch, alone; gradients
    are summed, each query weighted alike. A rank with fewer batches begins anew, from the memory before the snapshot,
    until the longest is done, and then goes back to the memory at the end of its last whole cycle. Then the copies of
    shared nodes become one again. An event is learned by one rank, or, if no rank has both ends, by none. Predictions
    are those of one rank: there memory is read and written across ranks, and no event is left out. One rank does what
    ``sequential`` does, bit for bit.

    Args:
        group: See ``sequential``.
        precision: See ``sequential``.
        synchronise: What becomes of a shared node's copies: ``latest`` or ``mean``.
        shuffle_every: Snapshots between shuffles of the parts; ``evaluate`` also shuffles at every epoch.
        batch: Whose ``batch_size`` is: ``divided``, that of all ranks together, so that any number of them makes as
            many steps as one; ``each``, every rank's, with fewer steps the more ranks.
    """

    name: ClassVar[str] = "pac"
    reads: ClassVar[Reads] = "graph"
    replays: ClassVar[bool] = False

    def __init__(
        self,
        *,
        group: int = 200,
        precision: str = "float32",
        synchronise: str = "latest",
        shuffle_every: int = 16,
        batch: str = "divided",
    ) -> None:
        super().__init__(group=group, precision=precision)
        if synchronise not in SYNCHRONISE:
            raise ValueError(f"synchronise must be {' or '.join(SYNCHRONISE)}, found {synchronise!r}")
        if shuffle_every < 1:
            raise ValueError(f"shuffle_every must be at least 1, found {shuffle_every}")
        if batch not in ("divided", "each"):
            raise ValueError(f"batch must be divided or each, found {batch!r}")
        self._synchronise: Synchronise = synchronise
        self._shuffle_every = shuffle_every
        self._divided = batch == "divided"
        self._passes = 0

    def rewind(self) -> None:
        """See ``Strategy.rewind``: the parts are shuffled anew."""
        ranks = self._ranks
        self._groups = PartGroups(self._lane.parts, ranks.rank, ranks.size, self._seed)
        self._passes += 1
        self._snapshots = 0
        self._first = 0  # number of the newest snapshot's first event
        self._learner = np.empty(0, np.int32)  # rank of each of its events
        super().rewind()

    def advance(self, window: GraphWindow) -> None:
        """See ``Strategy.advance``: parts are shuffled if it is time, and memory goes where its nodes are now."""
        tau = window.taus[-1]
        if self._tau is not None and tau <= self._tau:
            return
        self._take_in(tau, window.events(tau), window.num_nodes)
        before = self._groups.owner
        round_number = self._passes * _ROUNDS + self._snapshots // self._shuffle_every
        self._groups.place(window.owner(tau), window.shared(), round_number)
        for way in self._every_way:
            carry(way.stream.mailbox, before, self._groups.owner, self._ranks)
        inserts = window.events(tau).op == int(Op.INSERT)
        parts = window.event_parts(tau)
        part = np.full(int(inserts.sum()), -1, np.int32) if parts is None else parts[inserts]
        src, dst = (column[self._first :].astype(np.int64) for column in (self._feed.src, self._feed.dst))
        self._learner = self._groups.learners(src, dst, part)
        self._snapshots += 1

    def owned(self, num_nodes: int) -> NDArray[np.bool_]:
        """See ``Strategy.owned``."""
        return self._groups.owners(np.arange(num_nodes)) == self._ranks.rank

    def lesson(self, tau: int, inserts: Inserts) -> Lesson | None:
        """See ``Strategy.lesson``: events with both ends here, and negatives that are here."""
        mine = self._learner == self._ranks.rank
        if tau != self._tau or len(mine) != len(inserts):  # before a checkpoint: it is not learned again
            mine = np.zeros(len(inserts), np.bool_)
        return Lesson(mine, self._groups.weigh)

    @torch.no_grad()
    def predict(self, model: Model, queries: list[Queries]) -> list[NDArray[np.float32]]:
        """See ``Strategy.predict``: batch after batch on all ranks together."""
        if self._ranks.size == 1:
            return super().predict(model, queries)
        assert isinstance(model, MemoryModel)
        way = self._way_of(model)
        way.restart()
        found: list[list[Tensor]] = [[] for _ in queries]
        moments = self._ranks.union(np.unique(np.concatenate([query.before_us for query in queries])))
        begins = np.stack([np.searchsorted(query.before_us, moments) for query in queries])
        ends = np.stack([np.searchsorted(query.before_us, moments + 1) for query in queries])
        most = self._ranks.largest(ends - begins)
        for column, before_us in enumerate(moments.tolist()):
            way.stream.deliver_before(before_us)
            model.eval()
            for query, answer, begin, end, longest in zip(
                queries, found, begins[:, column], ends[:, column], most[:, column], strict=True
            ):
                for first in range(int(begin), int(begin + longest), ROWS_AT_ONCE):
                    here = slice(min(first, end), min(first + ROWS_AT_ONCE, end))
                    answer.append(logits(way.stream, query, here, before_us))
        return [on_host(answer) for answer in found]

    def train(self, examples: Examples, epoch: int) -> StepReport:
        """See ``Strategy.train``: every rank its sub-graph, in the order of the log."""
        began = time.perf_counter()
        ranks, batch = self._ranks, self._batch
        way, learned = self._ways[0], examples.learned
        way.restart()
        sizes = ranks.exchange_sizes([len(learned)] * ranks.size)
        if not sum(sizes):
            return StepReport(0, 0, None, discarded=len(examples.every))
        stream = cast(ShardedStream, way.stream)
        latest = -np.iinfo(np.int64).max
        first_us = -ranks.maximum([-int(learned.time_us[0]) if len(learned) else latest])[0]
        stream.deliver_before(first_us, batch)
        if ranks.rank > 0:  # rank 0's generator goes on, and is in the checkpoint
            draw = [self._seed, examples.tau % (1 << 63), epoch, ranks.rank]
            torch.manual_seed(int(np.random.default_rng(draw).integers(1 << 63)))
        cycle = _Cycle(stream, self._groups, ranks, self._first + np.flatnonzero(self._mine()))
        counts = [math.ceil(size / batch) for size in sizes]
        own, steps = counts[ranks.rank], max(counts)
        sizes_here, outcomes = [], []
        for step in range(steps):
            total = sum(
                _batch_size(size, step % count, batch)
                for size, count in zip(sizes, counts, strict=True)
                if count
            )
            if own and step and step % own == 0:
                cycle.wrap(keep=step // own == steps // own)
            here = (
                slice(step % own * batch, min((step % own + 1) * batch, len(learned))) if own else slice(0, 0)
            )
            sizes_here.append(here.stop - here.start)
            outcomes.append(self._share(stream, examples, here, total))
        cycle.end(whole=not own or steps % own == 0)
        last_us = int(learned.time_us[(own - 1) * batch]) if own else latest
        (until_us,) = ranks.maximum([last_us])
        stream.deliver_before(until_us, batch)
        cycle.join(until_us, self._synchronise, self._first, self._learner)
        self._model.eval()
        ended = told(outcomes)
        taken = [
            (loss, 2 * size) for size, (loss, left_out) in zip(sizes_here, ended, strict=True) if not left_out
        ]
        losses, queries = math.fsum(loss * size for loss, size in taken), sum(size for _, size in taken)
        loss_sum, query_sum = ranks.total([losses, queries])
        return StepReport(
            steps=steps,
            events=sum(sizes),
            loss=loss_sum / query_sum if query_sum else None,
            nonfinite=len(ended) - len(taken),
            discarded=len(examples.every) - sum(sizes),
            seconds={"train": time.perf_counter() - began},
        )

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``: of the memory, this rank's rows."""
        return {
            **super().state(),
            "groups": self._groups.state(),
            "passes": self._passes,
            "snapshots": self._snapshots,
        }

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """See ``Strategy.gather``: rows of all ranks."""
        return {**state, "streams": {place: self._gathered(own) for place, own in state["streams"].items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``; the number of ranks may be another one."""
        self.rate.restore(state["rate"])
        self._steps = int(state.get("steps", 0))
        self.rewind()
        self._passes, self._snapshots = state["passes"], state["snapshots"]
        self._groups.restore(state["groups"])
        self._tau, self._num_nodes = state["tau"], state["num_nodes"]
        self._feed.restore({name: np.asarray(column) for name, column in state["feed"].items()})
        self._first = len(self._feed)
        self._restore_ways(state["streams"])

    def forget(self, kept: Int64, first: int) -> int:
        """See ``EventStrategy.forget``."""
        events = super().forget(kept, first)
        self._groups.keep(kept)
        self._first = len(self._feed)
        self._learner = self._learner[:0]
        return events

    @property
    def held_bytes(self) -> dict[str, int]:
        """See ``Strategy.held_bytes``."""
        return {**super().held_bytes, "parts": self._groups.memory_bytes + self._learner.nbytes}

    def _check(self, lane: LaneHeader, ranks: Ranks) -> None:
        if lane.parts < ranks.size:
            raise Failure(
                f"lane {lane.lane} has {lane.parts} parts for {ranks.size} ranks: start at most {lane.parts} ranks"
            )

    def _take_in(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        self._first = len(self._feed)
        self._learner = self._learner[:0]
        super()._take_in(tau, events, num_nodes)
        self._groups.grow(num_nodes)

    @property
    def _batch(self) -> int:
        batch = self._optimisation.batch_size
        return math.ceil(batch / self._ranks.size) if self._divided else batch

    def _mine(self) -> NDArray[np.bool_]:
        return self._learner == self._ranks.rank

    def _share(self, stream: ShardedStream, examples: Examples, here: slice, total: int) -> Tensor:
        """A step over ``total`` events of all ranks, with this rank's mean loss; see ``outcome``."""
        self.rate.optimiser.zero_grad(set_to_none=True)
        learned = here.stop - here.start
        loss = stream.mailbox.mail.new_zeros(())
        if learned:
            loss = self._loss(stream, examples, here)
            (loss * (learned / total)).backward()
            spoil(self._weights, loss)
        self._ranks.sum_gradients(self._weights)
        # the summed gradient is equal on all ranks, so they agree on leaving a step out without asking
        return outcome(loss, self._follow_gradient())

    def _way(self, model: MemoryModel) -> MemoryWay:
        return MemoryWay(model, ShardedStream(model, self._feed, self._ranks, self._group, self._groups))

    def _restore_stream(self, way: MemoryWay, state: dict[str, Any]) -> None:
        way.stream.position = int(state["position"])
        held = np.zeros(max(len(self._groups.owner), len(state["event_us"])), np.bool_)
        held[: len(self._groups.owner)] = self._groups.owner == self._ranks.rank
        way.stream.mailbox.restore(state, held)

    def _gathered(self, own: dict[str, Any]) -> dict[str, Any]:
        """One stream's state with the rows of all ranks on rank 0, in its host's memory."""
        ranks = self._ranks
        (most,) = ranks.maximum([len(own["nodes"])])
        firsts = range(0, max(most, 1), GATHERED_AT_ONCE)

        def collected(rows: Any) -> Tensor:
            table = rows if isinstance(rows, Tensor) else torch.from_numpy(np.ascontiguousarray(rows))
            blocks = []
            for first in firsts:
                block = table[first : first + GATHERED_AT_ONCE]
                sent = [len(block), *[0] * (ranks.size - 1)]
                blocks.append(ranks.exchange(block, sent, ranks.exchange_sizes(sent), "checkpoint"))
            return torch.cat(blocks)

        by_row = ("nodes", "mail", "sketch", "sketch_us")
        return {key: collected(value) if key in by_row else value for key, value in own.items()}


class _Cycle:
    """One rank's way over its events again and again, until all ranks have been over theirs once (Algorithm 2)."""

    def __init__(self, stream: ShardedStream, groups: PartGroups, ranks: Ranks, numbers: Int64) -> None:
        self._stream, self._groups, self._ranks = stream, groups, ranks
        self._from = stream.position
        self._copies: SharedCopies | None = None
        if ranks.size > 1:
            known = groups.shared[: len(stream.mailbox.event_us)]
            shared = np.flatnonzero(known)
            mine = groups.owner[shared] == ranks.rank
            self._copies = SharedCopies(stream, shared, mine, ranks)
        self._numbers = numbers[np.searchsorted(numbers, self._from) :]
        self._backup: tuple[Rows, int] | None = None
        stream.mailbox.mark()
        stream.part(self._numbers)

    def wrap(self, *, keep: bool) -> None:
        """Begin anew, from the memory before; ``keep``: this was the last whole cycle."""
        mailbox = self._stream.mailbox
        if keep:
            self._backup = mailbox.rows(mailbox.changed()), self._stream.delivered
        mailbox.back()
        mailbox.mark()
        self._stream.part(self._numbers)

    def end(self, *, whole: bool) -> None:
        """The longest rank is done; unless this one ends with a ``whole`` cycle, back to the end of its last one."""
        if whole:
            return
        assert self._backup is not None
        mailbox = self._stream.mailbox
        mailbox.back()
        mailbox.mark()
        mailbox.write(self._backup[0])
        self._stream.delivered = self._backup[1]

    def join(self, until_us: int, how: Synchronise, first: int, learner: NDArray[np.int32]) -> None:
        """All ranks have delivered their events before a time: one memory again.

        Args:
            until_us: Microseconds.
            how: What becomes of copies.
            first: Number of the newest snapshot's first event.
            learner: int32, rank of each of its events.
        """
        stream, mailbox = self._stream, self._stream.mailbox
        ours = self._numbers[: stream.delivered]
        stream.join(until_us)
        if self._copies is not None:
            numbers = np.arange(max(self._from, first), stream.position)
            numbers = numbers[learner[numbers - first] >= 0]
            touched = stream.ends(numbers)
            shared = self._copies.nodes
            self._copies.merge(how, np.intersect1d(stream.ends(ours), shared), np.isin(shared, touched))
            self._tell_times(touched[~self._groups.shared[touched]])
        mailbox.fold()

    def _tell_times(self, nodes: Int64) -> None:
        """Owners know when their nodes had their latest events; everybody must."""
        mailbox = self._stream.mailbox
        mine = self._groups.owner[nodes] == self._ranks.rank
        times = np.stack([mailbox.event_us[nodes], mailbox.former_us[nodes]])
        times = self._ranks.largest(np.where(mine, times, np.iinfo(np.int64).min))
        mailbox.set_times(nodes[~mine], times[0, ~mine], times[1, ~mine])


def _batch_size(size: int, step: int, batch: int) -> int:
    """Events of a rank's batch number ``step``."""
    return max(0, min(batch, size - step * batch))
