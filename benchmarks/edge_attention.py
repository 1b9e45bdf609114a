"""Attention over edges against dgl's and torch.sparse's, one thread: python benchmarks/edge_attention.py.

Scores, softmax over a node's neighbours and itself, and the weighted sum, forward and backward, on one graph with skewed
degrees; in turns, medians of milliseconds. ``dgl`` is what ``dgl.nn.GATConv`` does between its projections;
``torch.sparse`` has a product of a CSR matrix per head, whose values' gradient is a sampled product.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from trainer.nn.edge_attention import SLOPE, edge_attention
from trainer.nn.graph import CSRGraph

Case = Callable[[Tensor, Tensor, Tensor], Tensor]


def graph_of(nodes: int, degree: int) -> CSRGraph:
    rng = np.random.default_rng(0)
    one, other = (nodes * rng.random((2, nodes * degree // 2)) ** 2).astype(np.int64)
    keys = np.unique(np.concatenate([one * nodes + other, other * nodes + one]))
    rows, columns = np.divmod(keys, nodes)
    rows, columns = rows[rows != columns], columns[rows != columns]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=nodes))])
    return CSRGraph(torch.from_numpy(indptr), torch.from_numpy(columns), nodes, symmetric=True)


def with_loops(graph: CSRGraph) -> tuple[Tensor, Tensor]:
    """Targets and sources of all edges and of a loop per node, by target."""
    nodes = torch.arange(graph.num_sources)
    keys = torch.cat(
        [graph.targets * graph.num_sources + graph.sources, nodes * (graph.num_sources + 1)]
    ).sort()[0]
    return keys // graph.num_sources, keys % graph.num_sources


def dgl_case(graph: CSRGraph) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl
        import dgl.function as fn
        from dgl.nn.functional import edge_softmax
    targets, sources = with_loops(graph)
    theirs = dgl.graph((sources, targets), num_nodes=graph.num_sources).formats(["coo", "csr", "csc"])
    theirs.create_formats_()

    def attend(values: Tensor, by_source: Tensor, by_target: Tensor) -> Tensor:
        with theirs.local_scope():
            theirs.srcdata.update({"v": values, "s": by_source.unsqueeze(2)})
            theirs.dstdata.update({"t": by_target.unsqueeze(2)})
            theirs.apply_edges(fn.u_add_v("s", "t", "e"))
            theirs.edata["a"] = edge_softmax(theirs, leaky_relu(theirs.edata.pop("e"), SLOPE))
            theirs.update_all(fn.u_mul_e("v", "a", "m"), fn.sum("m", "out"))
            out: Tensor = theirs.dstdata["out"]
            return out

    return attend


class _Product(torch.autograd.Function):
    """A product with a sparse matrix, and its gradients by products of the same kind."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, values: Tensor, indptr: Tensor, sources: Tensor, back: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights, values, indptr, sources, back)
        product: Tensor = _matrix(indptr, sources, weights) @ values
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, values, indptr, sources, back = ctx.saved_tensors
        empty = _matrix(indptr, sources, torch.zeros_like(weights))
        by_weights = torch.sparse.sampled_addmm(empty, gradients[0], values.t()).values()
        return by_weights, _matrix(indptr, sources, weights[back]) @ gradients[0], None, None, None


def _matrix(indptr: Tensor, sources: Tensor, weights: Tensor) -> Tensor:
    shape = (len(indptr) - 1, len(indptr) - 1)
    return torch.sparse_csr_tensor(indptr, sources, weights, shape, check_invariants=False)


def sparse_case(graph: CSRGraph) -> Case:
    targets, sources = with_loops(graph)
    nodes = graph.num_sources
    indptr = torch.searchsorted(targets, torch.arange(nodes + 1))
    back = torch.argsort(
        sources * nodes + targets
    )  # the graph is symmetric: its transpose has other values only

    def attend(values: Tensor, by_source: Tensor, by_target: Tensor) -> Tensor:
        scores = leaky_relu(by_target[targets] + by_source[sources], SLOPE)
        place = targets.unsqueeze(1).expand_as(scores)
        largest = torch.full_like(by_target, -torch.inf).scatter_reduce(0, place, scores.detach(), "amax")
        weights = torch.exp(scores - largest[targets])
        total = torch.zeros_like(by_target).index_add(0, targets, weights)
        weights = weights / total[targets]
        sums = [
            _Product.apply(weights[:, h].contiguous(), values[:, h].contiguous(), indptr, sources, back)
            for h in range(values.shape[1])
        ]
        return torch.stack(sums, dim=1)

    return attend


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--nodes", type=int, default=20_000)
    arguments.add_argument("--degree", type=int, default=10)
    arguments.add_argument("--rounds", type=int, default=15)
    chosen = arguments.parse_args()
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    torch.set_num_threads(1)
    graph = graph_of(chosen.nodes, chosen.degree)
    cases: dict[str, Case] = {
        "ours": lambda *tensors: edge_attention(graph, *tensors),
        "torch.sparse": sparse_case(graph),
    }
    try:
        cases["dgl"] = dgl_case(graph)
    except ImportError as error:
        print(f"no dgl here: {error}")
    print(
        f"{chosen.nodes:,} nodes, {len(graph.sources):,} edges, float32, one thread; ms, medians of {chosen.rounds}"
    )
    print("| heads × width | who | forward | both | CPU, both | ours / it |")
    print("|---|---|---|---|---|---|")
    for heads, width in ((1, 64), (4, 16), (8, 8), (16, 8)):
        shapes = (chosen.nodes, heads, width), (chosen.nodes, heads), (chosen.nodes, heads)
        tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
        gradient = torch.randn(shapes[0])
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in cases}
        reference = None
        for turn in range(chosen.rounds + 2):
            for name, attend in cases.items():
                began, busy = time.perf_counter(), time.process_time()
                out = attend(*tensors)
                forward = time.perf_counter() - began
                gradients = torch.autograd.grad(out, tensors, gradient)
                times = (forward, time.perf_counter() - began, time.process_time() - busy)
                if turn >= 2:  # compiled and warm
                    found[name].append(times)
                elif turn == 0:
                    reference = reference or [out, *gradients]
                    torch.testing.assert_close([out, *gradients], reference, rtol=1e-3, atol=1e-3)
        medians = {
            name: [1e3 * statistics.median(column) for column in zip(*times, strict=True)]
            for name, times in found.items()
        }
        for name, (forward, both, busy) in medians.items():
            ratio = medians["ours"][1] / both
            print(
                f"| {heads} × {width} | {name} | {forward:.1f} | {both:.1f} | {busy:.1f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
