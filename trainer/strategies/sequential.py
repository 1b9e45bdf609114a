"""``sequential``: one rank learns a memory model event by event, in log order."""

import math
import time
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from schemas.store import LaneHeader
from schemas.trainer_config import Optimisation
from stream.service.failure import Failure
from stream.store.log.event_columns import EventColumns
from trainer.data.event_feed import EventFeed
from trainer.data.examples import Examples, Lesson, Queries
from trainer.data.graph_window import GraphWindow
from trainer.data.history import Inserts
from trainer.models.interface import Kind, Model
from trainer.models.memory.model import MemoryModel
from trainer.ranks import Ranks
from trainer.strategies.interface import Reads, StepReport, register
from trainer.strategies.learning_rate import LearningRate
from trainer.strategies.looked_up import LookedUp
from trainer.strategies.memory_stream import ROWS_AT_ONCE, MemoryStream
from trainer.strategies.memory_way import MemoryWay, logits, on_host
from trainer.strategies.rehearsal import PastBatch, Rehearsal
from trainer.strategies.soundness import outcome, spoil, told

Int64 = NDArray[np.int64]


@register
class SequentialStrategy:
    """One rank, batches of consecutive events: deliver what is strictly earlier than the batch, predict, learn.

    Predicting and learning a snapshot both begin with the memory as it was before it, and the memory goes on from
    what was done last, so a second pass over a snapshot doesn't see its events twice. The lane's parts don't matter.

    Args:
        group: Events whose mails are delivered together in predictions and when catching up; training delivers its
            batches.
        precision: Of products with weights while training, ``float32`` or ``bfloat16``: half of a step.
            Weights, memory and predictions are float32 anyway. It pays where the processor multiplies bfloat16 itself.
    """

    name: ClassVar[str] = "sequential"
    trains: ClassVar[Kind] = "event"
    reads: ClassVar[Reads] = "events"
    replays: ClassVar[bool] = True

    def __init__(self, *, group: int = 200, precision: str = "float32") -> None:
        if group < 1:
            raise ValueError(f"group must be at least 1, found {group}")
        if precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be float32 or bfloat16, found {precision!r}")
        self._group = group
        self._halved = precision == "bfloat16"

    def setup(
        self, model: Model, lane: LaneHeader, ranks: Ranks, optimisation: Optimisation, seed: int
    ) -> None:
        """See ``Strategy.setup``."""
        self._check(lane, ranks)
        assert isinstance(model, MemoryModel)
        self._model = model
        if self._halved:
            model.multiply_in(torch.bfloat16)
        self._ranks = ranks
        self._optimisation = optimisation
        self._lane = lane
        self._seed = seed
        self._weights = list(
            model.parameters()
        )  # to walk all modules takes as long as to look at their gradients
        self.rate = LearningRate(optimisation, self._weights)
        self._steps = 0
        self.rewind()

    def rewind(self) -> None:
        """See ``Strategy.rewind``."""
        self._feed = EventFeed(self._lane.edge_features)
        self._tau: int | None = None
        self._num_nodes = 0
        self._ways = [self._way(self._model)]
        self._rehearsal = Rehearsal(self._optimisation.replay, self._seed)
        # of models that were predicted beside: they come in the same order
        self._resumed: list[MemoryWay] = []

    def advance(self, window: GraphWindow) -> None:
        """See ``Strategy.advance``."""
        tau = window.taus[-1]
        if self._tau is not None and tau <= self._tau:
            return  # a checkpoint was made after it
        self._take_in(tau, window.events(tau), window.num_nodes)

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """See ``Strategy.remember``."""
        self._take_in(tau, events, num_nodes)

    def owned(self, num_nodes: int) -> NDArray[np.bool_]:
        """See ``Strategy.owned``."""
        return np.ones(num_nodes, np.bool_)

    @torch.no_grad()
    def predict(self, model: Model, queries: list[Queries]) -> list[NDArray[np.float32]]:
        """See ``Strategy.predict``."""
        assert isinstance(model, MemoryModel)
        way = self._way_of(model)
        way.restart()
        found: list[list[Tensor]] = [[] for _ in queries]
        for before_us in np.unique(np.concatenate([query.before_us for query in queries])).tolist():
            way.stream.deliver_before(before_us)
            model.eval()
            for query, answer in zip(queries, found, strict=True):
                begin, end = np.searchsorted(query.before_us, [before_us, before_us + 1]).tolist()
                for first in range(begin, end, ROWS_AT_ONCE):
                    here = slice(first, min(first + ROWS_AT_ONCE, end))
                    answer.append(logits(way.stream, query, here, before_us))
        return [on_host(answer) for answer in found]

    def train(self, examples: Examples, epoch: int) -> StepReport:
        """See ``Strategy.train``; the order is that of the log in every epoch."""
        began = time.perf_counter()
        way = self._ways[0]
        way.restart()
        batch, events = self._batch, len(examples.learned)
        sizes: list[tuple[int, int]] = []  # of each step: new and old events
        outcomes: list[Tensor] = []
        for first in range(0, events, batch):
            here = slice(first, min(first + batch, events))
            new = here.stop - here.start
            sizes.append((new, 0))
            outcomes.append(self._step(self._new(way.stream, examples, here, keep=epoch == 0)))
            for old in self._rehearsal.due(new):
                sizes.append((0, old.positives))
                outcomes.append(self._step(old.loss(self._model)))
        self._model.eval()
        losses, learned, nonfinite, replayed = 0.0, 0, 0, 0
        for (new, again), (loss, left_out) in zip(sizes, told(outcomes), strict=True):
            nonfinite += left_out
            if not left_out:
                losses, learned, replayed = losses + 2 * new * loss, learned + new, replayed + again
        return StepReport(
            steps=math.ceil(events / batch),
            events=learned,
            loss=losses / (2 * learned) if learned else None,
            nonfinite=nonfinite,
            replayed=replayed,
            seconds={"train": time.perf_counter() - began},
        )

    def undo(self) -> None:
        """See ``Strategy.undo``."""
        self._ways[0].restart()

    @torch.no_grad()
    def embed_sources(self, model: Model, queries: Queries) -> Tensor:
        """Embeddings (Q, width) of the queries' sources, each just before its event."""
        assert isinstance(model, MemoryModel)
        way = self._way_of(model)
        way.restart()
        model.eval()
        found = [way.stream.mailbox.own.new_empty(0, model.width)]
        for before_us in np.unique(queries.before_us).tolist():
            way.stream.deliver_before(before_us)
            begin, end = np.searchsorted(queries.before_us, [before_us, before_us + 1]).tolist()
            asked = queries.part(slice(begin, end))
            times = np.full(len(asked), before_us) if model.once_a_batch else asked.time_us
            found.append(way.stream.embed_all(asked.src, times, before_us))
        return torch.cat(found)

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``: a microsecond after the newest event, all events seen."""
        stream = self._ways[0].stream
        after = int(self._feed.time_us[-1]) + 1 if len(self._feed) else 0
        position = stream.mark()
        stream.deliver_before(after)
        self._model.eval()
        found = stream.embed_all(nodes, np.full(len(nodes), after), after)
        stream.back(position)
        return found

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``: the optimiser, the events with their graph, and every model's memory."""
        return {
            "rate": self.rate.state(),
            "steps": self._steps,
            "rehearsal": self._rehearsal.state(),
            "tau": self._tau,
            "num_nodes": self._num_nodes,
            "feed": self._feed.state(),
            "streams": {str(place): way.stream.state() for place, way in enumerate(self._every_way)},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``."""
        self.rate.restore(state["rate"])
        self._steps = int(state.get("steps", 0))  # earlier checkpoints have none
        self.rewind()
        self._tau = state["tau"]
        self._num_nodes = state["num_nodes"]
        self._feed.restore({name: np.asarray(column) for name, column in state["feed"].items()})
        self._restore_ways(state["streams"])
        self._rehearsal.restore(state["rehearsal"], self._ranks.device)

    @property
    def event_times(self) -> Int64:
        """See ``EventStrategy.event_times``."""
        return self._feed.time_us

    def forget(self, kept: Int64, first: int) -> int:
        """See ``EventStrategy.forget``."""
        events = len(self._feed)
        before = self._feed.forget(kept, min(first, *(way.stream.position for way in self._every_way)))
        for way in self._every_way:
            way.settle()
            way.stream.forget(kept, before)
        return events - len(self._feed)

    @property
    def step_events(self) -> int:
        """See ``Strategy.step_events``."""
        return self._batch * self._ranks.size

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """See ``Strategy.gather``."""
        return state

    def lesson(self, tau: int, inserts: Inserts) -> Lesson | None:
        """See ``Strategy.lesson``."""
        return None

    @property
    def held_bytes(self) -> dict[str, int]:
        """See ``Strategy.held_bytes``: events with their graph, and memories."""
        return {
            "events": self._feed.memory_bytes,
            "memory": sum(way.stream.memory_bytes for way in self._every_way),
            "rehearsal": self._rehearsal.memory_bytes,
        }

    def _check(self, lane: LaneHeader, ranks: Ranks) -> None:
        """Refuse what cannot be worked with."""
        if ranks.size > 1:
            raise Failure(
                f"strategy {self.name} learns on one rank, found {ranks.size}; start one, or choose strategy pac"
            )

    def _take_in(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        for way in self._ways:
            way.settle()
        self._feed.append(events, num_nodes)
        self._tau, self._num_nodes = tau, num_nodes

    @property
    def _batch(self) -> int:
        """Events that this rank learns at once."""
        return self._optimisation.batch_size

    def _step(self, loss: Tensor) -> Tensor:
        """Learn from a mean loss, unless it or its gradient is not finite; see ``outcome``."""
        for weight in self._weights:
            weight.grad = None
        loss.backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
        spoil(self._weights, loss)
        return outcome(loss, self._follow_gradient())

    def _new(self, stream: MemoryStream, examples: Examples, here: slice, *, keep: bool) -> Tensor:
        """Mean loss of a new batch, which is kept if it is to be learned again."""
        time_us = int(examples.learned.time_us[here.start])
        place = self._rehearsal.place_for(time_us) if keep else None
        if place is None:
            return self._loss(stream, examples, here)
        stream.looked_up = seen = LookedUp()
        loss = self._loss(stream, examples, here)
        stream.looked_up = None
        assert seen.states is not None
        assert seen.asked is not None
        nodes, there, mail = seen.states
        self._rehearsal.keep(
            place, PastBatch(nodes, there, mail, seen.hops, seen.asked, here.stop - here.start, time_us)
        )
        return loss

    def _loss(self, stream: MemoryStream, examples: Examples, here: slice) -> Tensor:
        """Mean loss of some events and their negatives, seen from what is strictly before the first."""
        positive, negative = examples.learned, examples.training
        before_us = int(positive.time_us[here.start])
        stream.batch = self._steps + 1
        stream.deliver_before(before_us, self._batch)
        if not self._model.training:
            self._model.train()
        both = Queries.join([positive.part(here), negative.part(here)])
        predicted = logits(stream, both, slice(0, len(both)), before_us)
        stream.batch = 0
        truth = torch.zeros_like(predicted)
        truth[: here.stop - here.start] = 1
        return binary_cross_entropy_with_logits(predicted, truth)

    def _follow_gradient(self) -> Tensor:
        """An optimiser step, unless the gradient is not finite; 1 if it is left out, else 0."""
        self._steps += 1
        limit = self._optimisation.grad_clip
        norm = torch.nn.utils.get_total_norm([each.grad for each in self._weights if each.grad is not None])
        if limit:
            torch.nn.utils.clip_grads_with_norm_(self._weights, limit, norm)
        return self.rate.step(norm)

    def _way(self, model: MemoryModel) -> MemoryWay:
        return MemoryWay(model, MemoryStream(model, self._feed, self._ranks.device, self._group))

    def _way_of(self, model: MemoryModel) -> MemoryWay:
        for way in self._ways:
            if way.model is model:
                return way
        way = self._resumed.pop(0) if self._resumed else self._way(model)
        way.model = way.stream.model = model
        self._ways.append(way)
        return way

    @property
    def _every_way(self) -> list[MemoryWay]:
        return [*self._ways, *self._resumed]

    def _restore_ways(self, streams: dict[str, Any]) -> None:
        ways = [self._way(self._model) for _ in streams]
        for place, way in enumerate(ways):
            self._restore_stream(way, streams[str(place)])
        self._ways, self._resumed = ways[:1], ways[1:]

    def _restore_stream(self, way: MemoryWay, state: dict[str, Any]) -> None:
        way.stream.restore(state)
