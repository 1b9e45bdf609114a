"""Attention over edges beside a dense softmax, edge by edge beside dgl, and beside its own numeric gradients."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from freshet_graph.trainer.models.attention import GraphAttention
from freshet_graph.trainer.nn import edge_attention as module
from freshet_graph.trainer.nn.edge_attention import edge_attention
from freshet_graph.trainer.nn.graph import CSRGraph

HEADS, WIDTH = 3, 2


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def path(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Everything holds of the kernels and of the operations that take their place on other devices."""
    if request.param == "torch":
        monkeypatch.setattr(module, "kernels_fit", lambda tensor: False)
    torch.set_default_dtype(torch.float64)
    yield request.param
    torch.set_default_dtype(torch.float32)


def csr(
    counts: np.ndarray, *, values: bool, index: torch.dtype = torch.int64, symmetric: bool = False
) -> CSRGraph:
    """Targets × sources with how often each edge is there: as values, or as so many edges."""
    rows, columns = np.nonzero(counts)
    weights = counts[rows, columns]
    if not values:
        rows, columns = np.repeat(rows, weights), np.repeat(columns, weights)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(counts)))])
    return CSRGraph(
        torch.from_numpy(indptr).to(index),
        torch.from_numpy(columns).to(index),
        counts.shape[1],
        values=torch.from_numpy(weights).float() if values else None,
        symmetric=symmetric,
    )


def dense(counts: np.ndarray, values: Tensor, by_source: Tensor, by_target: Tensor) -> np.ndarray:
    """Σ_j α_ij v_j by a softmax over dense rows, written down from the paper's equations 3 and 4."""
    v, s, t = (tensor.detach().numpy() for tensor in (values, by_source, by_target))
    out = np.zeros((len(counts), HEADS, WIDTH))
    for i, row in enumerate(counts):
        often = row.astype(np.float64)
        often[i] += 1
        for h in range(HEADS):
            pre = t[i, h] + s[:, h]
            score = np.where(pre > 0, pre, 0.2 * pre)
            weight = often * np.exp(score - score[often > 0].max(), where=often > 0, out=np.zeros(len(row)))
            out[i, h] = weight @ v[:, h] / weight.sum()
    return out


