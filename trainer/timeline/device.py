"""The device side of the timeline: the graph of any snapshot of a horizon, moved by changes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from freshet_graph.trainer.nn.graph import CSRGraph, DirectedGraph
from freshet_graph.trainer.timeline.graph import Snapshot, TimelineGraph, raw
from freshet_graph.trainer.timeline.nodes import HorizonNodes
from freshet_graph.trainer.timeline.transfer import (
    DeviceSlots,
    Difference,
    Esdg,
    Mode,
    RawDifference,
    Sent,
    Transfer,
    Whole,
    least_whole,
)

NAN = float("nan")


class SortedEntries:
    """Entries in order of row and column.

    Args:
        device: Where they live.
        weighted: Whether they have values; otherwise each is one.
        symmetric: Whether each entry's mirror is there.

    Attributes:
        keys: int64 (n,), row · 2³² + column, ascending and distinct.
        values: float32 (n,); None if they have none.
    """

    def __init__(self, device: torch.device, *, weighted: bool, symmetric: bool = False) -> None:
        self._symmetric = symmetric
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
        place, present = locate(self.keys, keys)
        stays = ~after.isnan()
        before = torch.full_like(after, NAN)
        before[present] = 1.0 if self.values is None else self.values[place[present]]
        gone, come = place[present & ~stays], stays & ~present
        source, target = _moved(len(self.keys), gone, place[come])
        if self.values is not None:
            values = self.values.index_put((place[present & stays],), after[present & stays])
            self.values = _filled(values, source, target, after[come])
        self.keys = _filled(self.keys, source, target, keys[come])
        return before

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + (0 if self.values is None else self.values.nbytes)

    def replace_values(self, values: Tensor) -> None:
        """Hold other values, float32 (n,), in order of row and column; directed: of source and target."""
        if self.values is not None:
            self.values = values

    def graph(self, rows: int, divisor: float) -> CSRGraph:
        """The compressed graph of so many rows and columns, values divided."""
        borders = torch.arange(rows + 1, device=self.keys.device) << 32
        indptr = torch.searchsorted(self.keys, borders, out_int32=True)
        values = self.values if self.values is None or divisor == 1 else self.values / divisor
        return CSRGraph(indptr, _columns(self.keys), rows, values=values, symmetric=self._symmetric)


class SymmetricAdjacency(SortedEntries):
    """The undirected pairs of one snapshot, each received once, in any order, and held in both directions."""

    def __init__(self, device: torch.device, *, weighted: bool) -> None:
        super().__init__(device, weighted=weighted, symmetric=True)

    @override
    def replace(self, keys: Tensor, values: Tensor) -> None:
        both, order = _both(keys)
        super().replace(both, values.repeat(2)[order])

    @override
    def set(self, keys: Tensor, after: Tensor) -> Tensor:
        both, order = _both(keys)
        before = torch.empty_like(after).repeat(2)
        before[order] = super().set(both, after.repeat(2)[order])
        return before[: len(keys)]


class DirectedAdjacency:
    """The directed pairs of one snapshot with values, compressed both ways; methods as ``SymmetricAdjacency`` has them."""

    def __init__(self, device: torch.device) -> None:
        self._out_of, self._into = (SortedEntries(device, weighted=True) for _ in range(2))

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Hold these pairs instead."""
        for entries, pair_keys in ((self._out_of, keys), (self._into, mirrored(keys))):
            ordered, order = pair_keys.sort()
            entries.replace(ordered, values[order])

    def set(self, keys: Tensor, after: Tensor) -> Tensor:
        """Give pairs other values; returns those before."""
        before = torch.empty_like(after)
        for entries, pair_keys in ((self._out_of, keys), (self._into, mirrored(keys))):
            ordered, order = pair_keys.sort()
            before[order] = entries.set(ordered, after[order])
        return before

    def replace_values(self, values: Tensor) -> None:
        """Hold other values, in order of source and target."""
        _, order = mirrored(self._out_of.keys).sort()
        self._out_of.values, self._into.values = values, values[order]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._out_of.nbytes + self._into.nbytes

    def graph(self, rows: int, divisor: float) -> DirectedGraph:
        """The compressed graphs both ways, values divided."""
        return DirectedGraph(into=self._into.graph(rows, divisor), out_of=self._out_of.graph(rows, divisor))


