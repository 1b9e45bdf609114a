"""Messages with a snapshot for the device, whole or by difference, and their transfer, counted to the byte."""

from collections import Counter
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.stream.kernels.node_sets import locate
from freshet_graph.stream.store.window.pairs import ChangedPairs
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.timeline.graph import Entries
from freshet_graph.trainer.timeline.nodes import HorizonNodes

Mode = Literal["whole", "esdg", "derived", "counts", "auto"]
MODES: tuple[Mode, ...] = ("whole", "esdg", "derived", "counts", "auto")
Kind = Literal["indices", "values", "features", "counts"]

_LARGEST_COUNT = 255


class Transferred:
    """Arrays that are sent together, in one copy.

    Args:
        mode: How they describe the graph.

    Attributes:
        parts: Arrays with their kinds, in order.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.parts: list[tuple[Kind, NDArray[Any]]] = []

    def indices(self, *arrays: NDArray[Any]) -> None:
        """Add int32 or int64 arrays (int64: two int32 each, as in a pair's key)."""
        self.parts += [("indices", array) for array in arrays]

    def values(self, values: NDArray[np.float32]) -> None:
        """Add values in the fewest bytes: none if all are 1, a byte each if all are small counts, else as they are."""
        if (values == 1).all():
            return
        counts = values.astype(np.uint8) if ((values >= 0) & (values <= _LARGEST_COUNT)).all() else None
        if counts is not None and (counts == values).all():
            self.parts.append(("counts", counts))
        else:
            self.parts.append(("values", values))

    def full_values(self, values: NDArray[np.float32]) -> None:
        """Add values as they are."""
        self.parts.append(("values", values))

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return sum(array.nbytes for _, array in self.parts)


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

    def send(self, message: Transferred) -> list[Tensor]:
        """The arrays of a message on the device; float32 for counts."""
        for kind, array in message.parts:
            self.bytes[kind, message.mode] += array.nbytes
        # the widest first, so that each begins where its type may
        order = sorted(range(len(message.parts)), key=lambda number: -message.parts[number][1].itemsize)
        arrays = [np.ascontiguousarray(message.parts[number][1]) for number in order]
        # written once, where the device reads it
        flat = torch.empty(
            sum(array.nbytes for array in arrays), dtype=torch.uint8, pin_memory=self._side is not None
        )
        if arrays:
            np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays], out=flat.numpy())
        sent, begin = self._copied(flat), 0
        tensors: dict[int, Tensor] = {}
        for number, array in zip(order, arrays, strict=True):
            dtype = torch.from_numpy(array[:0]).dtype
            bytes_of = sent[begin : begin + array.nbytes]
            part = bytes_of.view(dtype) if array.nbytes else bytes_of.to(dtype)  # an empty tensor has no view
            tensors[number] = part.float() if dtype == torch.uint8 else part
            begin += array.nbytes
        return [tensors[number] for number in range(len(arrays))]

    def features(self, array: NDArray[np.float32]) -> Tensor:
        """Inputs of nodes on the device."""
        self.bytes["features", "whole"] += array.nbytes
        return self._copied(torch.from_numpy(array))

    def since_last(self) -> Counter[tuple[str, str]]:
        """Bytes since the call before."""
        since = self.bytes - self._counted
        self._counted = Counter(self.bytes)
        return since

    def _copied(self, tensor: Tensor) -> Tensor:
        if self._side is None:
            return to_device(tensor, self.device)
        now = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._side):
            copy = to_device(tensor, self.device)
        now.wait_stream(self._side)
        copy.record_stream(now)
        return copy


Sent = tuple[Tensor, Tensor]
"""Keys int64 (n,) and values float32 (n,) on the device."""

_COLUMN = (1 << 32) - 1


class DeviceSlots:
    """Keys of pairs by the slots of their nodes.

    Args:
        nodes: Has the slots.
        directed: Whether pairs have a direction; otherwise the lower slot is first.
    """

    def __init__(self, nodes: HorizonNodes, *, directed: bool) -> None:
        self.nodes, self.directed = nodes, directed

    def keys(self, keys: Int64) -> tuple[Int64, Int64]:
        """Keys by slot, ascending, and the former place of each."""
        rows, columns = self.nodes.find(keys >> 32), self.nodes.find(keys & _COLUMN)
        if not self.directed:
            rows, columns = np.minimum(rows, columns), np.maximum(rows, columns)
        slot_keys: Int64 = (rows << 32) | columns
        order = np.argsort(slot_keys)
        return slot_keys[order], order

    def entries(self, entries: Entries) -> Entries:
        """Entries by slot."""
        keys, order = self.keys(entries.keys)
        return Entries(keys, entries.values[order])

    def changes(self, changes: ChangedPairs) -> ChangedPairs:
        """Changes by slot."""
        keys, order = self.keys(changes.keys)
        return ChangedPairs(keys, changes.before[order], changes.after[order])


def least_whole(entries: int, rows: int) -> int:
    """Bytes of the indices of so many entries in a whole message; any values come on top."""
    return 4 * min(2 * entries, rows + 1 + entries)


