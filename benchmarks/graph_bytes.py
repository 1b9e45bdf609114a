"""Graph bytes of ranks that compute alone: python benchmarks/graph_bytes.py sx [--strategy vertex --layers 1 --ranks 1 2 4].

``vertex`` with ``fetch: halo``, or ``hybrid`` with a horizon of 16 snapshots, on a store of the real graph (sx or digg), whose
edges live until they are deleted. The ranks, a thread each, begin some snapshots before the last three, which they predict and
learn once (``hybrid``: in 16 steps). A cell has the most MiB that a rank held after a snapshot, and the seconds of the processor
in the median snapshot, rank by rank.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from thread_ranks import side_by_side

from freshet_graph.schemas.config import Lane
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow

GRAPHS = {"sx": ("sx_mathoverflow.parquet", 7 * 86_400), "digg": ("digg_reply.parquet", 6 * 3_600)}
"""Files, and the length of a snapshot in seconds."""
SETTINGS: dict[str, dict[str, Any]] = {
    "vertex": {"strategy_params": {"fetch": "halo"}, "model": "sage-linear"},
    "hybrid": {"horizon": 16, "model": "tgcn"},
}
BEFORE = {"vertex": 5, "hybrid": 17}
"""Snapshots that fill the window of 4, or the horizon, and the predicted one."""
SNAPSHOTS = 3
DRAWING = threading.Lock()
"""Threads share torch's generator."""


def measured(store: Path, name: str, given: Any, ranks: Any) -> tuple[float, float]:
    """The most MiB of a rank, and the median of its seconds per snapshot."""
    layers = {"fanouts": [10] * given.layers} if given.strategy == "vertex" else {"layers": given.layers}
    keys = {"lane": name, "strategy": given.strategy, "window": 4, "optimisation": {"batch_size": 200}}
    with DRAWING:
        model = {"model_params": {"hidden": 64, **layers}, **SETTINGS[given.strategy]}
        session = harness.session_of(store, ranks, **keys, **model)
    seconds, most, before = [], 0, BEFORE[given.strategy]
    book = ExampleWindow(session.task, session.strategy.needs.example_sets)
    for number, manifest in enumerate(session.lane.manifests[-SNAPSHOTS - before :]):
        began = time.thread_time()
        examples = harness.examples_of(session, [manifest])
        book.open(examples)
        if number < before:
            continue
        session.task.evaluate(session.strategy, session.model, session.untrained, examples, ranks)
        report = session.strategy.learn(book.with_newest(examples), 0)
        harness.require(report.steps > 0, f"rank {ranks.rank} made no step")
        seconds.append(time.thread_time() - began)
        most = max(most, session.graph_bytes)
    return most / 2**20, float(np.median(seconds))


def main() -> None:
    strategy = {"choices": sorted(SETTINGS), "default": "vertex"}
    graph = {"graph": {"nargs": "?", "choices": sorted(GRAPHS), "default": "sx"}}
    given = harness.options(
        __doc__, graph, data=harness.DATA, strategy=strategy, lanes=["hash", "distdy"], layers=1, ranks=[1, 2, 4]
    )  # fmt: skip
    torch.set_num_threads(1)
    file, interval_s = GRAPHS[given.graph]
    lanes = [
        Lane(name=f"{each}-{count}", algorithm=each, parts=count)
        for each in given.lanes
        for count in given.ranks
    ]

    def rows(store: Path) -> Iterator[list[str]]:
        for lane in lanes:
            work = lambda ranks, name=lane.name: measured(store, name, given, ranks)  # noqa: E731
            found = zip(*side_by_side(lane.parts, work), strict=True)
            yield [
                lane.algorithm,
                str(lane.parts),
                *(", ".join(f"{each:.2f}" for each in column) for column in found),
            ]

    with harness.scratch() as folder:
        source = harness.existing(given.data / file)
        store = harness.built(folder / "store", source, interval_s * 10**6, lanes)
        harness.table("lane | ranks | MiB of each | s of each", rows(store))


if __name__ == "__main__":
    main()