Adjacency = SymmetricAdjacency | DirectedAdjacency


def mirrored(keys: Tensor) -> Tensor:
    """The keys of entries in the other direction."""
    return (keys << 32) | (keys >> 32)


def locate(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Places int64 (m,) of keys among ascending ones, or where they belong; and bool (m,), whether they are there."""
    place = torch.searchsorted(keys, wanted)
    if not len(keys):
        return place, torch.zeros_like(wanted, dtype=torch.bool)
    return place, keys[place.clamp(max=len(keys) - 1)] == wanted


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


class DeviceTimeline:
    """One adjacency on the device, at one snapshot of a horizon at a time.

    The messages of a snapshot stay on the device as long as the horizon has it, so moving back, and forwards again, sends
    nothing. A snapshot is sent

    - ``whole``: all its pairs, each once, and their values;
    - ``esdg``: the pairs that come and go, in both directions, and all values, as ESDG does (section 3.2);
    - ``derived``: the pairs that come, go or change their value, each once; everything else is derived on the device;
    - ``counts``: with smoothing the raw events of its newest interval, summed on the device; otherwise as ``derived``;
    - ``auto``: by the smallest message.

    The first one is sent whole, or with smoothing as the raw events of each of its intervals.

    Args:
        host: The timeline.
        nodes: Slots of its nodes, maintained by the caller.
        transfer: Sends.
        mode: How snapshots are sent.
        directed: Whether graphs are directed, with values.

    Attributes:
        transfer: Counts the bytes sent.
    """

    def __init__(
        self,
        host: TimelineGraph,
        nodes: HorizonNodes,
        transfer: Transfer,
        mode: Mode = "auto",
        *,
        directed: bool = False,
    ) -> None:
        self._host, self.transfer, self._mode, self._directed = host, transfer, mode, directed
        self._nodes, self._slots = nodes, DeviceSlots(nodes, directed=directed)
        self._weighted = directed or host.smooths
        self._snapshot_number: int | None = None
        self._reset()

    def graph_of(self, tau: int) -> Any:
        """The graph of a snapshot: a symmetric ``CSRGraph``, or a ``DirectedGraph``, over slots.

        Raises:
            KeyError: The snapshot is not on the timeline.
        """
        place = self._host.place(tau)
        if self._era != (self._host.begun, self._nodes.generation):
            self._reset()
        numbers = {snapshot.number for snapshot in self._host.snapshots}
        for by_number in (self._steps, self._raws):
            for number in [number for number in by_number if number not in numbers]:
                del by_number[number]
        target = self._host.snapshots[place]
        if self._snapshot_number != target.number:
            if self._host.smooths and self._mode in ("derived", "counts", "auto"):
                self._sum(place)
            else:
                self._go(place)
            self._snapshot_number = target.number
        return self._adjacency.graph(len(self._nodes), self._divisor(place))

    @property
    def memory_bytes(self) -> int:
        """Bytes held on the device, without the graphs that were returned."""
        tensors = [tensor for sent in (*self._steps.values(), *self._raws.values()) for tensor in sent]
        return self._adjacency.nbytes + sum(tensor.nbytes for tensor in tensors)

    def _reset(self) -> None:
        device = self.transfer.device
        self._era = self._host.begun, self._nodes.generation
        self._snapshot_number = None
        self._adjacency: Adjacency = (
            DirectedAdjacency(device)
            if self._directed
            else SymmetricAdjacency(device, weighted=self._weighted)
        )
        self._steps: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # keys, before, after
        self._raws: dict[int, Sent] = {}
        self._summed: list[int] = []  # numbers of the raw snapshots whose sum is the adjacency

    def _divisor(self, place: int) -> float:
        return len(self._host.members(place)) if self._host.smoothing.kind == "m-product" else 1

    # By steps from snapshot to snapshot.

    def _go(self, place: int) -> None:
        first = self._host.snapshots[0].number
        here = -1 if self._snapshot_number is None else self._snapshot_number - first
        if self._mode == "whole" or here < len(self._host.snapshots) - self._host.length or here < 0:
            self._adjacency.replace(*self._whole(place).send(self.transfer))
            return
        forwards = place > here
        ways = range(here + 1, place + 1) if forwards else range(here, place, -1)
        messages = {
            way: self._difference(way, forwards=forwards)
            for way in ways
            if first + way not in self._steps or self._mode == "esdg"
        }
        unsent = sum(message.message.nbytes for message in messages.values())
        pairs = self._host.snapshots[place].pairs[self._directed]
        if self._mode == "auto" and unsent > least_whole(pairs, len(self._nodes)):
            whole = self._whole(place)
            if whole.message.nbytes < unsent:
                self._adjacency.replace(*whole.send(self.transfer))
                return
        for way in ways:
            self._step(first + way, messages.get(way), forwards=forwards)

    def _step(self, number: int, message: Difference | Esdg | None, *, forwards: bool) -> None:
        if isinstance(message, Esdg):
            keys, after, values = message.send(self.transfer)
            self._adjacency.set(keys, after)
            self._adjacency.replace_values(values)
            return
        if message is None:
            keys, before, after = self._steps[number]
            self._adjacency.set(keys, after if forwards else before)
            return
        keys, after = message.send(self.transfer)
        before = self._adjacency.set(keys, after)
        self._steps[number] = (keys, before, after) if forwards else (keys, after, before)

    def _difference(self, way: int, *, forwards: bool) -> Difference | Esdg:
        changes = self._host.change(way, directed=self._directed)
        changes = self._slots.changes(changes if forwards else changes.reversed())
        if self._mode != "esdg":
            return Difference(changes, weighted=self._weighted)
        entries = self._slots.entries(self._host.whole(way if forwards else way - 1, directed=self._directed))
        keys, values = entries.keys, entries.values
        if not self._directed:
            keys, values = np.concatenate([keys, (keys << 32) | (keys >> 32)]), np.tile(values, 2)
            values = values[np.argsort(keys)]
        return Esdg(changes, values, directed=self._directed)

    def _whole(self, place: int) -> Whole:
        entries = self._slots.entries(self._host.whole(place, directed=self._directed))
        return Whole(entries, len(self._nodes), "whole", weighted=self._weighted)

    # By sums of raw snapshots.

    def _sum(self, place: int) -> None:
        parts = self._host.members(place)
        leaving = [number for number in self._summed if number not in {part.number for part in parts}]
        if any(number not in self._raws for number in leaving):
            self._reset()
            leaving = []
        entering = [part for part in parts if part.number not in self._summed]
        for part in entering:
            if part.number not in self._raws:
                self._raws[part.number] = self._raw(part)
        turned = [self._raws[number][0] for number in [*leaving, *(part.number for part in entering)]]
        device = self.transfer.device
        keys = torch.unique(torch.cat([torch.empty(0, dtype=torch.int64, device=device), *turned]))
        after = torch.full((len(keys),), NAN, device=device)
        for part in parts:
            part_keys, values = self._raws[part.number]
            place_of, present = locate(part_keys, keys)
            known_places = place_of[present]
            after[present] = after[present].nan_to_num(0.0) + values[known_places]
        self._adjacency.set(keys, after)
        self._summed = [part.number for part in parts]

    def _raw(self, part: Snapshot) -> Sent:
        (entries,) = raw([part], directed=self._directed)
        entries = self._slots.entries(entries)
        message: Whole | RawDifference = Whole(entries, len(self._nodes), "counts", weighted=True)
        known = [number for number in self._summed if number in self._raws]
        if self._mode != "counts" and known:
            (other,) = raw(
                [snapshot for snapshot in self._host.snapshots if snapshot.number == known[0]],
                directed=self._directed,
            )
            difference = RawDifference(entries, self._slots.entries(other), self._raws[known[0]])
            if self._mode == "derived" or difference.message.nbytes < message.message.nbytes:
                message = difference
        return message.send(self.transfer)
