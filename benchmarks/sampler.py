"""Temporal neighbours against dgl's, one core: python benchmarks/sampler.py [--rounds 60].

The same graph and seeds in turns: k most recent (or uniform) interactions strictly before the batch, nodes named
once; beside ``dgl.sampling.sample_neighbors`` (uniform, knows no time) and ``to_block``. Medians of M sampled edges/s.
Before that appends to the growing graph.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from statistics import median

import harness
import numpy as np
import torch

from trainer.data.temporal_graph import TemporalGraph
from trainer.data.temporal_sampler import TemporalSampler

SEEDS, FANOUT, APPENDED = 2000, 10, 2000
DGL = "dgl sample_neighbors + to_block"
Case = Callable[[np.ndarray], int]


def dgl_case(ends: np.ndarray, layers: int) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl
    pairs = torch.from_numpy(np.concatenate([ends, ends[::-1]], axis=1))
    graph = dgl.graph((pairs[0], pairs[1])).formats("csc")

    def sample(seeds: np.ndarray) -> int:
        targets, edges = torch.from_numpy(seeds), 0
        for _ in range(layers):
            block = dgl.to_block(dgl.sampling.sample_neighbors(graph, targets, FANOUT), targets)
            edges += block.num_edges()
            targets = block.srcdata[dgl.NID]
        return edges

    return sample


def our_case(graph: TemporalGraph, how: str, before: int, layers: int) -> Case:
    sampler = TemporalSampler(graph, FANOUT, how)
    return lambda seeds: sum(int(each.sampled.count.sum()) for each in sampler.layers(seeds, before, layers))


def rows(graph: TemporalGraph, ends: np.ndarray, rounds: int) -> Iterator[list[str]]:
    rng, events = np.random.default_rng(1), ends.shape[1]
    for layers in (1, 2):
        cases = {
            "recent, distinct nodes": our_case(graph, "recent", events, layers),
            "recent in the past (binary search)": our_case(graph, "recent", events // 2, layers),
            "uniform, distinct nodes": our_case(graph, "uniform", events, layers),
            DGL: dgl_case(ends, layers),
        }
        rates: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(rounds // layers):
            seeds = np.unique(ends.ravel()[rng.integers(0, 2 * events, SEEDS)])
            for name, case in cases.items():
                began = time.perf_counter()
                edges = case(seeds)
                rates[name].append(edges / (time.perf_counter() - began) / 1e6)
                harness.require(edges > 0, f"{name} sampled nothing")
        found = {name: median(rate[3:]) for name, rate in rates.items()}
        for name, rate in found.items():
            yield [str(layers), name, f"{rate:.1f}", f"{rate / found[DGL]:.2f}"]


def main() -> None:
    given = harness.options(__doc__, events=1_000_000, nodes=100_000, rounds=60)
    harness.begin()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    ends = (given.nodes * rng.random((2, given.events)) ** 3).astype(
        np.int64
    )  # skewed, as in interaction data
    t, graph, seconds = np.arange(given.events, dtype=np.int64), TemporalGraph(), []
    for first in range(0, given.events, APPENDED):
        part = slice(first, first + APPENDED)
        append = lambda at=part: graph.append(ends[0, at], ends[1, at], t[at], given.nodes)  # noqa: E731
        seconds.append(harness.seconds_of(append))
    print(f"appends of {APPENDED:,} events: {APPENDED / median(seconds) / 1e6:.1f} M events/s, "
          f"{graph.memory_bytes / given.events:.0f} bytes per event; {SEEDS} seeds, {FANOUT} neighbours")  # fmt: skip
    harness.table("layers | way | M edges/s | of dgl's", rows(graph, ends, given.rounds))


if __name__ == "__main__":
    main()
