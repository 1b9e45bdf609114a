"""The interface of strategies, and the registry that finds them by name."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.schemas.trainer_config import Optimisation, Smoothing
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.registry import Registry, require_members
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.log.event_columns import EventColumns
from freshet_graph.trainer.data.examples import Queries, Share
from freshet_graph.trainer.data.history import Inserts, Moment
from freshet_graph.trainer.learning.step import Learner
from freshet_graph.trainer.models.interface import Kind, Model, ModelShape, create_model
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.figures import TrainingFigure
from freshet_graph.trainer.tasks.interface import QueryBatch, SnapshotExamples, Subject, Task
from freshet_graph.trainer.wire.traffic import Traffic

OwnKey = Literal["horizon", "smoothing"]
"""Keys of the configuration that belong to some strategies."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a strategy is made from, besides its own options.

    Attributes:
        model: On the ranks' device and equal on all of them.
        task: The learned task.
        lane: Header of the lane.
        ranks: All ranks.
        optimisation: How a snapshot is learned.
        seed: Of the run.
        horizon: H, snapshots of a pass, for strategies that hold whole ones; None: the model's window.
        smoothing: Of every snapshot, for the same strategies.
        history_moment: Up to which event models without a memory look back, if they can.
        compile: Whether training steps of event models are compiled.
    """

    model: Any
    task: Task
    lane: LaneHeader
    ranks: Ranks
    optimisation: Optimisation
    seed: int
    horizon: int | None = None
    smoothing: Smoothing = field(default_factory=Smoothing)
    history_moment: Moment = "batch"
    compile: bool = False


@dataclass(frozen=True, slots=True)
class Needs:
    """The part of the lane that a strategy reads.

    Attributes:
        view: ``events``: those of the newest snapshot, without reading the lane's graph; ``graph``: the last snapshots with
            their edges; ``timeline``: the last snapshots whole, with the changes of each.
        snapshots: Number of snapshots that it looks back over.
        parts: Of the graph: this rank's ``own``, or ``all``.
        example_sets: Number of snapshots, the newest included, that it learns at once.
    """

    view: Literal["events", "graph", "timeline"]
    snapshots: int = 0
    parts: Literal["own", "all"] = "own"
    example_sets: int = 1


@dataclass(frozen=True, slots=True)
class StepReport:
    """The outcome of training on one snapshot, over all ranks unless said otherwise.

    Attributes:
        steps: Optimiser steps.
        events: Distinct events (or nodes, for tasks about nodes) learned from.
        loss: Mean loss per query, of the task's kind; None without any.
        discarded: Events that no rank could learn, because none has both ends. With the learned ones and those only
            remembered they are all events of a snapshot, under every strategy, and so no figure of one.
        replayed: Old events learned again.
        nonfinite: Steps left out because loss or gradient was not finite.
        seconds: Wall time by phase, of this rank. The session adds ``train``, the whole pass.
        traffic: Bytes that this rank sent and seconds that it waited in collectives, by purpose; added by the session.
        figures: Those that the strategy declares, by name, of this rank: a number, a list of a histogram's observations, or
            numbers by the value of a label, or by a tuple of several labels' values.
    """

    steps: int = 0
    events: int = 0
    loss: float | None = None
    replayed: int = 0
    nonfinite: int = 0
    discarded: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    figures: Mapping[str, Any] = field(default_factory=dict)

    def phases(self) -> dict[str, float]:
        """Seconds by the metrics' names of phases inside training."""
        return {f"train_{phase}": seconds for phase, seconds in self.seconds.items() if phase != "train"}


