"""Multi-head attention of a node over its temporal neighbours (TGAT section 3, TGN equations 8 to 11)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainer.nn.compiled import kernels_fit
from trainer.nn.host_attention import HostAttention
from trainer.nn.products import dense
from trainer.nn.rows import rows
from trainer.nn.time_encoding import CosineTime, TimeEncoder

Merge = Literal["mlp", "linear"]
MERGES: tuple[Merge, ...] = ("mlp", "linear")
Halved = torch.dtype | None
"""Type of products; None: that of their factors."""


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
        own: Tensor,
        place: Tensor,
        edge: Tensor,
        age_s: Tensor,
        there: Tensor,
        time: TimeEncoder,
    ) -> Tensor:
        """Embeddings of R rows.

        Args:
            states: (n, width), h of all nodes.
            own: int64 (R,), each row's node among them.
            place: int64 (R, K), each neighbour among them.
            edge: (R, K, edges), without gradient.
            age_s: (R, K), Δt of each neighbour.
            there: bool (R, K), which neighbours exist.
            time: φ.

        Returns:
            (R, width); of a row without neighbours, the attention is zero.
        """
        halved = self.products if self.training else None
        now = time.now()
        kept = self.dropout(there.to(states.dtype).unsqueeze(1).expand(-1, self.heads, -1)).contiguous()
        attend = self._on_host if kernels_fit(states) else self._anywhere
        merged = attend(states, now, (own, place, edge, age_s, there), time, kept, halved)
        for layer in self.merge if isinstance(self.merge, nn.Sequential) else [self.merge]:
            linear = layer if isinstance(layer, nn.Linear) else None
            merged = dense(merged, linear.weight, linear.bias) if linear is not None else layer(merged)
        return merged

    def _on_host(
        self,
        states: Tensor,
        now: Tensor,
        hop: tuple[Tensor, ...],
        time: TimeEncoder,
        kept: Tensor,
        halved: Halved,
    ) -> Tensor:
        """[attended ‖ h(u)] (R, 2 width) by compiled kernels."""
        age_s = hop[3]
        spans: tuple[Tensor, ...]
        if isinstance(time, CosineTime):
            spans = (age_s.new_empty(*age_s.shape, 0), time.frequency, time.phase)
        else:
            spans = (time(age_s), age_s.new_empty(0), age_s.new_empty(0))
        attended: Tensor = HostAttention.apply(  # type: ignore[no-untyped-call]  # torch's apply is untyped
            states, now, *spans, self.query.weight, self.query.bias, self.key.weight, self.value.weight, hop, kept,
            halved,
        )  # fmt: skip
        return attended

    def _anywhere(
        self,
        states: Tensor,
        now: Tensor,
        hop: tuple[Tensor, ...],
        time: TimeEncoder,
        kept: Tensor,
        halved: Halved,
    ) -> Tensor:
        """The same in torch operations."""
        own, place, edge, age_s, there = hop
        width, mine = states.shape[1], rows(states, own)
        # φ(0) is the same for all rows, and so is its part of the query
        told = nn.functional.linear(now, self.query.weight[:, width:], self.query.bias)
        query = dense(mine, self.query.weight[:, :width], told, halved).chunk(self.heads, dim=1)
        key, value = (part.weight.chunk(self.heads) for part in (self.key, self.value))
        asked = torch.stack([dense(q, k.t(), None, halved) for q, k in zip(query, key, strict=True)], dim=1)
        context = torch.cat([rows(states, place), edge, time(age_s)], dim=2)
        scale = (width // self.heads) ** -0.5
        gathered = _Gather.apply(asked, context, there.unsqueeze(1), kept, scale)  # type: ignore[no-untyped-call]  # torch's apply is untyped
        attended = [dense(c, v, None, halved) for c, v in zip(gathered.unbind(dim=1), value, strict=True)]
        return torch.cat([*attended, mine], dim=1)


class _Gather(torch.autograd.Function):
    """Σ_k w_k c_k with w = softmax(q·c · scale), dropped out; its gradient of c is one batched product.

    ``kept`` (R, H, K) are the factors of weights: 0 without a neighbour, or if it is dropped.
    """

    @staticmethod
    def forward(
        ctx: Any, asked: Tensor, context: Tensor, there: Tensor, kept: Tensor, scale: float
    ) -> Tensor:
        scores = torch.bmm(asked, context.transpose(1, 2)).mul_(scale).masked_fill_(~there, -1e9)
        weights = torch.softmax(scores, dim=2)
        ctx.save_for_backward(asked, context, kept, weights)
        ctx.scale = scale
        return torch.bmm(weights * kept, context)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        asked, context, kept, weights = ctx.saved_tensors
        by_weight = torch.bmm(gradients[0], context.transpose(1, 2)).mul_(kept)
        by_score = weights * (by_weight - (by_weight * weights).sum(dim=2, keepdim=True)) * ctx.scale
        by_context = torch.bmm(
            torch.cat([by_score, weights * kept], dim=1).transpose(1, 2),
            torch.cat([asked, gradients[0]], dim=1),
        )
        return torch.bmm(by_score, context), by_context, None, None, None
