"""Arrays of the host on the ranks' device, while the host goes on."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array as a tensor on a device; on the host it keeps the array's memory.

    To a GPU it is copied from pinned memory: a copy from the array's own pages would make the host wait until the GPU
    has done all that it was given before.

    Args:
        array: Any shape, of a type that torch has.
        device: Where the tensor goes.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
