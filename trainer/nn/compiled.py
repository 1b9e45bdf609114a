"""When compiled kernels replace torch operations."""

import torch
from torch import Tensor


def kernels_fit(tensor: Tensor) -> bool:
    """Whether numba's kernels can work on a tensor: in the host's memory, of a type that they know, and not traced."""
    on_host = tensor.device.type == "cpu" and not torch.compiler.is_compiling()
    return on_host and tensor.dtype in (torch.float32, torch.float64)
