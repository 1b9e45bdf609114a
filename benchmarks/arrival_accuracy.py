"""Whether the newest memory is the better score: python benchmarks/arrival_accuracy.py [NAME…] [--events 20000] [--seeds 0 1 2].

``freshet-trainer run`` with the default model learns a graph of the shared data snapshot by snapshot. Each snapshot of its last
part is scored, event by event beside a random destination of the same source, with the same weights (the checkpoint of the
snapshot before) and the memory

* as of the snapshot's beginning,
* as of the last 200 events, as in the figures of ``run``,
* as of the event, as ``freshet-trainer score`` does.

AP of each, means over snapshots by their events. A second table lets events arrive late by a random time up to a delay: how far
the logits of the order of arrival are from those of the sealed order, and the AP of both.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import torch
from harness import require

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S, event_schema
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.arrival.memory import ArrivalMemory
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.data.examples import Queries
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.models.event_model import Question
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import average_precision
from freshet_graph.trainer.session.checkpoint import newest_checkpoint
from freshet_graph.trainer.strategies.events.event_stream import answered, looked, on_host
from freshet_graph.trainer.strategies.events.remembering import ANSWERED_AT_ONCE

GRAPHS = ("collegemsg", "jodie_wikipedia", "email_eu", "bitcoin_otc")
DELAYS_S = (60, 3_600)
GROUP = 200
"""Events whose mails ``run`` delivers together in predictions."""


class AskedMemory(ArrivalMemory):
    """Scores events and other destinations, with a memory that is renewed every so many events."""

    @torch.no_grad()
    def ask(self, events: pa.Table, others: Int64, every: int) -> tuple[Float32, Float32]:
        """Logits of inserts and of their sources with other destinations, float32 (E,) each; takes the inserts in.

        Args:
            events: As ``Arrived.events``, inserts only.
            others: int64 (E,), ids of destinations that are known.
            every: Events that are asked about at one moment, which is that of the first of them.
        """
        src, dst, time_us = self._append(events)
        column = pa.chunked_array([pa.array(others)])
        negative = self._session.names.numbers(self._ids.encode(column, column)[0])
        waiting, answers, places = list[Question](), list[torch.Tensor](), list[Int64]()
        for first in range(0, len(src), every):
            here = np.arange(first, min(first + every, len(src)))
            before_us = int(time_us[first])
            self._stream.deliver_before(before_us, GROUP)
            ends = np.tile(src[here], 2), np.concatenate([dst[here], negative[here]])
            when, moment = np.tile(time_us[here], 2), np.full(2 * len(here), before_us)
            queries = Queries(np.tile(here, 2), *ends, self._history.look(*ends, when), when, moment)
            waiting.append(looked(self._stream, queries, slice(0, len(when)), before_us))
            places.append(np.concatenate([here, here + len(src)]))
            if sum(map(len, waiting)) >= ANSWERED_AT_ONCE or first + every >= len(src):
                answers.append(answered(self.model, Question.join(waiting)))
                waiting = []
            self._history.see(src[here], dst[here], time_us[here])
        logits = np.empty(2 * len(src), np.float32)
        logits[np.concatenate(places)] = on_host(answers)
        positive, negatives = np.split(logits, 2)
        return positive, negatives


Logits = dict[str, tuple[Float32, Float32]]
"""Of a snapshot's events, and of the other destinations, by memory."""


