"""Message passing against a dense product and against dgl.nn."""

import numpy as np
import pytest
import torch

from trainer.models.convolutions import Sage
from trainer.nn.aggregate import aggregate_mean, aggregate_sum
from trainer.nn.csr_graph import CSRGraph


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
