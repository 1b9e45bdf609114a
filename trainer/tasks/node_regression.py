"""``node-regression``: one number per node in the next snapshot, such as its in-degree (DynaHB section 6.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Float32, Float64, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.pairs import Change
from freshet_graph.stream.snapshots.state_table import pack, unpack
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.stream.store.log.index import groups
from freshet_graph.trainer.data.views import EventsView
from freshet_graph.trainer.models.interface import Head, Model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import Figures
from freshet_graph.trainer.scoring.predictions import gather
from freshet_graph.trainer.tasks.interface import TASKS, QueryAnswering, Reduction, Subject
from freshet_graph.trainer.tasks.nodes import NodeExamples, NodeQueries


class Target(Section):
    """Options of ``node-regression``: the number to predict for each node, after the next snapshot."""

    next: Literal["in_degree", "feature"] = Field(
        "in_degree",
        description="in_degree: log(1 + live pairs that lead to the node); feature: one of its features.",
    )
    of: int | None = Field(None, ge=0, description="With feature: its number, from 0.")

    @model_validator(mode="after")
    def _names_a_feature(self) -> Self:
        if self.next == "feature" and self.of is None:
            raise ValueError("next: feature needs the feature's number. Give it in the key of")
        if self.next != "feature" and self.of is not None:
            raise ValueError("of is the number of a feature. Leave it out, or set next: feature")
        return self


class NodeTargets:
    """The newest value of every node of the whole live graph, on every rank, advanced snapshot by snapshot.

    ``in_degree``: log(1 + live directed pairs that lead to the node), as in DynaHB. ``feature``: one node feature.

    Args:
        target: The kind of value.
        node_features: F of the lane.
        edge_life: Of the lane.

    Attributes:
        values: float32 (num_nodes,), after the newest snapshot.
    """

    def __init__(self, target: Target, *, node_features: int, edge_life: int | None) -> None:
        self._feature = target.of if target.next == "feature" else None
        wide = node_features if self._feature is not None else 0
        self._graph = LiveGraph(node_features=wide, edge_life=edge_life)
        self._counts = np.zeros(0, np.int64)
        self.values: Float32 = np.zeros(0, np.float32)

    def take_in(self, tau: int, events: pa.Table) -> None:
        """Advance to a snapshot.

        Args:
            tau: Interval index, larger than all before.
            events: Of the log (``log_event_schema``), node events included.
        """
        delta = self._graph.apply(tau, events)
        nodes = delta.num_nodes
        if self._feature is not None:
            self.values = self._graph.features(np.arange(nodes))[:, self._feature]
            return
        changed = self._graph.changed()
        self._counts = np.concatenate([self._counts, np.zeros(nodes - len(self._counts), np.int64)])
        for change, sign in ((Change.ADDED, 1), (Change.REMOVED, -1)):
            np.add.at(self._counts, changed.dst[changed.change == change], sign)
        self.values = np.log1p(self._counts).astype(np.float32)

    def without_ending(self, tau: int) -> Float32:
        """The values after a later snapshot ``tau`` that only ended edge lives: age-aware persistence."""
        if self._feature is not None or self._graph.edge_life is None:
            return self.values
        _, dst = self._graph.ending(tau)
        left = self._counts - np.bincount(dst, minlength=len(self._counts))
        return np.log1p(left).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from, as arrays."""
        return unpack(self._graph.state())

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self._graph.restore(pack({name: np.asarray(array) for name, array in state.items()}))
        nodes = self._graph.num_nodes
        if self._feature is not None:
            self.values = self._graph.features(np.arange(nodes))[:, self._feature]
            return
        self._counts = np.bincount(self._graph.pairs().dst, minlength=nodes)
        self.values = np.log1p(self._counts).astype(np.float32)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._graph.nbytes + self._counts.nbytes + self.values.nbytes


SCORERS = ("model", "random", "zero", "mean", "persistence", "age_persistence")
"""``random`` has random weights. ``mean`` is the mean of all targets so far, ``persistence`` a node's last value, and
``age_persistence`` that value less the part that expires with the snapshot unless it is seen again."""

