"""A training step of snapshot models beside public codes' ways of computing it, and their products, on one thread.

Anchors take turns with ours in one run; a figure is the median of the thread's processor time, which other load on the
machine changes less than the clock. IBM's EvolveGCN and TM-GCN (with WD-GCN) are not packages, so their ways are written
here from the equations: a torch.sparse product for each snapshot, one matrix for each gate, all in Python loops. T-GCN's
and DCRNN's anchors are cells of PyTorch Geometric Temporal, if it can be imported:

    pip install --no-deps --target anchors torch-geometric-temporal==0.56.0 torch-geometric
    PYTHONPATH=anchors python benchmarks/snapshot_models.py

Its DCRNN makes a dense matrix of the graph in each of its convolutions, 1.6 GB for 20,000 nodes. With --nodes 2000 that hardly
counts. ``--only`` chooses models whose name has a word, or product; ``--steps`` is the window. Every edge here has its reverse,
for the cell gives inf where a source has no in-edge.
"""

import importlib.util
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
import torch
from torch import Tensor, nn

from freshet_graph.trainer.models.interface import ModelShape, SnapshotModel, create_model
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.nn.aggregate import aggregate_normalised
from freshet_graph.trainer.nn.graph import CSRGraph, DirectedGraph
from freshet_graph.trainer.strategies.snapshots.whole import WholeLayout, keeps_zeros

Step = Callable[[], Any]
HIDDEN, SIGNATURE = 64, 32


class Whole(WholeLayout):
    """All rows of a block, as strategy ``whole`` has them, of graphs without a store; every node is there."""

    def __init__(self, graphs: list[CSRGraph], rows: Tensor, model: SnapshotModel) -> None:
        self.keeps_zeros = keeps_zeros(model)
        self.steps, self.rows, self._graphs, self._block = len(graphs), rows, graphs, range(len(graphs))
        self.present = torch.ones(rows.shape[:2], dtype=torch.bool)
        self._horizon: Any = SimpleNamespace(directed=[DirectedGraph(graph, graph) for graph in graphs])


