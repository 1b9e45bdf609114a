"""Snapshot models from their papers' equations, in plain NumPy, and timelines drawn for them."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from freshet_graph.trainer.models.interface import SnapshotModel
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.nn.graph import CSRGraph

Array = NDArray[np.float64]
Weights = dict[str, Array]


@dataclass(frozen=True)
class Drawn:
    """A timeline as dense arrays.

    Attributes:
        a: (t, n, n), symmetric, without self-loops; an entry is an edge's value.
        x: (t, n, d); zero before a node has come.
        there: bool (t, n); who has come stays.
        weighted: Whether values are other than 1.
    """

    a: Array
    x: Array
    there: NDArray[np.bool_]
    weighted: bool = False

    def part(self, chosen: slice) -> "Drawn":
        """Some of the snapshots."""
        return Drawn(self.a[chosen], self.x[chosen], self.there[chosen], self.weighted)

    def renumbered(self, order: NDArray[np.int64]) -> "Drawn":
        """Node i is what node ``order[i]`` was."""
        return Drawn(self.a[:, order][:, :, order], self.x[:, order], self.there[:, order], self.weighted)


def drawn(
    seed: int, steps: int, nodes: int, width: int, *, weighted: bool = False, share: float | None = None
) -> Drawn:
    """Nodes come one after the other, edges come and go, and the last node never has one; a share of pairs has one."""
    rng = np.random.default_rng(seed)
    born = rng.integers(0, steps, nodes) * (rng.random(nodes) < 0.4)
    there = np.arange(steps)[:, None] >= born
    of_pairs = rng.choice([0.0, 0.2, 0.6]) if share is None else share
    upper = np.triu(rng.random((steps, nodes, nodes)) < of_pairs, 1).astype(float)
    if weighted:
        upper *= rng.integers(1, 5, upper.shape) / 2
    upper *= there[:, :, None] & there[:, None, :]
    upper[:, :, -1:] = 0
    x = rng.normal(size=(steps, nodes, width)) * there[:, :, None]
    return Drawn(upper + upper.transpose(0, 2, 1), x, there, weighted)


def timelines(width: int) -> st.SearchStrategy[Drawn]:
    """Drawn timelines of a width."""
    return st.builds(
        lambda seed, steps, nodes, weighted: drawn(seed, steps, nodes, width, weighted=weighted),
        st.integers(0, 2**32 - 1),
        st.integers(1, 6),
        st.integers(1, 9),
        st.booleans(),
    )


def csr_of(a: Array, *, weighted: bool, index: type[np.signedinteger[Any]] = np.int64) -> CSRGraph:
    """A dense symmetric adjacency, compressed."""
    rows, columns = np.nonzero(a)
    indptr = np.searchsorted(rows, np.arange(len(a) + 1)).astype(index)
    values = torch.from_numpy(a[rows, columns]) if weighted else None
    return CSRGraph(
        torch.from_numpy(indptr),
        torch.from_numpy(columns.astype(index)),
        len(a),
        values=values,
        symmetric=True,
    )


class ArrayLayout:
    """A layout that holds a drawn timeline whole."""

    def __init__(self, timeline: Drawn, model: SnapshotModel) -> None:
        self.steps = len(timeline.a)
        self.graphs = model.operators([csr_of(a, weighted=timeline.weighted) for a in timeline.a])
        self.rows, self.there = torch.from_numpy(timeline.x), torch.from_numpy(timeline.there)

    def inputs(self) -> Tensor:
        """See ``Layout.inputs``."""
        return self.rows

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        """See ``Layout.along_graph``: one snapshot after the other, as a rank that has one of them would."""
        newest = list(zip(self.graphs[-len(x) :], x, strict=True))[-len(weights) :]
        return torch.stack(
            [stage(graph, rows, rows, own) for (graph, rows), own in zip(newest, weights, strict=True)]
        )

    def summaries(self, stage: GraphStage, x: Tensor) -> list[Tensor]:
        """See ``Layout.summaries``."""
        return [stage.summary(graph, rows) for graph, rows in zip(self.graphs, x, strict=True)]

    def along_both(self, stage: Any, x: Tensor, carry: Any) -> tuple[Tensor, Any]:
        """See ``Layout.along_both``."""
        raise AssertionError

    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``."""
        there = self.there[-len(x) :]
        return x * there.unsqueeze(2), there

    def to_snapshots(self, rows: Tensor) -> Tensor:
        """See ``Layout.to_snapshots``."""
        return rows

    def embeddings(self, x: Tensor) -> Tensor:
        """See ``Layout.embeddings``."""
        return self.to_nodes(x)[0]


