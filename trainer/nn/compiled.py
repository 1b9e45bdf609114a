"""When compiled kernels replace torch operations."""

import torch
from torch import Tensor


def kernels_fit(tensor: Tensor) -> bool:
    """Whether numba's kernels can work on a tensor: in the host's memory, and of a type that they know."""
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
