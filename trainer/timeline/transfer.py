"""Transfers from the host to the device, counted to the byte by kind and mode."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.device import to_device

Mode = Literal["whole", "esdg", "derived", "counts", "auto"]
MODES: tuple[Mode, ...] = ("whole", "esdg", "derived", "counts", "auto")
Kind = Literal["indices", "values", "features", "counts"]

_LARGEST_COUNT = 255


class Message:
    """Arrays that are sent together, in one copy.

    Args:
        mode: How they describe the graph.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._parts: list[tuple[Kind, NDArray[Any]]] = []

    def indices(self, *arrays: NDArray[Any]) -> None:
        """Add int32 or int64 arrays (int64: two int32 each, as in a pair's key)."""
        self._parts += [("indices", array) for array in arrays]

    def values(self, values: NDArray[np.float32]) -> None:
        """Add values in the fewest bytes: none if all are 1, a byte each if all are small counts, else as they are."""
        if (values == 1).all():
            return
        counts = values.astype(np.uint8) if ((values >= 0) & (values <= _LARGEST_COUNT)).all() else None
        if counts is not None and (counts == values).all():
            self._parts.append(("counts", counts))
        else:
            self._parts.append(("values", values))

    def full_values(self, values: NDArray[np.float32]) -> None:
        """Add values as they are."""
        self._parts.append(("values", values))

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return sum(array.nbytes for _, array in self._parts)

    @property
    def parts(self) -> Sequence[tuple[Kind, NDArray[Any]]]:
        """Arrays with their kinds, in order."""
        return self._parts


class Transfer:
    """Sends arrays to a device and counts them; on the host the same code runs.

    They go to a GPU from page-locked memory on a side stream, and later work waits for them there, so the host never
    waits.

    Args:
        device: Where they go.

    Attributes:
        bytes: By (kind, mode).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes: Counter[tuple[str, str]] = Counter()
        self._counted: Counter[tuple[str, str]] = Counter()
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def send(self, message: Message) -> list[Tensor]:
        """The arrays of a message on the device; float32 for counts."""
        for kind, array in message.parts:
            self.bytes[kind, message.mode] += array.nbytes
        # the widest first, so that each begins where its type may
        order = sorted(range(len(message.parts)), key=lambda at: -message.parts[at][1].itemsize)
        arrays = [np.ascontiguousarray(message.parts[at][1]) for at in order]
        # written once, where the device reads it
        flat = torch.empty(
            sum(array.nbytes for array in arrays), dtype=torch.uint8, pin_memory=self._side is not None
        )
        if arrays:
            np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays], out=flat.numpy())
        sent, begin = self._copied(flat), 0
        found: dict[int, Tensor] = {}
        for at, array in zip(order, arrays, strict=True):
            dtype = torch.from_numpy(array[:0]).dtype
            bytes_of = sent[begin : begin + array.nbytes]
            part = bytes_of.view(dtype) if array.nbytes else bytes_of.to(dtype)  # an empty tensor has no view
            found[at] = part.float() if dtype == torch.uint8 else part
            begin += array.nbytes
        return [found[at] for at in range(len(arrays))]

    def features(self, array: NDArray[np.float32]) -> Tensor:
        """Inputs of nodes on the device."""
        self.bytes["features", "whole"] += array.nbytes
        return self._copied(torch.from_numpy(array))

    def since_last(self) -> Counter[tuple[str, str]]:
        """Bytes since the call before."""
        found = self.bytes - self._counted
        self._counted = Counter(self.bytes)
        return found

    def _copied(self, tensor: Tensor) -> Tensor:
        if self._side is None:
            return to_device(tensor, self.device)
        now = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._side):
            copy = to_device(tensor, self.device)
        now.wait_stream(self._side)
        copy.record_stream(now)
        return copy
