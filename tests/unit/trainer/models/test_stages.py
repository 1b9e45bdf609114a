"""Stages of snapshot models beside plain NumPy, whole and block by block."""

import copy

import numpy as np
import pytest
import torch
from grid_layout import Grid, arrays, sigmoid
from torch import Tensor

from freshet_graph.trainer.models.convolutions import LaplacianAggregation, LaplacianConvolution, Sage
from freshet_graph.trainer.models.recurrences import (
    GatedConvolution,
    LastLinear,
    Lstm,
    MovingMean,
    RectifiedMean,
)
from freshet_graph.trainer.models.stages import Stage, TimeStage
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.nn import recurrent
from freshet_graph.trainer.nn.graph import CSRGraph
from freshet_graph.trainer.nn.means import RectifiedMeans
from freshet_graph.trainer.nn.recurrent import units_fit
from freshet_graph.trainer.strategies.esdg.blocks import SavedBytes

pytestmark = pytest.mark.usefixtures("double")
NODES, STEPS, WIDTH = 7, 5, 3


def dense(seed: int) -> np.ndarray:
    """A symmetric adjacency without self-loops whose last node has no edge."""
    upper = np.triu(np.random.default_rng(seed).random((NODES, NODES)) < 0.4, 1)
    upper[:, -1] = False
    return (upper | upper.T).astype(np.float64)


def graph_of(adjacency: np.ndarray) -> CSRGraph:
    rows, columns = np.nonzero(adjacency)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=NODES))])
    return CSRGraph(torch.from_numpy(indptr), torch.from_numpy(columns), NODES, symmetric=True)


@pytest.mark.parametrize("widths", [(3, 8), (8, 3)])
def test_a_laplacian_convolution_is_the_dense_product(widths: tuple[int, int]) -> None:
    stage, adjacency = LaplacianConvolution(*widths), dense(0)
    x = torch.randn(NODES, widths[0])
    scale = np.diag(1 / np.sqrt(1 + adjacency.sum(axis=1)))
    w = arrays(stage)
    expected = (
        scale @ (adjacency + np.eye(NODES)) @ scale @ x.numpy() @ w["linear.weight"].T + w["linear.bias"]
    )
    found = stage(graph_of(adjacency), x, x, None)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-10)
    alone = stage.alone(x[-1:], None)
    np.testing.assert_allclose(alone.detach(), found[-1:].detach(), atol=1e-12)


def test_a_symmetric_graph_is_its_own_transpose_in_the_backward_pass() -> None:
    stage, graph = LaplacianConvolution(3, 4), graph_of(dense(1))
    x = torch.randn(NODES, 3, requires_grad=True)
    stage(graph, x, x, None).square().sum().backward()
    assert graph.transpose is graph
    numeric = torch.autograd.gradcheck(lambda rows: stage(graph, rows, rows, None), (x,))
    assert numeric


def test_sage_alone_is_sage_without_neighbours() -> None:
    stage, x = Sage(3, 4, None), torch.randn(NODES, 3)
    found = stage(graph_of(dense(2)), x, x, None)
    np.testing.assert_allclose(stage.alone(x[-1:], None).detach(), found[-1:].detach(), atol=1e-12)
    assert not np.allclose(stage.alone(x[:1], None).detach(), found[:1].detach())


@pytest.mark.parametrize("shared", [True, False])
def test_gated_convolution_is_the_equations_of_tgcn(shared: bool) -> None:
    stage = GatedConvolution(4, WIDTH, shared=shared)
    rows = torch.randn(STEPS, NODES, 4)
    there = torch.ones(STEPS, NODES, dtype=torch.bool)
    there[:2, 4] = False  # comes with the third snapshot
    w = arrays(stage)

    def gate(name: str, convolved: np.ndarray, state: np.ndarray) -> np.ndarray:
        return np.concatenate([convolved, state]) @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    expected = np.zeros((STEPS, NODES, WIDTH))
    for node in range(NODES):
        h = np.zeros(WIDTH)
        for t in range(STEPS):
            if there[t, node]:
                row = w["linear.weight"] @ rows[t, node].numpy() + w["linear.bias"]
                f_u, f_r, f_c = (row, row, row) if shared else np.split(row, 3)
                u, r = sigmoid(gate("update", f_u, h)), sigmoid(gate("reset", f_r, h))
                h = u * h + (1 - u) * np.tanh(gate("candidate", f_c, r * h))
            expected[t, node] = h
    found, carry = stage(rows, there, None)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-10)
    assert torch.equal(carry, found[-1])