def embedded(model: SnapshotModel, timeline: Drawn, *cuts: int, last: bool = False) -> Array:
    """Rows (t, n, d') of a model, in blocks that begin at ``cuts`` and at 0."""
    carry, found = None, []
    bounds = [0, *cuts, len(timeline.a)]
    for begin, end in itertools.pairwise(bounds):
        layout = ArrayLayout(timeline.part(slice(begin, end)), model)
        rows, carry = unroll(model.stages, layout, carry, last=last)
        found.append(rows.detach().numpy())
    return np.concatenate(found)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def laplacian(a: Array) -> Array:
    """D^−½(A + I)D^−½ with D = I + diag(Σ A)."""
    scale = np.diag(1 / np.sqrt(1 + a.sum(axis=1)))
    return scale @ (a + np.eye(len(a))) @ scale


def means(rows: Sequence[Array], bandwidth: int) -> list[Array]:
    """The M-product: M_tk = 1 / min(b, t) for the last min(b, t) snapshots."""
    return [
        sum(rows[max(0, t - bandwidth) : t], np.zeros_like(rows[0])) / min(bandwidth, t)
        for t in range(1, len(rows) + 1)
    ]


def masked(rows: Sequence[Array], there: NDArray[np.bool_]) -> list[Array]:
    """Nobody has a row before it has come."""
    return [row * come[:, None] for row, come in zip(rows, there, strict=True)]


def lstm(w: Weights, prefix: str, rows: Sequence[Array], there: NDArray[np.bool_]) -> list[Array]:
    """One LSTM for all nodes, from zero, its candidate a tanh; whoever has not come has no state."""
    width = w[f"{prefix}.of_state.weight"].shape[1]
    h, c = np.zeros((len(there[0]), width)), np.zeros((len(there[0]), width))
    found = []
    for y, come in zip(rows, there, strict=True):
        pre = y @ w[f"{prefix}.of_inputs.weight"].T + h @ w[f"{prefix}.of_state.weight"].T
        i, f, g, o = np.split(pre + w[f"{prefix}.of_inputs.bias"], 4, axis=1)
        cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = np.where(come[:, None], sigmoid(o) * np.tanh(cell), h)
        c = np.where(come[:, None], cell, c)
        found.append(h)
    return found


def own(w: Weights, layer: int, x: Array) -> Array | float:
    """The linear map of ``residual: true``: X S; 0 without it."""
    weight = w.get(f"layers.{layer}.skip.weight")
    return 0.0 if weight is None else x @ weight.T


def sage_linear(w: Weights, timeline: Drawn, window: int, **_: Any) -> list[Array]:
    """DistDy section 5.1; unweighted or weighted means of all neighbours."""
    found = []
    for a, x in zip(timeline.a, timeline.x, strict=True):
        mean = a / np.where(a.sum(axis=1) > 0, a.sum(axis=1), 1)[:, None]
        h = x
        for layer in range(2):
            own, others = (w[f"layers.{layer}.{part}.weight"] for part in ("own", "neighbours"))
            h = relu(h @ own.T + w[f"layers.{layer}.own.bias"] + mean @ h @ others.T)
        found.append(h)
    found = [np.zeros_like(found[0])] * (window - 1) + masked(found, timeline.there)
    weight, bias = w["temporal.weight"], w["temporal.bias"]
    return [np.hstack(found[t : t + window]) @ weight.T + bias for t in range(len(timeline.a))]


def tgcn(w: Weights, timeline: Drawn, gates: str = "each", **_: Any) -> list[Array]:
    """Zhao et al. (2020), equations 3 to 6, with a convolution in each gate or one for all."""
    rows = list(timeline.x)
    for layer in (0, 2):
        weight, bias = w[f"layers.{layer + 1}.linear.weight"], w[f"layers.{layer + 1}.linear.bias"]
        gate = {
            name: (w[f"layers.{layer + 1}.{name}.weight"], w[f"layers.{layer + 1}.{name}.bias"])
            for name in ("update", "reset", "candidate")
        }
        h = np.zeros((len(rows[0]), len(gate["update"][1])))
        found = []
        for a, x, come in zip(timeline.a, rows, timeline.there, strict=True):
            f = laplacian(a) @ x @ weight.T + bias
            convolved = np.split(f, 3, axis=1) if gates == "each" else [f] * 3
            u, r = (
                sigmoid(np.hstack([part, h]) @ gate[name][0].T + gate[name][1])
                for name, part in zip(("update", "reset"), convolved, strict=False)
            )
            c = np.tanh(np.hstack([convolved[2], r * h]) @ gate["candidate"][0].T + gate["candidate"][1])
            h = np.where(come[:, None], u * h + (1 - u) * c, h)
            found.append(h)
        rows = found
    return rows


