"""Temporal neighbours against dgl's, one core: python benchmarks/sampler.py.

The same graph and seeds in turns: k most recent (or uniform) interactions strictly before the batch, nodes named
once; beside ``dgl.sampling.sample_neighbors`` (uniform, knows no time) and ``to_block``. Medians of M sampled edges/s.
Then appends to the growing graph.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

from trainer.data.temporal_graph import TemporalGraph
from trainer.data.temporal_sampler import TemporalSampler

SEEDS, FANOUT = 2000, 10


def stream(events: int, nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Skewed ends, as in interaction data, one event a microsecond."""
    rng = np.random.default_rng(0)
    ends = (nodes * rng.random((2, events)) ** 3).astype(np.int64)
    return ends[0], ends[1], np.arange(events, dtype=np.int64)


def dgl_case(src: np.ndarray, dst: np.ndarray, layers: int) -> Callable[[np.ndarray], int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl
    graph = dgl.graph((torch.from_numpy(np.append(src, dst)), torch.from_numpy(np.append(dst, src))))
    graph = graph.formats("csc")

    def sample(seeds: np.ndarray) -> int:
        targets, edges = torch.from_numpy(seeds), 0
        for _ in range(layers):
            sampled = dgl.sampling.sample_neighbors(graph, targets, FANOUT)
            block = dgl.to_block(sampled, targets)
            edges += block.num_edges()
            targets = block.srcdata[dgl.NID]
        return edges

    return sample


def our_case(graph: TemporalGraph, how: str, before: int, layers: int) -> Callable[[np.ndarray], int]:
    sampler = TemporalSampler(graph, FANOUT, how)

    def sample(seeds: np.ndarray) -> int:
        return sum(int(layer.sampled.count.sum()) for layer in sampler.layers(seeds, before, layers))

    return sample


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--nodes", type=int, default=100_000)
    arguments.add_argument("--rounds", type=int, default=60)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    src, dst, t = stream(chosen.events, chosen.nodes)
    graph = TemporalGraph()
    seconds = []
    for begin in range(0, chosen.events, 2000):
        part = slice(begin, begin + 2000)
        began = time.perf_counter()
        graph.append(src[part], dst[part], t[part], chosen.nodes)
        seconds.append(time.perf_counter() - began)
    print(f"appends of 2,000 events: {2000 / statistics.median(seconds) / 1e6:.1f} M events/s, ", end="")
    print(f"{graph.memory_bytes / chosen.events:.0f} bytes an event")
    rng = np.random.default_rng(1)
    for layers in (1, 2):
        cases = {
            "recent, distinct nodes": our_case(graph, "recent", chosen.events, layers),
            "recent in the past (binary search)": our_case(graph, "recent", chosen.events // 2, layers),
            "uniform, distinct nodes": our_case(graph, "uniform", chosen.events, layers),
            "dgl sample_neighbors + to_block": dgl_case(src, dst, layers),
        }
        rates: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(chosen.rounds // layers):
            seeds = np.unique(np.append(src, dst)[rng.integers(0, 2 * chosen.events, SEEDS)])
            for name, case in cases.items():
                began = time.perf_counter()
                edges = case(seeds)
                rates[name].append(edges / (time.perf_counter() - began) / 1e6)
        peer = statistics.median(rates["dgl sample_neighbors + to_block"][3:])
        print(f"{layers} layer(s), {SEEDS} seeds, {FANOUT} neighbours")
        for name, rate in rates.items():
            median = statistics.median(rate[3:])
            print(f"  {name:38} {median:6.1f} M edges/s   {median / peer:5.2f}")


if __name__ == "__main__":
    main()