def test_an_lstm_is_that_of_torch_from_each_nodes_first_snapshot_on() -> None:
    stage, reference = Lstm(WIDTH, 4), torch.nn.LSTM(WIDTH, 4)
    with torch.no_grad():
        reference.weight_ih_l0.copy_(stage.of_inputs.weight)
        reference.weight_hh_l0.copy_(stage.of_state.weight)
        reference.bias_ih_l0.copy_(stage.of_inputs.bias)
        reference.bias_hh_l0.zero_()
    rows, there = torch.randn(STEPS, NODES, WIDTH), torch.ones(STEPS, NODES, dtype=torch.bool)
    born = [0] * (NODES - 1) + [2]
    there[:2, -1] = False
    expected = torch.zeros(STEPS, NODES, 4)
    for node, first in enumerate(born):
        expected[first:, node] = reference(rows[first:, node])[0]
    found, (h, _) = stage(rows, there, None)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(h, found[-1])


@pytest.mark.parametrize("past", [0, 1, 2])
@pytest.mark.parametrize("bandwidth", [1, 3, 9])
def test_a_moving_mean_has_the_gradient_of_its_means(bandwidth: int, past: int) -> None:
    stage, there = MovingMean(bandwidth), torch.ones(STEPS, 2, dtype=torch.bool)
    rows = torch.randn(STEPS, 2, WIDTH, requires_grad=True)
    before = torch.randn(min(past, bandwidth - 1), 2, WIDTH, requires_grad=True)
    every = np.concatenate([before.detach().numpy(), rows.detach().numpy()])
    expected = [every[max(0, t - bandwidth) : t].mean(axis=0) for t in range(len(before) + 1, len(every) + 1)]
    found, _ = stage(rows, there, before)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x, carry: stage(x, there, carry)[0], (rows, before))


@pytest.mark.parametrize("newest", [1, 2, STEPS])
@pytest.mark.parametrize("bandwidth", [1, 2, 3, 9])
def test_means_of_rectified_products_have_the_gradient_of_their_equation(
    bandwidth: int, newest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "_BLOCK", 3)  # the nodes are three blocks
    stage, rows = RectifiedMean(WIDTH, 4, bandwidth), torch.randn(STEPS, NODES, WIDTH, requires_grad=True)
    product = torch.relu(rows @ stage.linear.weight.t())
    ends = range(STEPS - newest + 1, STEPS + 1)
    expected = torch.stack([product[max(0, end - bandwidth) : end].mean(dim=0) for end in ends])
    torch.testing.assert_close(stage.means(rows, newest), expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda x, weight: RectifiedMeans.apply(x, weight, newest, bandwidth), (rows, stage.linear.weight)
    )


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "each", "shared"])
def test_compiled_units_give_rows_and_gradients_of_plain_ones(
    kind: str, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "_BLOCK", 3)  # the nodes are three blocks
    stage = Lstm(WIDTH, WIDTH) if kind == "lstm" else GatedConvolution(WIDTH, WIDTH, shared=kind == "shared")
    single = copy.deepcopy(stage).float()
    there = torch.ones(STEPS, NODES, dtype=torch.bool)
    there[:2, 4] = False
    x = torch.randn(STEPS, NODES, WIDTH)
    pull, state = torch.randn(STEPS + 1, NODES, WIDTH), torch.randn(2, NODES, WIDTH)
    found = []
    for unit, to in ((stage, torch.float64), (single, torch.float32)):
        rows, before = (each.to(to, copy=True).requires_grad_() for each in (x, state))
        assert units_fit(rows) == (to == torch.float32)
        carry = None if not begun else tuple(before) if kind == "lstm" else before[0]
        out, after = unit(rows, there, carry)
        kept = after[1] if kind == "lstm" else after
        ((out * pull[:-1].to(to)).sum() + (kept * pull[-1].to(to)).sum()).backward()
        by_state = [before.grad] if begun else []
        found.append([out, kept, rows.grad, *by_state, *(weights.grad for weights in unit.parameters())])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled.double(), plain, rtol=1e-5, atol=1e-5)


