"""Choice of the size of the next batch: fixed, or by the fall of the training loss and the time of steps (DynaHB, 5.1)."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from trainer.strategies.snapshots.dqn import Dqn, Size, cleaned_reward


class Outcome(NamedTuple):
    """One optimiser step.

    Attributes:
        size: Number of the size of its batch.
        loss: Mean training loss of the batch.
        seconds: The wait for the batch included.
    """

    size: int
    loss: float
    seconds: float


class Adjuster(Protocol):
    """Chooses sizes; all ranks follow rank 0's choices.

    Attributes:
        adapts: Whether it chooses after every step, and observes steps; otherwise its first choice stands.
        reward: The last one; 0 before any.
    """

    adapts: ClassVar[bool]
    reward: float

    @property
    def epsilon(self) -> float:
        """Probability of a random choice; 0 if it makes none."""
        ...

    def choose(self) -> int:
        """Number of the size of the next planned batch."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step."""
        ...

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        ...


class Fixed:
    """One size.

    Args:
        sizes: Shares of snapshots and vertices; the fewest snapshots with the most vertices are taken.
        seed: Unused.
    """

    adapts: ClassVar[bool] = False
    reward = 0.0
    epsilon = 0.0

    def __init__(self, sizes: list[Size], seed: int) -> None:
        self._size = min(range(len(sizes)), key=lambda at: (sizes[at][0], -sizes[at][1]))

    def choose(self) -> int:
        """See ``Adjuster.choose``."""
        return self._size

    def observe(self, outcome: Outcome) -> None:
        """See ``Adjuster.observe``."""

    def state(self) -> dict[str, Any]:
        """See ``Adjuster.state``."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Adjuster.restore``."""


class DqnAdjuster:
    """The paper's deep Q-network: its state is the fall of the training loss, its reward equation 3 with guards.

    A transition needs the losses of three steps in a row, and passes and checkpoints do not interrupt the row.

    Args:
        sizes: Shares.
        seed: Of weights and draws.

    Attributes:
        network: The network, which counts its gradient steps.
    """

    adapts: ClassVar[bool] = True

    def __init__(self, sizes: list[Size], seed: int) -> None:
        self._sizes, self.network = sizes, Dqn(len(sizes), seed)
        self.reward = 0.0
        self._recent: list[Outcome] = []

    @property
    def epsilon(self) -> float:
        """See ``Adjuster``."""
        return self.network.epsilon

    def choose(self) -> int:
        """See ``Adjuster.choose``."""
        losses = [outcome.loss for outcome in self._recent[-2:]]
        return self.network.choose(losses[0] - losses[1] if len(losses) == 2 else 0.0)

    def observe(self, outcome: Outcome) -> None:
        """See ``Adjuster.observe``."""
        self._recent = [*self._recent[-2:], outcome]
        if len(self._recent) < 3:
            return
        first, last, now = self._recent
        fall_before, fall = first.loss - last.loss, last.loss - now.loss
        self.reward = cleaned_reward(
            (last.seconds, now.seconds), (fall_before, fall), (self._sizes[last.size], self._sizes[now.size])
        )
        self.network.learn(fall_before, now.size, self.reward, fall)

    def state(self) -> dict[str, Any]:
        """See ``Adjuster.state``: the network, the last reward, and the steps that the next fall is measured from."""
        recent = np.array(self._recent, np.float64).reshape(-1, 3)
        return {"network": self.network.state(), "reward": self.reward, "recent": recent}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Adjuster.restore``."""
        self.network.restore(state["network"])
        self.reward = float(state["reward"])
        rows = np.asarray(state.get("recent", np.empty((0, 3))))  # earlier checkpoints have none
        self._recent = [Outcome(int(size), loss, seconds) for size, loss, seconds in rows.tolist()]


ADJUSTERS: dict[str, Callable[[list[Size], int], Adjuster]] = {"fixed": Fixed, "dqn": DqnAdjuster}
