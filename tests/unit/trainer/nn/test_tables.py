"""A row beside the mean of its neighbours, against plain sums."""

import torch
from torch.autograd import gradcheck

from freshet_graph.trainer.models.convolutions import Sage
from freshet_graph.trainer.nn.aggregate import beside_mean
from freshet_graph.trainer.nn.graph import CSRGraph

GRAPH = CSRGraph(torch.tensor([0, 2, 2, 5]), torch.tensor([1, 4, 0, 0, 3]), 5)
"""Three targets: two neighbours, none, and three of which one stands twice."""
OWN = torch.tensor([2, 0, 4])


def test_a_row_stands_beside_the_mean_of_its_neighbours() -> None:
    x = torch.arange(10.0).view(5, 2)
    table = beside_mean(GRAPH, OWN, x)
    means = torch.stack([(x[1] + x[4]) / 2, torch.zeros(2), (2 * x[0] + x[3]) / 3])
    torch.testing.assert_close(table, torch.cat([x[OWN], means], dim=1))


def test_edges_with_values_weigh_by_them() -> None:
    graph = CSRGraph(GRAPH.indptr, GRAPH.sources, 5, values=torch.tensor([3.0, 1.0, 1.0, 1.0, 2.0]))
    x = torch.arange(10.0).view(5, 2)
    torch.testing.assert_close(beside_mean(graph, OWN, x)[0, 2:], (3 * x[1] + x[4]) / 4)


def test_the_mean_passes_gradients_back() -> None:
    x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert gradcheck(lambda rows: beside_mean(GRAPH, OWN, rows), x)


def test_what_sage_gathers_makes_its_rows() -> None:
    stage, x = Sage(2, 3, None), torch.rand(5, 2)
    table = stage.gather(GRAPH, OWN, x)
    torch.testing.assert_close(stage.gathered(table), stage(GRAPH, x[OWN], x, None))
