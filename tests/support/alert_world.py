"""Both services on a clock that tests move, scraped once a minute: what promtool is to judge alerts by.

The stream is what writes a log on a cluster (``LogHost``), with a lane on its own thread; the trainer is rank 0 of two.
"""

import dataclasses
import functools
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from log_events import SECOND, event, poll
from no_offsets import NoOffsets, NoWatch
from prometheus_client import CollectorRegistry
from torch.distributed import HashStore

from freshet_graph.schemas.config import Lane, StreamConfig
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.cluster.log_host import LogHost
from freshet_graph.stream.cluster.plan import ClusterPlan, announce
from freshet_graph.stream.job.lane_threads import LaneThread
from freshet_graph.stream.job.readiness import readiness
from freshet_graph.stream.kafka.reader import Start
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.pipeline import holding
from freshet_graph.stream.sink import SnapshotSink
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.heartbeats import Heartbeats
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.predictions import Predictions

PROMETHEUS = Path(__file__).parents[2] / "deploy/prometheus"
T0 = 1_800_000_000
INTERVAL_S = 300
TICK_S = 60
"""Between two polls, which end in a commit each: most of what a minute costs."""
MESSAGES = 30
"""In a poll."""
GOOD = {("ap", "all", "model"): 0.9, ("ap", "all", "recency"): 0.6}
STREAM, RANK_0, RANK_1, SCORER = (
    ("freshet-stream", "stream:9108"),
    ("freshet-trainer", "trainer:9109"),
    ("freshet-trainer", "trainer:9110"),
    ("freshet-scorer", "scorer:9119"),
)
DOWN, GONE = "down", "gone"
FIRING = 'ALERTS{alertstate="firing"'

Target = tuple[str, str]


