"""The learning rate, step by step."""

import math
from typing import Any

import torch

from schemas.trainer_config import Optimisation


class LearningRate:
    """Sets an optimiser's rate before every step.

    It rises from 0 over ``warm_up_steps``, then stays (``constant``) or falls with the root of the steps (``decay``,
    ``on-drift``): to half after three times ``decay_steps``. On a stream there is no last step, so no cosine.

    Args:
        optimisation: The policy.
        optimiser: Whose rate it is.
    """

    def __init__(self, optimisation: Optimisation, optimiser: torch.optim.Optimizer) -> None:
        self._policy = optimisation
        self.optimiser = optimiser
        self._steps = 0  # since the beginning, or the last drift

    def step(self) -> None:
        """Take an optimiser step at the rate that it has now."""
        rate = self.now()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self._steps += 1

    def now(self) -> float:
        """The rate of the next step."""
        policy = self._policy
        rate = policy.learning_rate
        if self._steps < policy.warm_up_steps:
            return rate * (self._steps + 1) / (policy.warm_up_steps + 1)
        if policy.rate == "constant":
            return rate
        past = self._steps - policy.warm_up_steps
        return rate * math.sqrt(policy.decay_steps / (policy.decay_steps + past))

    def drifted(self) -> None:
        """The stream has changed: under ``on-drift`` the rate begins anew."""
        if self._policy.rate == "on-drift":
            self._steps = 0

    def state(self) -> dict[str, Any]:
        """What ``restore`` continues from, the optimiser's state included."""
        return {"optimiser": self.optimiser.state_dict(), "steps": self._steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.optimiser.load_state_dict(state["optimiser"])
        self._steps = int(state["steps"])
