"""GAT-LSTM, DySAT and DCRNN beside plain NumPy, node by node; and what must not change their rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from grid_layout import Grid, arrays, sigmoid
from torch import Tensor

from freshet_graph.trainer.models.attention import SnapshotAttention
from freshet_graph.trainer.models.dcrnn import DiffusionCell
from freshet_graph.trainer.models.interface import ModelShape, SnapshotModel, create_model
from freshet_graph.trainer.models.stages import CellStage
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.nn.graph import CSRGraph, DirectedGraph

pytestmark = pytest.mark.usefixtures("double")
NODES, STEPS, WINDOW, FEATURES = 8, 6, 4, 2
COMES = np.array([0, 0, 0, 0, 0, 2, 3, 0])
"""The snapshot by which each node has come; the last one never has an edge."""
CASES = {
    "gatlstm": {"hidden": 6, "heads": 3, "signature": 0},
    "gatlstm, one layer": {"hidden": 6, "heads": 1, "layers": 1, "signature": 0},
    "gatlstm, residual": {"hidden": 6, "heads": 3, "signature": 0, "residual": True},
    "dysat": {"hidden": 6, "heads": 2, "temporal_heads": 3, "signature": 0},
    "dysat, residual": {"hidden": 6, "heads": 2, "temporal_heads": 3, "signature": 0, "residual": True},
    "dysat, two hops": {
        "hidden": 6,
        "heads": 2,
        "temporal_heads": 3,
        "signature": 0,
        "fanouts": [None, None],
    },
    "dcrnn": {"hidden": 5, "signature": 0},
    "dcrnn, K = 1": {"hidden": 5, "signature": 0, "terms": 1},
    "dcrnn, K = 3": {"hidden": 5, "signature": 0, "terms": 3, "layers": 1},
}
EVERY = pytest.mark.parametrize("case", CASES)


def model_of(case: str) -> SnapshotModel:
    model = create_model(case.split(",", maxsplit=1)[0], ModelShape(FEATURES, WINDOW), CASES[case])
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():  # no weight is zero, biases included
        for weights in model.parameters():
            weights.add_(torch.randn(weights.shape, generator=generator) * 0.3)
    assert isinstance(model, SnapshotModel)
    return model


def weighted(t: int) -> np.ndarray:
    """W, where W[u, v] is the weight of u → v; one node is a source, one a sink, and the last one has no edge."""
    rng = np.random.default_rng(20 + t)
    weights = np.where(rng.random((NODES, NODES)) < 0.35, rng.integers(1, 5, (NODES, NODES)) / 2, 0)
    np.fill_diagonal(weights, 0)
    weights[:, 0] = weights[1] = weights[-1] = weights[:, -1] = 0
    weights[0, 1] = 1.5
    weights[t < COMES] = weights[:, t < COMES] = 0
    return weights


def csr(rows: np.ndarray, *, values: bool) -> CSRGraph:
    targets, sources = np.nonzero(rows)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=NODES))])
    return CSRGraph(
        torch.from_numpy(indptr), torch.from_numpy(sources), NODES,
        values=torch.from_numpy(rows[targets, sources]) if values else None, symmetric=not values,
    )  # fmt: skip


class World(Grid):
    """Snapshots with directed weights; graph stages see who is joined at all."""

    def __init__(self, weights: Sequence[np.ndarray], x: Tensor, comes: np.ndarray, first: int = 0) -> None:
        there = torch.from_numpy(np.arange(first, first + len(weights))[:, None] >= comes)
        joined = [csr((each + each.T) > 0, values=False) for each in weights]
        super().__init__(joined, x * there.unsqueeze(2), there)
        self._weights = weights

    def along_both(self, stage: CellStage, x: Tensor, carry: Any) -> tuple[Tensor, Any]:
        state, found = carry, []
        for each, rows, there in zip(self._weights, x, self._there, strict=True):
            state = stage(DirectedGraph(csr(each.T, values=True), csr(each, values=True)), rows, state)
            state = state * there.unsqueeze(1)
            found.append(state)
        return torch.stack(found), state


WEIGHTS = [weighted(t) for t in range(STEPS)]


def inputs_of(model: SnapshotModel, seed: int = 5) -> Tensor:
    return torch.randn(STEPS, NODES, model.inputs, generator=torch.Generator().manual_seed(seed))


def embedded(
    model: SnapshotModel, x: Tensor, blocks: Sequence[slice] = (slice(0, STEPS),), last: bool = False
) -> Tensor:
    carry, found = None, []
    for block in blocks:
        layout = World(WEIGHTS[block], x[block], COMES, block.start)
        rows, carry = unroll(model.stages, layout, carry, last=last)
        found.append(rows.detach())
    return torch.cat(found)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def plain_attention(w: dict[str, np.ndarray], weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Veličković et al., equations 1 to 6: ELU per head, heads side by side."""
    joined = (weights + weights.T) > 0
    heads, d = w["of_source"].shape
    out = np.zeros((NODES, heads * d))
    for i in range(NODES):
        around = [i, *np.flatnonzero(joined[i])]
        for h in range(heads):
            columns = slice(h * d, (h + 1) * d)
            projected = w["linear.weight"][columns]
            scores = []
            for j in around:
                e = np.concatenate([w["of_target"][h], w["of_source"][h]]) @ np.concatenate(
                    [projected @ x[i], projected @ x[j]]
                )
                scores.append(e if e > 0 else 0.2 * e)
            found = softmax(np.array(scores)) @ (x[around] @ projected.T) + w["bias"][columns]
            out[i, columns] = np.where(found > 0, found, np.expm1(found))
    return out


