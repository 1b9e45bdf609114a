"""Entries of an adjacency on the device: sorted keys that are updated by changes, and their compressed graph."""

import torch
from torch import Tensor

from trainer.nn.csr_graph import CSRGraph
from trainer.nn.directed_graph import DirectedGraph

NAN = float("nan")


class SortedEntries:
    """Entries in order of row and column.

    Args:
        device: Where they live.
        weighted: Whether they have values.

    Attributes:
        keys: int64 (n,), row · 2³² + column, ascending and distinct.
        values: float32 (n,); None if they have none.
    """

    def __init__(self, device: torch.device, *, weighted: bool) -> None:
        self.keys = torch.empty(0, dtype=torch.int64, device=device)
        self.values = torch.empty(0, device=device) if weighted else None

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Hold these instead, of ascending keys."""
        self.keys = keys
        if self.values is not None:
            self.values = values

    def set(self, keys: Tensor, after: Tensor) -> Tensor:
        """Give entries other values.

        Args:
            keys: int64 (m,), ascending and distinct.
            after: float32 (m,), NaN for entries that go.

        Returns:
            float32 (m,), the values before: NaN for entries that were not there, 1 without values.
        """
        place, there = locate(self.keys, keys)
        stays = ~after.isnan()
        before = torch.full_like(after, NAN)
        before[there] = 1.0 if self.values is None else self.values[place[there]]
        gone, come = place[there & ~stays], stays & ~there
        source, target = _moved(len(self.keys), gone, place[come])
        if self.values is not None:
            values = self.values.index_put((place[there & stays],), after[there & stays])
            self.values = _filled(values, source, target, after[come])
        self.keys = _filled(self.keys, source, target, keys[come])
        return before

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + (0 if self.values is None else self.values.nbytes)

    def graph(self, rows: int, divisor: float, *, symmetric: bool) -> CSRGraph:
        """The compressed graph.

        Args:
            rows: And columns.
            divisor: Of values.
            symmetric: Whether each entry's mirror is there.
        """
        borders = torch.arange(rows + 1, device=self.keys.device) << 32
        indptr = torch.searchsorted(self.keys, borders, out_int32=True)
        values = self.values if self.values is None or divisor == 1 else self.values / divisor
        return CSRGraph(indptr, _columns(self.keys), rows, values=values, symmetric=symmetric)


class SymmetricAdjacency:
    """The undirected pairs of one snapshot, each received once and held in both directions.

    Args:
        device: Where they live.
        weighted: Whether they have values; otherwise each is one.
    """

    def __init__(self, device: torch.device, *, weighted: bool) -> None:
        self._entries = SortedEntries(device, weighted=weighted)

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """See ``SortedEntries.replace``; keys in any order."""
        both, order = _both(keys)
        self._entries.replace(both, values.repeat(2)[order])

    def set(self, keys: Tensor, after: Tensor) -> Tensor:
        """See ``SortedEntries.set``; keys in any order."""
        both, order = _both(keys)
        before = torch.empty_like(after).repeat(2)
        before[order] = self._entries.set(both, after.repeat(2)[order])
        return before[: len(keys)]

    def replace_values(self, values: Tensor) -> None:
        """Hold other values, float32 (entries,), in order of row and column; directed: of source and target."""
        if self._entries.values is not None:
            self._entries.values = values

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._entries.nbytes

    def graph(self, rows: int, divisor: float) -> CSRGraph:
        """The compressed graph of so many rows and columns, values divided."""
        return self._entries.graph(rows, divisor, symmetric=True)


class DirectedAdjacency:
    """The directed pairs of one snapshot with values, compressed both ways."""

    def __init__(self, device: torch.device) -> None:
        self._out_of, self._into = (SortedEntries(device, weighted=True) for _ in range(2))

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """See ``SymmetricAdjacency.replace``."""
        for entries, each in ((self._out_of, keys), (self._into, mirrored(keys))):
            ordered, order = each.sort()
            entries.replace(ordered, values[order])

    def set(self, keys: Tensor, after: Tensor) -> Tensor:
        """See ``SymmetricAdjacency.set``."""
        before = torch.empty_like(after)
        for entries, each in ((self._out_of, keys), (self._into, mirrored(keys))):
            ordered, order = each.sort()
            before[order] = entries.set(ordered, after[order])
        return before

    def replace_values(self, values: Tensor) -> None:
        """See ``SymmetricAdjacency.replace_values``."""
        _, order = mirrored(self._out_of.keys).sort()
        self._out_of.values, self._into.values = values, values[order]

    @property
    def nbytes(self) -> int:
        """See ``SymmetricAdjacency.nbytes``."""
        return self._out_of.nbytes + self._into.nbytes

    def graph(self, rows: int, divisor: float) -> DirectedGraph:
        """See ``SymmetricAdjacency.graph``: both ways."""
        return DirectedGraph(
            into=self._into.graph(rows, divisor, symmetric=False),
            out_of=self._out_of.graph(rows, divisor, symmetric=False),
        )


Adjacency = SymmetricAdjacency | DirectedAdjacency


def mirrored(keys: Tensor) -> Tensor:
    """The keys of entries in the other direction."""
    return (keys << 32) | (keys >> 32)


def locate(keys: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Places int64 (m,) of keys among ascending ones, or where they belong; and bool (m,), whether they are there."""
    place = torch.searchsorted(keys, asked)
    if not len(keys):
        return place, torch.zeros_like(asked, dtype=torch.bool)
    return place, keys[place.clamp(max=len(keys) - 1)] == asked


def _both(keys: Tensor) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = torch.cat([keys, mirrored(keys)]).sort()
    return both


def _columns(keys: Tensor) -> Tensor:
    return keys.view(torch.int32)[::2].contiguous() if len(keys) else keys.int()  # the low half stands first


def _moved(entries: int, gone: Tensor, come: Tensor) -> tuple[Tensor, Tensor]:
    """Former places of all entries when some go and others come, in few passes: entries are many and changes few.

    Args:
        entries: How many there are.
        gone: int64, ascending, their places.
        come: int64, ascending, the places before which others come.

    Returns:
        int64 (entries afterwards,), the former place, anything for new entries; and the places of the new ones.
    """
    count = torch.arange(max(len(gone), len(come)), device=gone.device)
    target = come - torch.searchsorted(gone, come) + count[: len(come)]
    hole = gone - count[: len(gone)] + torch.searchsorted(come, gone)
    source = torch.zeros(entries - len(gone) + len(come) + 1, dtype=torch.int64, device=gone.device)
    source.index_add_(0, hole, torch.ones_like(hole)).index_add_(0, target + 1, torch.full_like(target, -1))
    source[1:] += 1
    return source.cumsum_(0)[:-1].clamp_(0, max(entries - 1, 0)), target


def _filled(entries: Tensor, source: Tensor, target: Tensor, new: Tensor) -> Tensor:
    if not len(entries):
        return new
    filled = entries.index_select(0, source)
    filled[target] = new
    return filled
