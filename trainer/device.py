"""Copies from the host to the ranks' device that do not block the host."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """An array or tensor of the host, of a type that torch has, on a device; on the host it shares the array's memory.

    It is copied to a GPU from pinned memory: a copy from the array's own pages would make the host wait until the GPU
    has done all earlier work.
    """
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