KNOWN = 2
"""Known columns of a target: its last value, and that value less the part that is about to expire."""


@dataclass(frozen=True, slots=True)
class NodeErrors:
    """Squared errors of a model and the baselines.

    Attributes:
        sums: float64 (len(SCORERS),); NaN where a scorer did not predict.
        count: Nodes.
        predicted: float64 (count, 2 + len(SCORERS)): node, target, and predictions; None: they were not kept.
    """

    sums: Float64
    count: int
    predicted: Float64 | None = None

    @property
    def scored(self) -> int:
        """See ``Evaluation.scored``."""
        return self.count

    @property
    def links(self) -> None:
        """See ``Evaluation.links``."""
        return None

    @property
    def cautions(self) -> list[dict[str, Any]]:
        """See ``Evaluation.cautions``."""
        return []

    def rows(self) -> dict[str, NDArray[Any]]:
        """See ``Evaluation.rows``: the target, and each scorer's prediction."""
        assert self.predicted is not None, "NodeRegression.keeps_rows"
        node, target, *columns = self.predicted.T
        predictions = {f"{scorer}_value": column for scorer, column in zip(SCORERS, columns, strict=True)}
        return {"node": node.astype(np.int64), "target": target, **predictions}

    def figures(self) -> Figures:
        """See ``Evaluation.figures``: ``mse`` of each scorer."""
        if not self.count:
            return {}
        means = (self.sums / self.count).tolist()
        return {
            ("mse", "all", scorer): mean
            for scorer, mean in zip(SCORERS, means, strict=True)
            if np.isfinite(mean)
        }


