"""Multi-head attention of a node over its temporal neighbours (TGAT section 3, TGN equations 8 to 11).

On the host the weighted sums over neighbours, with their gradient, are compiled kernels. They assemble a neighbour's vector in
the cache and never store it.

A neighbour is c = [state ‖ edge ‖ φ(age)]. One table of (R, K, C) costs more than the arithmetic: with ten neighbours in
batches of 2,000 it is 11 MB, written and read several times. The products are small, too (two heads times ten neighbours
per row), and a batched matrix product is a hundred times slower for small ones than for large ones. Cosines of spans are
computed on demand, once for all heads, and again for the gradient. Rows are processed in order, on one thread, so the gradient
of a state that many rows read is always the same.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.nn.compiled import kernels_fit
from freshet_graph.trainer.nn.products import dense
from freshet_graph.trainer.nn.rows import rows
from freshet_graph.trainer.nn.time_encoding import CosineTime, TimeEncoder, cosine, sine

_LANES = 64
"""Numbers that the compiler processes at once, four registers. Rows in the cache are padded to multiples, because the
rest would be processed one by one."""

# Sums may be taken in any order, or numbers would be added one at a time; NaN stays NaN.
_SUMS = {"reassoc", "contract", "nsz", "arcp"}
_FUSED = {"contract"}


@njit(cache=True, nogil=True, fastmath=_FUSED)
def _put_together(context, neighbours, r):  # type: ignore[no-untyped-def]  # compiled
    """Assemble the vectors of a row's neighbours in ``context`` and their numbers in ``places``; returns how many."""
    states, place, edge, age, table, frequency, phase, valid, places = neighbours
    width, edges = states.shape[1], edge.shape[2]
    first, count = width + edges, 0
    for k in range(place.shape[1]):
        if not valid[r, k]:
            continue
        source = np.uint64(place[r, k])
        for j in range(width):
            context[count, j] = states[source, j]
        for j in range(edges):
            context[count, width + j] = edge[r, k, j]
        for j in range(table.shape[2]):
            context[count, first + j] = table[r, k, j]
        for j in range(len(frequency)):
            context[count, first + j] = cosine(np.float64(age[r, k] * frequency[j] + phase[j]))
        places[count] = k
        count += 1
    return count


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _dot(one, i, other, k):  # type: ignore[no-untyped-def]  # compiled
    total = one.dtype.type(0)
    for j in range(one.shape[1]):
        total += one[i, j] * other[k, j]
    return total


@njit(cache=True, nogil=True, fastmath=_FUSED)
def _add(to, i, factor, what, k):  # type: ignore[no-untyped-def]  # compiled
    for j in range(to.shape[1]):
        to[i, j] += factor * what[k, j]


@njit(cache=True, nogil=True)
def _copy(to, i, what, k, width):  # type: ignore[no-untyped-def]  # compiled
    for j in range(width):
        to[i, j] = what[k, j]


