"""Message passing against a dense product and against dgl.nn."""

import numpy as np
import pytest
import torch

from freshet_graph.trainer.models.convolutions import LaplacianConvolution, Sage
from freshet_graph.trainer.nn.aggregate import aggregate_mean, aggregate_normalised, aggregate_sum
from freshet_graph.trainer.nn.graph import CSRGraph, MeanOperator, RowBlock


def random_graph(targets: int, sources: int, edges: int, seed: int = 0) -> tuple[CSRGraph, torch.Tensor]:
    rng = np.random.default_rng(seed)
    row, col = np.sort(rng.integers(0, targets, edges)), rng.integers(0, sources, edges)
    indptr = np.searchsorted(row, np.arange(targets + 1))
    dense = torch.zeros(targets, sources, dtype=torch.float64)
    dense.index_put_(
        (torch.from_numpy(row), torch.from_numpy(col)), torch.ones(edges).double(), accumulate=True
    )
    return CSRGraph(torch.from_numpy(indptr), torch.from_numpy(col), sources), dense


@pytest.mark.parametrize("edges", [0, 1, 40])
def test_sums_and_their_gradients_equal_a_dense_product(edges: int) -> None:
    graph, dense = random_graph(7, 9, edges)
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(aggregate_sum(graph, x), dense @ x)
    pull = torch.randn(7, 5, dtype=torch.float64)
    (aggregate_sum(graph, x) * pull).sum().backward()
    torch.testing.assert_close(x.grad, dense.t() @ pull)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_edges_count_by_their_values_in_products_gradients_and_means(index: torch.dtype) -> None:
    plain, ones = random_graph(7, 9, 40)
    values = torch.rand(40, dtype=torch.float64) + 0.5
    graph = CSRGraph(plain.indptr.to(index), plain.sources.to(index), 9, values=values)
    dense = torch.zeros_like(ones).index_put_((plain.targets, plain.sources), values, accumulate=True)
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(aggregate_sum(graph, x), dense @ x)
    (aggregate_sum(graph, x) * pull).sum().backward()
    torch.testing.assert_close(x.grad, dense.t() @ pull)
    torch.testing.assert_close(graph.strength, dense.sum(dim=1))
    assert graph.degrees.tolist() == ones.sum(dim=1).tolist()
    mean = dense @ x / dense.sum(dim=1, keepdim=True).clamp(min=1e-9)
    torch.testing.assert_close(aggregate_mean(graph, x), mean)
    back = graph.transpose
    assert back.indptr.dtype == back.sources.dtype == index
    torch.testing.assert_close(aggregate_sum(back.transpose, x), dense @ x)


def symmetric(
    nodes: int, *, weighted: bool, index: torch.dtype = torch.int64
) -> tuple[CSRGraph, torch.Tensor]:
    rng = np.random.default_rng(3)
    upper = np.triu(rng.random((nodes, nodes)) < 0.3, 1) * rng.integers(1, 4, (nodes, nodes))
    upper[:, -1] = 0
    dense = torch.from_numpy((upper + upper.T).astype(np.float64))
    dense = dense if weighted else (dense > 0).double()
    row, col = dense.nonzero(as_tuple=True)
    indptr = torch.searchsorted(row, torch.arange(nodes + 1)).to(index)
    values = dense[row, col] if weighted else None
    return CSRGraph(indptr, col.to(index), nodes, values=values, symmetric=True), dense


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_normalised_product_and_its_gradient_need_no_transpose(weighted: bool, index: torch.dtype) -> None:
    graph, dense = symmetric(9, weighted=weighted, index=index)
    scale = (1 + dense.sum(dim=1)).rsqrt()
    operator = scale[:, None] * (dense + torch.eye(9)) * scale
    x = torch.randn(2, 9, 4, dtype=torch.float64, requires_grad=True)
    built = CSRGraph.transposes_built
    found = aggregate_normalised([graph, graph], x)
    tolerance = 1e-12 if weighted else 1e-6  # without values the scale is of torch's default type
    torch.testing.assert_close(found, operator @ x, rtol=tolerance, atol=tolerance)
    pull = torch.randn(2, 9, 4, dtype=torch.float64)
    (found * pull).sum().backward()
    torch.testing.assert_close(x.grad, operator @ pull, rtol=tolerance, atol=tolerance)
    assert CSRGraph.transposes_built == built


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_graph_among_several_ranks_are_those_of_the_dense_products(
    weighted: bool, index: torch.dtype
) -> None:
    graph, dense = symmetric(9, weighted=weighted, index=index)
    assert not dense[-1].any(), "a node without an edge is nobody's source"
    scale = (1 + dense.sum(dim=1)).rsqrt()
    operator = scale[:, None] * (dense + torch.eye(9)) * scale
    tolerance = 1e-12 if weighted else 1e-6
    linked = dense.any(dim=1)
    for part in range(2):
        rows = RowBlock(graph, part, 2)
        x = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
        own, pull = x[part::2], torch.randn(len(range(part, 9, 2)), 4, dtype=torch.float64)
        torch.testing.assert_close(aggregate_sum(rows, x[linked]), dense[part::2] @ x)
        mean = (dense @ x / dense.sum(dim=1, keepdim=True).clamp(min=1e-9))[part::2]
        torch.testing.assert_close(aggregate_mean(rows, x[linked]), mean)
        found = aggregate_normalised([rows], x[linked].unsqueeze(0), own.unsqueeze(0))[0]
        torch.testing.assert_close(found, (operator @ x)[part::2], rtol=tolerance, atol=tolerance)
        (found * pull).sum().backward()
        torch.testing.assert_close(x.grad, operator[:, part::2] @ pull, rtol=tolerance, atol=tolerance)