class NodeRegressor(nn.Module):
    """A two-layer perceptron over z(u) and the known columns of its target, added to a baseline's prediction.

    The baseline is age-aware persistence or, without ``encounters``, persistence. The last layer's weights begin at zero, so
    the head begins as that baseline and learns the difference to it. Published models have a target's last value among
    their inputs (an in-degree, or a feature), but not the part that is about to expire.

    Args:
        width: Of embeddings.
        hidden: Of the perceptron.
        encounters: Whether to see the part that is about to expire, too.
    """

    def __init__(self, width: int, hidden: int, *, encounters: bool) -> None:
        super().__init__()
        self._columns = KNOWN if encounters else 1
        self.perceptron = nn.Sequential(
            nn.Linear(width + self._columns, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        for weights in self.perceptron[2].parameters():
            nn.init.zeros_(weights)

    def forward(self, z: Tensor, known: Tensor) -> Tensor:
        """Values (n,) of embeddings (n, width) and known columns (n, KNOWN)."""
        seen = known[:, : self._columns].to(z.dtype)
        learned: Tensor = self.perceptron(torch.cat([z, seen], dim=1)).squeeze(1)
        return seen[:, -1] + learned


@TASKS.register
class NodeRegression:
    """The target of every known node, asked before each snapshot; the loss is the mean squared error.

    Baselines are zero, the mean of all targets so far, persistence and age-aware persistence. Every report shows them,
    because on the published data persistence beats published models (docs/training.md).

    Args:
        config: Of the trainer.
        lane: The lane; its ``edge_life`` says when pairs expire.
        options: The predicted number.
    """

    name: ClassVar[str] = "node-regression"
    Options: ClassVar[type[Section]] = Target
    subject: ClassVar[Subject] = "nodes"
    query_class: ClassVar[type[Any]] = NodeQueries
    sees_labels: ClassVar[bool] = True
    selection_metric: ClassVar[tuple[str, int]] = ("mse", -1)
    baseline: ClassVar[str] = "age_persistence"
    head: Head = NodeRegressor
    history: ClassVar[None] = None
    keeps_rows = False
    """Whether evaluations have ``rows``. Otherwise only sums cross ranks."""

    def __init__(self, config: TrainerConfig, lane: LaneReader, options: Target) -> None:
        self._target = options
        self._lane = lane
        of, wide = self._target.of, lane.header.node_features
        if self._target.next == "feature" and of is not None and of >= wide:
            remedy = f"Name one below {wide}, or ask" if wide else "Ask"
            raise Failure(
                f"key task_params: lane {lane.header.lane} has {wide or 'no'} node features, so there is no feature {of}. "
                f"{remedy} for in_degree"
            )

    def rewind(self, model: Model) -> None:
        """See ``Task.rewind``; the baselines know all earlier snapshots, as every model does."""
        header = self._lane.header
        self._targets = NodeTargets(
            self._target, node_features=header.node_features, edge_life=header.edge_life
        )
        self._begun = False
        self._sum, self._count = 0.0, 0

    def forgot(self, nodes: int, kept_nodes: Int64 | None = None) -> None:
        """See ``Task.forgot``: models of nodes look at windows, which forget by themselves."""

    def examples(self, view: EventsView, strategy: QueryAnswering, *, epoch: int = 0) -> NodeExamples:
        """See ``Task.examples``."""
        tau = view.taus[-1]
        self._begin()
        before, ageing = self._targets.values, self._targets.without_ending(tau)
        self._advance(tau)
        target = self._targets.values[: len(before)].copy()
        mean = self._sum / self._count if self._count else 0.0
        self._sum += float(target.sum(dtype=np.float64))
        self._count += len(target)
        return NodeExamples.of(
            view,
            strategy,
            self._lane.header.interval_us,
            node=np.arange(len(before)),
            known=np.stack([before, ageing], axis=1),
            target=target,
            past=np.array([mean]),
        )

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """See ``Task.remember``."""
        self._begin()
        self._advance(tau)

    def loss(self, answers: Tensor, truth: Tensor, reduction: Reduction = "sum") -> Tensor:
        """See ``Task.loss``: squared errors."""
        return mse_loss(answers, truth, reduction=reduction)

    def evaluate(
        self,
        strategy: QueryAnswering,
        model: Model,
        untrained: Model | None,
        examples: NodeExamples,
        ranks: Ranks,
    ) -> NodeErrors | None:
        """See ``Task.evaluate``."""
        queries, truth = examples.all_queries()
        (values,) = strategy.answer(model, [queries])
        predicted: dict[str, NDArray[np.floating]] = {
            "model": values,
            "zero": np.zeros_like(truth),
            "mean": np.full_like(truth, examples.past[0]),
            "persistence": queries.known[:, 0],
            "age_persistence": queries.known[:, 1],
        }
        if untrained is not None:
            (predicted["random"],) = strategy.answer(untrained, [queries])
        none = np.full(len(truth), np.nan)
        columns = [predicted.get(scorer, none).astype(np.float64) for scorer in SCORERS]
        *sums, count = ranks.total([*(float(((one - truth) ** 2).sum()) for one in columns), len(truth)])
        rows = None
        if self.keeps_rows:
            (rows,) = gather([np.column_stack([queries.node, truth, *columns])], ranks)
        return NodeErrors(np.array(sums), int(count), rows) if ranks.rank == 0 else None

    def join(self, parts: Sequence[NodeErrors]) -> NodeErrors:
        """See ``Task.join``."""
        return NodeErrors(np.sum([part.sums for part in parts], axis=0), sum(part.count for part in parts))

    def state(self) -> dict[str, Any]:
        """See ``Stateful.state``."""
        return {"targets": self._targets.state(), "mean": [self._sum, self._count]}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Stateful.restore``."""
        self._targets.restore(state["targets"])
        self._begun = True
        self._sum, self._count = float(state["mean"][0]), int(state["mean"][1])

    @property
    def memory_bytes(self) -> int:
        """See ``Task.memory_bytes``."""
        return self._targets.memory_bytes

    def _begin(self) -> None:
        """Begin with the base that replaces the snapshots that the log no longer keeps."""
        if self._begun:
            return
        self._begun = True
        base = self._lane.log.base()
        for tau, events in groups(base, self._lane.header.edge_life) if base is not None else ():
            self._targets.take_in(tau, events)

    def _advance(self, tau: int) -> None:
        self._targets.take_in(tau, self._lane.log.events(tau))