def test_the_newest_state_alone_has_the_gradients_of_all_states_and_saves_no_gates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recurrent, "_BLOCK", 3)
    stage, there = (
        GatedConvolution(WIDTH, WIDTH, shared=False).float(),
        torch.ones(STEPS, NODES, dtype=torch.bool),
    )
    x, pull = torch.randn(STEPS, NODES, WIDTH).float(), torch.randn(1, NODES, WIDTH).float()
    found = []
    for pass_over in (stage, stage.last):
        rows = x.clone().requires_grad_()
        with SavedBytes([*stage.parameters()]) as saved:
            out, _ = pass_over(rows, there, None)
            out = out[-1:]
        of_weights = 4 * 3 * WIDTH * 12  # weights multiplied with each other
        assert saved.bytes <= 4 * (STEPS + 1) * NODES * WIDTH + there.nbytes + of_weights
        stage.zero_grad()
        (out * pull).sum().backward()
        found.append([out, rows.grad, *(weight.grad.clone() for weight in stage.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("window", [1, 3, 9])
def test_a_linear_model_of_the_last_rows_sees_zeros_before_the_first(window: int) -> None:
    stage, rows = LastLinear(window, WIDTH), torch.randn(STEPS, NODES, WIDTH)
    w = arrays(stage)
    padded = np.concatenate([np.zeros((window - 1, NODES, WIDTH)), rows.numpy()])
    expected = [
        np.concatenate(list(padded[t : t + window]), axis=1) @ w["weight"].T + w["bias"] for t in range(STEPS)
    ]
    found, _ = stage(rows, torch.ones(STEPS, NODES, dtype=torch.bool), None)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-10)


def rows_of(stages: list[Stage], blocks: list[slice], last: bool = False) -> Tensor:
    graphs = [graph_of(dense(10 + t)) for t in range(STEPS)]
    x = torch.randn(STEPS, NODES, WIDTH, generator=torch.Generator().manual_seed(5))
    there = torch.ones(STEPS, NODES, dtype=torch.bool)
    carry, found = None, []
    for block in blocks:
        layout = Grid(graphs[block], x[block], there[block])
        rows, carry = unroll(stages, layout, carry, last=last)
        found.append(rows)
    return torch.cat(found)


STACKS = {
    "graph, time": lambda: [LaplacianAggregation(), GatedConvolution(WIDTH, 2, shared=False)],
    "graph, time, graph, time": lambda: [
        LaplacianAggregation(),
        GatedConvolution(WIDTH, 2, shared=False),
        LaplacianConvolution(2, 2),
        GatedConvolution(2, 2, shared=True),
    ],
    "graph, graph, time": lambda: [Sage(WIDTH, 4, 2), Sage(4, 4, 2), LastLinear(3, 4)],
    "graph": lambda: [Sage(WIDTH, 4, 2)],
    "graph, mean": lambda: [LaplacianConvolution(WIDTH, 4), MovingMean(3)],
    "graph, rectified mean, both again": lambda: [
        LaplacianAggregation(),
        RectifiedMean(WIDTH, 4, 3),
        LaplacianAggregation(),
        RectifiedMean(4, 2, 3),
    ],
    "graph, lstm": lambda: [LaplacianConvolution(WIDTH, 6), Lstm(6, 4)],
    "time, graph": lambda: [LastLinear(2, WIDTH), Sage(WIDTH, 4, None)],
    "time, time": lambda: [LastLinear(2, WIDTH), GatedConvolution(WIDTH, WIDTH, shared=True)],
}


@pytest.mark.parametrize("stack", STACKS)
def test_a_timeline_in_blocks_gives_the_rows_of_the_whole(stack: str) -> None:
    stages = STACKS[stack]()
    whole = rows_of(stages, [slice(0, STEPS)])
    assert whole.shape[:2] == (STEPS, NODES)
    for cut in ([slice(0, 2), slice(2, 5)], [slice(t, t + 1) for t in range(STEPS)]):
        torch.testing.assert_close(rows_of(stages, cut), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stack", STACKS)
def test_the_last_rows_alone_are_those_of_the_whole(stack: str) -> None:
    stages = STACKS[stack]()
    whole = rows_of(stages, [slice(0, STEPS)])
    torch.testing.assert_close(rows_of(stages, [slice(0, STEPS)], last=True), whole[-1:], rtol=0, atol=1e-12)


def test_the_future_never_changes_the_past() -> None:
    stages = STACKS["graph, time, graph, time"]()
    whole = rows_of(stages, [slice(0, STEPS)])
    for until in range(1, STEPS):
        assert torch.equal(rows_of(stages, [slice(0, until)]), whole[:until])


def test_time_stages_keep_nodes_apart() -> None:
    rows, there = torch.randn(STEPS, NODES, WIDTH), torch.ones(STEPS, NODES, dtype=torch.bool)
    for stage in (LastLinear(3, WIDTH), GatedConvolution(WIDTH, WIDTH, shared=True), Lstm(WIDTH, WIDTH)):
        assert isinstance(stage, TimeStage)
        other = rows.clone()
        other[:, 0] += 1
        assert torch.equal(stage(rows, there, None)[0][:, 1:], stage(other, there, None)[0][:, 1:])
