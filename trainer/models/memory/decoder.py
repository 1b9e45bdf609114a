"""The head of event models: from two embeddings, and the pair's history, to the logit of an event."""

import torch
from torch import Tensor, nn

from trainer.models.link_decoder import EncounterEncoder
from trainer.nn.compiled import kernels_fit
from trainer.nn.pair_perceptron import PairPerceptron
from trainer.nn.products import dense
from trainer.nn.rows import rows


class EventDecoder(nn.Module):
    """A perceptron over [z(u) ‖ z(v)], as TGN's; with the pair's history a deeper one over that and z(u) ∘ z(v).

    Args:
        width: Of embeddings.
        history: Whether it sees encounters.
        walks: Width of the walk features; 0 without.

    Attributes:
        products: Type of its first product while training; None: that of embeddings.
    """

    products: torch.dtype | None = None

    def __init__(self, width: int, *, history: bool, walks: int) -> None:
        super().__init__()
        self.encounters = EncounterEncoder() if history else None
        self._looks_back = history or walks > 0
        if self._looks_back:
            inputs = 3 * width + (EncounterEncoder.width if history else 0) + walks
            self.perceptron = nn.Sequential(
                nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.2),
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1),
            )  # fmt: skip
        else:
            self.perceptron = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(
        self, z: Tensor, at_src: Tensor, at_dst: Tensor, encounters: Tensor, walks: Tensor | None
    ) -> Tensor:
        """Logits (q,) that the events (u, v) happen.

        A node is in many queries, so the first layer's product with it as either end is computed once.

        Args:
            z: (n, width), embeddings.
            at_src: int64 (q,), places of the u.
            at_dst: int64 (q,), places of the v.
            encounters: float32 (q, len(Encounter)).
            walks: (q, walk_width()), or None for a model without them.
        """
        first, width = self.perceptron[0], z.shape[1]
        assert isinstance(first, nn.Linear)
        by_end = torch.cat([first.weight[:, :width], first.weight[:, width : 2 * width]])
        either = dense(z, by_end, None, self.products if self.training else None).view(
            2 * len(z), first.out_features
        )
        if not self._looks_back and kernels_fit(z):
            last = self.perceptron[2]
            logits: Tensor = PairPerceptron.apply(  # type: ignore[no-untyped-call]  # torch's apply is untyped
                either.view(len(z), 2 * width), at_src, at_dst, first.bias, last.weight, last.bias
            )
            return logits
        src, dst = rows(either, torch.cat([2 * at_src, 2 * at_dst + 1])).chunk(2)
        hidden = src + dst + first.bias
        if self._looks_back:
            parts = [rows(z, at_src) * rows(z, at_dst)]
            if self.encounters is not None:
                parts.append(self.encounters(encounters).to(z.dtype))
            if walks is not None:
                parts.append(walks.to(z.dtype))
            hidden = hidden + dense(torch.cat(parts, dim=1), first.weight[:, 2 * width :])
        for layer in list(self.perceptron)[1:]:
            hidden = (
                dense(hidden, layer.weight, layer.bias) if isinstance(layer, nn.Linear) else layer(hidden)
            )
        return hidden.squeeze(1)
