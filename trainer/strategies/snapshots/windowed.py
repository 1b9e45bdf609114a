"""The base of strategies for snapshot models: the window is their past, so their only state is the optimiser."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.examples import Queries, Share
from freshet_graph.trainer.data.history import Inserts
from freshet_graph.trainer.data.views import GraphView
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.learning.step import USUAL, Learner
from freshet_graph.trainer.models.interface import Kind, SnapshotModel
from freshet_graph.trainer.models.stages import CellStage, GraphStage, Stage, TimeStage
from freshet_graph.trainer.nn.rows import rows
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.figures import TrainingFigure
from freshet_graph.trainer.strategies.interface import OwnKey, Setting, Strategy
from freshet_graph.trainer.tasks.interface import QueryBatch, Subject

WINDOWS = 4
"""Windows of the horizon by default, for strategies that learn many snapshots at once."""


class WindowedStrategy(Strategy):
    """A strategy that embeds nodes from the snapshots of a window; a subclass says how, and how it learns.

    Args:
        setting: See ``Setting``.
        usual_rate: See ``Learner``.
        averages_every: See ``Learner``.

    Attributes:
        learns_all: Whether every rank gets the items of all ranks to learn, instead of those that it owns.
    """

    trains: ClassVar[Kind] = "snapshot"
    answers: ClassVar[frozenset[Subject]] = frozenset({"pairs", "nodes"})
    replays: ClassVar[bool] = False
    resizes: ClassVar[bool] = False
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset()
    learns_all: ClassVar[bool] = False
    figures: ClassVar[tuple[TrainingFigure, ...]] = ()

    def __init__(
        self, setting: Setting, *, usual_rate: float = USUAL, averages_every: int | None = None
    ) -> None:
        self._model: SnapshotModel = setting.model
        self._task, self._ranks, self._device = setting.task, setting.ranks, setting.ranks.device
        self._seed, self._batch = setting.seed, setting.optimisation.batch
        self.learner = Learner(
            self._model,
            setting.optimisation,
            setting.ranks,
            averages_every=averages_every,
            usual_rate=usual_rate,
        )

    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        """Embeddings (n, width) of ascending nodes from the snapshots before the newest; a collective without gradient."""
        raise NotImplementedError

    @override
    @torch.no_grad()
    def answer(self, model: SnapshotModel, queries: Sequence[QueryBatch]) -> list[Float32]:
        nodes = np.unique(np.concatenate([ends for batch in queries for ends in batch.ends]))
        z = self.embed_before(model, nodes)
        answers = [self._read(model, batch, z, nodes.searchsorted) for batch in queries]
        return [batch.float().cpu().numpy() for batch in answers]

    @override
    @torch.no_grad()
    def embed_sources(self, model: SnapshotModel, queries: Queries) -> Tensor:
        nodes, place = np.unique(queries.src, return_inverse=True)
        z = self.embed_before(model, nodes)
        return z[to_device(place, z.device)]

    @property
    @override
    def memory(self) -> None:
        return None

    @override
    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """Do nothing: the window holds what is needed of earlier snapshots."""

    @override
    def share(self, tau: int, inserts: Inserts) -> Share | None:
        return None

    @override
    def resize(self, batch: int) -> None:
        pass

    @override
    def undo(self) -> None:
        """Do nothing: there is no memory."""

    @override
    def state(self) -> dict[str, Any]:
        return self.learner.state()

    @override
    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        return state  # the same on all ranks

    @override
    def restore(self, state: dict[str, Any]) -> None:
        self.learner.restore(state)

    @override
    def close(self) -> None:
        pass

    @property
    @override
    def step_events(self) -> int:
        return 1  # all or a share of a snapshot, whatever its size

    def _read(
        self, model: SnapshotModel, queries: QueryBatch, z: Tensor, places: Callable[[Int64], Int64]
    ) -> Tensor:
        """Answers (Q,) to questions, the embeddings of whose ends are at ``places`` of a table (n, width)."""
        return queries.read(
            model.decoder, [rows(z, to_device(places(ends), z.device)) for ends in queries.ends]
        )

    def _loss(
        self, queries: QueryBatch, truth: Float32, z: Tensor, places: Callable[[Int64], Int64]
    ) -> Tensor:
        """The sum of the losses of such answers, a scalar."""
        answers = self._read(self._model, queries, z, places)
        return self._task.loss(answers, to_device(truth, answers.device))


def before_any(model: SnapshotModel, nodes: int) -> Tensor:
    """Embeddings (nodes, width) before the first snapshot."""
    none, last = next(model.parameters()).new_zeros(nodes, model.width), model.stages[-1]
    return last.before_any(none) if isinstance(last, TimeStage) else none


def stage_refusal(
    strategy: str, model: SnapshotModel, unsuited: Callable[[Stage], bool], reason: str
) -> str | None:
    """A sentence about the first stage that a strategy cannot train, ``{stage}`` of ``{model}``; None: it trains all."""
    stages = (type(stage).__name__ for stage in model.stages if unsuited(stage))
    return next(
        (f"strategy {strategy} {reason.format(stage=name, model=model.name)}" for name in stages), None
    )


def is_cell(stage: Stage) -> bool:
    """Whether a stage makes states of inputs and states at once, so that each snapshot waits for the one before."""
    return isinstance(stage, CellStage)


def convolves_states(stage: Stage) -> bool:
    """Whether a stage looks further with every snapshot."""
    return isinstance(stage, CellStage) and stage.hops > 0


def summarises(stage: Stage) -> bool:
    """Whether a stage's weights depend on all rows of a snapshot."""
    return isinstance(stage, GraphStage) and stage.summarises


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
