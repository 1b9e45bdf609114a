"""Tables that products are made of: what stands in them, and gradients, against plain sums."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from trainer.models.convolutions import Sage
from trainer.nn.aggregate import beside_mean
from trainer.nn.graph import CSRGraph
from trainer.nn.products import padded, side_by_side, table_product
from trainer.strategies.snapshots.past import STRIDE
from trainer.strategies.snapshots.sampled_layout import _numbered

GRAPH = CSRGraph(torch.tensor([0, 2, 2, 5]), torch.tensor([1, 4, 0, 0, 3]), 5)
"""Three targets: two neighbours, none, and three of which one stands twice."""
OWN = torch.tensor([2, 0, 4])
DOUBLE = torch.float64


def test_a_row_stands_beside_the_mean_of_its_neighbours() -> None:
    x = torch.arange(10.0).view(5, 2)
    table = beside_mean(GRAPH, OWN, x)
    means = torch.stack([(x[1] + x[4]) / 2, torch.zeros(2), (2 * x[0] + x[3]) / 3])
    torch.testing.assert_close(table[:3], torch.cat([x[OWN], means], dim=1))
    assert len(table) == padded(3, x)
    assert not table[3:].any()


def test_edges_with_values_weigh_by_them() -> None:
    graph = CSRGraph(GRAPH.indptr, GRAPH.sources, 5, values=torch.tensor([3.0, 1.0, 1.0, 1.0, 2.0]))
    x = torch.arange(10.0).view(5, 2)
    torch.testing.assert_close(beside_mean(graph, OWN, x)[0, 2:], (3 * x[1] + x[4]) / 4)


def test_tables_pass_gradients_back() -> None:
    draw = torch.Generator().manual_seed(1)
    x, src, dst = (torch.randn(5, 2, dtype=DOUBLE, generator=draw, requires_grad=True) for _ in range(3))
    told = torch.randn(5, 3, dtype=DOUBLE, generator=draw)
    assert gradcheck(lambda rows: beside_mean(GRAPH, OWN, rows), x)
    assert gradcheck(lambda one, other: side_by_side(one * other, one, other, told), (src, dst))


def test_tables_stand_side_by_side_with_rows_of_zeros_below() -> None:
    some, others = torch.rand(3, 2), torch.rand(3, 1)
    table = side_by_side(some, others)
    torch.testing.assert_close(table[:3], torch.cat([some, others], dim=1))
    assert len(table) == padded(3, some)
    assert not table[3:].any()


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("count", [0, 1, 70])
def test_products_of_a_table_are_those_of_its_rows(count: int, rectify: bool) -> None:
    draw = torch.Generator().manual_seed(count)
    rows, told = (torch.randn(count, 5, generator=draw) for _ in range(2))
    table = side_by_side(rows * rows, rows, rows, told).requires_grad_()
    weight = torch.randn(4, 20, generator=draw, requires_grad=True)
    bias = torch.randn(4, generator=draw, requires_grad=True)
    plain = torch.nn.functional.linear(table[:count], weight, bias)
    plain = torch.relu(plain) if rectify else plain
    found = table_product(table, weight, bias, count, rectify=rectify)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
    upstream = torch.randn(count, 4, generator=draw)
    for one, other in zip(
        torch.autograd.grad(found, (table, weight, bias), upstream),
        torch.autograd.grad(plain, (table, weight, bias), upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_no_number_is_lost_that_is_none() -> None:
    table = torch.full((64, 2), torch.nan)
    assert table_product(table, torch.ones(3, 2), torch.zeros(3), 5, rectify=True).isnan().all()


def test_what_sage_gathers_makes_its_rows() -> None:
    stage, x = Sage(2, 3, None), torch.rand(5, 2)
    table = stage.gather(GRAPH, OWN, x)
    torch.testing.assert_close(stage.gathered(table, 3), stage(GRAPH, x[OWN], x, None))


@pytest.mark.parametrize("nodes", [6, 10_000])
def test_sources_of_a_hop_are_numbered_upwards(nodes: int) -> None:
    targets = np.array([1, 4, STRIDE + 1, 3 * STRIDE + 5])
    indptr = np.array([0, 3, 3, 5, 6])
    neighbours = np.array([5, 0, 4, STRIDE, STRIDE + 3, 3 * STRIDE + 2])
    sources, places, own = _numbered(targets, indptr, neighbours, nodes, STRIDE)
    np.testing.assert_array_equal(sources, np.unique(np.concatenate([targets, neighbours])))
    np.testing.assert_array_equal(sources[places], neighbours)
    np.testing.assert_array_equal(sources[own], targets)
