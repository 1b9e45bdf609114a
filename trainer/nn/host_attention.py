"""Attention of nodes over their neighbours on the host, from states to [attended ‖ state], as one step of autograd.

In batches of 200 a hundred small torch operations and as many gradients take longer than their arithmetic. Here the
gradient is explicit: products by ``Table``, the rest by the kernels of ``gathered_attention``.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.nn.gathered_attention import add_rows, attend, attend_back
from trainer.nn.products import Table, side_by_side


class HostAttention(torch.autograd.Function):
    """See ``TemporalAttention``; all tensors are on the host, and of one type."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        now: Tensor,
        table: Tensor,
        frequency: Tensor,
        phase: Tensor,
        query: Tensor,
        query_bias: Tensor,
        key: Tensor,
        value: Tensor,
        rows: tuple[Tensor, ...],
        kept: Tensor,
        products: torch.dtype | None,
    ) -> Tensor:
        """[attended ‖ state] (R, 2 d).

        Args:
            ctx: Of autograd.
            states: (n, d).
            now: (T,), φ(0).
            table: (R, K, T), φ of each neighbour; (R, K, 0) if it is a cosine.
            frequency: (T,), of cosines; (0,) if φ is in the table.
            phase: As ``frequency``.
            query: (d, d + T), weights, of all heads one below the other.
            query_bias: (d,).
            key: (d, d + edges + T).
            value: (d, d + edges + T).
            rows: int64 ``own`` (R,), int64 ``place`` (R, K), ``edge`` (R, K, edges), ``age`` (R, K), bool ``there``
                (R, K); see ``Hop``.
            kept: (R, H, K), factor of each weight: 0 if it is dropped.
            products: Type of products with weights; None: that of the states.
        """
        own, place, edge, age, there = rows
        (count, heads, _), d = kept.shape, states.shape[1]
        each = d // heads
        mine = side_by_side(states.index_select(0, own))
        told = torch.nn.functional.linear(now, query[:, d:], query_bias)
        by_state = query[:, :d].contiguous()
        asking = Table(mine, products).times(by_state).add_(told)
        parts = [side_by_side(part) for part in asking.chunk(heads, dim=1)]
        asked = [Table(q, products).times(k.t()) for q, k in zip(parts, key.chunk(heads), strict=True)]
        gathered = [_room(a, count) for a in asked]
        weights = torch.empty_like(kept)
        neighbours = [
            part.detach().contiguous() for part in (states, place, edge, age, table, frequency, phase, there)
        ]
        attend(
            _arrays(asked), _arrays(neighbours), kept.numpy(), each**-0.5, _arrays(gathered), weights.numpy()
        )
        attended = [
            Table(c, products).times(v)[:count] for c, v in zip(gathered, value.chunk(heads), strict=True)
        ]
        ctx.save_for_backward(now, query, by_state, key, value, own, mine, kept, weights, *neighbours)
        ctx.heads = parts, asked, gathered
        ctx.products = products
        return torch.cat([*attended, mine[:count]], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of states, φ(0), φ or its cosines' frequency and phase, and weights."""
        now, query, by_state, key, value, own, mine, kept, weights, *neighbours = ctx.saved_tensors
        states, table, frequency = neighbours[0], neighbours[4], neighbours[5]
        parts, asked, gathered = ctx.heads
        products, d, heads = ctx.products, states.shape[1], kept.shape[1]
        each = d // heads
        count = len(own)
        attended, passed = gradients[0].chunk(2, dim=1)
        told = [Table(side_by_side(part), products) for part in attended.chunk(heads, dim=1)]
        by_gathered = [t.times(v.t()) for t, v in zip(told, value.chunk(heads), strict=True)]
        by_value = [t.summed_with(Table(c, products)) for t, c in zip(told, gathered, strict=True)]
        by_asked = [_room(a, count) for a in asked]
        by_states, by_table = torch.zeros_like(states), torch.empty_like(table)
        by_frequency, by_phase = np.zeros(len(frequency)), np.zeros(len(frequency))
        out = (_arrays(by_asked), by_states.numpy(), by_table.numpy(), by_frequency, by_phase)
        attend_back(
            _arrays(asked), _arrays(neighbours), kept.numpy(), each**-0.5, weights.numpy(), _arrays(by_gathered), out
        )  # fmt: skip
        found = [Table(a, products) for a in by_asked]
        by_key = [Table(q, products).summed_with(a) for q, a in zip(parts, found, strict=True)]
        by_asking = side_by_side(*(a.times(k)[:count] for a, k in zip(found, key.chunk(heads), strict=True)))
        by_told, asking = by_asking.sum(dim=0), Table(by_asking, products)
        by_query = torch.cat([asking.summed_with(Table(mine, products)), torch.outer(by_told, now)], dim=1)
        by_own = asking.times(by_state.t())[:count].add_(passed)
        add_rows(by_states.numpy(), own.numpy(), by_own.numpy())
        return (
            by_states,
            by_told @ query[:, d:],
            by_table if table.shape[2] else None,
            torch.from_numpy(by_frequency).to(states) if len(frequency) else None,
            torch.from_numpy(by_phase).to(states) if len(frequency) else None,
            by_query,
            by_told,
            torch.cat(by_key),
            torch.cat(by_value),
            None,
            None,
            None,
        )


def _room(like: Tensor, count: int) -> Tensor:
    """An empty table with zeros below its first ``count`` rows."""
    table = torch.empty_like(like)
    table[count:] = 0
    return table


def _arrays(tensors: list[Tensor]) -> tuple[Any, ...]:
    return tuple(tensor.detach().numpy() for tensor in tensors)