def tmgcn(
    w: Weights, timeline: Drawn, window: int, bandwidth: int | None = None, normalise: str = "after", **_: Any
) -> list[Array]:
    """ESDG section 5.1, and with ``before`` the order of the code of Malik et al."""
    b, rows = bandwidth or window, list(timeline.x)
    operators = [laplacian(a) for a in timeline.a]
    first = 0
    if normalise == "before":
        operators, rows, first = means(operators, b), means(rows, b), 1
    for layer in (first, first + 2):
        weight = w[f"layers.{layer + 1}.linear.weight"]
        y = [relu(operator @ x @ weight.T) for operator, x in zip(operators, rows, strict=True)]
        rows = means(masked(y, timeline.there), b)
    return rows


def cdgcn(w: Weights, timeline: Drawn, skip: str = "aggregated", **_: Any) -> list[Array]:
    """ESDG section 2.2: Y0 = ÃX, Y = σ(Y0 ‖ Y0 W), then the LSTM; with ``inputs`` X ‖ σ(ÃXW) (Manessi et al.)."""
    rows = list(timeline.x)
    for layer in (0, 2):
        weight, joined = w[f"layers.{layer}.linear.weight"], []
        for a, x in zip(timeline.a, rows, strict=True):
            y0 = laplacian(a) @ x
            joined.append(
                np.hstack([relu(y0), relu(y0 @ weight.T)])
                if skip == "aggregated"
                else np.hstack([x, relu(y0 @ weight.T)])
            )
        rows = lstm(w, f"layers.{layer + 1}", joined, timeline.there)
    return rows


def wdgcn(w: Weights, timeline: Drawn, **_: Any) -> list[Array]:
    """Manessi et al. (2020): Y = σ(ÃXW), then the LSTM."""
    rows = list(timeline.x)
    for layer in (0, 2):
        weight = w[f"layers.{layer}.linear.weight"]
        y = [
            relu(laplacian(a) @ x @ weight.T) + own(w, layer, x)
            for a, x in zip(timeline.a, rows, strict=True)
        ]
        rows = lstm(w, f"layers.{layer + 1}", y, timeline.there)
    return rows


def evolvegcn(
    w: Weights, timeline: Drawn, cell: str = "gru", *, summarised: bool = False, **_: Any
) -> list[Array]:
    """Pareja et al. (2020), section 3.2 to 3.4, and the authors' order: weights evolve, then they are used."""
    rows = list(timeline.x)
    for layer in (0, 1):
        u, v, b = (w[f"layers.{layer}.cell.{name}"] for name in ("of_input", "of_state", "bias"))
        weight = w[f"layers.{layer}.initial"]
        memory, d = np.zeros_like(weight), len(weight)
        us, vs, bs = (np.split(every, len(b) // d) for every in (u, v, b))
        found = []
        for a, x in zip(timeline.a, rows, strict=True):
            told = summary(w[f"layers.{layer}.scorer"], a, x, weight.shape[1]).T if summarised else weight
            if cell == "gru":
                z = sigmoid(us[0] @ told + vs[0] @ weight + bs[0])
                r = sigmoid(us[1] @ told + vs[1] @ weight + bs[1])
                new = np.tanh(us[2] @ told + vs[2] @ (r * weight) + bs[2])
                weight = (1 - z) * weight + z * new
            else:
                i, f, g, o = (us[k] @ told + vs[k] @ weight + bs[k] for k in range(4))
                memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
                weight = sigmoid(o) * np.tanh(memory)
            found.append(relu(laplacian(a) @ x @ weight) + own(w, layer, x))
        rows = found
    return masked(rows, timeline.there)


def summary(p: Array, a: Array, x: Array, k: int) -> Array:
    """The rows of the k best live nodes, each times tanh of its score; the last again where there are fewer."""
    y = x @ p / np.linalg.norm(p)
    live = [node for node in np.argsort(-y, kind="stable") if a[node].any()]
    if not live:
        return np.zeros((k, x.shape[1]))
    chosen = (live + [live[min(k, len(live)) - 1]] * k)[:k]
    return np.array([x[node] * np.tanh(y[node]) for node in chosen])


ORACLES: dict[str, Callable[..., list[Array]]] = {
    "sage-linear": sage_linear,
    "tgcn": tgcn,
    "tmgcn": tmgcn,
    "cdgcn": cdgcn,
    "wdgcn": wdgcn,
    "evolvegcn-o": evolvegcn,
    "evolvegcn-h": lambda *args, **options: evolvegcn(*args, **options, summarised=True),
}


def oracle(model: SnapshotModel, timeline: Drawn, **options: Any) -> Array:
    """Embeddings (t, n, d') after every snapshot."""
    w = {name.replace(".stage.", "."): value.detach().numpy() for name, value in model.named_parameters()}
    return np.stack(ORACLES[model.name](w, timeline, window=model.window, **options))
