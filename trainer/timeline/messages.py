"""Messages with a snapshot for the device: whole, by changes, as in ESDG, or by raw events; in slots of a horizon."""

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Float32, Int64
from stream.store.window.pairs import ChangedPairs
from trainer.timeline.nodes import HorizonNodes
from trainer.timeline.smoothing import Entries
from trainer.timeline.transfer import Message, Transfer

Sent = tuple[Tensor, Tensor]
"""Keys int64 (n,) and values float32 (n,) on the device."""

_COLUMN = (1 << 32) - 1


class Slots:
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
        found: Int64 = (rows << 32) | columns
        order = np.argsort(found)
        return found[order], order

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
        self.message, self._rows = Message(mode), rows
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
        found = transfer.send(self.message)
        keys, given = found[0], found[1:]
        if self._by_row:
            borders, columns, *given = found
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
        self.message = Message("derived")
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
        self.message, self._directed = Message("esdg"), directed
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
        held: The other one on the device.
    """

    def __init__(self, entries: Entries, known: Entries, held: Sent) -> None:
        self.message, self._held = Message("derived"), held
        at = np.searchsorted(known.keys, entries.keys)
        there = at < len(known)
        there[there] = known.keys[at[there]] == entries.keys[there]
        same = there.copy()
        same[there] = known.values[at[there]] == entries.values[there]
        stays = np.zeros(len(known), np.bool_)
        stays[at[there]] = True
        gone, reset, come = np.flatnonzero(~stays), at[there & ~same], ~there
        self._sizes = len(gone), len(reset), int(come.sum())
        self.message.indices(np.concatenate([gone, reset]).astype(np.int32), entries.keys[come])
        self.message.values(np.concatenate([entries.values[there & ~same], entries.values[come]]))

    def send(self, transfer: Transfer) -> Sent:
        """The entries on the device."""
        gone, reset, come = self._sizes
        places, keys, *given = transfer.send(self.message)
        values = given[0] if given else torch.ones(reset + come, device=keys.device)
        known_keys, known_values = self._held
        changed = known_values.index_put((places[gone:].long(),), values[:reset])
        kept = torch.ones(len(known_keys), dtype=torch.bool, device=keys.device)
        kept[places[:gone].long()] = False
        every, order = torch.cat([known_keys[kept], keys]).sort()
        return every, torch.cat([changed[kept], values[reset:]])[order]


def _ones(like: Tensor) -> Tensor:
    return torch.ones(len(like), device=like.device)