class Stateful(Protocol):
    """An object whose state a checkpoint holds."""

    def state(self) -> dict[str, Any]:
        """Nested dictionaries of tensors, arrays and plain values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        ...


class Forgets(Protocol):
    """A memory of the stream, which can forget."""

    @property
    def event_times(self) -> Int64:
        """Times of the remembered events, int64, microseconds, not decreasing."""
        ...

    def forget(self, kept_nodes: Int64, first: int) -> int:
        """Forget nodes with their memory, and the oldest events; not a collective.

        Kept nodes are renumbered in their order. Training of the newest snapshot can no longer be undone. An event that is
        not yet in the memory is not forgotten for its age.

        Args:
            kept_nodes: int64, ascending numbers of the nodes that stay.
            first: Number of the oldest event that may stay.

        Returns:
            Events forgotten.
        """
        ...


class Strategy(Stateful, Protocol):
    """A way of ranks to share predicting and training; complete after its constructor, ``(setting, options)``.

    All methods except ``owned``, ``share``, ``resize``, ``close`` and the properties are collectives: all ranks call them.

    Attributes:
        name: Key in the registry and in configurations.
        trains: Kind of models.
        answers: Kinds of questions.
        replays: Whether it can learn old events again beside the new ones.
        resizes: Whether the size of its steps may change from one snapshot to the next.
        own_keys: Keys of the configuration that mean something under some strategies only, and do under it; none by default
            for strategies of other packages.
        Options: Its own parameters, a section with defaults, descriptions and bounds.
        figures: Those of its reports that are its own; none by default for strategies of other packages.
        learner: Takes its steps.
    """

    name: ClassVar[str]
    trains: ClassVar[Kind]
    answers: ClassVar[frozenset[Subject]]
    replays: ClassVar[bool]
    resizes: ClassVar[bool]
    own_keys: ClassVar[frozenset[OwnKey]]
    Options: ClassVar[type[Section]]
    figures: ClassVar[tuple[TrainingFigure, ...]]
    learner: Learner

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """The reason, a sentence, why it cannot train a model of its kind on a lane with so many ranks; None: it can.

        ``lane`` is None while it is unknown.
        """
        ...

    @property
    def needs(self) -> Needs:
        """The part of the lane that it reads."""
        ...

    def take_in(self, view: Any) -> None:
        """Take in the newest snapshot of a view, ``GraphView`` or ``EventsView``, to be predicted and learned next."""
        ...

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """Take in a snapshot, with its edge events and the nodes after it, that is neither predicted nor learned."""
        ...

    def rewind(self) -> None:
        """Forget the stream, but not what was learned: the next snapshot is the first again, as in a new epoch."""
        ...

    @property
    def memory(self) -> Forgets | None:
        """Its memory of the stream; None: the view has all that it needs."""
        ...

    def resize(self, batch: int) -> None:
        """Set the events per step from now on, as ``optimisation.batch_size`` does; no effect unless it ``resizes``."""
        ...

    def owned(self, num_nodes: int) -> Bool:
        """Nodes whose events as a source, or whose targets, belong to this rank, bool (num_nodes,); each has one owner."""
        ...

    def share(self, tau: int, inserts: Inserts) -> Share | None:
        """The events of snapshot ``tau`` that this rank learns; None: those that it owns."""
        ...

    def answer(self, model: Any, queries: Sequence[QueryBatch]) -> list[Float32]:
        """Answers about the newest snapshot from the snapshots before it.

        Args:
            model: The trained model or one of its kind (a baseline).
            queries: Any number of sets of questions, of a kind in ``answers``; the same number on all ranks.
        """
        ...

    def embed_sources(self, model: Any, queries: Queries) -> Tensor:
        """Embeddings (Q, width) of the queries' sources, each just before its event."""
        ...

    def learn(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> StepReport:
        """One pass over this rank's share of examples, the newest snapshot's last; ``passes.run`` takes its steps."""
        ...

    def undo(self) -> None:
        """Undo the effect of training the newest snapshot on memory; the caller puts weights back."""
        ...

    def embeddings(self, nodes: Int64) -> Tensor:
        """Embeddings (n, width) of any nodes after the newest snapshot, as the next prediction will use them."""
        ...

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """Merge all ranks' ``state()`` on rank 0 into one that any number of ranks can ``restore``.

        The value returned on other ranks is meaningless.
        """
        ...

    def close(self) -> None:
        """Release threads and other resources; a second call is harmless."""
        ...

    @property
    def step_events(self) -> int:
        """Largest number of events of all ranks in a step."""
        ...

    @property
    def held_bytes(self) -> dict[str, int]:
        """Bytes held beside the view and the task, by kind."""
        ...


def _require_strategy(candidate: Any) -> None:
    """Check that an entry point leads to a strategy's class."""
    require_members(candidate, Strategy, "strategy", made=frozenset({"learner", "figures"}))


STRATEGIES: Registry[Any] = Registry(
    "strategy",
    "strategy_params",
    "freshet.strategies",
    (
        "freshet_graph.trainer.strategies.events.sequential",
        "freshet_graph.trainer.strategies.speed.pac",
        "freshet_graph.trainer.strategies.snapshots.vertex",
        "freshet_graph.trainer.strategies.snapshots.whole",
        "freshet_graph.trainer.strategies.esdg.snapshot",
        "freshet_graph.trainer.strategies.dygnex.group",
        "freshet_graph.trainer.strategies.dynahb.hybrid",
    ),
    error=Failure,
    check=_require_strategy,
)


def strategies_for(model: str) -> list[str]:
    """Strategies that train a model with its defaults, on a suitable lane; empty if it has no valid defaults."""
    try:
        made = create_model(model, ModelShape(0, 4), {})
    except Exception as error:  # noqa: BLE001  other packages may raise anything
        _log.warning("model %s cannot be made with its defaults: %r", model, error)
        return []
    return [
        name
        for name, strategy in sorted(STRATEGIES.all().items())
        if strategy.trains == made.kind and strategy.refuses(made, None, 1) is None
    ]


def require_together(
    name: str, model: Model, task: Task, optimisation: Optimisation, lane: LaneHeader | None, ranks: int
) -> None:
    """Check that a strategy can train a model for a task; ``lane`` is None while it is unknown.

    Raises:
        Failure: It cannot; the sentence names the conflict and a remedy.
    """
    strategy = STRATEGIES.find(name)
    if model.kind != strategy.trains:
        others = [
            other
            for other, strategy_class in sorted(STRATEGIES.all().items())
            if strategy_class.trains == model.kind
        ]
        raise Failure(
            f"strategy {name} trains {strategy.trains} models, and {model.name} is among the {model.kind} models. "
            f"Set strategy to {' or '.join(others)}"
        )
    if task.subject not in strategy.answers:
        others = sorted(
            other
            for other, strategy_class in STRATEGIES.all().items()
            if task.subject in strategy_class.answers
        )
        raise Failure(
            f"task {task.name} asks about {task.subject}, which strategy {name} does not answer. Choose one of "
            f"{', '.join(others)}"
        )
    if optimisation.replay.ratio and not strategy.replays:
        others = sorted(other for other, strategy_class in STRATEGIES.all().items() if strategy_class.replays)
        raise Failure(
            f"key optimisation.replay: strategy {name} does not support replay ({', '.join(others)} does). "
            "Set optimisation.replay.ratio to 0"
        )
    refused = strategy.refuses(model, lane, ranks)
    if refused is not None:
        raise Failure(refused)
