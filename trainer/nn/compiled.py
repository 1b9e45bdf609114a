"""When compiled kernels replace torch operations."""

import torch
from torch import Tensor


def kernels_fit(tensor: Tensor) -> bool:
    """Whether numba's kernels can work on a tensor: in the host's memory, and of a type that they know."""
    return on_host(tensor) and tensor.dtype in (torch.float32, torch.float64)


def on_host(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are in the host's memory, and not traced, as ``torch.compile`` does it."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