class Scrapes:
    """What a Prometheus would have seen of the series that the rules ask for, minute by minute."""

    def __init__(self) -> None:
        self.minutes = 0
        self._seen: dict[str, list[str]] = {}
        rules = (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8")
        self._asked_for = set(re.findall(r"\bfreshet_\w+", rules))

    def take(self, targets: Mapping[Target, CollectorRegistry | str]) -> None:
        """One scrape of all targets; one that is ``DOWN`` does not answer, one that is ``GONE`` is not looked for."""
        now: dict[str, str] = {}
        for (job, instance), registry in targets.items():
            place = f'instance="{instance}",job="{job}"'
            if registry == GONE:
                continue
            now[f"up{{{place}}}"] = "0" if registry == DOWN else "1"
            if isinstance(registry, str):
                continue
            asked_for = registry.restricted_registry(self._asked_for)
            for sample in (sample for family in asked_for.collect() for sample in family.samples):
                labels = "".join(f',{name}="{value}"' for name, value in sample.labels.items())
                base = T0 if sample.name.endswith("_timestamp_seconds") else 0
                now[f"{sample.name}{{{place}{labels}}}"] = repr(sample.value - base)
        for name in now.keys() | self._seen.keys():
            values = self._seen.setdefault(name, ["_"] * self.minutes)
            was_there = bool(values) and values[-1] not in ("_", "stale")
            values.append(now.get(name, "stale" if was_there else "_"))
        self.minutes += 1

    def series(self) -> list[dict[str, str]]:
        """``input_series`` of promtool."""
        return [{"series": name, "values": " ".join(values)} for name, values in sorted(self._seen.items())]


class World:
    """A stream of two topic partitions, a lane and a trainer, all well until a test says otherwise.

    Attributes:
        speed: Seconds of event time a second.
        by_turns: Whether a minute has a poll of one topic partition, and not of both.
        unread: Messages that wait in a topic partition.
        silent: Topic partitions of which no message comes.
        refused: Share of messages that are refused.
        reason: Why they are.
        late: Share of events that are two hours old.
        label: Label of all events.
        weight: Weight of all events.
        reads: Whether the stream's loop goes round.
        lane_works: Whether the lane follows the log.
        learns: Snapshots learned a minute, at most.
        beats: Whether rank 1 lives.
        figures: Scores of every snapshot.
        rss: Bytes that the trainer's process has.
        free: Share of the disk's bytes that are free now.
        obstacle: What the job says at ``/readyz``.
        targets: Instead of a registry: ``DOWN`` or ``GONE``.
        scorer: Series of ``freshet-trainer score``, once there is one.
        every_minute: Called at the end of each.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, begin_s: float = T0, **trainer: Any) -> None:
        self.now_s, self._event_s = float(T0), begin_s
        for name, value in {
            "time": lambda: self.now_s,
            "monotonic": lambda: self.now_s,
            "time_ns": lambda: round(self.now_s * 1e9),
        }.items():
            patch.setattr(time, name, value)
        patch.setitem(SnapshotSink.__init__.__kwdefaults__, "clock", lambda: self.now_s)
        advance = SnapshotSink.advance  # commits take none of the world's time, so they are waited for
        patch.setattr(SnapshotSink, "advance", lambda sink, *, wait: advance(sink, wait=True))
        patch.setattr("freshet_graph.stream.job.open_log.GroupOffsets", NoOffsets)
        patch.setattr("freshet_graph.stream.job.open_log.TopicWatch", NoWatch)
        patch.setattr(Predictions, "figures", lambda _: dict(self.figures))
        self.patch, self.speed, self.figures = patch, 1.0, dict(GOOD)
        # The process that runs the tests, and the disk under them, are busy with other tests too.
        self.rss: Callable[[], float] = lambda: 1e9
        self.free: Callable[[], float] = lambda: 0.5
        patch.setattr(
            "freshet_graph.trainer.metrics.psutil.Process", lambda: SimpleNamespace(memory_info=self._memory)
        )
        usage = shutil.disk_usage(folder)
        patch.setattr(
            "freshet_graph.stream.metrics.shutil.disk_usage",
            lambda _: usage._replace(free=round(self.free() * usage.total)),
        )
        self.unread, self.silent = {0: 0, 1: 0}, set[int]()
        self.refused = self.late = self.skipped = 0
        self.label: int | None = None
        self.weight = 1.0
        self.reason = "not_json"
        self.reads = self.lane_works = self.beats = self.by_turns = True
        self.learns = 1_000.0
        self.obstacle: str | None = None
        self.targets: dict[Target, str] = {}
        self.scorer: CollectorRegistry | None = None
        self.every_minute: list[Callable[[], None]] = []
        self.scrapes = Scrapes()
        self._random = np.random.default_rng(0)
        self._next = {0: 0, 1: 0}
        self._may_learn = 0.0
        lane = Lane(name="hash", algorithm="hash", parts=1)
        self.config = StreamConfig(
            graph="g",
            store=str(folder / "store"),
            kafka={"bootstrap": "127.0.0.1:1", "topics": [{"name": "edges"}]},  # type: ignore[arg-type]
            snapshots={"interval_s": INTERVAL_S, "commit_every_s": TICK_S},  # type: ignore[arg-type]
            lanes=[lane],
        )
        values = {
            "store": str(folder / "store"),
            "lane": "hash",
            "model": "sage-linear",
            "strategy": "vertex",
            "model_params": {"hidden": 4, "signature": 4},
            "window": 2,
            "optimisation": {"epochs": 1, "batch_size": 1_000},  # a step per snapshot
            "checkpoint": str(folder / "checkpoints"),
            "checkpoint_every": 1,
            **trainer,
        }
        self.trainer_config = TrainerConfig.model_validate(values)
        self._held = ExitStack()
        plan = ClusterPlan.of(self.config, [Start("edges", partition, 0, 0) for partition in (0, 1)])
        self._held.enter_context(holding(plan.id, self.config))
        announce(self.config.store, plan.id)
        self.stream = StreamMetrics(self.config)
        self.not_ready = readiness(self.config, self.stream, lambda: self.obstacle)
        self.host = LogHost(plan, self.config, self.stream)
        self._held.callback(self.host.close)
        self.lane = self._held.enter_context(closing(LaneThread(self.config.store, lane, self.stream)))
        store = HashStore()
        self._beats = [Heartbeats(store, rank, 2, lambda: self.now_s) for rank in (0, 1)]
        self.ranks = [self.rank_metrics(rank) for rank in (0, 1)]
        self.trainer: Trainer | None = None

    def close(self) -> None:
        """Give log and lane back."""
        self._held.close()

    def rank_metrics(self, rank: int, restarts: int = 0) -> TrainerMetrics:
        """The series of a rank that has just started."""
        up = self._beats[rank].up
        return TrainerMetrics(self.trainer_config, rank, ranks=2, up=up, restarts=restarts)

    def minutes(self, count: int) -> None:
        """Let time pass."""
        for _ in range(count):
            for _ in range(60 // TICK_S):
                self.now_s += TICK_S
                self._event_s += TICK_S * self.speed
                if self.reads:
                    for partition in (self.scrapes.minutes % 2,) if self.by_turns else (0, 1):
                        self._poll(partition)
                self._beats[0].beat()
                if self.beats:
                    self._beats[1].beat()
                self._beats[0].beat()
            if self.lane_works:
                self.lane.wake()
                self.lane.bring_up_to_date(lambda: False)
            self._learn()
            for what in self.every_minute:
                what()
            registries = zip(
                (STREAM, RANK_0, RANK_1), (self.stream, self.ranks[0], self.ranks[1]), strict=True
            )
            seen = {target: self.targets.get(target, metrics.registry) for target, metrics in registries}
            self.scrapes.take(seen if self.scorer is None else {**seen, SCORER: self.scorer})

    def _memory(self) -> SimpleNamespace:
        return SimpleNamespace(rss=round(self.rss()))

    def _poll(self, partition: int) -> None:
        first, waiting = self._next[partition], self.unread[partition]
        if partition in self.silent:
            self.host.write(
                poll("edges", partition, [], first=first, end=first, high_watermark=first + waiting)
            )
            return
        end = first + MESSAGES
        span_s = TICK_S * self.speed * (2 if self.by_turns else 1)
        times = np.sort(self._event_s - span_s * self._random.random(MESSAGES))
        messages: list[Any] = []
        for offset, t in enumerate(times.tolist(), first):
            refused, late = self._random.random() < self.refused, self._random.random() < self.late
            ends = self._random.integers(0, 20, 2).tolist()
            rows = [event(*ends, round((t - 7_200 * late) * SECOND), label=self.label, weight=self.weight)]
            messages.append((offset, None if refused else rows))
        batch = poll(
            "edges",
            partition,
            messages,
            first=first,
            end=end,
            high_watermark=end + waiting,
            reason=self.reason,
        )
        self.host.write(dataclasses.replace(batch, skipped=self.skipped))
        self._next[partition] = end

    def _learn(self) -> None:
        if self.trainer is None:
            lane = LaneReader(self.config.store, "hash")
            for metrics in self.ranks:
                metrics.graph(lane.header.graph)
            self.trainer = Trainer(self.trainer_config, lane, Ranks(), self.ranks[0])
        self._may_learn = min(self._may_learn + self.learns, 1_000.0)
        self.trainer.lane.refresh()
        waiting = list(self.trainer.lane.manifests)[self.trainer.sequence + 1 :]
        for manifest in waiting[: int(self._may_learn)]:
            self.trainer.step(manifest)
            self._may_learn -= 1
        if self.learns < 1:
            self._may_learn = self._may_learn % 1

    def case(self, firing: Mapping[int, set[str]]) -> dict[str, Any]:
        """A test of promtool: exactly these alerts fire at these minutes, with the labels that their summaries name."""
        summaries = {rule["alert"]: rule["annotations"]["summary"] for rule in rules()}
        tests = []
        for minute, names in sorted(firing.items()):
            asked = {f"{FIRING}}}": names}
            for name in names:
                named = set(re.findall(r"\{\{ \$labels\.(\w+) }}", summaries[name]))
                present = "".join(f',{label}!=""' for label in sorted(named))
                asked[f'{FIRING},alertname="{name}"{present}}}'] = {name}
            tests += [
                {
                    "expr": f"count by (alertname) ({alerts}) ^ 0",
                    "eval_time": f"{minute}m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)
                    ],
                }
                for alerts, expected in asked.items()
            ]
        return {"interval": "1m", "input_series": self.scrapes.series(), "promql_expr_test": tests}


def rules_file(cases: list[dict[str, Any]]) -> str:
    """A file for ``promtool test rules``."""
    content = {"rule_files": [str(PROMETHEUS / "alerts.yml")], "evaluation_interval": "1m", "tests": cases}
    return json.dumps(content)  # YAML, too, which PyYAML would write for 0.2 s


@functools.cache
def rules() -> list[dict[str, Any]]:
    """The alerts that are shipped."""
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]
