"""Choice of the size of the next batches: fixed, random, or by the progress per second (DynaHB section 5.1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from trainer.strategies.snapshots.dqn import Dqn, cleaned_reward

FORGET = 0.9
"""Weight of an earlier measurement against one after it, of the same size."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of batches of one size.

    Attributes:
        action: Number of the size.
        fall: Fall of the loss of held-out questions per step.
        seconds: Per step.
    """

    action: int
    fall: float
    seconds: float


class Adjuster(Protocol):
    """Chooses sizes; all ranks follow rank 0's choices.

    Attributes:
        judges: Whether it needs the outcome of batches.
        reward: The last one; 0 before any.
    """

    judges: ClassVar[bool]
    reward: float

    @property
    def epsilon(self) -> float:
        """Probability of a random choice; 0 if it makes none."""
        ...

    def choose(self) -> int:
        """Number of the size of the next batches."""
        ...

    def told(self, tried: Tried) -> None:
        """Learn from the outcome of batches of a size."""
        ...

    def begin(self) -> None:
        """Begin a snapshot: earlier falls of the loss cannot be compared with later ones."""
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

    judges: ClassVar[bool] = False
    reward = 0.0

    @property
    def epsilon(self) -> float:
        """See ``Adjuster.epsilon``."""
        return 0.0

    def __init__(self, sizes: list[tuple[float, float]], seed: int) -> None:
        self._action = min(range(len(sizes)), key=lambda at: (sizes[at][0], -sizes[at][1]))

    def choose(self) -> int:
        """See ``Adjuster.choose``."""
        return self._action

    def told(self, tried: Tried) -> None:
        """See ``Adjuster.told``."""

    def begin(self) -> None:
        """See ``Adjuster.begin``."""

    def state(self) -> dict[str, Any]:
        """See ``Adjuster.state``."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Adjuster.restore``."""


class Random(Fixed):
    """Any size, each equally likely: the baseline of the paper's table 10.

    Args:
        sizes: Shares.
        seed: Of draws.
    """

    def __init__(self, sizes: list[tuple[float, float]], seed: int) -> None:
        self._count, self._seed, self._draws = len(sizes), seed, 0

    @property
    def epsilon(self) -> float:
        """See ``Adjuster.epsilon``."""
        return 1.0

    def choose(self) -> int:
        """See ``Adjuster.choose``."""
        return int(self._draw().integers(self._count))

    def state(self) -> dict[str, Any]:
        """See ``Adjuster.state``."""
        return {"draws": self._draws}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Adjuster.restore``."""
        self._draws = int(state["draws"])

    def _draw(self) -> np.random.Generator:
        self._draws += 1
        return np.random.default_rng([self._seed, 1, self._draws])


class Bandit(Random):
    """Thompson sampling on the fall of the loss per second, normal for each size; earlier measurements fade.

    Args:
        sizes: Shares.
        seed: Of draws.
    """

    judges: ClassVar[bool] = True

    def __init__(self, sizes: list[tuple[float, float]], seed: int) -> None:
        super().__init__(sizes, seed)
        self._weight, self._sum, self._squares = (np.zeros(len(sizes)) for _ in range(3))

    @property
    def epsilon(self) -> float:
        """See ``Adjuster.epsilon``."""
        return 0.0

    def choose(self) -> int:
        """See ``Adjuster.choose``: a size that was never tried comes first."""
        untried = np.flatnonzero(self._weight == 0)
        if len(untried):
            return int(self._draw().choice(untried))
        mean = self._sum / self._weight
        spread = np.maximum(self._squares / self._weight - mean**2, 0)
        # with one measurement a size's spread is unknown: that of all of them stands in
        common = max(float(np.mean(spread)), float(np.var(mean)), 1e-30)
        deviation = np.sqrt((spread * self._weight + common) / (self._weight + 1) / self._weight)
        return int(np.argmax(self._draw().normal(mean, deviation)))

    def told(self, tried: Tried) -> None:
        """See ``Adjuster.told``."""
        self.reward = tried.fall / max(tried.seconds, 1e-9)
        for table, value in ((self._weight, 1.0), (self._sum, self.reward), (self._squares, self.reward**2)):
            table[tried.action] = FORGET * table[tried.action] + value

    def state(self) -> dict[str, Any]:
        """See ``Adjuster.state``."""
        return {
            **super().state(),
            "tables": np.stack([self._weight, self._sum, self._squares]),
            "reward": self.reward,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Adjuster.restore``."""
        super().restore(state)
        self._weight, self._sum, self._squares = np.array(state["tables"], np.float64)
        self.reward = float(state["reward"])


class DqnAdjuster:
    """The paper's deep Q-network: its state is the fall of the loss, its reward equation 3 with guards.

    Args:
        sizes: Shares.
        seed: Of weights and draws.
    """

    judges: ClassVar[bool] = True

    def __init__(self, sizes: list[tuple[float, float]], seed: int) -> None:
        self._sizes, self._network = sizes, Dqn(len(sizes), seed)
        self.reward = 0.0
        self._last: Tried | None = None

    @property
    def epsilon(self) -> float:
        """See ``Adjuster``."""
        return self._network.epsilon

    def choose(self) -> int:
        """See ``Adjuster.choose``."""
        return self._network.choose(0.0 if self._last is None else self._last.fall)

    def told(self, tried: Tried) -> None:
        """See ``Adjuster.told``: the first outcome of a snapshot is only the reference of the next."""
        last, self._last = self._last, tried
        if last is None:
            return
        self.reward = cleaned_reward(
            (last.seconds, tried.seconds),
            (last.fall, tried.fall),
            (self._sizes[last.action], self._sizes[tried.action]),
        )
        self._network.learn(last.fall, tried.action, self.reward, tried.fall)

    def begin(self) -> None:
        """See ``Adjuster.begin``."""
        self._last = None

    def state(self) -> dict[str, Any]:
        """See ``Adjuster.state``: weights, replay memory and draws."""
        return {"network": self._network.state(), "reward": self.reward}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Adjuster.restore``."""
        self._last = None
        self._network.restore(state["network"])
        self.reward = float(state["reward"])


ADJUSTERS: dict[str, Callable[[list[tuple[float, float]], int], Adjuster]] = {
    "fixed": Fixed,
    "random": Random,
    "bandit": Bandit,
    "dqn": DqnAdjuster,
}
