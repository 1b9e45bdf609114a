"""Bytes that a forward pass saves for its backward pass."""

import torch
from torch import Tensor, nn


class SavedBytes:
    """A context that counts the bytes of storages saved for backward, each once, without those of the model's weights."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.bytes = 0
        self._seen = {weight.untyped_storage().data_ptr() for weight in weights}
        self._held: list[Tensor] = []  # so that no storage gets the address of another
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._saved, _same)

    def __enter__(self) -> "SavedBytes":
        """Count from now on."""
        self._hooks.__enter__()
        return self

    def __exit__(self, *caught: object) -> None:
        """Count no more."""
        self._held.clear()
        self._hooks.__exit__()

    def _saved(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
            self._held.append(tensor.detach())
        # An operation's result and its graph would refer to each other for ever.
        return tensor.detach()


def _same(tensor: Tensor) -> Tensor:
    return tensor