@njit(cache=True, nogil=True)
def attend(queries, neighbours, keep_factors, scale, gathered, weights):  # type: ignore[no-untyped-def]  # compiled
    """Σ_k w_k c_k with w = softmax(q·c · scale), all rows and heads.

    Args:
        queries: (R, H, C), q.
        neighbours: ``states`` (n, d); ``place`` int64 (R, K), neighbours among the states; ``edge`` (R, K, edges);
            ``age`` (R, K), and either ``table`` (R, K, T), φ, with no ``frequency`` and ``phase``, or those (T,) of
            cosines and a table of width 0; ``valid`` bool (R, K), which neighbours exist.
        keep_factors: (R, H, K), factor of each weight: 0 if it is dropped.
        scale: Of products.
        gathered: (R, H, C), filled.
        weights: (R, H, K), filled where a neighbour exists.
    """
    states, place, edge, age, table, frequency, phase, valid = neighbours
    (rows, heads, most), kind, width = keep_factors.shape, keep_factors.dtype.type, queries.shape[2]
    padded = -(-width // _LANES) * _LANES
    context = np.zeros((most, padded), keep_factors.dtype)
    query, sums = np.zeros((1, padded), keep_factors.dtype), np.zeros((1, padded), keep_factors.dtype)
    score, places = np.empty(most, keep_factors.dtype), np.empty(most, np.int64)
    named = (states, place, edge, age, table, frequency, phase, valid, places)
    for r in range(rows):
        count = _put_together(context, named, r)
        for h in range(heads):
            _copy(query, 0, queries[r], h, width)
            largest = kind(-np.inf)
            for i in range(count):
                score[i] = _dot(query, 0, context, i) * kind(scale)
                largest = max(largest, score[i])
            total = kind(0)
            for i in range(count):
                score[i] = np.exp(score[i] - largest)
                total += score[i]
            sums[:] = 0
            for i in range(count):
                weight = score[i] / total
                weights[r, h, places[i]] = weight
                _add(sums, 0, weight * keep_factors[r, h, places[i]], context, i)
            _copy(gathered[r], h, sums, 0, width)


@njit(cache=True, nogil=True)
def attend_back(queries, neighbours, keep_factors, scale, weights, gradient, out):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of ``attend``.

    Args:
        queries: See ``attend``.
        neighbours: See ``attend``.
        keep_factors: See ``attend``.
        scale: See ``attend``.
        weights: As ``attend`` left them.
        gradient: (R, H, C), of what was gathered.
        out: Gradients of ``queries`` (filled), ``states`` (added to), ``table`` (filled), and, float64 (T,), of
            frequency and phase (added to).
    """
    states, place, edge, age, table, frequency, phase, valid = neighbours
    by_queries, by_states, by_table, by_frequency, by_phase = out
    (rows, heads, most), kind, width = keep_factors.shape, keep_factors.dtype.type, queries.shape[2]
    first = states.shape[1] + edge.shape[2]
    padded = -(-width // _LANES) * _LANES
    context = np.zeros((most, padded), keep_factors.dtype)
    query, by_attended = (
        np.zeros((heads, padded), keep_factors.dtype),
        np.zeros((heads, padded), keep_factors.dtype),
    )
    sums = np.empty((1, padded), keep_factors.dtype)
    by_score, places = np.empty((heads, most), keep_factors.dtype), np.empty(most, np.int64)
    named = (states, place, edge, age, table, frequency, phase, valid, places)
    by_table[:] = 0
    for r in range(rows):
        count = _put_together(context, named, r)
        for h in range(heads):
            _copy(query, h, queries[r], h, width)
            _copy(by_attended, h, gradient[r], h, width)
            mean = kind(0)
            for i in range(count):
                by_score[h, i] = _dot(by_attended, h, context, i) * keep_factors[r, h, places[i]]
                mean += by_score[h, i] * weights[r, h, places[i]]
            sums[:] = 0
            for i in range(count):
                by_score[h, i] = weights[r, h, places[i]] * (by_score[h, i] - mean) * kind(scale)
                _add(sums, 0, by_score[h, i], context, i)
            _copy(by_queries[r], h, sums, 0, width)
        for i in range(count):
            k = places[i]
            sums[:] = 0
            for h in range(heads):
                weight = weights[r, h, k] * keep_factors[r, h, k]
                for j in range(padded):
                    sums[0, j] += by_score[h, i] * query[h, j] + weight * by_attended[h, j]
            _spread(sums[0], first, by_states[place[r, k]], by_table[r, k])
            _spread_spans(sums[0, first:], age[r, k], frequency, phase, by_frequency, by_phase)


@njit(cache=True, nogil=True)
def _spread(sums, first, by_state, by_span):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(by_state)):
        by_state[j] += sums[j]
    for j in range(len(by_span)):
        by_span[j] = sums[first + j]


@njit(cache=True, nogil=True, fastmath=_FUSED)
def _spread_spans(sums, age, frequency, phase, by_frequency, by_phase):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(frequency)):
        change = sine(np.float64(age * frequency[j] + phase[j])) * sums[j]
        by_phase[j] -= change
        by_frequency[j] -= change * age


class _GatherOnHost(torch.autograd.Function):
    """See ``_Gather``; all tensors are on the host, and of one type."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, states: Tensor, table: Tensor, frequency: Tensor, phase: Tensor,
        hop: tuple[Tensor, ...], keep_factors: Tensor, scale: float,
    ) -> Tensor:  # fmt: skip
        """Σ_k w_k c_k (R, H, C).

        Args:
            ctx: Of autograd.
            queries: (R, H, C).
            states: (n, d).
            table: (R, K, T), φ of each neighbour; (R, K, 0) if it is a cosine.
            frequency: (T,), of cosines; (0,) if φ is in the table.
            phase: As ``frequency``.
            hop: int64 ``place`` (R, K), ``edge`` (R, K, edges), ``age`` (R, K), bool ``valid`` (R, K); see ``Hop``.
            keep_factors: (R, H, K), factor of each weight: 0 if it is dropped.
            scale: Of products.
        """
        place, edge, age, valid = hop
        neighbours = [
            part.detach().contiguous() for part in (states, place, edge, age, table, frequency, phase, valid)
        ]
        queries = queries.contiguous()
        gathered, weights = torch.empty_like(queries), torch.empty_like(keep_factors)
        inputs = queries.detach().numpy(), _arrays(neighbours), keep_factors.numpy(), scale
        attend(*inputs, gathered.numpy(), weights.numpy())
        ctx.save_for_backward(queries, keep_factors, weights, *neighbours)
        ctx.scale = scale
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of queries, states, and φ or its cosines' frequency and phase."""
        queries, keep_factors, weights, *neighbours = ctx.saved_tensors
        states, table, frequency = neighbours[0], neighbours[4], neighbours[5]
        by_queries, by_states, by_table = (
            torch.empty_like(queries), torch.zeros_like(states), torch.empty_like(table),
        )  # fmt: skip
        by_frequency, by_phase = np.zeros(len(frequency)), np.zeros(len(frequency))
        attend_back(
            queries.numpy(), _arrays(neighbours), keep_factors.numpy(), ctx.scale, weights.numpy(),
            gradients[0].contiguous().numpy(),
            (by_queries.numpy(), by_states.numpy(), by_table.numpy(), by_frequency, by_phase),
        )  # fmt: skip
        return (
            by_queries,
            by_states,
            by_table if table.shape[2] else None,
            torch.from_numpy(by_frequency).to(states) if len(frequency) else None,
            torch.from_numpy(by_phase).to(states) if len(frequency) else None,
            None,
            None,
            None,
        )


