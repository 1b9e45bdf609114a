"""The device side of the timeline: the graph of any snapshot of a horizon, moved by changes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.timeline.entries import NAN, Adjacency, DirectedAdjacency, SymmetricAdjacency, locate
from trainer.timeline.graph import TimelineGraph
from trainer.timeline.messages import Difference, Esdg, RawDifference, Sent, Slots, Whole, least_whole
from trainer.timeline.nodes import HorizonNodes
from trainer.timeline.snapshot import Snapshot, raw
from trainer.timeline.transfer import Mode, Transfer


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
        self._nodes, self._slots = nodes, Slots(nodes, directed=directed)
        self._weighted = directed or host.smooths
        self._at: int | None = None
        self._reset()

    def at(self, tau: int) -> Any:
        """The graph of a snapshot: a symmetric ``CSRGraph``, or a ``DirectedGraph``, over slots.

        Raises:
            KeyError: The snapshot is not on the timeline.
        """
        place = self._host.place(tau)
        if self._era != (self._host.begun, self._nodes.generation):
            self._reset()
        numbers = {snapshot.number for snapshot in self._host.snapshots}
        for held in (self._steps, self._raws):
            for number in [number for number in held if number not in numbers]:
                del held[number]
        target = self._host.snapshots[place]
        if self._at != target.number:
            if self._host.smooths and self._mode in ("derived", "counts", "auto"):
                self._sum(place)
            else:
                self._go(place)
            self._at = target.number
        return self._adjacency.graph(len(self._nodes), self._divisor(place))

    @property
    def memory_bytes(self) -> int:
        """Bytes held on the device, without the graphs that were returned."""
        held = [tensor for sent in (*self._steps.values(), *self._raws.values()) for tensor in sent]
        return self._adjacency.nbytes + sum(tensor.nbytes for tensor in held)

    def _reset(self) -> None:
        device = self.transfer.device
        self._era = self._host.begun, self._nodes.generation
        self._at = None
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
        here = -1 if self._at is None else self._at - first
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
        unsent = sum(each.message.nbytes for each in messages.values())
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
            held, values = self._raws[part.number]
            place_of, there = locate(held, keys)
            found = place_of[there]
            after[there] = after[there].nan_to_num(0.0) + values[found]
        self._adjacency.set(keys, after)
        self._summed = [part.number for part in parts]

    def _raw(self, part: Snapshot) -> Sent:
        (entries,) = raw([part], directed=self._directed)
        entries = self._slots.entries(entries)
        message: Whole | RawDifference = Whole(entries, len(self._nodes), "counts", weighted=True)
        known = [number for number in self._summed if number in self._raws]
        if self._mode != "counts" and known:
            (other,) = raw(
                [each for each in self._host.snapshots if each.number == known[0]], directed=self._directed
            )
            difference = RawDifference(entries, self._slots.entries(other), self._raws[known[0]])
            if self._mode == "derived" or difference.message.nbytes < message.message.nbytes:
                message = difference
        return message.send(self.transfer)