def plain_lstm(w: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    width = w["of_state.weight"].shape[1]
    out = np.zeros((STEPS, NODES, width))
    for node in range(NODES):
        h = c = np.zeros(width)
        for t in range(COMES[node], STEPS):
            gates = w["of_inputs.weight"] @ rows[t, node] + w["of_inputs.bias"] + w["of_state.weight"] @ h
            i, f, g, o = np.split(gates, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            out[t, node] = h = sigmoid(o) * np.tanh(c)
    return out


def plain_temporal(w: dict[str, np.ndarray], rows: np.ndarray, heads: int) -> np.ndarray:
    """Sankar et al., equation 2 and the authors' position-wise layer; positions count back."""
    out = np.zeros_like(rows)
    d = rows.shape[2] // heads
    for node in range(NODES):
        for t in range(COMES[node], STEPS):
            seen = [s for s in range(max(0, t - WINDOW + 1), t + 1) if s >= COMES[node]]
            x = np.array([rows[s, node] + w["position"][t - s] for s in seen])
            q, k, v = (x @ w[f"{name}.weight"].T for name in ("query", "key", "value"))
            mixed = [
                softmax(k[:, at : at + d] @ q[-1, at : at + d] / np.sqrt(d)) @ v[:, at : at + d]
                for at in range(0, heads * d, d)
            ]
            z = np.concatenate(mixed)
            out[t, node] = z + np.maximum(w["feed.weight"] @ z + w["feed.bias"], 0)
    return out


def plain_diffusion(theta: np.ndarray, weights: np.ndarray, x: np.ndarray, terms: int) -> np.ndarray:
    """Li et al., equation 2, by powers of dense matrices; θ of power 0 is one matrix for both directions."""

    def normal(a: np.ndarray) -> np.ndarray:
        total = a.sum(axis=1, keepdims=True)
        return np.divide(a, total, out=np.zeros_like(a), where=total > 0)

    parts = np.split(theta, 2 * terms - 1, axis=1)
    out, place = x @ parts[0].T, 1
    for walk in (normal(weights), normal(weights.T)):
        for k in range(1, terms):
            out = out + np.linalg.matrix_power(walk, k) @ x @ parts[place].T
            place += 1
    return out


def plain_dcrnn(w: dict[str, np.ndarray], rows: np.ndarray, terms: int) -> np.ndarray:
    width = len(w["of_reset.weight"])
    h, out = np.zeros((NODES, width)), []
    for t in range(STEPS):

        def gate(number: int, state: np.ndarray, of_state: np.ndarray, t: int = t) -> np.ndarray:
            part = slice(number * width, (number + 1) * width)
            convolved = plain_diffusion(w["of_inputs.weight"][part], WEIGHTS[t], rows[t], terms)
            return convolved + w["of_inputs.bias"][part] + plain_diffusion(of_state, WEIGHTS[t], state, terms)

        u = sigmoid(gate(0, h, w["of_state.weight"][:width]))
        r = sigmoid(gate(1, h, w["of_state.weight"][width:]))
        c = np.tanh(gate(2, r * h, w["of_reset.weight"]))
        h = (u * h + (1 - u) * c) * (t >= COMES)[:, None]
        out.append(h)
    return np.array(out)


@EVERY
def test_a_model_is_its_equations(case: str) -> None:
    model = model_of(case)
    x = inputs_of(model)
    there = (np.arange(STEPS)[:, None] >= COMES)[:, :, None]
    rows = x.numpy() * there
    for stage in model.stages:
        w, kind = arrays(stage), type(stage).__name__
        if kind in ("GraphAttention", "Residual"):
            w = {name.removeprefix("stage."): weight for name, weight in w.items()}
            own = rows @ w["skip.weight"].T if kind == "Residual" else 0
            rows = np.array([plain_attention(w, each, row) for each, row in zip(WEIGHTS, rows, strict=True)])
            rows = (rows + own) * there
        elif kind == "Lstm":
            rows = plain_lstm(w, rows)
        elif kind == "SnapshotAttention":
            rows = plain_temporal(w, rows, CASES[case]["temporal_heads"])
        else:
            rows = plain_dcrnn(w, rows, CASES[case].get("terms", 2))
    found = embedded(model, x)
    np.testing.assert_allclose(found.numpy(), rows, rtol=0, atol=1e-10)
    assert np.isfinite(rows).all()
    assert (rows[~there[:, :, 0]] == 0).all()


@EVERY
def test_a_timeline_in_blocks_gives_the_rows_of_the_whole(case: str) -> None:
    model = model_of(case)
    x = inputs_of(model)
    whole = embedded(model, x)
    for cut in (
        [slice(0, 2), slice(2, 6)],
        [slice(t, t + 1) for t in range(STEPS)],
        [slice(0, 5), slice(5, 6)],
    ):
        torch.testing.assert_close(embedded(model, x, cut), whole, rtol=0, atol=1e-12)
        torch.testing.assert_close(embedded(model, x, cut, last=True)[-1], whole[-1], rtol=0, atol=1e-12)


@EVERY
def test_the_future_never_changes_the_past(case: str) -> None:
    model = model_of(case)
    x = inputs_of(model)
    whole = embedded(model, x)
    for until in range(1, STEPS):
        other = x.clone()
        other[until:] += 1
        assert torch.equal(embedded(model, other)[:until], whole[:until])
        assert not torch.equal(embedded(model, other)[until:], whole[until:])
        assert torch.equal(embedded(model, x, [slice(0, until)]), whole[:until])


@EVERY
def test_numbers_of_nodes_change_nothing_but_their_places(case: str) -> None:
    model = model_of(case)
    x, order = inputs_of(model), np.random.default_rng(2).permutation(NODES)
    layout = World([each[np.ix_(order, order)] for each in WEIGHTS], x[:, order], COMES[order])
    found, _ = unroll(model.stages, layout)
    torch.testing.assert_close(found.detach(), embedded(model, x)[:, order], rtol=0, atol=1e-12)


@EVERY
def test_gradients_are_the_numeric_ones_through_time(case: str) -> None:
    model = model_of(case)
    x = inputs_of(model)[:3, :, :].requires_grad_()

    def through(rows: Tensor) -> Tensor:
        return unroll(model.stages, World(WEIGHTS[:3], rows, COMES))[0]

    assert torch.autograd.gradcheck(through, (x,), atol=1e-6, fast_mode=True)


def test_a_row_looks_at_no_more_snapshots_than_the_window_has() -> None:
    stage, rows = SnapshotAttention(3, 4, 2), torch.randn(STEPS, NODES, 4)
    there = torch.ones(STEPS, NODES, dtype=torch.bool)
    other = rows.clone()
    other[0] += 1
    found, changed = (stage(each, there, None)[0] for each in (rows, other))
    assert torch.equal(found[3:], changed[3:])
    assert all(not torch.equal(found[t], changed[t]) for t in range(3))


def test_attention_over_time_of_one_snapshot_and_none() -> None:
    stage, rows = SnapshotAttention(1, 4, 2), torch.randn(STEPS, NODES, 4)
    there = torch.ones(STEPS, NODES, dtype=torch.bool)
    whole, carry = stage(rows, there, None)
    assert len(carry[0]) == 0
    alone = torch.cat([stage(rows[t : t + 1], there[t : t + 1], None)[0] for t in range(STEPS)])
    torch.testing.assert_close(alone, whole)
    none, _ = stage.last(rows[:0], there[:0], None)
    assert torch.equal(none, torch.zeros(1, NODES, 4))


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_a_cell_looks_as_far_as_its_hops(terms: int) -> None:
    """Along a path, a node that many hops away changes a state, and one farther away does not."""
    path = np.diag(np.ones(NODES - 1), 1)
    stage, x, h = DiffusionCell(3, 4, terms), torch.randn(NODES, 3), torch.randn(NODES, 4)
    graph = DirectedGraph(csr(path.T, values=True), csr(path, values=True))
    assert stage.hops == 2 * (terms - 1)
    before = stage(graph, x, h)
    for node in range(NODES):
        other = h.clone()
        other[node] += 1
        changed = (stage(graph, x, other) != before).any(dim=1).nonzero().flatten()
        assert (changed - node).abs().max() == min(stage.hops, max(node, NODES - 1 - node))


def test_the_backward_pass_of_a_diffusion_builds_no_transpose() -> None:
    stage, x = DiffusionCell(3, 4, 3), torch.randn(NODES, 3, requires_grad=True)
    graph, before = (
        DirectedGraph(csr(WEIGHTS[0].T, values=True), csr(WEIGHTS[0], values=True)),
        CSRGraph.transposes_built,
    )
    stage(graph, x, None).square().sum().backward()
    assert CSRGraph.transposes_built == before
    assert torch.autograd.gradcheck(lambda rows: stage(graph, rows, torch.ones(NODES, 4)), (x,))
