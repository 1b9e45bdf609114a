"""Time spans as vectors: the learned cosines of TGAT, and fixed bumps on a logarithmic scale.

Sine and cosine are here as compiled functions, too, for attention, which keeps no table of angles. Gaussian bumps are cut off
where the rest is below the last digit of any sum.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from freshet_graph.stream.kernels import njit

# Taylor's coefficients at 0; on a quarter turn to either side the rest is below 10⁻¹⁴
_C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9 = (
    (-1.0) ** i / float(np.prod(np.arange(1.0, 2 * i + 1))) for i in range(1, 10)
)
_S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9 = (
    (-1.0) ** i / float(np.prod(np.arange(1.0, 2 * i + 2))) for i in range(1, 10)
)
_PI = np.pi
_PI_REST = 1.2246467991473532e-16
"""π − the nearest float64: counts where there are millions of half turns."""


@njit(cache=True, nogil=True, inline="always")
def _half_turns(angle):  # type: ignore[no-untyped-def]  # compiled
    """The rest of an angle after half turns, and the sign that these give sine and cosine."""
    turns = np.floor(angle * (1 / _PI) + 0.5)
    odd = turns - 2 * np.floor(turns * 0.5)
    return (angle - turns * _PI) - turns * _PI_REST, 1 - 2 * odd


@njit(cache=True, nogil=True, inline="always")
def cosine(angle):  # type: ignore[no-untyped-def]  # compiled
    """The cosine of a float64."""
    x, sign = _half_turns(angle)
    y = x * x
    far = _C5 + y * (_C6 + y * (_C7 + y * (_C8 + y * _C9)))
    return sign * (1 + y * (_C1 + y * (_C2 + y * (_C3 + y * (_C4 + y * far)))))


@njit(cache=True, nogil=True, inline="always")
def sine(angle):  # type: ignore[no-untyped-def]  # compiled
    """The sine of a float64."""
    x, sign = _half_turns(angle)
    y = x * x
    far = _S5 + y * (_S6 + y * (_S7 + y * (_S8 + y * _S9)))
    return sign * x * (1 + y * (_S1 + y * (_S2 + y * (_S3 + y * (_S4 + y * far)))))


REACH = 5.0
"""Spacings from a bump's centre to its end: e⁻²⁵ = 1.4 · 10⁻¹¹, less than Adam's ε. Values beyond would only cost time:
exponentials that are subnormal, and every product with one, take up to ten times as long."""


def bumps(seconds: Tensor, centres: Tensor, spacing: float) -> Tensor:
    """exp(−((log(1 + s) − c) / spacing)²) of spans and centres, 0 further than ``REACH`` spacings away.

    Args:
        seconds: Float (…), spans, not negative; infinity gives zeros. Without gradient.
        centres: Float (T,).
        spacing: Of centres.

    Returns:
        (…, T).
    """
    logs = torch.log1p(seconds)
    away = ((logs.unsqueeze(-1) - centres) / spacing).abs()
    return torch.exp(-away.clamp(max=REACH).square()).masked_fill_(away > REACH, 0.0)


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
        encoded: Tensor = _Cosine.apply(seconds, self.frequency, self.phase)  # type: ignore[no-untyped-call]  # torch's apply is untyped
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
