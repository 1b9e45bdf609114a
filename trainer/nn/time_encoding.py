"""Time spans as vectors: the learned cosines of TGAT, and fixed bumps on a logarithmic scale."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trainer.nn.bumps import bumps
from trainer.nn.compiled import kernels_fit
from trainer.nn.cosines import cosines, cosines_back

LONGEST_LOG_S = 20.0
"""e²⁰ s = 15 years."""


class CosineTime(nn.Module):
    """cos(ω Δt + φ) with learned ω and φ (Xu et al. 2020, section 3; TGN uses the same).

    Frequencies begin at 1, …, 10⁻⁹ per second, spaced evenly in their logarithm.

    Args:
        width: Numbers per span.
    """

    name: ClassVar[str] = "cosine"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.frequency = nn.Parameter(10.0 ** -torch.linspace(0, 9, width))
        self.phase = nn.Parameter(torch.zeros(width))

    def forward(self, seconds: Tensor) -> Tensor:
        """Spans (…) in seconds, not negative → (…, width)."""
        encode = _HostCosine if kernels_fit(seconds) else _Cosine
        encoded: Tensor = encode.apply(seconds, self.frequency, self.phase)  # type: ignore[no-untyped-call]  # torch's apply is untyped
        return encoded

    def now(self) -> Tensor:
        """φ(0), (width,)."""
        return torch.cos(self.phase)


class _Cosine(torch.autograd.Function):
    """cos(ω Δt + φ); the gradient of ω is one matrix product instead of the sum of a table."""

    @staticmethod
    def forward(ctx: Any, seconds: Tensor, frequency: Tensor, phase: Tensor) -> Tensor:
        angle = torch.addcmul(phase, seconds.unsqueeze(-1), frequency)
        ctx.save_for_backward(seconds, angle)
        return torch.cos(angle)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        seconds, angle = ctx.saved_tensors
        by_angle = angle.sin().mul_(gradients[0]).view(seconds.numel(), angle.shape[-1])
        return None, -(seconds.reshape(-1) @ by_angle), -by_angle.sum(dim=0)


class _HostCosine(torch.autograd.Function):
    """The same by compiled kernels, which keep no table of angles and take a fifth of the time."""

    @staticmethod
    def forward(ctx: Any, seconds: Tensor, frequency: Tensor, phase: Tensor) -> Tensor:
        spans = seconds.reshape(-1)
        out = spans.new_empty(len(spans), len(frequency))
        cosines(spans.numpy(), frequency.detach().numpy(), phase.detach().numpy(), out.numpy())
        ctx.save_for_backward(spans, frequency, phase)
        return out.view(*seconds.shape, len(frequency))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        spans, frequency, phase = ctx.saved_tensors
        by_frequency, by_phase = np.zeros(len(frequency)), np.zeros(len(frequency))
        table = gradients[0].reshape(len(spans), len(frequency)).contiguous()
        arrays = (each.detach().numpy() for each in (spans, frequency, phase, table))
        cosines_back(*arrays, by_frequency, by_phase)
        return None, torch.from_numpy(by_frequency).to(spans), torch.from_numpy(by_phase).to(spans)


class LogTime(nn.Module):
    """Gaussian bumps at log-spaced spans from 1 s to 15 years; nothing is learned.

    Gaps between events are heavy-tailed, so later layers need equal resolution in log time.

    Args:
        width: Numbers per span.
    """

    name: ClassVar[str] = "log"
    centres: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("centres", torch.linspace(0, LONGEST_LOG_S, width), persistent=False)

    def forward(self, seconds: Tensor) -> Tensor:
        """Spans (…) in seconds, not negative → (…, width)."""
        spacing = LONGEST_LOG_S / max(self.width - 1, 1)
        return bumps(seconds, self.centres, spacing)

    def now(self) -> Tensor:
        """φ(0), (width,)."""
        return self.forward(self.centres.new_zeros(()))


TimeEncoder = CosineTime | LogTime
TIME_ENCODERS: dict[str, type[TimeEncoder]] = {kind.name: kind for kind in (CosineTime, LogTime)}
