"""Frauds judged a week later: python benchmarks/payments.py [--model tgn-history] [--seeds 0] [--days 153] [--params '{}'].

``handbook_payments.parquet`` of the shared data (183 days of simulated card payments, of which 153 are here) is one live run of
``freshet-trainer run``: test, then train, snapshot by snapshot of six hours, with ``task: edge-classification`` and labels that
become visible seven days after their payments. Nothing is fitted beforehand. A row per scorer:

* AP, AUROC and card precision at 100 of the handbook's test week (8 to 14 August, days 129 to 135), without the payments of cards
  whose fraud was known, as the protocol in the README of the shared data has it;
* the mean AP of all whole weeks after the second.

``--params`` are further ``task_params``, and ``--strategy`` and ``--model`` keys of the trainer.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import require
from typing_extensions import override

from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.label_figures import label_rankings, precision_at_k
from freshet_graph.trainer.tasks.edge_classification import SCORERS, LabelScores

DAY_US = harness.DAY_US
DELAY_DAYS, TRAINING, TEST = 7, range(115, 122), range(129, 136)
LOOKED_AT = 100
"""Cards per day."""


class Judged(Trainer):
    """A trainer that keeps the scores of all judged events."""

    judged: list[LabelScores]

    @override
    def _take_figures(self, step: Any) -> None:
        self.judged.append(step.evaluation)
        super()._take_figures(step)


def main() -> None:
    """Print a row per scorer and seed."""
    assert __doc__
    chosen = harness.options(
        __doc__, model="tgn-history", strategy="sequential", seeds=[0], days=153, params="{}"
    )
    torch.set_num_threads(1)
    configure_logs(level="warning")
    with harness.scratch() as folder:
        data = harness.existing(harness.DATA / "handbook_payments.parquet")
        events = read_events(data, options=FileOptions(feature_columns="amount"))
        harness.built(Path(folder) / "store", events, DAY_US // 4, harness.lanes("hash", parts=1))
        harness.table(
            "seed | scorer | AP of the test week | AUROC | card precision at 100 | mean AP of weeks | processor s",
            measured(Path(folder), chosen),
        )


def measured(folder: Path, chosen: Any) -> Iterator[list[object]]:
    """The rows."""
    for seed in chosen.seeds:
        config = TrainerConfig.model_validate(
            {
                "store": str(folder / "store"), "lane": "hash", "model": chosen.model, "strategy": chosen.strategy,
                "seed": seed, "task": "edge-classification", "checkpoint": str(folder / f"checkpoints-{seed}"),
                "checkpoint_every": 1_000_000,
                "task_params": {"delay_s": DELAY_DAYS * 86_400, **json.loads(chosen.params)},
            }
        )  # fmt: skip
        lane, metrics = LaneReader(str(config.store), config.lane), TrainerMetrics(config, 0)
        metrics.graph(lane.header.graph)
        trainer = Judged(config, lane, Ranks(), metrics)
        trainer.judged = []
        began = time.process_time()
        for manifest in lane.manifests[: 4 * chosen.days]:
            trainer.step(manifest)
        seconds = time.process_time() - began
        columns = {
            name: [getattr(one, name) for one in trainer.judged]
            for name in ("scores", "label", "src", "time_us")
        }
        scores, label, card, time_us = (np.concatenate(parts) for parts in columns.values())
        require(label.sum() > 0, "no payment was judged a fraud")
        day = time_us // DAY_US
        test = of_the_test(card, day, label)
        for place, scorer in enumerate(SCORERS):
            yield [seed, scorer, *figures(scores[:, place], label, card, day, test), f"{seconds:,.0f}"]


def of_the_test(card: np.ndarray, day: np.ndarray, label: np.ndarray) -> np.ndarray:
    """bool (E,): payments of the test week by cards whose fraud was not known."""
    stopped = np.unique(card[(label == 1) & np.isin(day, TRAINING)])
    rows = np.zeros(len(card), np.bool_)
    for number in TEST:
        if number > TEST[0]:
            stopped = np.union1d(stopped, card[(label == 1) & (day == number - DELAY_DAYS - 1)])
        rows |= (day == number) & ~np.isin(card, stopped)
    return rows


def figures(
    score: np.ndarray, label: np.ndarray, card: np.ndarray, day: np.ndarray, test: np.ndarray
) -> Iterator[str]:
    """AP, AUROC and card precision of the test week, and the mean AP of whole weeks."""
    of_week = label_rankings(score[test], label[test]) if test.any() else {}
    cards = precision_at_k(score[test], label[test], card[test], day[test], LOOKED_AT)
    for value in (
        of_week.get("average_precision"),
        of_week.get("auroc"),
        None if cards is None else cards.value,
    ):
        yield "–" if value is None else f"{value:.3f}"
    weekly = [
        label_rankings(score[here], label[here]).get("average_precision")
        for week in range(2, int(day.max() + 1) // 7)
        for here in [day // 7 == week]
    ]
    known = [value for value in weekly if value is not None]
    yield f"{np.mean(known):.3f}" if known else "–"


if __name__ == "__main__":
    main()
