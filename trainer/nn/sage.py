"""GraphSAGE with mean aggregation (Hamilton et al. 2017)."""

import torch
from torch import Tensor, nn

from trainer.nn.aggregate import aggregate_mean
from trainer.nn.csr_graph import CSRGraph


class SageLayer(nn.Module):
    """h'(v) = W₁ h(v) + W₂ · mean of h(u) over the neighbours u of v + b.

    Args:
        inputs: Width of h.
        outputs: Width of h'.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.neighbours = nn.Linear(inputs, outputs, bias=False)
        for linear in (self.own, self.neighbours):
            nn.init.xavier_uniform_(linear.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.zeros_(self.own.bias)

    def forward(self, graph: CSRGraph, own: Tensor, x: Tensor) -> Tensor:
        """Embed the targets of ``graph``.

        Args:
            graph: Sampled neighbours, targets × sources.
            own: (targets, inputs), the targets' own rows.
            x: (sources, inputs).

        Returns:
            (targets, outputs), before any non-linearity.
        """
        # aggregate first: blocks have many sources and few targets
        result: Tensor = torch.addmm(self.own(own), aggregate_mean(graph, x), self.neighbours.weight.t())
        return result