def scored(folder: Path, seed: int, tested: float) -> Iterator[tuple[Int64, Logits]]:
    """Each tested snapshot: how many places each event moves by a delay, int64 (len(DELAYS_S), E), and the logits."""
    keys = {
        "store": str(folder / "store"), "lane": "hash", "checkpoint": str(folder / f"checkpoints{seed}"), "seed": seed,
        "checkpoint_every": 1, "keep_checkpoints": 1, "strategy": "sequential",
    }  # fmt: skip
    config, rng = TrainerConfig.model_validate(keys), np.random.default_rng(seed)
    lane = LaneReader(keys["store"], keys["lane"])
    metrics = TrainerMetrics(config, 0)
    metrics.graph(lane.header.graph)
    trainer = Trainer(config, lane, Ranks(), metrics)
    manifests = list(lane.manifests)
    first = np.searchsorted(np.cumsum([one.num_events for one in manifests]), (1 - tested) * len_of(lane))
    known: Int64 = np.empty(0, np.int64)
    for number, manifest in enumerate(manifests):
        events = lane.log.events(manifest.tau).select(event_schema("int").names)
        events = events.append_column("tau", pa.array(np.full(len(events), manifest.tau)))
        known = np.union1d(known, events["dst"].to_numpy())
        if number > max(first, 0) and len(events) > 1:
            trainer.writes.finish()
            _, state = newest_checkpoint(config, LaneReader(keys["store"], keys["lane"]))
            require(int(state["sequence"]) == number - 1, "a snapshot has no checkpoint")
            dst = events["dst"].to_numpy()
            place = (np.searchsorted(known, dst) + rng.integers(1, len(known), len(dst))) % len(known)

            ask = partial(asked, lane, config, state, events, known[place])
            every, t = np.arange(len(events)), events["t"].to_numpy()
            orders = [
                np.argsort(t + (rng.random(len(t)) * delay_s * US_PER_S).astype(np.int64), kind="stable")
                for delay_s in DELAYS_S
            ]
            found = {"snapshot": ask(len(events), every), "batch": ask(GROUP, every), "event": ask(1, every)}
            found |= {f"{delay_s}": ask(1, order) for delay_s, order in zip(DELAYS_S, orders, strict=True)}
            yield np.array([np.abs(np.argsort(order) - every) for order in orders]), found
        trainer.step(manifest)
    trainer.writes.finish()


def asked(
    lane: LaneReader,
    config: TrainerConfig,
    state: Any,
    events: pa.Table,
    others: Int64,
    every: int,
    order: Int64,
) -> tuple[Float32, Float32]:
    """What ``AskedMemory.ask`` gives if events come in another order, in theirs."""
    logits = np.empty((2, len(events)), np.float32)
    memory = AskedMemory(config, lane, Ranks(), state)
    logits[:, order] = memory.ask(events.take(pa.array(order)), others[order], every)
    return logits[0], logits[1]


def len_of(lane: LaneReader) -> int:
    """Events of a lane."""
    return sum(one.num_events for one in lane.manifests)


def main() -> None:
    """Measure and print."""
    assert __doc__
    chosen = harness.options(
        __doc__, {"graphs": list(GRAPHS)}, events=20_000, snapshots=30, seeds=[0, 1, 2], tested=0.2
    )
    torch.set_num_threads(1)
    configure_logs(level="warning")
    orders = list[list[object]]()
    titles = (
        "graph | seed | scored | events per snapshot | AP as of the snapshot | of 200 events | of the event"
    )
    with harness.scratch() as folder:
        harness.table(titles, measured(Path(folder), chosen, orders))
    harness.table(
        "graph | seed | delay up to, s | events that move | logits differ by, mean | 99 % | AP, sealed order | order of arrival",
        orders,
    )


def measured(folder: Path, chosen: Any, orders: list[list[object]]) -> Iterator[list[object]]:
    """A row for each graph and seed; the rows of delays are added to ``orders``."""
    for graph in chosen.graphs:
        events = read_events(harness.existing(harness.DATA / f"{graph}.parquet")).events.slice(
            0, chosen.events
        )
        t = events["t"].to_numpy()
        interval_us = int(t[-1] - t[0]) // chosen.snapshots + 1
        harness.built(
            folder / graph / "store", events, interval_us, [Lane(name="hash", algorithm="hash", parts=1)]
        )
        for seed in chosen.seeds:
            moves, found = zip(*scored(folder / graph, seed, chosen.tested), strict=True)
            sizes = [len(one["event"][0]) for one in found]
            ap = {
                name: float(np.average([average_precision(*one[name]) for one in found], weights=sizes))
                for name in found[0]
            }
            figures = [f"{ap[name]:.4f}" for name in ("snapshot", "batch", "event")]
            moved = np.concatenate(moves, axis=1) > 0
            for row, delay_s in enumerate(DELAYS_S):
                apart = np.concatenate([np.abs(one[f"{delay_s}"][0] - one["event"][0]) for one in found])
                orders.append(
                    [
                        graph, seed, f"{delay_s:,}", f"{moved[row].mean():.0%}", f"{apart.mean():.4f}",
                        f"{np.percentile(apart, 99):.3f}", figures[2], f"{ap[f'{delay_s}']:.4f}",
                    ]
                )  # fmt: skip
            yield [graph, seed, f"{sum(sizes):,}", f"{np.mean(sizes):,.0f}", *figures]


if __name__ == "__main__":
    main()
