"""What simple scores know about the frauds of ``synth --fraud``, and the rate of drawing: python benchmarks/fraud_stream.py.

Two tables, each by its name (``--only scores,speed``), one thread:

- *scores*: AUROC / AP over the last 40 % of ``--payments`` among ``--nodes``, mean of ``--seeds``: of all frauds, and of each
  pattern against payments that are no fraud. Scores know the payments before, and the labels decided before. *All of them* is a
  network of two hidden layers over these scores, learned from the true labels of the first 60 %;
- *speed*: payments per second of the processor, drawn only, and written as Parquet with labels and truth.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import torch
from fraud_baselines import baseline_figures

from freshet_graph.stream.synthetic import payments
from freshet_graph.stream.synthetic.event_writer import write_payments
from freshet_graph.stream.synthetic.payments import PATTERNS

DAY_S = 86_400.0
DRAWN, ACCOUNTS = 5_000_000, 100_000


def scores(given: Any) -> Iterator[list[str]]:
    drawn, frauds = [], []
    for seed in range(given.seeds):
        parts = list(payments(given.nodes, given.payments, seed=seed))
        events, labels, truth = (pa.concat_tables(tables) for tables in zip(*parts, strict=True))
        drawn.append(baseline_figures(events, labels, truth))
        frauds.append(len(truth) / len(events))
    for name in drawn[0]:
        means = (np.mean([figures[name][kind] for figures in drawn], axis=0) for kind in ("all", *PATTERNS))
        yield [name, *(f"{auroc:.3f} / {ap:.3f}".replace("0.", ".") for auroc, ap in means)]
    print(f"\nfrauds: {np.mean(frauds):.2%} of {given.payments:,} payments")


def speed(given: Any) -> Iterator[list[str]]:
    def draw() -> None:
        for _ in payments(ACCOUNTS, DRAWN):
            pass

    def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_payments(Path(folder, "p.parquet"), payments(ACCOUNTS, DRAWN), interval_s=DAY_S)

    works: list[tuple[str, Callable[[], None]]] = [("drawn", draw), ("written", write)]
    for name, work in works:
        yield [name, f"{DRAWN / min(harness.seconds_of(work, time.process_time) for _ in range(3)):,.0f}"]


PARTS = {
    "scores": (scores, "score | all frauds | " + " | ".join(PATTERNS)),
    "speed": (speed, "payments | per second of the processor"),
}


def main() -> None:
    given = harness.options(__doc__, only="scores,speed", nodes=5_000, payments=200_000, seeds=3)
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    harness.tables(PARTS, given.only.split(","), given)


if __name__ == "__main__":
    main()
