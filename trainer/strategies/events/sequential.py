"""``sequential``: one rank learns an event model batch by batch, in log order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.schemas.trainer_config import Replay
from freshet_graph.stream.arrays.kinds import Bool
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.event_feed import EventFeed
from freshet_graph.trainer.data.examples import Examples, Share
from freshet_graph.trainer.data.history import Inserts
from freshet_graph.trainer.data.views import EventsView
from freshet_graph.trainer.models.event_model import EventModel, Hop, PairQueries, Question
from freshet_graph.trainer.models.interface import Model
from freshet_graph.trainer.models.tgn import Mail, MemoryModel
from freshet_graph.trainer.strategies.events.event_stream import EventStream, LookedUp
from freshet_graph.trainer.strategies.events.memory_stream import MemoryStream
from freshet_graph.trainer.strategies.events.remembering import (
    EventOptions,
    Memories,
    RememberingStrategy,
    batch_loss,
)
from freshet_graph.trainer.strategies.interface import STRATEGIES, Needs, OwnKey, Setting, StepReport
from freshet_graph.trainer.strategies.passes import Step, run
from freshet_graph.trainer.tasks.interface import Task

_OFFER, _DRAW = 0x0FFE, 0xD4A3
_FIRST_STRETCH_US = 1_000_000


@dataclass(slots=True)
class PastBatch:
    """All inputs of a batch's logits, except weights: mails, sampled neighbours, encounters.

    It names no node, so later forgetting and overwriting do not affect it, and it has nothing of its future. It takes
    about 2 KiB per event with ten neighbours.

    Attributes:
        question: The inputs. With a memory, the rows below are empty, because weights make states of mails.
        mailed: With a memory, the mails: number of distinct nodes below, int64 those that had mail, and the mails.
        positives: Number of positive pairs, which come first.
        time_us: Of its first event.
    """

    question: Question
    mailed: tuple[int, Tensor, Mail] | None
    positives: int
    time_us: int

    @classmethod
    def of(
        cls, question: Question, mailed: tuple[int, Tensor, Mail] | None, positives: int, time_us: int
    ) -> "PastBatch":
        """What a stream looked up for a batch."""
        if mailed is not None:
            question = replace(question, below=question.below.detach()[:0].clone())
        return cls(question, mailed, positives, time_us)

    def loss(self, model: EventModel, task: Task) -> Tensor:
        """Mean loss of a task under the present weights."""
        question = self.question
        if self.mailed is not None:
            assert isinstance(model, MemoryModel)
            nodes, with_mail, mail = self.mailed
            states = mail.gap_s.new_zeros(nodes, model.width)
            if len(with_mail):
                states = states.index_copy(0, with_mail, model.states(mail))
            question = replace(question, below=states)
        predicted = model.answer(question)
        truth = torch.zeros_like(predicted)
        truth[: self.positives] = 1
        return task.loss(predicted, truth, "mean")

    def state(self) -> dict[str, Any]:
        """Everything, as tensors and numbers."""
        mailed: dict[str, Any] = {}
        if self.mailed is not None:
            nodes, with_mail, mail = self.mailed
            mailed = {"nodes": nodes, "there": with_mail, "mail": _columns(mail)}
        return {
            "below": self.question.below,
            "hops": {str(depth): _columns(hop) for depth, hop in enumerate(self.question.hops)},
            "asked": _columns(self.question.pairs),
            **mailed,
            "positives": self.positives,
            "time_us": self.time_us,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device) -> "PastBatch":
        """From a ``state()``."""

        def moved(columns: dict[str, Any]) -> dict[str, Any]:
            return {name: None if column is None else column.to(device) for name, column in columns.items()}

        hops = [Hop(**moved(state["hops"][str(depth)])) for depth in range(len(state["hops"]))]
        question = Question(state["below"].to(device), hops, PairQueries(**moved(state["asked"])))
        mailed = None
        if "mail" in state:
            mailed = state["nodes"], state["there"].to(device), Mail(**moved(state["mail"]))
        return cls(question, mailed, state["positives"], state["time_us"])

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        parts: list[Any] = [self.question.pairs, *self.question.hops]
        parts += [] if self.mailed is None else [self.mailed[2]]
        columns = [column for part in parts for column in _columns(part).values() if column is not None]
        return self.question.below.nbytes + sum(column.nbytes for column in columns)


class Rehearsal:
    """A bounded sample of the past, and the schedule of its replay.

    ``reservoir`` (Vitter's algorithm R): each batch so far is equally likely to be kept. ``time``: stretches of time of
    equal length, one batch of each, equally likely among its batches; when there are more stretches than room, they
    double. All draws follow from the seed and the number of batches, so a resumed run replays the same batches.

    Args:
        config: Amount and kind of the sample.
        seed: Of the run.

    Attributes:
        batches: The batches that are kept, by place.
    """

    def __init__(self, config: Replay, seed: int) -> None:
        self._config, self._seed = config, seed
        self.batches: dict[int, PastBatch] = {}
        self._counts: dict[int, int] = {}  # time: batches of each stretch so far
        self._offered = self._drawn = 0
        self._credit = 0.0
        self._begin_us = 0
        self._stretch_us = _FIRST_STRETCH_US

    def place_for(self, time_us: int) -> int | None:
        """The place to keep the batch that begins at a time; None: it is not kept."""
        if not self._config.ratio:
            return None
        draw = np.random.default_rng([self._seed, _OFFER, self._offered])
        self._offered += 1
        if self._config.sample == "reservoir":
            place = (
                int(draw.integers(self._offered))
                if self._offered > self._config.batches
                else len(self.batches)
            )
            return place if place < self._config.batches else None
        if not self.batches:
            self._begin_us = time_us
        while max(time_us - self._begin_us, 0) // self._stretch_us >= self._config.batches:
            self._widen(draw)
        place = max(time_us - self._begin_us, 0) // self._stretch_us
        self._counts[place] = self._counts.get(place, 0) + 1
        return place if draw.random() * self._counts[place] < 1 else None

    def keep(self, place: int, batch: PastBatch) -> None:
        """Keep a batch at its place."""
        self.batches[place] = batch

    def due(self, events: int) -> list[PastBatch]:
        """The old batches to learn after so many new events, often none."""
        self._credit += events * self._config.ratio
        due_batches: list[PastBatch] = []
        while self.batches and self._credit > 0:
            draw = np.random.default_rng([self._seed, _DRAW, self._drawn])
            chosen = self.batches[sorted(self.batches)[int(draw.integers(len(self.batches)))]]
            if self._credit < chosen.positives:
                break
            self._drawn += 1
            self._credit -= chosen.positives
            due_batches.append(chosen)
        return due_batches

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {
            "held": {str(place): batch.state() for place, batch in self.batches.items()},
            "counts": {str(place): count for place, count in self._counts.items()},
            "numbers": [self._offered, self._drawn, self._begin_us, self._stretch_us],
            "credit": self._credit,
        }

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from a ``state()``."""
        self.batches = {
            int(place): PastBatch.restored(batch, device) for place, batch in state["held"].items()
        }
        self._counts = {int(place): count for place, count in state["counts"].items()}
        self._offered, self._drawn, self._begin_us, self._stretch_us = state["numbers"]
        self._credit = state["credit"]

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return sum(batch.memory_bytes for batch in self.batches.values())

    def _widen(self, draw: np.random.Generator) -> None:
        """Double the stretches: of two batches one stays, each with the weight of its stretch."""
        batches: dict[int, PastBatch] = {}
        counts: dict[int, int] = {}
        for place in sorted(self._counts):
            to, count = place // 2, self._counts[place]
            counts[to] = counts.get(to, 0) + count
            if draw.random() * counts[to] < count:
                batches[to] = self.batches[place]
        self.batches, self._counts = batches, counts
        self._stretch_us *= 2


def _columns(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


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
