"""``pac``: ranks learn sub-graphs side by side, made of shuffled and combined parts (SPEED section II-C)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.arrays.kinds import Bool, Int32, Int64
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.examples import Examples, Share
from freshet_graph.trainer.data.history import Inserts
from freshet_graph.trainer.data.views import GraphView
from freshet_graph.trainer.models.event_model import EventModel
from freshet_graph.trainer.models.interface import Model
from freshet_graph.trainer.models.tgn import MemoryModel
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.events.event_stream import EventStream
from freshet_graph.trainer.strategies.events.memory_stream import MailboxRows
from freshet_graph.trainer.strategies.events.remembering import (
    EventOptions,
    Memories,
    RememberingStrategy,
    batch_loss,
)
from freshet_graph.trainer.strategies.interface import STRATEGIES, Needs, OwnKey, Setting, StepReport
from freshet_graph.trainer.strategies.passes import Step, run
from freshet_graph.trainer.strategies.speed.part_groups import PartGroups
from freshet_graph.trainer.strategies.speed.sharded_stream import ShardedStream, carry
from freshet_graph.trainer.strategies.speed.shared_copies import SharedCopies, Synchronise

GATHERED_AT_ONCE = 65_536
"""Rows that a rank sends at once for a checkpoint, which bounds the memory of the first rank."""

NEVER_LEARNED = int(np.iinfo(np.int64).max)
"""The time of a first event of a rank that learns none."""

_ROUNDS = 1 << 32
"""Shuffles of one pass over a stream, at most."""


class PacOptions(EventOptions):
    """Options of ``pac``, besides those of ``sequential``."""

    synchronise: Synchronise = Field("latest", description="Merge of a shared node's copies.")
    shuffle_every: int | None = Field(
        16,
        ge=1,
        description="Snapshots between shuffles of the parts; evaluate also shuffles at every epoch. null: one combination.",
    )
    batch: Literal["divided", "each"] = Field(
        "divided",
        description="Meaning of batch_size. divided: events of all ranks together, so that any number of ranks takes as many "
        "steps as one; each: events of every rank, with fewer steps the more ranks there are.",
    )


@STRATEGIES.register
class PacStrategy(RememberingStrategy):
    """SPEED's PAC: parts of a lane are combined to sub-graphs, one per rank; shared nodes are in all of them.

    - Each rank has the memory of its nodes, and learns the events of its sub-graph batch after batch, alone. Gradients
      are summed, each query weighted alike.
    - A rank with fewer batches begins again, from the memory before the snapshot, until the longest rank is done. Then it
      returns to the memory at the end of its last whole cycle, and the copies of shared nodes are merged.
    - An event is learned by one rank, or, if no rank has both ends, by none.
    - Predictions are those of one rank: for them a rank borrows what it lacks, and no event is left out.
    - A model without a memory looks up what one rank would, because every rank has all events.
    - One rank does what ``sequential`` does, bit for bit.
    """

    name: ClassVar[str] = "pac"
    replays: ClassVar[bool] = False
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset()
    Options: ClassVar[type[Section]] = PacOptions

    def __init__(self, setting: Setting, options: PacOptions) -> None:
        super().__init__(setting, options)
        self._pac, self._seed = options, setting.seed
        self._synchronise = options.synchronise
        self.resize(setting.optimisation.batch)
        self._passes = 0
        self.rewind()

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """See ``Strategy.refuses``."""
        if lane is not None and lane.parts < ranks:
            return (
                f"lane {lane.lane} has {lane.parts} parts for {ranks} ranks. Start at most {lane.parts} ranks"
            )
        return None

    @property
    def needs(self) -> Needs:
        """See ``Strategy.needs``: the owners of nodes in the newest snapshot, without its edges and features."""
        return Needs("graph")

    def rewind(self) -> None:
        """See ``Strategy.rewind``: the parts are shuffled again."""
        ranks = self._ranks
        self._groups = PartGroups(self._setting.lane.parts, ranks.rank, ranks.size, self._seed)
        self._passes += 1
        self._snapshots = 0
        self._first = 0  # number of the newest snapshot's first event
        self._learner = np.empty(0, np.int32)  # rank of each of its events
        self.memories = Memories(self._model, self._stream, self._setting.lane.edge_features)

    def take_in(self, view: GraphView) -> None:
        """See ``Strategy.take_in``: parts are shuffled when due, and memory moves to the new owners of its nodes."""
        tau = view.taus[-1]
        if self.memories.has(tau):
            return
        self.remember(tau, view.events(tau), view.num_nodes)
        before = self._groups.owner
        every = self._pac.shuffle_every
        round_number = 0 if every is None else self._passes * _ROUNDS + self._snapshots // every
        self._groups.place(view.owner(tau), view.shared(), round_number)
        for cursor in self.memories.every:
            if isinstance(cursor.stream, ShardedStream):
                carry(cursor.stream.mailbox, before, self._groups.owner, self._ranks)
        inserts = view.events(tau).op == int(Op.INSERT)
        parts = view.event_parts(tau)
        part = np.full(int(inserts.sum()), -1, np.int32) if parts is None else parts[inserts]
        feed = self.memories.feed
        src, dst = (column[self._first :].astype(np.int64) for column in (feed.src, feed.dst))
        self._learner = self._groups.learners(src, dst, part)
        self._snapshots += 1

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """See ``Strategy.remember``."""
        self._first = len(self.memories.feed)
        self._learner = self._learner[:0]
        self.memories.take_in(tau, events, num_nodes)
        self._groups.grow(num_nodes)

    def owned(self, num_nodes: int) -> Bool:
        """See ``Strategy.owned``."""
        return self._groups.owners(np.arange(num_nodes)) == self._ranks.rank

    def share(self, tau: int, inserts: Inserts) -> Share | None:
        """See ``Strategy.share``: events with both ends on this rank, and negatives on this rank."""
        mine = self._mine()
        if tau != self.memories.tau or len(mine) != len(inserts):
            mine = np.zeros(len(inserts), np.bool_)  # it was before a checkpoint, and is not learned again
        return Share(mine, self._groups.weigh)

    def learn(self, example_sets: Sequence[Examples], epoch: int) -> StepReport:
        """See ``Strategy.learn``: every rank learns its sub-graph, in the order of the log."""
        (examples,) = example_sets
        stream = self.memories.restarted(self._model)
        times, events = examples.learned.time_us, len(examples.learned)
        last = (math.ceil(events / self._batch) - 1) * self._batch  # the first event of the last batch
        own_span = [events, times[0], times[last]] if events else [0, NEVER_LEARNED, -NEVER_LEARNED]
        sizes, first_us, last_us = self._ranks.gather_numbers(own_span).T
        if not sizes.any():
            return StepReport(discarded=len(examples.every))
        span_us = int(first_us.min()), int(last_us.max())
        report = run(
            self._model,
            self.learner,
            self._ranks,
            self._steps(stream, examples, sizes.tolist(), span_us, epoch),
        )
        return replace(report, discarded=len(examples.every) - int(sizes.sum()))

    def _steps(
        self,
        stream: EventStream,
        examples: Examples,
        sizes: Sequence[int],
        span_us: tuple[int, int],
        epoch: int,
    ) -> Iterator[Step]:
        """Steps over a batch of each rank until the longest rank is done.

        Args:
            stream: Of the trained model.
            examples: This rank's.
            sizes: Events of each rank.
            span_us: Times of the first event of all ranks, and of the last one that begins a batch.
            epoch: Number of the pass.
        """
        ranks, batch, learned = self._ranks, self._batch, examples.learned
        self._model.eval()  # mails from before the first batch are made as in a prediction
        first_us, until_us = span_us
        stream.deliver_before(first_us, batch * ranks.size)  # together: in groups of a step of all ranks
        if ranks.rank > 0:  # rank 0's generator continues, and is in the checkpoint
            draw = [self._seed, examples.sequence, epoch, ranks.rank]
            torch.manual_seed(int(np.random.default_rng(draw).integers(1 << 63)))
        cycle: _Cycle | None = None
        if isinstance(stream, ShardedStream):
            cycle = _Cycle(stream, self._groups, ranks, self._first + np.flatnonzero(self._mine()))
        counts = [math.ceil(size / batch) for size in sizes]
        own_steps, steps = counts[ranks.rank], max(counts)
        for step in range(steps):
            together = [
                (_batch_size(size, step % count, batch), step < count)
                for size, count in zip(sizes, counts, strict=True)
                if count
            ]
            total = sum(size for size, _ in together)
            if cycle and own_steps and step and step % own_steps == 0:
                cycle.wrap(keep=step // own_steps == steps // own_steps)
            here = (
                slice(step % own_steps * batch, min((step % own_steps + 1) * batch, len(learned)))
                if own_steps
                else slice(0, 0)
            )
            mine = here.stop - here.start
            loss = (
                batch_loss(
                    self._setting.task, stream, examples, here, batch=batch, draw=self.learner.steps + 1
                )
                if mine
                else None
            )
            first = sum(size for size, is_first in together if is_first)
            yield Step(loss, 2 * total, first, weight=mine / total, scale=2 * mine)
        if cycle:
            cycle.end(whole=not own_steps or steps % own_steps == 0)
        stream.deliver_before(until_us, batch)
        if cycle:
            cycle.join(until_us, self._synchronise, self._first, self._learner)

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``: of the memory, this rank's rows."""
        return {
            **self.learner.state(),
            **self.memories.state(),
            "groups": self._groups.state(),
            "passes": self._passes,
            "snapshots": self._snapshots,
        }

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """See ``Strategy.gather``: rows of all ranks."""
        return {
            **state,
            "streams": {
                place: self._gathered(stream_state) for place, stream_state in state["streams"].items()
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``; the number of ranks may differ."""
        self.learner.restore(state)
        self.rewind()
        self._passes, self._snapshots = state["passes"], state["snapshots"]
        self._groups.restore(state["groups"])
        self.memories.restore(state, self._restore_stream)
        self._first = len(self.memories.feed)

    @override
    def forget(self, kept_nodes: Int64, first: int) -> int:
        events = super().forget(kept_nodes, first)
        self._groups.keep(kept_nodes)
        self._first = len(self.memories.feed)
        self._learner = self._learner[:0]
        return events

    def resize(self, batch: int) -> None:
        """See ``Strategy.resize``."""
        self._batch = math.ceil(batch / self._ranks.size) if self._pac.batch == "divided" else batch

    @property
    def step_events(self) -> int:
        """See ``Strategy.step_events``."""
        return self._batch * self._ranks.size

    @property
    def held_bytes(self) -> dict[str, int]:
        """See ``Strategy.held_bytes``: events with their graph, memories, and owners."""
        return {
            **self.memories.memory_bytes,
            "parts": self._groups.memory_bytes + self._learner.nbytes,
        }

    def _mine(self) -> Bool:
        return self._learner == self._ranks.rank

    def _stream(self, model: EventModel, feed: EventFeed) -> EventStream:
        if isinstance(model, MemoryModel):
            return ShardedStream(model, feed, self._ranks, self._options.group, self._groups)
        return self._without_memory(model, feed)

    def _restore_stream(self, stream: EventStream, state: dict[str, Any]) -> None:
        if not isinstance(stream, ShardedStream):
            stream.restore(state)
            return
        stream.position = int(state["position"])
        is_local = np.zeros(max(len(self._groups.owner), len(state["event_us"])), np.bool_)
        is_local[: len(self._groups.owner)] = self._groups.owner == self._ranks.rank
        stream.mailbox.restore(state, is_local)

    def _gathered(self, stream_state: dict[str, Any]) -> dict[str, Any]:
        """One stream's state with the rows of all ranks on rank 0, in its host's memory."""
        if "nodes" not in stream_state:
            return stream_state
        ranks = self._ranks
        by_row = [
            key for key in ("nodes", "mail", "sketch", "sketch_us") if stream_state.get(key) is not None
        ]
        tables = [
            rows if isinstance(rows, Tensor) else torch.from_numpy(np.ascontiguousarray(rows))
            for rows in (stream_state[key] for key in by_row)
        ]
        counts = ranks.gather_numbers([len(tables[0])])[:, 0]
        blocks = []
        for first in range(0, max(int(counts.max()), 1), GATHERED_AT_ONCE):
            sizes = np.clip(counts - first, 0, GATHERED_AT_ONCE).tolist()
            sent = [sizes[ranks.rank], *[0] * (ranks.size - 1)]
            received = sizes if ranks.rank == 0 else [0] * ranks.size
            here = [table[first : first + GATHERED_AT_ONCE] for table in tables]
            blocks.append(ranks.exchange_tables(here, sent, received, "checkpoint"))
        collected = {
            key: torch.cat(rows) for key, rows in zip(by_row, zip(*blocks, strict=True), strict=True)
        }
        return {**stream_state, **collected}


class _Cycle:
    """One rank's repeated passes over its events, until all ranks have passed over theirs once (Algorithm 2)."""

    def __init__(self, stream: ShardedStream, groups: PartGroups, ranks: Ranks, numbers: Int64) -> None:
        self._stream, self._groups, self._ranks = stream, groups, ranks
        self._from = stream.position
        self._copies: SharedCopies | None = None
        if ranks.size > 1:
            known = groups.shared[: len(stream.mailbox.event_us)]
            shared = np.flatnonzero(known)
            self._copies = SharedCopies(stream, shared, groups.owner[shared], ranks)
        self._numbers = numbers[np.searchsorted(numbers, self._from) :]
        self._backup: tuple[MailboxRows, int] | None = None
        stream.mailbox.mark()
        stream.part(self._numbers)

    def wrap(self, *, keep: bool) -> None:
        """Begin again from the memory before; ``keep``: this was the last whole cycle."""
        mailbox = self._stream.mailbox
        if keep:
            self._backup = mailbox.rows(mailbox.changed()), self._stream.delivered
        mailbox.back()
        mailbox.mark()
        self._stream.part(self._numbers)

    def end(self, *, whole: bool) -> None:
        """The longest rank is done: return to the end of the last whole cycle, unless this one ends with a ``whole`` cycle."""
        if whole:
            return
        assert self._backup is not None
        mailbox = self._stream.mailbox
        mailbox.back()
        mailbox.mark()
        mailbox.write(self._backup[0])
        self._stream.delivered = self._backup[1]

    def join(self, until_us: int, how: Synchronise, first: int, learner: Int32) -> None:
        """All ranks have delivered their events before a time: one memory again.

        Args:
            until_us: Microseconds.
            how: Merge of copies.
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
            others = touched[~self._groups.shared[touched]]
            others_mine = self._groups.owner[others] == self._ranks.rank
            ours = np.intersect1d(stream.ends(ours), shared)
            self._copies.merge(how, ours, np.isin(shared, touched), others, others_mine)
        mailbox.fold()


def _batch_size(size: int, step: int, batch: int) -> int:
    """Events of a rank's batch number ``step``."""
    return max(0, min(batch, size - step * batch))
