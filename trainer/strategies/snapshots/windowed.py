"""The base of strategies for snapshot models: the window is their past, so their only state is the optimiser."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from schemas.store import LaneHeader
from stream.arrays.kinds import Bool, Float32, Int64
from stream.store.log.event_columns import EventColumns
from trainer.data.examples import Queries, Share
from trainer.data.history import Inserts
from trainer.data.views import GraphView
from trainer.device import to_device
from trainer.learning.step import Learner
from trainer.models.interface import Kind, SnapshotModel
from trainer.ranks import Ranks
from trainer.strategies.figures import TrainingFigure
from trainer.strategies.interface import OwnKey
from trainer.tasks.interface import Asked, Asks


class WindowedStrategy:
    """A strategy that embeds nodes from the snapshots of a window; a subclass says how, and how it learns.

    Attributes:
        learner: See ``Strategy``; made by the subclass.
        learns_all: Whether every rank gets the items of all ranks to learn, instead of those that it owns.
    """

    trains: ClassVar[Kind] = "snapshot"
    answers: ClassVar[frozenset[Asks]] = frozenset({"pairs", "nodes"})
    replays: ClassVar[bool] = False
    resizes: ClassVar[bool] = False
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset()
    learns_all: ClassVar[bool] = False
    figures: ClassVar[tuple[TrainingFigure, ...]] = ()
    memory: ClassVar[None] = None
    learner: Learner

    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        """Embeddings (n, width) of ascending nodes from the snapshots before the newest; a collective without gradient."""
        raise NotImplementedError

    @torch.no_grad()
    def answer(self, model: SnapshotModel, asked: Sequence[Asked]) -> list[Float32]:
        """See ``Strategy.answer``."""
        nodes = np.unique(np.concatenate([ends for each in asked for ends in each.ends]))
        z = self.embed_before(model, nodes)
        answers = [
            each.read(
                model.decoder, [z[to_device(np.searchsorted(nodes, ends), z.device)] for ends in each.ends]
            )
            for each in asked
        ]
        return [each.float().cpu().numpy() for each in answers]

    @torch.no_grad()
    def embed_sources(self, model: SnapshotModel, queries: Queries) -> Tensor:
        """See ``Strategy.embed_sources``."""
        nodes, place = np.unique(queries.src, return_inverse=True)
        z = self.embed_before(model, nodes)
        return z[to_device(place, z.device)]

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """See ``Strategy.remember``: the window holds what is needed of earlier snapshots."""

    def share(self, tau: int, inserts: Inserts) -> Share | None:
        """See ``Strategy.share``."""
        return None

    def resize(self, batch: int) -> None:
        """See ``Strategy.resize``."""

    def undo(self) -> None:
        """See ``Strategy.undo``: there is no memory."""

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``."""
        return self.learner.state()

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """See ``Strategy.gather``: it is the same on all ranks."""
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``."""
        self.learner.restore(state)

    def close(self) -> None:
        """See ``Strategy.close``."""


def lane_refusal(name: str, lane: LaneHeader | None, ranks: int) -> str | None:
    """The reason why a strategy whose nodes have one owner each cannot train on a lane; None: it can, or lane is None."""
    if lane is None:
        return None
    if lane.kind != "vertex":
        return (
            f"strategy {name} needs a lane whose partitioner gives every node one owner, but lane "
            f"{lane.lane} is made by {lane.algorithm}, an edge partitioner. Name a vertex lane in the key lane"
        )
    if lane.parts < ranks:
        return f"lane {lane.lane} has {lane.parts} parts for {ranks} ranks. Start at most {lane.parts} ranks"
    return None


def owned_by_parts(view: GraphView, num_nodes: int, ranks: Ranks, tau: int | None = None) -> Bool:
    """Nodes of this rank in a snapshot, by default the newest, bool (num_nodes,).

    Part k belongs to rank k mod ranks, and a node of no part to rank id mod ranks.
    """
    part = np.arange(num_nodes)
    owner = view.owner(view.taus[-1] if tau is None else tau)[:num_nodes]
    part[: len(owner)] = np.where(owner >= 0, owner, part[: len(owner)])
    mine: Bool = part % ranks.size == ranks.rank
    return mine
