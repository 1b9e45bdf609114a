"""Time spans as vectors: the learned cosines of TGAT, and fixed bumps on a logarithmic scale."""

from typing import ClassVar

import torch
from torch import Tensor, nn

LONGEST_LOG_S = 20.0
"""e²⁰ s = 15 years."""


class CosineTime(nn.Module):
    """cos(ω Δt + φ) with learned ω and φ (Xu et al. 2020, section 3; TGN uses the same).

    Frequencies begin at 1, …, 10⁻⁹ per second, spaced evenly in their logarithm.

    Args:
        width: Numbers a span.
    """

    name: ClassVar[str] = "cosine"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.frequency = nn.Parameter(10.0 ** -torch.linspace(0, 9, width))
        self.phase = nn.Parameter(torch.zeros(width))

    def forward(self, seconds: Tensor) -> Tensor:
        """Spans (…) in seconds, not negative → (…, width)."""
        return torch.cos(seconds.unsqueeze(-1) * self.frequency + self.phase)


class LogTime(nn.Module):
    """Gaussian bumps at log-spaced spans from 1 s to 15 years; nothing is learned.

    Gaps between events are heavy-tailed, so what follows needs equal resolution in log time.

    Args:
        width: Numbers a span.
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
        return torch.exp(-(((torch.log1p(seconds).unsqueeze(-1) - self.centres) / spacing) ** 2))


TimeEncoder = CosineTime | LogTime
TIME_ENCODERS: dict[str, type[TimeEncoder]] = {kind.name: kind for kind in (CosineTime, LogTime)}