def drawn(counts: np.ndarray, seed: int, scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets, sources = counts.shape
    shapes = (sources, HEADS, WIDTH), (sources, HEADS), (targets, HEADS)
    values, s, t = (torch.randn(shape, generator=generator) for shape in shapes)
    return values.requires_grad_(), (scale * s).requires_grad_(), (scale * t).requires_grad_()


@st.composite
def multigraphs(draw: Any) -> np.ndarray:
    targets = draw(st.integers(1, 6))
    sources = targets + draw(st.integers(0, 4))
    counts = np.random.default_rng(draw(st.integers(0, 1 << 30))).poisson(0.5, (targets, sources))
    counts[:, :targets][np.eye(targets, dtype=bool)] = 0
    counts[draw(st.integers(0, targets - 1))] = 0  # somebody has no edge
    return counts


@given(multigraphs(), st.integers(0, 99), st.booleans(), st.sampled_from([torch.int32, torch.int64]))
def test_it_is_the_dense_softmax(counts: np.ndarray, seed: int, values: bool, index: torch.dtype) -> None:
    tensors = drawn(counts, seed)
    found = edge_attention(csr(counts, values=values, index=index), *tensors)
    np.testing.assert_allclose(found.detach().numpy(), dense(counts, *tensors), rtol=0, atol=1e-12)


@given(multigraphs(), st.integers(0, 99))
def test_an_edge_of_value_w_is_w_edges(counts: np.ndarray, seed: int) -> None:
    tensors, gradients = drawn(counts, seed), []
    for values in (False, True):
        found = edge_attention(csr(counts, values=values), *tensors)
        gradients.append([found, *torch.autograd.grad(found.square().sum(), tensors)])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_its_gradients_are_the_numeric_ones(seed: int) -> None:
    counts = np.random.default_rng(seed).poisson(0.6, (4, 4 + seed % 3))
    counts[0] = 0
    graph = csr(counts, values=seed % 2 == 0)
    assert torch.autograd.gradcheck(lambda *tensors: edge_attention(graph, *tensors), drawn(counts, seed))


@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_scores_far_apart_neither_overflow_nor_vanish(scale: float) -> None:
    """Beyond what products of exponentials can hold, the largest score is taken off row by row."""
    counts = np.random.default_rng(1).poisson(0.6, (6, 6))
    for kind in (torch.float64, torch.float32):
        tensors = [tensor.detach().to(kind).requires_grad_() for tensor in drawn(counts, 1, scale)]
        found = edge_attention(csr(counts, values=True), *tensors)
        expected = dense(counts, *(tensor.double() for tensor in tensors))
        np.testing.assert_allclose(
            found.detach().numpy(), expected, rtol=0, atol=1e-10 if kind == torch.float64 else 1e-4
        )
        assert all(torch.isfinite(each).all() for each in torch.autograd.grad(found.sum(), tensors))


def test_scores_at_the_edge_of_the_products_range_are_exact_in_float32() -> None:
    """The source that all others are compared with is nobody's neighbour, and 60 above them."""
    counts = np.zeros((3, 4), np.int64)
    counts[0, 1] = counts[1, 2] = 1
    values, s, t = (tensor.detach() for tensor in drawn(counts, 3))
    for level in (-80.0, -59.0, -30.0, 0.0, 80.0):
        s[:3], s[3] = torch.tensor([0.5, 0.1, 0.0]).unsqueeze(1), 59.9
        tensors = [tensor.float().requires_grad_() for tensor in (values, s, t + level)]
        found = edge_attention(csr(counts, values=False), *tensors)
        np.testing.assert_allclose(
            found.detach().numpy(), dense(counts, *(each.double() for each in tensors)), rtol=0, atol=2e-5
        )
        assert all(torch.isfinite(each).all() for each in torch.autograd.grad(found.sum(), tensors))


def test_no_number_in_is_no_number_out() -> None:
    counts = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    values, s, t = (tensor.detach() for tensor in drawn(counts, 2))
    s[1] = torch.nan
    found = edge_attention(csr(counts, values=False), values, s, t)
    assert found[:2].isnan().all()
    assert not found[2].isnan().any()


def test_a_target_without_edges_has_exactly_its_own_row() -> None:
    counts = np.zeros((5, 5), np.int64)
    values, s, t = drawn(counts, 4)
    assert torch.equal(edge_attention(csr(counts, values=False), values, s, t), values)
    stage, own = GraphAttention(4, 6, 3), torch.randn(5, 4)
    assert torch.equal(stage(csr(counts, values=False), own, own, None), stage.alone(own, None))


def test_the_gradient_of_a_symmetric_graph_builds_no_transpose() -> None:
    counts = np.random.default_rng(5).poisson(0.4, (6, 6))
    counts += counts.T
    tensors, before = drawn(counts, 5), CSRGraph.transposes_built
    found = []
    for symmetric in (True, False):
        graph = csr(counts, values=True, symmetric=symmetric)
        found.append(torch.autograd.grad(edge_attention(graph, *tensors).square().sum(), tensors))
        assert CSRGraph.transposes_built == before + (not symmetric)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_targets_apart_from_sources_are_targets_among_them() -> None:
    counts = np.random.default_rng(6).poisson(0.5, (4, 7))
    counts[:, :4][np.eye(4, dtype=bool)] = 0
    graph, x = csr(counts, values=True), torch.randn(7, 3)
    square = np.zeros((7, 7), np.int64)
    square[:4] = counts
    stage = GraphAttention(3, 6, 2)
    expected = stage(csr(square, values=True), x, x, None)[:4]
    torch.testing.assert_close(stage(graph, x[:4], x, None), expected, rtol=0, atol=1e-12)


def test_it_is_dgls_layer_with_self_loops() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dgl = pytest.importorskip("dgl", reason="dgl has no wheel for this Python")
        from dgl.nn import GATConv
    counts = np.random.default_rng(7).poisson(0.3, (30, 30))
    np.fill_diagonal(counts, 0)
    rows, columns = np.nonzero(counts)
    often = counts[rows, columns]
    graph = dgl.graph((np.repeat(columns, often), np.repeat(rows, often)), num_nodes=30)
    stage, theirs = GraphAttention(5, 12, 4), GATConv(5, 3, 4, activation=torch.nn.functional.elu)
    with torch.no_grad():
        theirs.fc.weight.copy_(stage.linear.weight)
        theirs.attn_l.copy_(stage.of_source)
        theirs.attn_r.copy_(stage.of_target)
        theirs.bias.copy_(stage.bias.normal_().view_as(theirs.bias))
    x = torch.randn(30, 5, requires_grad=True)
    expected = theirs(dgl.add_self_loop(graph), x).flatten(1)
    found = stage(csr(counts, values=True), x, x, None)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    gradients = [torch.autograd.grad(out.square().sum(), x)[0] for out in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