class Whole:
    """All entries: by row with borders, or pair by pair, whichever is less.

    Args:
        entries: By slot.
        rows: Slots.
        mode: Label of the counted bytes.
        weighted: Whether the device holds values.
    """

    def __init__(self, entries: Entries, rows: int, mode: str, *, weighted: bool) -> None:
        self.message, self._rows = Transferred(mode), rows
        self._by_row = (rows + 1) + len(entries) < 2 * len(entries)
        if self._by_row:
            borders = np.searchsorted(entries.keys, np.arange(rows + 1) << 32)
            self.message.indices(borders.astype(np.int32), (entries.keys & _COLUMN).astype(np.int32))
        else:
            self.message.indices(entries.keys)
        if weighted:
            self.message.values(entries.values)

    def send(self, transfer: Transfer) -> Sent:
        """The entries on the device."""
        tensors = transfer.send(self.message)
        keys, given = tensors[0], tensors[1:]
        if self._by_row:
            borders, columns, *given = tensors
            rows = torch.arange(self._rows, device=borders.device)
            spread = torch.repeat_interleave(rows, borders.diff(), output_size=len(columns))
            keys = (spread << 32) | columns
        return keys, given[0] if given else _ones(keys)


class Difference:
    """Entries that go, and those with another value.

    Args:
        changes: By slot.
        weighted: Whether the device holds values.
    """

    def __init__(self, changes: ChangedPairs, *, weighted: bool) -> None:
        self.message = Transferred("derived")
        gone = np.isnan(changes.after)
        self._gone = int(gone.sum())
        self.message.indices(np.concatenate([changes.keys[gone], changes.keys[~gone]]))
        if weighted:
            self.message.values(changes.after[~gone])

    def send(self, transfer: Transfer) -> Sent:
        """Keys on the device with their values afterwards, NaN for those that go."""
        keys, *values = transfer.send(self.message)
        after = values[0] if values else _ones(keys[self._gone :])
        return keys, torch.cat([torch.full_like(_ones(keys[: self._gone]), float("nan")), after])


class Esdg:
    """ESDG's difference: indices of entries that go and come, in both directions, and all values (section 3.2).

    Args:
        changes: By slot.
        values: float32 (entries,) of the next snapshot, in both directions, in order of row and column.
        directed: Whether pairs have a direction.
    """

    def __init__(self, changes: ChangedPairs, values: Float32, *, directed: bool) -> None:
        self.message, self._directed = Transferred("esdg"), directed
        gone, come = np.isnan(changes.after), np.isnan(changes.before)
        turned = [changes.keys[gone & ~come], changes.keys[come & ~gone]]
        self._gone = len(turned[0])
        for keys in turned:
            mirrored = [] if directed else [(keys << 32) | (keys >> 32)]
            self.message.indices(np.concatenate([keys, *mirrored]))
        self.message.full_values(values)

    def send(self, transfer: Transfer) -> tuple[Tensor, Tensor, Tensor]:
        """Keys on the device, each once, whether they go (NaN) or come (1), and all values."""
        gone, come, values = transfer.send(self.message)
        if not self._directed:
            gone, come = gone[: len(gone) // 2], come[: len(come) // 2]
        after = torch.cat([torch.full_like(_ones(gone), float("nan")), _ones(come)])
        return torch.cat([gone, come]), after, values


class RawDifference:
    """A raw snapshot by its difference from one that the device has.

    Args:
        entries: By slot.
        known: The other one, by slot.
        known_on_device: The other one on the device.
    """

    def __init__(self, entries: Entries, known: Entries, known_on_device: Sent) -> None:
        self.message, self._known_on_device = Transferred("derived"), known_on_device
        place, stays = locate(known.keys, entries.keys)
        same = stays.copy()
        same[stays] = known.values[place[stays]] == entries.values[stays]
        goes = np.ones(len(known), np.bool_)
        goes[place[stays]] = False
        gone, reset = np.flatnonzero(goes), place[stays & ~same]
        self._sizes = len(gone), len(reset), int((~stays).sum())
        self.message.indices(np.concatenate([gone, reset]).astype(np.int32), entries.keys[~stays])
        self.message.values(np.concatenate([entries.values[stays & ~same], entries.values[~stays]]))

    def send(self, transfer: Transfer) -> Sent:
        """The entries on the device."""
        gone, reset, come = self._sizes
        places, keys, *given = transfer.send(self.message)
        values = given[0] if given else torch.ones(reset + come, device=keys.device)
        known_keys, known_values = self._known_on_device
        changed = known_values.index_put((places[gone:].long(),), values[:reset])
        stays = torch.ones(len(known_keys), dtype=torch.bool, device=keys.device)
        stays[places[:gone].long()] = False
        every, order = torch.cat([known_keys[stays], keys]).sort()
        return every, torch.cat([changed[stays], values[reset:]])[order]


def _ones(like: Tensor) -> Tensor:
    return torch.ones(len(like), device=like.device)