def _arrays(tensors: list[Tensor]) -> tuple[Any, ...]:
    return tuple(tensor.detach().numpy() for tensor in tensors)


Merge = Literal["mlp", "linear"]


class TemporalAttention(nn.Module):
    """h'(u) = MLP([attention ‖ h(u)]), the query from [h(u) ‖ φ(0)], keys and values from [h(w) ‖ e(u,w) ‖ φ(Δt)].

    Keys and values are never computed: q·(W_k c) = (W_kᵀ q)·c and Σ α (W_v c) = W_v (Σ α c), so only two batched products
    with the raw inputs c grow with the number of neighbours. With ten neighbours that is a tenth of the work.

    Args:
        width: Of h, in and out.
        edges: Of e.
        time: Of φ.
        heads: Divides ``width``.
        dropout: Of attention weights.
        merge: ``mlp``, two layers as in TGAT and TGN, or ``linear``, one layer without a non-linearity.

    Attributes:
        products: Type of products with weights while training; None: that of the states.
    """

    products: torch.dtype | None = None

    def __init__(self, width: int, edges: int, time: int, heads: int, dropout: float, merge: Merge) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"heads must divide the memory's width {width}, found {heads}")
        self.heads = heads
        self.query = nn.Linear(width + time, width)
        self.key = nn.Linear(width + edges + time, width, bias=False)
        self.value = nn.Linear(width + edges + time, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.merge: nn.Linear | nn.Sequential = nn.Linear(2 * width, width)
        if merge == "mlp":
            self.merge = nn.Sequential(self.merge, nn.ReLU(), nn.Linear(width, width))

    def forward(
        self,
        states: Tensor,
        own_place: Tensor,
        place: Tensor,
        edge: Tensor,
        age_s: Tensor,
        valid: Tensor,
        time: TimeEncoder,
    ) -> Tensor:
        """Embeddings of R rows.

        Args:
            states: (n, width), h of all nodes.
            own_place: int64 (R,), each row's node among them.
            place: int64 (R, K), each neighbour among them.
            edge: (R, K, edges), without gradient.
            age_s: (R, K), Δt of each neighbour.
            valid: bool (R, K), which neighbours exist.
            time: φ.

        Returns:
            (R, width); of a row without neighbours, the attention is zero.
        """
        halved = self.products if self.training else None
        width, mine = states.shape[1], rows(states, own_place)
        # φ(0) is the same for all rows, and so is its part of the query
        time_part = nn.functional.linear(time.now(), self.query.weight[:, width:], self.query.bias)
        query = dense(mine, self.query.weight[:, :width], time_part, halved).chunk(self.heads, dim=1)
        key, value = (part.weight.chunk(self.heads) for part in (self.key, self.value))
        queries = torch.stack([dense(q, k.t(), None, halved) for q, k in zip(query, key, strict=True)], dim=1)
        keep_factors = self.dropout(
            valid.to(states.dtype).unsqueeze(1).expand(-1, self.heads, -1)
        ).contiguous()
        gather = _on_host if kernels_fit(states) else _anywhere
        hop, scale = (place, edge, age_s, valid), (width // self.heads) ** -0.5
        gathered = gather(queries, states, hop, time, keep_factors, scale).unbind(dim=1)
        attended = [dense(c, v, None, halved) for c, v in zip(gathered, value, strict=True)]
        merged: Tensor = self.merge(torch.cat([*attended, mine], dim=1))
        return merged


def _on_host(
    queries: Tensor,
    states: Tensor,
    hop: tuple[Tensor, ...],
    time: TimeEncoder,
    keep_factors: Tensor,
    scale: float,
) -> Tensor:
    """What each head gathers, (R, H, C), by compiled kernels."""
    age_s, spans = hop[2], tuple[Tensor, ...]()
    if isinstance(time, CosineTime):
        spans = (age_s.new_empty(*age_s.shape, 0), time.frequency, time.phase)
    else:
        spans = (time(age_s), age_s.new_empty(0), age_s.new_empty(0))
    gathered: Tensor = _GatherOnHost.apply(queries, states, *spans, hop, keep_factors, scale)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return gathered


def _anywhere(
    queries: Tensor,
    states: Tensor,
    hop: tuple[Tensor, ...],
    time: TimeEncoder,
    keep_factors: Tensor,
    scale: float,
) -> Tensor:
    """The same in torch operations."""
    place, edge, age_s, valid = hop
    context = torch.cat([rows(states, place), edge, time(age_s)], dim=2)
    gathered: Tensor = _Gather.apply(queries, context, valid.unsqueeze(1), keep_factors, scale)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return gathered


class _Gather(torch.autograd.Function):
    """Σ_k w_k c_k with w = softmax(q·c · scale), dropped out; its gradient of c is one batched product.

    ``keep_factors`` (R, H, K) are the factors of weights: 0 without a neighbour, or if it is dropped.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, context: Tensor, valid: Tensor, keep_factors: Tensor, scale: float
    ) -> Tensor:
        scores = torch.bmm(queries, context.transpose(1, 2)).mul_(scale).masked_fill_(~valid, -1e9)
        weights = torch.softmax(scores, dim=2)
        ctx.save_for_backward(queries, context, keep_factors, weights)
        ctx.scale = scale
        return torch.bmm(weights * keep_factors, context)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        queries, context, keep_factors, weights = ctx.saved_tensors
        by_weight = torch.bmm(gradients[0], context.transpose(1, 2)).mul_(keep_factors)
        by_score = weights * (by_weight - (by_weight * weights).sum(dim=2, keepdim=True)) * ctx.scale
        by_context = torch.bmm(
            torch.cat([by_score, weights * keep_factors], dim=1).transpose(1, 2),
            torch.cat([queries, gradients[0]], dim=1),
        )
        return torch.bmm(by_score, context), by_context, None, None, None
