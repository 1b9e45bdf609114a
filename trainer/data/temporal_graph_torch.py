"""The temporal CSR and its samples in torch operations: for graphs that live on a GPU, equal to the compiled ones."""

import torch
from torch import Tensor

from trainer.data.temporal_sampler import How

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as a signed number: int64 arithmetic wraps as uint64's does
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)


class DeviceTemporalGraph:
    """Interactions of each node on one device, appended to and sampled without a loop over events or nodes.

    Slabs with slack in one arena, as in ``TemporalGraph``; a slab that is left is not used again. Only the growth of
    the arena makes the host wait for the device.

    Args:
        device: Where everything lives.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        def empty(dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(0, dtype=dtype, device=device)

        self.start, self.size, self.room = empty(), empty(), empty()
        self.neighbour, self.event, self.time_us = empty(torch.int32), empty(), empty()
        self.num_events = 0
        self._used = 0

    def append(self, src: Tensor, dst: Tensor, time_us: Tensor, num_nodes: int) -> None:
        """Take in events in order of time; see ``TemporalGraph.append``. All int64 (E,) on the graph's device."""
        self._reserve_nodes(num_nodes)
        number = torch.arange(len(src), device=src.device) + self.num_events
        node = torch.stack([src, dst], 1).flatten()
        order = torch.argsort(node, stable=True)
        touched, counts = torch.unique_consecutive(node[order], return_counts=True)
        total = self.size[touched] + counts
        self._move(touched, total)
        first = torch.repeat_interleave(torch.cumsum(counts, 0) - counts, counts)
        place = (
            self.start[node[order]]
            + self.size[node[order]]
            + torch.arange(len(node), device=src.device)
            - first
        )
        self.neighbour[place] = torch.stack([dst, src], 1).flatten()[order].int()
        self.event[place] = torch.stack([2 * number, 2 * number + 1], 1).flatten()[order]
        self.time_us[place] = time_us.repeat_interleave(2)[order]
        self.size[touched] = total
        self.num_events += len(src)

    def sample_before(
        self, nodes: Tensor, before_us: Tensor, k: int, how: How = "recent", seed: int = 0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """At most ``k`` interactions of each node strictly before a time; see ``temporal_sampler.sample_before``.

        Args:
            nodes: int64 (R,).
            before_us: int64 (R,).
            k: At least 1.
            how: Which interactions.
            seed: Of uniform draws.

        Returns:
            ``node``, ``event``, ``time_us`` and ``count`` of ``Neighbours``.
        """
        inside = nodes < len(self.start)
        row = torch.where(inside, nodes, 0)
        if not len(self.time_us):
            none = nodes.new_full((len(nodes), k), -1)
            return none.int(), none, torch.zeros_like(none), torch.zeros_like(nodes)
        first = self.start[row]
        seen = self._count_before(first, torch.where(inside, self.size[row], 0), before_us)
        count = seen.clamp(max=k)
        steps = torch.arange(k, device=nodes.device)
        chosen = seen[:, None] - 1 - steps
        if how == "uniform":
            chosen = torch.where((seen > k)[:, None], _floyd(nodes, seen, k, seed), chosen)
        there = steps < count[:, None]
        at = torch.where(there, first[:, None] + chosen, 0)
        return (
            torch.where(there, self.neighbour[at], -1),
            torch.where(there, self.event[at], -1),
            torch.where(there, self.time_us[at], 0),
            count,
        )

    def _count_before(self, first: Tensor, size: Tensor, before_us: Tensor) -> Tensor:
        """Entries strictly before: a binary search in every slab at once."""
        low, high = torch.zeros_like(size), size
        last = len(self.time_us) - 1
        for _ in range(self._used.bit_length() + 1):
            middle = (low + high) >> 1
            earlier = (self.time_us[(first + middle).clamp(0, last)] < before_us) & (low < high)
            low = torch.where(earlier, middle + 1, low)
            high = torch.where(earlier | (low >= high), high, middle)
        return low

    def _move(self, touched: Tensor, total: Tensor) -> None:
        full = total > self.room[touched]
        moved, size = touched[full], self.size[touched[full]]
        length = torch.pow(2, torch.ceil(torch.log2(total[full].double())).long()).clamp(min=4)
        ends = torch.cumsum(length, 0)
        start = self._used + ends - length
        self._used += int(ends[-1]) if len(ends) else 0
        if self._used > len(self.neighbour):
            room = max(self._used, len(self.neighbour) * 3 // 2, 1024)
            for name in ("neighbour", "event", "time_us"):
                old = getattr(self, name)
                setattr(self, name, torch.cat([old, old.new_zeros(room - len(old))]))
        within = torch.arange(int(size.sum()), device=size.device) - torch.repeat_interleave(
            torch.cumsum(size, 0) - size, size
        )
        source = torch.repeat_interleave(self.start[moved], size) + within
        target = torch.repeat_interleave(start, size) + within
        for column in (self.neighbour, self.event, self.time_us):
            column[target] = column[source]
        self.start[moved] = start
        self.room[moved] = length

    def _reserve_nodes(self, num_nodes: int) -> None:
        more = num_nodes - len(self.start)
        if more > 0:
            self.start = torch.cat([self.start, self.start.new_full((more,), -1)])
            self.size = torch.cat([self.size, self.size.new_zeros(more)])
            self.room = torch.cat([self.room, self.room.new_zeros(more)])


def _floyd(nodes: Tensor, seen: Tensor, k: int, seed: int) -> Tensor:
    """Floyd's algorithm for all rows at once: (R, k) distinct positions below ``seen``, descending."""
    state = _mix64(_signed(seed) ^ _mix64(nodes + _GOLDEN))
    chosen = nodes.new_full((len(nodes), k), -1)
    for step in range(k):
        limit = (seen - k + step).clamp(min=0)
        state = state + _GOLDEN
        word = _mix64(state)
        # the upper 64 bits of word · (limit + 1)
        lower = ((word & 0xFFFFFFFF) * (limit + 1)) >> 32
        drawn = (_shift(word, 32) * (limit + 1) + lower) >> 32
        taken = (chosen[:, :step] == drawn[:, None]).any(dim=1)
        chosen[:, step] = torch.where(taken, limit, drawn)
    return chosen.sort(dim=1, descending=True).values


def _signed(value: int) -> int:
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)
