"""``sequential``: one rank learns an event model batch by batch, in log order."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from schemas.section import Section
from schemas.store import LaneHeader
from stream.arrays.kinds import Bool
from stream.store.log.event_columns import EventColumns
from trainer.data.event_feed import EventFeed
from trainer.data.examples import Examples, Share
from trainer.data.history import Inserts
from trainer.data.views import EventsView
from trainer.models.event_model import EventModel
from trainer.models.interface import Model
from trainer.models.tgn import MemoryModel
from trainer.strategies.events.event_stream import EventStream, LookedUp
from trainer.strategies.events.memories import Memories, batch_loss
from trainer.strategies.events.memory_stream import MemoryStream
from trainer.strategies.events.rehearsal import PastBatch, Rehearsal
from trainer.strategies.events.remembering import EventOptions, RememberingStrategy
from trainer.strategies.interface import STRATEGIES, Needs, OwnKey, Setting, StepReport
from trainer.strategies.passes import Step, run


@STRATEGIES.register
class SequentialStrategy(RememberingStrategy):
    """One rank, batches of consecutive events: deliver what is strictly earlier than the batch, predict, learn.

    Predicting and learning a snapshot both begin with the memory before it, and the memory continues from the last pass.
    So a second pass over a snapshot does not see its events twice. The lane's parts do not matter.
    """

    name: ClassVar[str] = "sequential"
    replays: ClassVar[bool] = True
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset()
    Options: ClassVar[type[Section]] = EventOptions

    def __init__(self, setting: Setting, options: EventOptions) -> None:
        super().__init__(setting, options)
        self.resize(setting.optimisation.batch)
        self.rewind()

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """See ``Strategy.refuses``."""
        if ranks > 1:
            return f"strategy {cls.name} learns on one rank, found {ranks}. Start one, or choose strategy pac"
        return None

    @property
    def needs(self) -> Needs:
        """See ``Strategy.needs``."""
        return Needs("events")

    def rewind(self) -> None:
        """See ``Strategy.rewind``."""
        self.memories = Memories(self._model, self._stream, self._setting.lane.edge_features)
        self.rehearsal = Rehearsal(self._setting.optimisation.replay, self._setting.seed)

    def take_in(self, view: EventsView) -> None:
        """See ``Strategy.take_in``."""
        tau = view.taus[-1]
        if not self.memories.has(tau):
            self.memories.take_in(tau, view.events(tau), view.num_nodes)

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """See ``Strategy.remember``."""
        self.memories.take_in(tau, events, num_nodes)

    def owned(self, num_nodes: int) -> Bool:
        """See ``Strategy.owned``."""
        return np.ones(num_nodes, np.bool_)

    def share(self, tau: int, inserts: Inserts) -> Share | None:
        """See ``Strategy.share``."""
        return None

    def learn(self, example_sets: Sequence[Examples], epoch: int) -> StepReport:
        """See ``Strategy.learn``; the order is that of the log in every epoch."""
        return run(self._model, self.learner, self._ranks, self._steps(example_sets, epoch))

    def _steps(self, example_sets: Sequence[Examples], epoch: int) -> Iterator[Step]:
        """Steps over new batches, and between them over old ones."""
        (examples,) = example_sets
        stream = self.memories.restarted(self._model)
        self._model.eval()  # mails from before the first batch are made as in a prediction
        events = len(examples.learned)
        for first in range(0, events, self._batch):
            here = slice(first, min(first + self._batch, events))
            new = here.stop - here.start
            loss = self.new_loss(stream, examples, here, keep=epoch == 0)
            yield Step(loss, 2 * new, new, weight=1, scale=2 * new)
            for old in self.rehearsal.due(new):
                loss = old.loss(self._model, self._setting.task)
                yield Step(loss, 0, 0, weight=1, scale=0, replayed=old.positives)

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``: the optimiser, the events with their graph, and every model's memory."""
        return {
            **self.learner.state(),
            **self.memories.state(),
            "rehearsal": self.rehearsal.state(),
        }

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """See ``Strategy.gather``."""
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``."""
        self.learner.restore(state)
        self.rewind()
        self.memories.restore(state, lambda stream, part: stream.restore(part))
        self.rehearsal.restore(state["rehearsal"], self._ranks.device)

    def resize(self, batch: int) -> None:
        """See ``Strategy.resize``."""
        self._batch = batch

    @property
    def step_events(self) -> int:
        """See ``Strategy.step_events``."""
        return self._batch

    @property
    def held_bytes(self) -> dict[str, int]:
        """See ``Strategy.held_bytes``: events with their graph, memories, and old batches."""
        return {**self.memories.memory_bytes, "rehearsal": self.rehearsal.memory_bytes}

    def _stream(self, model: EventModel, feed: EventFeed) -> EventStream:
        if isinstance(model, MemoryModel):
            return MemoryStream(model, feed, self._ranks.device, self._options.group)
        return self._without_memory(model, feed)

    def new_loss(self, stream: EventStream, examples: Examples, here: slice, *, keep: bool) -> Tensor:
        """Mean loss of a new batch, which is kept if it will be replayed."""
        time_us = int(examples.learned.time_us[here.start])
        place = self.rehearsal.place_for(time_us) if keep else None
        draw = self.learner.steps + 1
        if place is None:
            return batch_loss(self._setting.task, stream, examples, here, batch=self._batch, draw=draw)
        stream.looked_up = seen = LookedUp()
        loss = batch_loss(self._setting.task, stream, examples, here, batch=self._batch, draw=draw)
        stream.looked_up = None
        assert seen.question is not None
        self.rehearsal.keep(place, PastBatch.of(seen.question, seen.mails, here.stop - here.start, time_us))
        return loss
