"""Labels that come later, test-then-train: python benchmarks/payments.py [handbook_payments] [--seeds 0] [--params '{}'].

Each stream is one live run of ``freshet-trainer run`` with ``task: edge-classification``, snapshot by snapshot: an event is
scored when it comes and judged when its label becomes visible. Nothing is fitted beforehand.

- *handbook_payments* (shared data): 153 days of simulated card payments, labels after 7 days, snapshots of 6 hours. The test is
  the handbook's week, 8 to 14 August (days 129 to 135), without the payments of cards whose fraud was known, as the protocol in
  the README of the shared data has it;
- *amlsim_20k* (shared data): 149 days of transfers, labels after 7 days, snapshots of a day. The label of a transfer between two
  accounts of a laundering case is 1 on the day at which the case reaches its source (``fraudStep``);
- *jodie_wikipedia* (shared data): 31 days of edits, snapshots of 6 hours. An edit after which its user was banned has label 1,
  which is known at once;
- *synth*: 200,000 payments among 5,000 nodes by ``freshet-stream synth --fraud`` with its seed 0, 90 days. Labels are the truth,
  after 7 days, snapshots of 6 hours.

A row per scorer has AP, AUROC and precision at k per day and source in the test, and the mean AP of all whole weeks after the
second. The test of all but the first is the last 40 % of the events. ``--params`` are further ``task_params``, ``--strategy`` and
``--model`` keys of the trainer, and ``--days`` ends the stream earlier.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from harness import require
from typing_extensions import override

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.synthetic import payments
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.label_figures import label_rankings, precision_at_k
from freshet_graph.trainer.tasks.edge_classification import SCORERS, LabelScores

DAY_US, DAY_S = harness.DAY_US, 86_400
DELAY_DAYS, TRAINING, TEST = 7, range(115, 122), range(129, 136)
LAST = 0.4
"""Share of the events in the test, where nobody has published one."""


@dataclass(frozen=True)
class Stream:
    """Labelled events.

    Attributes:
        events: Makes them.
        snapshots: Per day.
        delay_days: Of labels.
        looked_at: Sources per day, of the precision at k.
    """

    events: Callable[[], Any]
    snapshots: int
    delay_days: int
    looked_at: int


def of_file(name: str, **options: Any) -> Any:
    """Events of the shared data."""
    path = harness.existing(harness.DATA / f"{name}.parquet")
    return read_events(path, options=FileOptions(**options))


def of_amlsim() -> pa.Table:
    """Transfers, 1 if both accounts are of laundering cases and it is the day of the source's."""
    events = pq.read_table(harness.existing(harness.DATA / "amlsim_20k.parquet"))
    with np.load(harness.DATA / "amlsim_20k_nodes.npz") as nodes:
        case, begins = nodes["isFraud"] > 0, nodes["fraudStep"]
    src, dst, t, weight = (events[name].to_numpy() for name in ("src", "dst", "t", "weight"))
    label = case[src] & case[dst] & (t // DAY_S == begins[src])
    return harness.event_table(src=src, dst=dst, t=t * US_PER_S, weight=weight, label=label.astype(np.int32))


def of_synth() -> pa.Table:
    """Payments with the truth as their label."""
    parts = list(payments(5_000, 200_000, seed=0))
    events, _, truth = (pa.concat_tables(tables) for tables in zip(*parts, strict=True))
    label = pc.is_in(events["event_id"], truth["event_id"]).to_numpy()
    columns = {name: events[name].to_numpy() for name in ("src", "dst", "weight")}
    time_us = (events["t"].to_numpy() * US_PER_S).astype(np.int64)
    return harness.event_table(**columns, t=time_us, label=label.astype(np.int32))


STREAMS = {
    "handbook_payments": Stream(
        partial(of_file, "handbook_payments", feature_columns="amount"), 4, DELAY_DAYS, 100
    ),
    "amlsim_20k": Stream(of_amlsim, 1, DELAY_DAYS, 10),
    "jodie_wikipedia": Stream(partial(of_file, "jodie_wikipedia"), 4, 0, 10),
    "synth": Stream(of_synth, 4, DELAY_DAYS, 10),
}


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
        __doc__,
        {"stream": {"nargs": "?", "default": "handbook_payments", "choices": list(STREAMS)}},
        model="tgn-history",
        strategy="sequential",
        seeds=[0],
        days=153,
        params="{}",
    )
    torch.set_num_threads(1)
    configure_logs(level="error")
    stream = STREAMS[chosen.stream]
    with harness.scratch() as folder:
        harness.built(
            folder / "store", stream.events(), DAY_US // stream.snapshots, harness.lanes("hash", parts=1)
        )
        harness.table(
            f"seed | scorer | AP of the test | AUROC | precision at {stream.looked_at} | mean AP of weeks | processor s",
            measured(folder, stream, chosen),
        )


def measured(folder: Path, stream: Stream, chosen: Any) -> Iterator[list[object]]:
    """The rows."""
    for seed in chosen.seeds:
        task_params = {
            "delay_s": stream.delay_days * DAY_S,
            "baselines": ["boosting"],
            **json.loads(chosen.params),
        }
        config = TrainerConfig.model_validate(
            {
                "store": str(folder / "store"), "lane": "hash", "model": chosen.model, "strategy": chosen.strategy,
                "seed": seed, "task": "edge-classification", "checkpoint": str(folder / f"checkpoints-{seed}"),
                "checkpoint_every": 1_000_000, "task_params": task_params,
            }
        )  # fmt: skip
        lane, metrics = LaneReader(str(config.store), config.lane), TrainerMetrics(config, 0)
        metrics.graph(lane.header.graph)
        trainer = Judged(config, lane, Ranks(), metrics)
        trainer.judged = []
        began = time.process_time()
        for manifest in lane.manifests[: stream.snapshots * chosen.days]:
            trainer.step(manifest)
        seconds = time.process_time() - began
        columns = {
            name: [getattr(one, name) for one in trainer.judged]
            for name in ("scores", "label", "src", "time_us")
        }
        scores, label, source, time_us = (np.concatenate(parts) for parts in columns.values())
        require(label.sum() > 0, "no event was judged to be 1")
        day = time_us // DAY_US
        test = (
            of_the_test(source, day, label) if chosen.stream == "handbook_payments" else of_the_last(time_us)
        )
        for place, scorer in enumerate(SCORERS):
            found = figures(scores[:, place], label, source, day, test, stream.looked_at)
            yield [seed, scorer, *found, f"{seconds:,.0f}"]


def of_the_last(time_us: np.ndarray) -> np.ndarray:
    """bool (E,): the last 40 % of the events."""
    rows: np.ndarray = time_us >= np.quantile(time_us, 1 - LAST)
    return rows


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
    score: np.ndarray,
    label: np.ndarray,
    source: np.ndarray,
    day: np.ndarray,
    test: np.ndarray,
    looked_at: int,
) -> Iterator[str]:
    """AP, AUROC and precision at k of the test, and the mean AP of whole weeks."""
    of_test = label_rankings(score[test], label[test]) if test.any() else {}
    found = precision_at_k(score[test], label[test], source[test], day[test], looked_at)
    for value in (
        of_test.get("average_precision"),
        of_test.get("auroc"),
        None if found is None else found.value,
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
