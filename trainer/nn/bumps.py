"""Gaussian bumps over a logarithmic scale, cut off where the rest is below the last digit of any sum."""

import numpy as np
import torch
from torch import Tensor

from stream.kernels import njit
from trainer.nn.compiled import kernels_fit
from trainer.nn.gates import WIDE, exp

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
    if kernels_fit(seconds) and seconds.dtype == torch.float32:
        out = logs.new_empty(logs.numel(), len(centres))
        _bumps(logs.reshape(-1).numpy(), centres.numpy(), np.float32(1 / spacing), out.numpy())
        return out.view(*seconds.shape, len(centres))
    away = ((logs.unsqueeze(-1) - centres) / spacing).abs()
    return torch.exp(-away.clamp(max=REACH).square()).masked_fill_(away > REACH, 0.0)


@njit(**WIDE)
def _bump(log, centres, per_spacing, out):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(centres)):
        away = (log - centres[j]) * per_spacing
        out[j] = np.float32(0) if abs(away) > np.float32(REACH) else exp(-away * away)


@njit(cache=True, nogil=True)
def _bumps(logs, centres, per_spacing, out):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``out`` float32 (m, T) from logarithms (m,) and centres (T,)."""
    for i in range(len(logs)):
        _bump(logs[i], centres, per_spacing, out[i])
