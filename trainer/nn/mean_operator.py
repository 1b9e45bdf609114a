"""The mean of several graphs' normalised operators: normalised first, smoothed after."""

from collections.abc import Sequence

import torch

from trainer.nn.csr_graph import CSRGraph


class MeanOperator(CSRGraph):
    """A graph by which ``aggregate_normalised`` is the mean of those by several graphs.

    It has every edge of the graphs; values are means of the graphs' normalised values.

    Args:
        graphs: At least one, square, over the same nodes, all symmetric or none.
    """

    def __init__(self, graphs: Sequence[CSRGraph]) -> None:
        nodes = graphs[0].num_sources
        parts = [graph.operator for graph in graphs]
        keys = torch.cat([part.targets * nodes + part.sources for part in parts])
        found, place = torch.unique(keys, return_inverse=True)
        values = torch.cat([part.values for part in parts if part.values is not None]) / len(graphs)
        targets = found // max(nodes, 1)
        super().__init__(
            torch.searchsorted(targets, torch.arange(nodes + 1, device=keys.device)),
            found % max(nodes, 1),
            nodes,
            values=values.new_zeros(len(found)).index_add_(0, place, values),
            symmetric=all(graph.symmetric for graph in graphs),
        )
        self.operator = self
        self.diagonal = torch.stack([graph.diagonal for graph in graphs]).mean(dim=0)
