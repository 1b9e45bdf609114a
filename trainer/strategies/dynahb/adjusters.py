"""Choice of the size of the next batch: fixed, or by the paper's deep Q-network (DynaHB, 5.1)."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from freshet_graph.stream.arrays.kinds import Float64, Int64

Size = tuple[float, float]

DISCOUNT, DECAY, LEAST, RATE = 0.99, 0.95, 0.1, 0.005
"""γ; ε falls by DECAY from 1 to LEAST; learning rate (section 5.1, table 10)."""

WIDTH, MEMORY, BATCH, SOFT = 16, 1000, 5, 0.01
"""Width of the hidden layer; transitions kept, and learned at once; step of the target (the authors' code)."""

BOUND = 10.0
"""Bound of either part of a reward, whose denominator may be next to zero."""


class Dqn:
    """A perceptron 1-16-n of the fall of the loss, with replay, a slowly following target network, and Adam.

    Args:
        actions: n.
        seed: Of weights and draws.

    Attributes:
        epsilon: Probability of a random choice.
        q: Weights of the network.
        target: Those of the target network.
        replay: Transitions kept, the oldest first, float64 (n, 4): state, action, reward, state after.
        steps: Gradient steps so far.
    """

    def __init__(self, actions: int, seed: int) -> None:
        self._actions, self._seed, self._draws, self.epsilon = actions, seed, 0, 1.0
        self.q = np.concatenate(
            [
                self._draw().uniform(-1, 1, 2 * WIDTH),
                self._draw().uniform(-(WIDTH**-0.5), WIDTH**-0.5, actions * (WIDTH + 1)),
            ]
        )
        self.target = self.q.copy()
        self._moments = np.zeros((2, len(self.q)))
        self.steps = 0
        self.replay: Float64 = np.zeros((0, 4))

    def choose(self, state: float) -> int:
        """The action of the largest Q, or with probability ε a random one; ε falls."""
        draw, epsilon = self._draw(), self.epsilon
        self.epsilon = max(LEAST, DECAY * self.epsilon)
        if draw.random() < epsilon:
            return int(draw.integers(self._actions))
        return int(np.argmax(self.values(self.q, np.array([state]))[0]))

    def learn(self, state: float, action: int, reward: float, after: float) -> None:
        """Remember a transition, and follow the gradient of the squared error of a few remembered ones."""
        self.replay = np.concatenate([self.replay, [[state, action, reward, after]]])[-MEMORY:]
        if len(self.replay) < BATCH:
            return
        states, actions, rewards, afters = self.replay[
            self._draw().choice(len(self.replay), BATCH, replace=False)
        ].T
        wanted = rewards + DISCOUNT * self.values(self.target, afters).max(axis=1)
        self._follow(self.gradient(states, actions.astype(np.int64), wanted))
        self.target += SOFT * (self.q - self.target)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {
            "q": self.q.copy(), "target": self.target.copy(), "moments": self._moments.copy(),
            "replay": self.replay.copy(), "steps": self.steps, "draws": self._draws, "epsilon": self.epsilon,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.q, self.target, self._moments = (np.array(state[name]) for name in ("q", "target", "moments"))
        self.replay = np.array(state["replay"]).reshape(-1, 4)
        self.steps, self._draws = int(state["steps"]), int(state["draws"])
        self.epsilon = float(state["epsilon"])

    def _draw(self) -> np.random.Generator:
        self._draws += 1
        return np.random.default_rng([self._seed, 2, self._draws])

    def _split(self, weights: Float64) -> tuple[Float64, Float64, Float64, Float64]:
        """Views of (16,), (16,), (n, 16), (n,)."""
        first, bias = weights[:WIDTH], weights[WIDTH : 2 * WIDTH]
        second = weights[2 * WIDTH :].reshape(self._actions, WIDTH + 1)
        return first, bias, second[:, :WIDTH], second[:, WIDTH]

    def values(self, weights: Float64, states: Float64) -> Float64:
        """Q of every action, (k, n)."""
        first, bias, second, other = self._split(weights)
        return np.maximum(states[:, None] * first + bias, 0) @ second.T + other

    def gradient(self, states: Float64, actions: Int64, wanted: Float64) -> Float64:
        """Of the mean of (Q(s, a) − wanted)²."""
        first, bias, second, _ = self._split(self.q)
        hidden = np.maximum(states[:, None] * first + bias, 0)
        error = 2 * (self.values(self.q, states)[np.arange(len(states)), actions] - wanted) / len(states)
        flat = np.zeros_like(self.q)
        parts = self._split(flat)
        np.add.at(parts[2], actions, error[:, None] * hidden)
        np.add.at(parts[3], actions, error)
        back = error[:, None] * second[actions] * (hidden > 0)
        parts[0][:] = (back * states[:, None]).sum(axis=0)
        parts[1][:] = back.sum(axis=0)
        return flat

    def _follow(self, gradient: Float64) -> None:
        """A step of Adam."""
        self.steps += 1
        mean, square = self._moments
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        corrected = mean / (1 - 0.9**self.steps), square / (1 - 0.999**self.steps)
        self.q -= RATE * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)


def cleaned_reward(
    seconds: tuple[float, float], falls: tuple[float, float], sizes: tuple[Size, Size]
) -> float:
    """R = (t_l − t_c) / t_l + (Δ_c − Δ_l) / Δ_c (equation 3), corrected by the rules of the authors' code.

    There is no penalty for time if both sizes shrank, and none for the loss if both grew. If the loss rose, both parts are
    penalties. Each part is bounded.

    Args:
        seconds: t_l of the choice before, and t_c of this one.
        falls: Δ_l and Δ_c of the loss.
        sizes: Shares of snapshots and vertices of both.
    """
    (before_s, now_s), (fall_before, fall) = seconds, falls
    of_time = np.clip((before_s - now_s) / max(before_s, 1e-9), -BOUND, BOUND)
    of_loss = np.clip((fall - fall_before) / (fall if abs(fall) > 1e-12 else 1e-12), -BOUND, BOUND)
    if fall <= 0:
        return float(-abs(of_time) - abs(of_loss))
    (snapshots_before, vertices_before), (snapshots, vertices) = sizes
    if snapshots < snapshots_before and vertices < vertices_before:
        of_time = max(of_time, 0.0)
    if snapshots > snapshots_before and vertices > vertices_before:
        of_loss = max(of_loss, 0.0)
    return float(of_time + of_loss)


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


class Adjuster:
    """Chooses sizes; all ranks follow rank 0's choices.

    Attributes:
        adapts: Whether it chooses after every step, and observes steps; otherwise its first choice stands.
        reward: The last one; 0 before any.
    """

    adapts: ClassVar[bool] = False
    reward: float = 0.0

    @property
    def epsilon(self) -> float:
        """Probability of a random choice; 0 if it makes none."""
        return 0.0

    def choose(self) -> int:
        """Number of the size of the next planned batch."""
        raise NotImplementedError

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step."""

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""


class Fixed(Adjuster):
    """One size.

    Args:
        sizes: Shares of snapshots and vertices; the fewest snapshots with the most vertices are taken.
        seed: Unused.
    """

    def __init__(self, sizes: list[Size], seed: int) -> None:
        self._size = min(range(len(sizes)), key=lambda number: (sizes[number][0], -sizes[number][1]))

    @override
    def choose(self) -> int:
        return self._size


class DqnAdjuster(Adjuster):
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
        self._recent: list[Outcome] = []

    @property
    @override
    def epsilon(self) -> float:
        return self.network.epsilon

    @override
    def choose(self) -> int:
        losses = [outcome.loss for outcome in self._recent[-2:]]
        return self.network.choose(losses[0] - losses[1] if len(losses) == 2 else 0.0)

    @override
    def observe(self, outcome: Outcome) -> None:
        self._recent = [*self._recent[-2:], outcome]
        if len(self._recent) < 3:
            return
        first, last, now = self._recent
        fall_before, fall = first.loss - last.loss, last.loss - now.loss
        self.reward = cleaned_reward(
            (last.seconds, now.seconds), (fall_before, fall), (self._sizes[last.size], self._sizes[now.size])
        )
        self.network.learn(fall_before, now.size, self.reward, fall)

    @override
    def state(self) -> dict[str, Any]:
        """The network, the last reward, and the steps that the next fall is measured from."""
        recent = np.array(self._recent, np.float64).reshape(-1, 3)
        return {"network": self.network.state(), "reward": self.reward, "recent": recent}

    @override
    def restore(self, state: dict[str, Any]) -> None:
        self.network.restore(state["network"])
        self.reward = float(state["reward"])
        rows = np.asarray(state.get("recent", np.empty((0, 3))))  # earlier checkpoints have none
        self._recent = [Outcome(int(size), loss, seconds) for size, loss, seconds in rows.tolist()]


ADJUSTERS: dict[str, Callable[[list[Size], int], Adjuster]] = {"fixed": Fixed, "dqn": DqnAdjuster}
