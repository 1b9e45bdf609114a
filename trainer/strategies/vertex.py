"""``vertex``: vertex-parallel training over a window of snapshots (DistDy)."""

import math
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from schemas.store import LaneHeader
from schemas.trainer_config import Optimisation
from stream.service.failure import Failure
from stream.service.heartbeat import beat
from stream.store.log.event_columns import EventColumns
from trainer.data.examples import Examples, Lesson, Queries
from trainer.data.graph_window import GraphWindow
from trainer.data.history import Inserts
from trainer.data.past import STRIDE, Past, PastBuilder
from trainer.data.remote import InputRows
from trainer.device import to_device
from trainer.models.interface import Kind, Model, NodeInputs, SnapshotModel
from trainer.nn.rows import rows
from trainer.ranks import Ranks
from trainer.strategies.interface import Reads, StepReport, register
from trainer.strategies.learning_rate import LearningRate
from trainer.strategies.soundness import outcome, spoil, told
from trainer.strategies.structural import structural_embeddings

Int64 = NDArray[np.int64]


@register
class VertexStrategy:
    """Each rank holds its parts over the window and learns the events whose source it owns.

    Part k belongs to rank k mod ranks. An event is learned by the owner of its source in the newest snapshot; a
    source without owner falls to rank id mod ranks. Gradients are summed over ranks, each query weighted alike,
    so a step of several ranks equals one rank's step over the union of their batches. A rank that has no events
    left in a step takes part with an empty batch.

    Args:
        inference_nodes: Nodes embedded at once when predicting: bounds memory.
    """

    name: ClassVar[str] = "vertex"
    trains: ClassVar[Kind] = "snapshot"
    reads: ClassVar[Reads] = "graph"
    replays: ClassVar[bool] = False

    def __init__(self, *, inference_nodes: int = 65_536) -> None:
        if inference_nodes < 1:
            raise ValueError(f"inference_nodes must be at least 1, found {inference_nodes}")
        self._inference_nodes = inference_nodes

    def setup(
        self, model: Model, lane: LaneHeader, ranks: Ranks, optimisation: Optimisation, seed: int
    ) -> None:
        """See ``Strategy.setup``."""
        if lane.kind != "vertex":
            raise Failure(
                f"strategy {self.name} needs a lane whose partitioner gives every node one owner, but lane "
                f"{lane.lane} is made by {lane.algorithm}, an edge partitioner; name a vertex lane in the key lane"
            )
        if lane.parts < ranks.size:
            raise Failure(
                f"lane {lane.lane} has {lane.parts} parts for {ranks.size} ranks: start at most {lane.parts} ranks"
            )
        assert isinstance(model, SnapshotModel)
        self._model = model
        self._ranks = ranks
        self._seed = seed
        self._optimisation = optimisation
        self.rate = LearningRate(optimisation, model.parameters())
        self._features = lane.node_features
        self._inputs = InputRows(ranks, lane.node_features)
        self._builder = PastBuilder(model.window, ranks.size)

    def advance(self, window: GraphWindow) -> None:
        """See ``Strategy.advance``."""
        self._window = window
        self._past = self._builder.before_latest(window)
        self._inputs.keep(self._past)

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """See ``Strategy.remember``: the window holds what is needed of earlier snapshots."""

    def rewind(self) -> None:
        """See ``Strategy.rewind``."""
        self._builder = PastBuilder(self._model.window, self._ranks.size)

    def owned(self, num_nodes: int) -> NDArray[np.bool_]:
        """See ``Strategy.owned``."""
        part = np.arange(num_nodes)
        owner = self._window.owner(self._window.taus[-1])
        part[: len(owner)] = np.where(owner >= 0, owner, part[: len(owner)])
        mine: NDArray[np.bool_] = part % self._ranks.size == self._ranks.rank
        return mine

    @torch.no_grad()
    def predict(self, model: Model, queries: list[Queries]) -> list[NDArray[np.float32]]:
        """See ``Strategy.predict``."""
        assert isinstance(model, SnapshotModel)
        nodes = np.unique(np.concatenate([ends for query in queries for ends in (query.src, query.dst)]))
        z = self._embed_all(model, self._past, nodes)
        logits = [
            model.score(
                z[self._places(nodes, query.src)],
                z[self._places(nodes, query.dst)],
                to_device(query.encounters, self._ranks.device),
            )
            for query in queries
        ]
        return [each.cpu().numpy() for each in logits]

    def train(self, examples: Examples, epoch: int) -> StepReport:
        """See ``Strategy.train``."""
        began = time.perf_counter()
        events = len(examples.positive)
        per_rank = self._ranks.exchange_sizes([events] * self._ranks.size)
        batch = self._optimisation.batch_size
        steps, totals, outcomes = math.ceil(max(per_rank) / batch), [], []
        order = np.random.default_rng([self._seed, examples.tau % (1 << 63), epoch]).permutation(events)
        self._model.train()
        for step in range(steps):
            chosen = np.sort(order[step * batch : (step + 1) * batch])
            totals.append(sum(min(batch, max(0, size - step * batch)) for size in per_rank))
            outcomes.append(self._step(examples, chosen, 2 * totals[-1], (epoch << 32) + step))
        self._model.eval()
        ended = told(outcomes)
        taken = [(loss, total) for total, (loss, left_out) in zip(totals, ended, strict=True) if not left_out]
        known = sum(total for _, total in taken)
        (loss_sum,) = self._ranks.total([math.fsum(loss for loss, _ in taken)])
        return StepReport(
            steps=steps,
            events=known,
            loss=loss_sum / (2 * known) if known else None,
            nonfinite=len(ended) - len(taken),
            seconds={"train": time.perf_counter() - began},
        )

    def undo(self) -> None:
        """See ``Strategy.undo``: there is no memory."""

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``."""
        past = self._builder.through_latest(self._window)
        return self._embed_all(self._model, past, nodes)

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``."""
        return {"rate": self.rate.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``."""
        self.rate.restore(state["rate"])

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """See ``Strategy.gather``."""
        return state

    def lesson(self, tau: int, inserts: Inserts) -> Lesson | None:
        """See ``Strategy.lesson``."""
        return None

    @property
    def step_events(self) -> int:
        """See ``Strategy.step_events``."""
        return self._optimisation.batch_size * self._ranks.size

    @property
    def held_bytes(self) -> dict[str, int]:
        """See ``Strategy.held_bytes``: rows of other ranks."""
        return {"cache": self._inputs.memory_bytes}

    def gradients(self, examples: Examples, chosen: Int64, total: int, draw: int) -> Tensor:
        """Leave in the model the gradient of the mean loss over all ranks' chosen events.

        Args:
            examples: This rank's.
            chosen: int64, ascending rows of ``examples.positive`` and ``training``; may be empty.
            total: Queries of all ranks together.
            draw: Distinguishes neighbour samples; equal on all ranks.

        Returns:
            This rank's sum of losses, ().
        """
        positive, negative = examples.positive, examples.training
        src = np.concatenate([positive.src[chosen], negative.src[chosen]])
        dst = np.concatenate([positive.dst[chosen], negative.dst[chosen]])
        encounters = np.concatenate([positive.encounters[chosen], negative.encounters[chosen]])
        nodes = np.unique(np.concatenate([src, dst]))
        z = self._embed(self._model, self._past, nodes, draw)
        logits = self._model.score(
            rows(z, self._places(nodes, src)),
            rows(z, self._places(nodes, dst)),
            to_device(encounters, self._ranks.device),
        )
        truth = torch.zeros_like(logits)
        truth[: len(chosen)] = 1
        losses = binary_cross_entropy_with_logits(logits, truth, reduction="sum")
        self.rate.optimiser.zero_grad(set_to_none=True)
        (losses / max(total, 1)).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
        spoil(self._model.parameters(), losses)
        self._ranks.sum_gradients(self._model.parameters())
        return losses.detach()

    def _step(self, examples: Examples, chosen: Int64, total: int, draw: int) -> Tensor:
        loss = self.gradients(examples, chosen, total, draw)
        # the summed gradient is equal on all ranks, so they agree on leaving a step out without asking
        limit = self._optimisation.grad_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit)
        return outcome(loss, self.rate.step(norm))

    def _embed(self, model: SnapshotModel, past: Past, nodes: Int64, draw: int) -> Tensor:
        beat()
        keys = past.keys(nodes)

        def encode(wanted: Int64) -> Tensor:
            stored, activity = self._inputs.rows(self._window, past, wanted), past.activity(wanted)
            inputs = to_device(np.concatenate([stored, activity], axis=1), self._ranks.device)
            return model.encode(
                NodeInputs(
                    torch.from_numpy(wanted % STRIDE),
                    inputs[:, : self._features],
                    inputs[:, self._features :],
                )
            )

        found = structural_embeddings(
            model, past, keys.ravel(), encode, self._ranks, self._seed + 7919 * draw
        )
        structural = found.view(len(past.snapshots), len(nodes), model.width)
        absent = found.new_zeros((past.length - len(past.snapshots), len(nodes), model.width))
        return model.combine(torch.cat([absent, structural]))

    def _embed_all(self, model: SnapshotModel, past: Past, nodes: Int64) -> Tensor:
        model.eval()
        parts = [self._embed(model, past, chunk, 0) for chunk in self._chunks(nodes)]
        return torch.cat(parts)

    def _chunks(self, nodes: Int64) -> Iterator[Int64]:
        (most,) = self._ranks.maximum([len(nodes)])
        for begin in range(0, max(most, 1), self._inference_nodes):
            yield nodes[begin : begin + self._inference_nodes]

    def _places(self, nodes: Int64, wanted: Int64) -> Tensor:
        return to_device(np.searchsorted(nodes, wanted), self._ranks.device)
