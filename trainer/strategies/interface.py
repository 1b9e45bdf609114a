"""What a strategy must offer, and the registry that finds strategies by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from schemas.store import LaneHeader
from schemas.trainer_config import Optimisation
from stream.nearest import did_you_mean
from stream.service.failure import Failure
from stream.store.log.event_columns import EventColumns
from trainer.data.examples import Examples, Lesson, Queries
from trainer.data.graph_window import GraphWindow
from trainer.data.history import Inserts
from trainer.models.interface import Kind, Model, models
from trainer.parameters import check_parameters
from trainer.ranks import Ranks
from trainer.strategies.learning_rate import LearningRate

Reads = Literal["graph", "events"]
"""What a strategy needs of a window: the lane's graph with its parts, or nothing but the newest snapshot's events."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What training on one snapshot did, over all ranks.

    Attributes:
        steps: Optimiser steps.
        events: Distinct events learned from.
        loss: Mean binary cross-entropy a query, in nats; None without events.
        discarded: Events that no rank could learn from, because no rank has both ends.
        replayed: Old events learned again.
        nonfinite: Steps left out because loss or gradient was not finite.
        seconds: Wall time by phase, of this rank.
    """

    steps: int
    events: int
    loss: float | None
    replayed: int = 0
    nonfinite: int = 0
    discarded: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class Strategy(Protocol):
    """How ranks share predicting and training.

    All methods but ``owned``, ``lesson``, ``step_events`` and ``held_bytes`` are collectives: all ranks call them.
    """

    name: ClassVar[str]
    trains: ClassVar[Kind]
    reads: ClassVar[Reads]
    replays: ClassVar[bool]
    """Whether old events can be learned again beside the new ones."""
    rate: LearningRate
    """The optimiser and its rate; there after ``setup``."""

    def setup(
        self, model: Model, lane: LaneHeader, ranks: Ranks, optimisation: Optimisation, seed: int
    ) -> None:
        """Take the model to train (already on the ranks' device, equal on all of them).

        Raises:
            Failure: The lane's parts are not what this strategy can work with.
        """
        ...

    def advance(self, window: GraphWindow) -> None:
        """Take in the window's newest snapshot: from now on it is what is predicted and learned."""
        ...

    def remember(self, tau: int, events: EventColumns, num_nodes: int) -> None:
        """Take in a snapshot that is left out: it is neither predicted nor learned, but it has happened.

        Args:
            tau: Snapshot.
            events: Its edge events.
            num_nodes: Dense ids in use after it.
        """
        ...

    def rewind(self) -> None:
        """Forget the stream, not what was learned: the next snapshot is the first again, as in a new epoch."""
        ...

    def owned(self, num_nodes: int) -> NDArray[np.bool_]:
        """Nodes whose events as a source are this rank's, bool (num_nodes,); each node is owned once."""
        ...

    def lesson(self, tau: int, inserts: Inserts) -> Lesson | None:
        """Which events of snapshot ``tau`` this rank learns from; None: those it owns."""
        ...

    def predict(self, model: Model, queries: list[Queries]) -> list[NDArray[np.float32]]:
        """Logits of this rank's queries about the newest snapshot, seen from the snapshots before it.

        Args:
            model: The trained model or one of its kind (a floor).
            queries: Any number of sets; other ranks bring as many.
        """
        ...

    def train(self, examples: Examples, epoch: int) -> StepReport:
        """One pass over this rank's examples of the newest snapshot."""
        ...

    def undo(self) -> None:
        """Take back what training the newest snapshot left in memory; weights are put back by the caller."""
        ...

    def embeddings(self, nodes: NDArray[np.int64]) -> Tensor:
        """Embeddings (n, width) of any nodes after the newest snapshot, as the next prediction will use them."""
        ...

    def state(self) -> dict[str, Any]:
        """What this rank's next step depends on besides the model: the optimiser, what is remembered of the stream."""
        ...

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """From every rank's ``state()`` one, on rank 0, that all ranks can ``restore``; elsewhere of no use."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from this rank's ``state()``, or from what was gathered."""
        ...

    @property
    def step_events(self) -> int:
        """Events of all ranks that a step learns from, at most."""
        ...

    @property
    def held_bytes(self) -> dict[str, int]:
        """Bytes held beside window and history, by kind."""
        ...


class EventStrategy(Strategy, Protocol):
    """A strategy for event models: it remembers the stream by itself, and can forget."""

    @property
    def event_times(self) -> NDArray[np.int64]:
        """Times of the events that are remembered, int64, microseconds, not decreasing."""
        ...

    def forget(self, kept: NDArray[np.int64], first: int) -> int:
        """Forget nodes with all that is remembered of them, and the oldest events; not a collective.

        From now on nodes are numbered anew: those that stay, in their order. What was done last about the newest
        snapshot stays done. An event that is not yet in the memory is not forgotten for its age.

        Args:
            kept: int64, ascending numbers of the nodes that stay.
            first: Number of the oldest event that may stay.

        Returns:
            Events forgotten.
        """
        ...


S = TypeVar("S", bound=type)
_REGISTRY: dict[str, Callable[..., Strategy]] = {}


def register(strategy: S) -> S:
    """Class decorator: make a strategy known under its ``name``."""
    _REGISTRY[strategy.name] = strategy  # type: ignore[attr-defined]
    return strategy


def strategies() -> dict[str, Callable[..., Strategy]]:
    """All strategies by name."""
    from trainer.strategies import builtin  # noqa: F401  imported for its registrations

    return dict(_REGISTRY)


def create_strategy(name: str, params: dict[str, Any], model: str) -> Strategy:
    """Build a strategy for models of the kind of ``model``.

    Raises:
        Failure: Unknown strategy or parameter, or one that trains another kind of model.
    """
    known = strategies()
    if name not in known:
        listed = ", ".join(sorted(known))
        raise Failure(f"unknown strategy {name!r}; expected one of {listed}{did_you_mean(name, known)}")
    check_parameters(known[name], params, f"strategy_params of {name}")
    try:
        strategy = known[name](**params)
    except (TypeError, ValueError) as error:
        raise Failure(f"strategy_params of {name}: {error}") from error
    kind = getattr(models().get(model), "kind", strategy.trains)
    if kind != strategy.trains:
        raise Failure(
            f"strategy {name} trains {strategy.trains}-based models, but model {model} is {kind}-based; "
            "freshet-trainer models lists which go together"
        )
    return strategy