class IbmEvolveGcnO(nn.Module):
    """IBM/EvolveGCN, egcn_o: a matrix GRU with six products, then Ã (X W) of every snapshot, layer by layer."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.sizes = [(inputs, HIDDEN), (HIDDEN, HIDDEN)]
        self.first = nn.ParameterList(nn.Parameter(torch.randn(size) * 0.1) for size in self.sizes)
        self.gates = nn.ParameterList(
            nn.Parameter(torch.randn(d, d) * 0.1) for d, _ in self.sizes for _ in range(6)
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(size)) for size in self.sizes for _ in range(3)
        )
        self.activation = nn.RReLU()

    def forward(self, adjacency: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
        for layer, weight in enumerate(self.first):
            u, b = self.gates[6 * layer : 6 * layer + 6], self.biases[3 * layer : 3 * layer + 3]
            found, evolved = [], weight
            for a, x in zip(adjacency, rows, strict=True):
                update = torch.sigmoid(u[0] @ evolved + u[1] @ evolved + b[0])
                reset = torch.sigmoid(u[2] @ evolved + u[3] @ evolved + b[1])
                candidate = torch.tanh(u[4] @ evolved + u[5] @ (reset * evolved) + b[2])
                evolved = (1 - update) * evolved + update * candidate
                found.append(self.activation(a.matmul(x.matmul(evolved))))
            rows = found
        return rows


class IbmTmGcn(nn.Module):
    """IBM/TM-GCN: a sparse product for each snapshot, then the M-product by a dense matrix over time."""

    def __init__(self, inputs: int, steps: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(d, HIDDEN) * 0.1) for d in (inputs, HIDDEN))
        m = torch.ones(steps, steps).tril()
        self.m = m / m.sum(dim=1, keepdim=True)

    def forward(self, adjacency: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
        x = torch.stack(rows)
        for weight in self.weights:
            aggregated = torch.stack([torch.sparse.mm(a, each) for a, each in zip(adjacency, x, strict=True)])
            y = torch.relu(torch.matmul(aggregated, weight))
            x = torch.matmul(self.m, y.reshape(len(y), -1)).reshape(y.shape)
        return list(x)


class IbmWdGcn(nn.Module):
    """IBM/TM-GCN's WD-GCN, with the candidate as in the paper: a sparse product, then eight products a snapshot."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(d, HIDDEN) * 0.1) for d in (inputs, HIDDEN))
        self.gates = nn.ParameterList(nn.Parameter(torch.randn(HIDDEN, HIDDEN) * 0.1) for _ in range(16))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(HIDDEN)) for _ in range(8))

    def forward(self, adjacency: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
        for layer, weight in enumerate(self.weights):
            u, b = self.gates[8 * layer : 8 * layer + 8], self.biases[4 * layer : 4 * layer + 4]
            h = c = rows[0].new_zeros(len(rows[0]), HIDDEN)
            found = []
            for a, x in zip(adjacency, rows, strict=True):
                y = torch.relu(torch.sparse.mm(a, x).matmul(weight))
                f, i, o = (torch.sigmoid(y @ u[2 * k] + h @ u[2 * k + 1] + b[k]) for k in range(3))
                c = f * c + i * torch.tanh(y @ u[6] + h @ u[7] + b[3])
                h = o * torch.tanh(c)
                found.append(h)
            rows = found
        return rows


def temporal(file: str, name: str, *terms: int) -> Callable[[list[Tensor], Tensor], Step] | None:
    """Two cells of PyTorch Geometric Temporal, one on the other; None: it is not installed."""
    package = importlib.util.find_spec("torch_geometric_temporal")
    if package is None or package.submodule_search_locations is None:
        print("no PyTorch Geometric Temporal")
        return None
    # the package itself imports torch_sparse, which has no wheel; the cells do not
    path = Path(package.submodule_search_locations[0]) / f"nn/recurrent/{file}.py"
    spec = importlib.util.spec_from_file_location(file, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cell = getattr(module, name)

    def made(edges: list[Tensor], rows: Tensor) -> Step:
        first, second = cell(rows.shape[2], HIDDEN, *terms), cell(HIDDEN, HIDDEN, *terms)
        weights = [torch.ones(edge.shape[1]) if terms else None for edge in edges]

        def step() -> None:
            low = high = None
            for edge, weight, x in zip(edges, weights, rows, strict=True):
                low = first(x, edge, weight, low)
                high = second(low, edge, weight, high)
            assert high is not None
            high.square().mean().backward()

        return step

    return made


def graphs_of(nodes: int, degree: int, steps: int) -> tuple[list[CSRGraph], list[Tensor], list[Tensor]]:
    """Snapshots with hubs: as graphs, as lists of edges (2, edges), and as normalised torch.sparse matrices (COO)."""
    rng, graphs, edges, sparse = np.random.default_rng(0), [], [], []
    for _ in range(steps):
        count = nodes * degree // 2
        pairs = np.stack([rng.integers(0, nodes, count), (nodes * rng.random(count) ** 2).astype(np.int64)])
        pairs = pairs[:, pairs[0] != pairs[1]]
        keys = np.unique(np.concatenate([pairs[0] * nodes + pairs[1], pairs[1] * nodes + pairs[0]]))
        target, source = keys // nodes, keys % nodes
        indptr = torch.from_numpy(np.searchsorted(target, np.arange(nodes + 1)).astype(np.int32))
        graph = CSRGraph(indptr, torch.from_numpy(source.astype(np.int32)), nodes, symmetric=True)
        both = torch.from_numpy(np.stack([target, source]))
        loops = torch.arange(nodes).expand(2, -1)
        values = torch.cat([graph.operator.values, graph.diagonal.squeeze(1)])
        graphs.append(graph)
        edges.append(both)
        sparse.append(torch.sparse_coo_tensor(torch.cat([both, loops], dim=1), values).coalesce())
    return graphs, edges, sparse


def row(title: str, steps: dict[str, Step], repeat: int) -> Iterator[list[str]]:
    """Rows: ours, and how many times as long the others take, in milliseconds of processor time."""
    found = harness.medians(harness.in_turns(steps, repeat))
    for name, seconds in found.items():
        yield [title, name, f"{1e3 * seconds:.1f}", f"{seconds / found['ours']:.2f}"]


def products(graph: CSRGraph, sparse: Tensor, edge: Tensor, width: int, repeat: int) -> Iterator[list[str]]:
    """The normalised product, forwards and with its gradient."""
    x = torch.randn(graph.num_sources, width, requires_grad=True)
    single = x.detach().unsqueeze(0).requires_grad_()
    pull, csr = torch.randn_like(x), sparse.to_sparse_csr()
    ways: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: aggregate_normalised([graph], single),
        "torch CSR": lambda: csr @ x,
        "torch COO": lambda: torch.sparse.mm(sparse, x),
    }
    try:
        import dgl

        looped = dgl.add_self_loop(dgl.graph((edge[1], edge[0]), num_nodes=len(x))).int()
        layer = dgl.nn.GraphConv(width, width, norm="both", weight=False, bias=False)
        ways["dgl"] = lambda: layer(looped, x)
    except ImportError as error:
        print(f"no dgl: {error}")
    expected = ways["ours"]()[0]
    for name, way in ways.items():
        torch.testing.assert_close(way().view(len(x), -1), expected, rtol=1e-4, atol=1e-4, msg=name)
    with torch.no_grad():
        yield from row(f"product, width {width}", ways, 2 * repeat)  # type: ignore[arg-type]
    both = {
        name: lambda way=way: torch.autograd.grad(
            found := way(), single if way is ways["ours"] else x, pull.view_as(found)
        )
        for name, way in ways.items()
    }
    yield from row(f"product and gradient, width {width}", both, 2 * repeat)


def rows(given: Any) -> Iterator[list[str]]:
    graphs, edges, sparse = graphs_of(given.nodes, given.degree, given.steps)
    print(
        f"{given.nodes} nodes, {len(graphs[0].sources)} edges, {given.steps} snapshots, 2 layers, hidden {HIDDEN}"
    )
    for width in (SIGNATURE + 3, HIDDEN) if given.only in "product" else ():
        yield from products(graphs[0], sparse[0], edges[0], width, given.repeat)
    inputs = torch.randn(given.steps, given.nodes, SIGNATURE + 3)

    def ours(name: str, *, last: bool) -> Step:
        model = create_model(name, ModelShape(0, given.steps), {"hidden": HIDDEN, "signature": SIGNATURE})
        assert isinstance(model, SnapshotModel)
        return lambda: (
            unroll(model.stages, Whole(graphs, inputs, model), last=last)[0][-1].square().mean().backward()
        )

    def ibm(model: nn.Module) -> Step:
        return lambda: model(sparse, list(inputs))[-1].square().mean().backward()

    width = inputs.shape[2]
    anchors = {
        "evolvegcn-o": IbmEvolveGcnO(width),
        "tmgcn": IbmTmGcn(width, given.steps),
        "wdgcn": IbmWdGcn(width),
    }
    for name, anchor in anchors.items():
        for last in (False, True) if given.only in name else ():
            ways = {"ours": ours(name, last=last), "IBM's way": ibm(anchor)}
            yield from row(f"{name}, {'newest' if last else 'all'} rows", ways, given.repeat)
    peers: dict[str, tuple[Any, ...]] = {"tgcn": ("temporalgcn", "TGCN"), "dcrnn": ("dcrnn", "DCRNN", 2)}
    for name, cell in peers.items():
        if given.only in name:
            peer = temporal(*cell)
            theirs = {"PyG Temporal": peer(edges, inputs)} if peer else {}
            yield from row(name, {"ours": ours(name, last=True), **theirs}, given.repeat)


def main() -> None:
    given = harness.options(__doc__, nodes=20_000, degree=10, steps=6, repeat=5, only="")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    harness.table("what | way | CPU ms | times as long as ours", rows(given))
    print(f"largest resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
