"""Attention stages: over a node's neighbours in one snapshot, and over a node's own rows in earlier snapshots."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import elu
from typing_extensions import override

from freshet_graph.trainer.models.stages import Carry, GraphStage, TimeStage
from freshet_graph.trainer.nn.edge_attention import edge_attention
from freshet_graph.trainer.nn.graph import CSRGraph


def check_heads(heads: int, width: int) -> None:
    """Refuse a number of heads that does not divide a width.

    Raises:
        ValueError: It does not.
    """
    if heads < 1 or width % heads:
        raise ValueError(f"heads must divide hidden, {width}, found {heads}")


class GraphAttention(GraphStage):
    """‖_heads ELU(Σ α_ij W h_j + b), α_ij = softmax over N(i) ∪ {i} of LeakyReLU(aᵀ[W h_i ‖ W h_j]) (Veličković et al. 2018).

    An edge of value w weighs as much as w edges do.

    Args:
        inputs: Width of h.
        outputs: Width of the result; heads share it.
        heads: Divides ``outputs``.
        fanout: Neighbours that strategies which sample draw; None takes all.
    """

    samples: ClassVar[bool] = True

    def __init__(self, inputs: int, outputs: int, heads: int, fanout: int | None = None) -> None:
        super().__init__()
        check_heads(heads, outputs)
        self.fanout = fanout
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.of_target, self.of_source = (
            nn.Parameter(torch.empty(heads, outputs // heads)) for _ in range(2)
        )
        self.bias = nn.Parameter(torch.zeros(outputs))
        for weights in (self.linear.weight, self.of_target, self.of_source):
            nn.init.xavier_uniform_(weights, gain=nn.init.calculate_gain("relu"))

    @override
    def forward(self, graph: CSRGraph, target_rows: Tensor, x: Tensor, weights: Any) -> Tensor:
        if target_rows is not x:  # the targets' own rows come before those of all sources
            graph = CSRGraph(
                graph.indptr,
                graph.sources + len(target_rows),
                len(target_rows) + graph.num_sources,
                values=graph.values,
            )
            x = torch.cat([target_rows, x])
        values = self.linear(x).unflatten(1, self.of_source.shape)
        by_source = (values * self.of_source).sum(dim=2)
        by_target = (values[: len(target_rows)] * self.of_target).sum(dim=2)
        return elu(edge_attention(graph, values, by_source, by_target).flatten(1) + self.bias)

    def alone(self, target_rows: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.alone``: a node attends only to itself."""
        return elu(self.linear(target_rows) + self.bias)


class SnapshotAttention(TimeStage):
    """Self-attention of a node's row over its rows in the last ``window`` snapshots (DySAT, Sankar et al. 2020, section 4.2).

    z = ‖_heads Σ β_j V(x_j + p_j), β_j = softmax of Q(x + p_0)ᵀ K(x_j + p_j) / √d', then z + ReLU(F z + b). Positions p_j
    count back from the row itself, so a row does not depend on the beginning of the horizon. Snapshots before a node
    came get no attention, and its rows there are zero.

    Args:
        window: Snapshots, the row's own included.
        width: Of rows, in and out.
        heads: Divides ``width``; d' is the width of one.
    """

    def __init__(self, window: int, width: int, heads: int) -> None:
        super().__init__()
        check_heads(heads, width)
        self.window, self.heads = window, heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.position = nn.Parameter(torch.empty(window, width))
        self.feed = nn.Linear(width, width)
        for linear in (self.query, self.key, self.value, self.feed):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.xavier_uniform_(self.position)
        nn.init.zeros_(self.feed.bias)

    def forward(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """See ``TimeStage.forward``; the carry is the last ``window`` − 1 rows, and whether nodes had come."""
        return self._attend(rows, present, carry, 0)

    @override
    def last(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        if not len(rows):
            return super().last(rows, present, carry)
        return self._attend(rows, present, carry, len(rows) - 1)

    def _attend(self, rows: Tensor, present: Tensor, carry: Carry, first: int) -> tuple[Tensor, Carry]:
        """Rows from number ``first`` on."""
        past = self.window - 1
        if carry is None:
            carry = rows.new_zeros(past, *rows.shape[1:]), present.new_zeros(past, *present.shape[1:])
        every, come = torch.cat([carry[0], rows]), torch.cat([carry[1], present])
        after = every[len(every) - past :], come[len(come) - past :]
        every, come = every[first:], come[first:]
        # x and p are projected separately: p differs from one attending row to the next
        positions = self.position.flip(0).unsqueeze(1)  # the oldest first, as rows are
        keys, values = self.key(every), self.value(every)
        key_positions, value_positions = self.key(positions), self.value(positions)
        queries = self.query(every[past:] + self.position[0])
        scale = (rows.shape[2] // self.heads) ** -0.5
        outputs = []
        for step, query in enumerate(queries):
            seen = slice(step, step + self.window)
            scores = self._by_head(query * (keys[seen] + key_positions)).sum(dim=3) * scale
            hidden = ~come[seen].unsqueeze(2)
            weights = torch.softmax(scores.masked_fill(hidden, torch.finfo(scores.dtype).min), dim=0)
            seen_values = self._by_head(values[seen] + value_positions)
            mixed = (weights.unsqueeze(3) * seen_values).sum(dim=0).flatten(1)
            outputs.append((mixed + torch.relu(self.feed(mixed))) * come[step + past].unsqueeze(1))
        return torch.stack(outputs), after

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], self.heads, rows.shape[2] // self.heads)
