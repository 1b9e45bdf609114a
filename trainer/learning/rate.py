"""The optimiser, and its learning rate step by step."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from schemas.trainer_config import Optimisation

USUAL = 1e-3
"""Adam's rate by default."""


class LearningRate:
    """Adam, whose rate is set before every step.

    It rises from 0 over ``warm_up_steps``, then stays (``constant``) or falls with the root of the steps (``decay``,
    ``on-drift``): to half after three times ``decay_steps``. A stream has no last step, so there is no cosine schedule.
    Steps that are left out count, because the host does not wait to learn of them.

    Args:
        optimisation: The policy.
        weights: Parameters of the optimiser.
        usual: The rate if the policy names none.

    Attributes:
        factor: Of the policy's rate; set before every snapshot.
    """

    def __init__(
        self, optimisation: Optimisation, weights: Iterable[nn.Parameter], usual: float = USUAL
    ) -> None:
        self._policy = optimisation
        self._highest = usual if optimisation.learning_rate is None else optimisation.learning_rate
        self.optimiser = torch.optim.Adam(
            weights,
            lr=self._highest,
            weight_decay=optimisation.weight_decay,
            fused=True,  # one kernel over all weights, which skips the step if ``found_inf`` is set
        )
        self.factor = 1.0
        self._steps = 0  # since the beginning, or the last drift

    def step(self, norm: Tensor) -> Tensor:
        """Take an optimiser step at the present rate, unless the gradient's norm (float) is not finite.

        Returns:
            float32, on the norm's device: 1 if the step was left out, else 0.
        """
        rate = self.now()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        left_out = (~torch.isfinite(norm)).float()
        self.optimiser.found_inf = left_out  # type: ignore[attr-defined]  # as torch's gradient scaler sets it
        self.optimiser.step()
        self._steps += 1
        return left_out

    def now(self) -> float:
        """The rate of the next step."""
        policy = self._policy
        rate = self._highest * self.factor
        if self._steps < policy.warm_up_steps:
            return rate * (self._steps + 1) / (policy.warm_up_steps + 1)
        if policy.rate == "constant":
            return rate
        past = self._steps - policy.warm_up_steps
        return rate * math.sqrt(policy.decay_steps / (policy.decay_steps + past))

    def drifted(self) -> None:
        """The stream has changed: under ``on-drift`` the rate begins again."""
        if self._policy.rate == "on-drift":
            self._steps = 0

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from, the optimiser's state included."""
        return {"optimiser": self.optimiser.state_dict(), "steps": self._steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        groups = [
            {**group, "fused": True} for group in state["optimiser"]["param_groups"]
        ]  # older ones were not
        self.optimiser.load_state_dict({**state["optimiser"], "param_groups": groups})
        self._steps = int(state["steps"])
