"""Bytes and seconds of ``vertex`` by partitioner: python benchmarks/vertex_traffic.py [uni500k|ex500k …] [--window 4 8 12].

Four ranks, a thread each, learn the newest snapshot of a lane in passes under ``fetch: owner``, which is nearest DistDy's system
(section 3.1). The model has its settings (section 5.1): fan-outs 5 and 10, width 128, 70 % of the nodes in batches of ``--batch``
nodes. The graphs are Table 2's, ``--shrink`` times smaller. MB are those of inputs and embeddings that all ranks send, without
gradients of weights, which are the same for every lane. *Busiest* is the rank that sends most, in a second pass. ``metis`` of a
lane knows the first snapshot only.

Seconds are those of the median pass of three, after the first, by the clock of a simulated link of each of ``--gbit``: a rank's
processor, one thread at a time, its waits for the slowest in every collective, 100 µs for it, and its bytes, gradients included.

``--params`` go to ``distdy`` besides its preset, such as ``'{sweeps: 30}'`` (M) or ``'{eta: 24}'`` (figure 11).
"""

import dataclasses
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import harness
import torch
import yaml
from thread_ranks import FakeLink, side_by_side

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.stream.synthetic import PAPER_GRAPHS, paper_snapshots
from freshet_graph.stream.synthetic.event_writer import write_events
from freshet_graph.stream.synthetic.table2 import INTERVAL_S

RANKS = 4
ALPHA_S, PASSES = 1e-4, 4
LANES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("hash", "metis", "metis-layer", "distdy")},
    "distdy, paper": ("distdy", {"preset": "paper"}),
}
GRADIENTS = "gradients"


def passes_of(store: Path, lane: str, window: int, given: Any, ranks: Any) -> list[tuple[float, float]]:
    """MB that a rank sent in each pass, and the seconds until all had ended."""
    session = harness.session_of(
        store, ranks, lane=lane, window=window, model="sage-linear",
        model_params={"hidden": 128, "fanouts": given.fanouts}, optimisation={"batch_size": given.batch},
        strategy="vertex", strategy_params={"fetch": "owner", "training_nodes": 0.7, "batch_of": "nodes"},
    )  # fmt: skip
    examples, passes = harness.examples_of(session, session.lane.manifests[:]), []
    for epoch in range(PASSES):
        ranks.any(False)  # all begin at once
        before, began_s = ranks.traffic.copy(), ranks.now_s
        session.strategy.learn([examples], epoch)
        sent = ranks.traffic.since(before).sent_bytes
        passes.append(((sent.total() - sent[GRADIENTS]) / 1e6, ranks.now_s - began_s))
    return passes


def rows(name: str, window: int, given: Any) -> Iterator[list[str]]:
    graph = PAPER_GRAPHS[name]
    sizes = {"nodes": graph.nodes // given.shrink, "edges": graph.edges // given.shrink}
    made = [
        Lane(name=f"lane{number}", algorithm=algorithm, parts=RANKS, window=window,
             params={**params, **(yaml.safe_load(given.params) if algorithm == "distdy" else {})})
        for number, (algorithm, params) in enumerate(LANES[each] for each in given.lanes)
    ]  # fmt: skip
    with harness.scratch() as folder:
        file = folder / "events.parquet"
        graph = dataclasses.replace(graph, **sizes, snapshots=window + 2)
        write_events(file, paper_snapshots(graph), interval_s=INTERVAL_S)
        store = harness.built(folder / "store", file, INTERVAL_S * US_PER_S, made)
        for lane, title in zip(made, given.lanes, strict=True):
            work = partial(passes_of, store, lane.name, window, given)
            seconds = []
            for gbit in given.gbit:
                link = FakeLink(ALPHA_S, gbit * 1e9 / 8)
                by_rank = side_by_side(RANKS, work, link, worked_s=time.thread_time, turn=threading.Lock())
                first, second, *later = zip(*by_rank, strict=True)
                seconds.append(statistics.median(max(s for _, s in of_pass) for of_pass in (second, *later)))
            mb = [[mb for mb, _ in of_pass] for of_pass in (first, second)]
            yield [
                title,
                *(f"{most:.1f}" for most in (sum(mb[0]), sum(mb[1]), max(mb[1]))),
                *(f"{s:.3f}" for s in seconds),
            ]


def main() -> None:
    given = harness.options(
        __doc__, {"streams": ["uni500k", "ex500k"]}, lanes=list(LANES), window=[4], fanouts=[5, 10], shrink=100,
        batch=1024, params="{}", gbit=[1.0],
    )  # fmt: skip
    torch.set_num_threads(1)
    for name in given.streams:
        for window in given.window:
            print(f"\n{name} / {given.shrink}, w = {window}, distdy {given.params}; {RANKS} ranks")
            titles = " | ".join(f"s at {gbit:g} Gb/s" for gbit in given.gbit)
            harness.table(
                f"lane | MB in the first pass | in a second | of the busiest | {titles}",
                rows(name, window, given),
            )


if __name__ == "__main__":
    main()