def test_the_mean_of_operators_is_over_normalised_ones() -> None:
    parts = [symmetric(9, weighted=weighted) for weighted in (False, True)]
    expected = torch.zeros(9, 9, dtype=torch.float64)
    for _, dense in parts:
        scale = (1 + dense.sum(dim=1)).rsqrt()
        expected += scale[:, None] * (dense + torch.eye(9)) * scale / 2
    mean = MeanOperator([graph for graph, _ in parts])
    found = aggregate_normalised([mean], torch.eye(9, dtype=torch.float64).unsqueeze(0))[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert mean.transpose is mean


@pytest.mark.parametrize("widths", [(6, 9), (9, 6)])
def test_the_laplacian_convolution_equals_dgl(widths: tuple[int, int]) -> None:
    dgl = pytest.importorskip("dgl", reason="dgl has no wheel beyond Python 3.11")
    graph, _ = symmetric(30, weighted=False)
    with_loops = dgl.add_self_loop(dgl.graph((graph.sources, graph.targets), num_nodes=30))
    layer, oracle = LaplacianConvolution(*widths), dgl.nn.GraphConv(*widths, norm="both")
    with torch.no_grad():
        oracle.weight.copy_(layer.linear.weight.t())
        oracle.bias.copy_(layer.linear.bias.normal_())
    ours, theirs = (torch.randn(30, widths[0], generator=torch.Generator().manual_seed(0)) for _ in range(2))
    ours.requires_grad_(), theirs.requires_grad_()
    got, expected = layer(graph, ours, ours, None), oracle(with_loops, theirs)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    (got**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_the_mean_of_no_neighbours_is_zero() -> None:
    graph, dense = random_graph(6, 4, 5)
    x = torch.randn(4, 3, dtype=torch.float64)
    expected = dense @ x / dense.sum(dim=1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(aggregate_mean(graph, x), expected)


def test_a_transpose_of_a_transpose_is_the_graph() -> None:
    graph, dense = random_graph(8, 5, 30)
    back = graph.transpose.transpose
    torch.testing.assert_close(aggregate_sum(back, torch.eye(5, dtype=torch.float64)), dense)
    assert back.indptr.tolist() == graph.indptr.tolist()


def test_the_sage_layer_equals_dgl() -> None:
    dgl = pytest.importorskip("dgl", reason="dgl has no wheel beyond Python 3.11")
    graph, _ = random_graph(20, 35, 120)
    targets = torch.repeat_interleave(torch.arange(20), graph.degrees)
    block = dgl.create_block((graph.sources, targets), num_src_nodes=35, num_dst_nodes=20)
    layer = Sage(6, 4, None)
    oracle = dgl.nn.SAGEConv(6, 4, "mean", activation=torch.relu)
    with torch.no_grad():
        oracle.fc_self.weight.copy_(layer.own.weight)
        oracle.fc_self.bias.copy_(layer.own.bias)
        oracle.fc_neigh.weight.copy_(layer.neighbours.weight)
    ours, theirs = (torch.randn(35, 6, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    ours.requires_grad_(), theirs.requires_grad_()
    got, expected = layer(graph, ours[:20], ours, None), oracle(block, (theirs, theirs[:20]))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    (got**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        layer.neighbours.weight.grad, oracle.fc_neigh.weight.grad, atol=1e-4, rtol=1e-4
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU (CUDA) here")
def test_cuda_gives_what_the_cpu_gives() -> None:
    graph, _ = random_graph(50, 80, 400)
    layer, x = Sage(16, 8, None), torch.randn(80, 16)
    expected = layer(graph, x[:50], x, None)
    moved = CSRGraph(graph.indptr.cuda(), graph.sources.cuda(), 80)
    got = layer.cuda()(moved, x[:50].cuda(), x.cuda(), None)
    torch.testing.assert_close(got.cpu(), expected, atol=1e-5, rtol=1e-5)
