"""The optimiser step of every strategy: all ranks take it, or all leave it out."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.trainer.learning.soundness import spoil
from freshet_graph.trainer.ranks import Ranks

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


NEVER = 1 << 62
"""Value of ``averages_every`` for a strategy that averages by itself."""


class Learner:
    """Optimiser, learning rate, clipping, and how ranks come to the same weights.

    Gradients are summed over ranks before each step. So weights stay equal on all of them, and all see from the summed
    gradient whether the step is left out. With ``averages_every`` each rank steps by itself instead, and after that many
    steps weights and Adam's moments become their means over all ranks (local SGD).

    The host never waits for a GPU between two steps: ``settled`` reads the outcomes of all steps at once.

    Args:
        model: Its weights, on the ranks' device and equal on all of them.
        optimisation: Rate, weight decay, clipping.
        ranks: All ranks.
        averages_every: Steps between averages; None: gradients are summed; ``NEVER``: the strategy averages by itself.
        usual_rate: The rate if ``optimisation`` names none.

    Attributes:
        rate: The optimiser and its rate.
        steps: Taken so far, including those that were left out.
    """

    def __init__(
        self,
        model: nn.Module,
        optimisation: Optimisation,
        ranks: Ranks,
        *,
        averages_every: int | None = None,
        usual_rate: float = USUAL,
    ) -> None:
        # Listed once: walking all modules takes as long as reading their gradients.
        self._weights = list(model.parameters())
        self._ranks = ranks
        self._limit = optimisation.grad_clip
        self._averages_every = averages_every
        self._since_average = 0
        self._outcomes: list[Tensor] = []  # of each step: loss, and 1 if it was left out; on the device
        self._seconds: dict[str, float] = defaultdict(float)
        self.rate = LearningRate(optimisation, self._weights, usual_rate)
        self.steps = 0

    def step(self, loss: Tensor | None, weight: float = 1.0, scale: float = 1.0) -> None:
        """Follow the gradient of the sum of all ranks' weighted losses; a collective unless weights are averaged.

        A step whose loss or gradient is not finite on any rank (with averages: on this one) is left out.

        Args:
            loss: This rank's, a scalar; None: this rank has nothing to learn in this step.
            weight: Of this rank's loss in the sum.
            scale: Of this rank's loss in the sum that ``settled`` returns.
        """

        def backward() -> Tensor | None:
            if loss is not None:
                (loss if weight == 1.0 else loss * weight).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
            return loss

        self.follow(backward, scale=scale)

    def follow(
        self, backward: Callable[[], Tensor | None], *, summed: bool = False, scale: float = 1.0
    ) -> None:
        """As ``step``, for a gradient that is computed piece by piece.

        Args:
            backward: Adds this rank's part to the gradients of the weights, which are empty before. Returns its loss, a
                scalar, or None if it has nothing to learn.
            summed: Whether it leaves gradients that are already summed over ranks.
            scale: See ``step``.
        """
        began = time.perf_counter()
        for weight in self._weights:
            weight.grad = None
        loss = backward()
        if loss is not None:
            spoil(self._weights, loss)
        began = self._lap("backward", began)
        loss_sum = None if loss is None else loss.detach().double() * scale
        if not self.alone and not summed:
            loss_sum = self._ranks.sum_gradients(self._weights, loss_sum)
        began = self._lap("synchronise", began)
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        norm = _clipped(gradients, self._limit, self._ranks.device)
        left_out = self.rate.step(norm)
        logged_loss = torch.zeros_like(norm) if loss_sum is None else loss_sum
        self._outcomes.append(torch.stack([logged_loss.double(), left_out.double()]))
        self.steps += 1
        self._lap("update", began)
        if self._averages_every is not None:
            self._since_average += 1
            if self._since_average >= self._averages_every:
                self.average()

    def average(self) -> None:
        """Set weights and Adam's moments to their means over all ranks, if steps were taken since; a collective.

        All ranks take equally many steps between two calls. A strategy that averages calls this at the end of a snapshot,
        where weights must be equal on all ranks.
        """
        if not self._since_average:
            return
        began = time.perf_counter()
        self._since_average = 0
        moments = [
            self.rate.optimiser.state[weight][name]
            for weight in self._weights
            for name in ("exp_avg", "exp_avg_sq")
            if name in self.rate.optimiser.state[weight]
        ]
        self._ranks.average([weight.data for weight in self._weights] + moments)
        self._lap("synchronise", began)

    def tables(self) -> list[Tensor]:
        """Tensors that ranks average: all weights, then Adam's moments and steps of each; of one shape on all ranks."""
        moments = []
        for weight in self._weights:
            state = self.rate.optimiser.state[weight]
            if not state:  # this rank has not learned with it yet, another may have
                state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
            moments += [state["exp_avg"], state["exp_avg_sq"], state["step"]]
        return [weight.data for weight in self._weights] + moments

    @property
    def alone(self) -> bool:
        """Whether each rank steps by itself, and weights are averaged."""
        return self._averages_every is not None

    @property
    def num_weights(self) -> int:
        """Number of weights in ``tables``."""
        return len(self._weights)

    def waited(self, seconds: float) -> None:
        """Add seconds that a strategy spent on averages of its own."""
        self._seconds["synchronise"] += seconds

    def settled(self) -> list[tuple[float, bool]]:
        """The loss (0 without one) of each step since the last call, and whether the step was left out.

        It is the sum over ranks, or this rank's where the step did not sum gradients.
        """
        rows = torch.stack(self._outcomes).tolist() if self._outcomes else []
        self._outcomes = []
        return [(loss, bool(left_out)) for loss, left_out in rows]

    def seconds(self) -> dict[str, float]:
        """Seconds since the last call by phase: ``backward``, ``synchronise``, ``update``; on a GPU, until the host continues."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        return dict(seconds)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from: the optimiser, its rate and the number of steps."""
        return {"rate": self.rate.state(), "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self.rate.restore(state["rate"])
        self.steps = int(state.get("steps", 0))  # earlier checkpoints have none

    def _lap(self, phase: str, since: float) -> float:
        now = time.perf_counter()
        self._seconds[phase] += now - since
        return now


@torch.no_grad()
def _clipped(gradients: list[Tensor], limit: float | None, device: torch.device) -> Tensor:
    """The norm of all gradients, which are made shorter if it is above the limit; torch's utilities take thrice as long."""
    if not gradients:
        return torch.zeros((), device=device)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit:
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm
