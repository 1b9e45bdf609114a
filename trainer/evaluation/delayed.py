"""Edge classification with labels that come later: the pass of ``run`` over a file, judged by the events of its test part.

The trainer of ``run`` scores each event when it comes, and learns it when its label becomes visible: no epochs, no validation.
After the last snapshot time runs on without events, so that every label judges its event.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_graph.schemas.trainer_config import Exports, TrainerConfig
from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.evaluation.costs import mapped_bytes, of_ranks, peak_mib, work
from freshet_graph.trainer.evaluation.split import Split
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.scoring.metrics import Figures, flat_figures
from freshet_graph.trainer.scoring.predictions import Predictions
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.tasks.edge_classification import SCORERS, LabelScores

KEYS = ("delay_s", "negative_after_s")
"""Keys of ``task_params`` that say when labels come."""

BASELINES = {"activity": "activity", "degree": "degrees", "surprise": "surprise", "label_share": "label_rate",
             "amount": "amount", "random": "random_weights"}  # fmt: skip
"""Names of the scorers in ``baselines`` of a result."""


def comes_later(config: TrainerConfig, lane: LaneReader) -> bool:
    """Whether labels come after their events, as the configuration says or because they are those of topics."""
    return any(key in config.task_params for key in KEYS) or any(lane.log.labels()["event_id"].is_valid())


def with_label_delay(config: TrainerConfig, delay_s: float) -> TrainerConfig:
    """A configuration whose labels become visible so many seconds after their events.

    Raises:
        Failure: Its task is not about labels of events.
    """
    if config.task != "edge-classification":
        raise Failure(
            f"--label-delay is about labels of events, but the task is {config.task}. Leave it out, or set task: "
            "edge-classification"
        )
    return config.model_copy(update={"task_params": {**config.task_params, "delay_s": delay_s}})


def named(figures: Figures) -> dict[str, float]:
    """Figures by their names in results: ``ap`` is that of labels, and links have none."""
    names = flat_figures({key: value for key, value in figures.items() if key[1] == "all"})
    return {name.replace("average_precision", "ap"): value for name, value in names.items()}


def baselines_of(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """``auroc`` and ``ap`` of each baseline, from a result with flat names."""
    beside: dict[str, dict[str, float]] = {}
    if "base_rate" in result:
        beside["base_rate"] = {"auroc": 0.5, "ap": result["base_rate"]}
    for scorer, name in BASELINES.items():
        values = {key: result[f"{scorer}_{key}"] for key in ("auroc", "ap") if f"{scorer}_{key}" in result}
        if values:
            beside[name] = values
    return beside


@dataclass(frozen=True, slots=True)
class DelayedSnapshot:
    """Judged events of one test snapshot.

    Attributes:
        scores: Of these events.
        event: int64 (n,), place of each among the snapshot's inserts.
    """

    scores: LabelScores
    event: Int64

    @property
    def scored(self) -> int:
        """See ``Evaluation.scored``."""
        return len(self.event)

    def figures(self) -> Figures:
        """See ``Evaluation.figures``."""
        return self.scores.figures()

    def rows(self) -> dict[str, NDArray[Any]]:
        """See ``Evaluation.rows``."""
        by_scorer = {
            f"{scorer}_score".removeprefix("model_"): self.scores.scores[:, column]
            for column, scorer in enumerate(SCORERS)
        }
        return {"event": self.event, "label": self.scores.label, **by_scorer}


class DelayedRun:
    """One seed: one pass as ``run`` makes it.

    Args:
        config: Of the evaluation.
        lane: Its lane.
        ranks: All ranks.
        split: By time: events of the test are judged.
        seed: Of this repetition.
        folder: Of the store.

    Attributes:
        judged: τ and judged events of each test snapshot, on rank 0.
        cautions: About the figures.
    """

    def __init__(
        self, config: TrainerConfig, lane: LaneReader, ranks: Ranks, split: Split, seed: int, folder: str
    ) -> None:
        self._lane, self._ranks, self._split, self._seed = lane, ranks, split, seed
        as_run = {
            "store": folder,
            "checkpoint": str(Path(folder) / f"of-seed-{seed}"),
            "checkpoint_every": len(lane.manifests) + 1,
            "exports": Exports(),
            "tracker": None,
            "overload": "train-all",
            "seed": seed,
        }
        config = config.model_copy(update=as_run)
        metrics = TrainerMetrics(config, ranks.rank)
        metrics.graph(lane.header.graph)
        self._trainer = Trainer(config, lane, ranks, metrics)
        self.judged: list[tuple[int, DelayedSnapshot]] = []
        self.cautions: list[dict[str, Any]] = []

    def figures(self) -> dict[str, Any]:
        """Pass over the stream; figures of the test, seconds and peak memory of this rank."""
        trainer = self._trainer
        reports: list[StepReport] = []
        parts: list[LabelScores] = []
        numbers: list[Int64] = []
        learned, lost, held_bytes = 0, 0, np.zeros(3, np.int64)
        began, began_cpu_s = time.perf_counter(), time.process_time()
        for manifest in self._lane.manifests:
            step = trainer.step(manifest)
            assert step.examples is not None
            reports.append(step.report)
            learned += len(step.examples)
            lost += step.examples.excluded.get("label_lost", 0)
            session = trainer.session
            now_bytes = session.strategy.held_bytes.get("memory", 0), session.graph_bytes, mapped_bytes()
            held_bytes = np.maximum(held_bytes, now_bytes)
            task: Any = session.task
            if isinstance(step.evaluation, LabelScores):
                self._take(step.evaluation, task.judged_numbers, parts, numbers)
                if manifest is self._lane.manifests[-1]:
                    rest = task.judge_rest(step.evaluation.links, step.examples)
                    self._take(rest, task.judged_numbers, parts, numbers)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu_s
        trainer.writes.finish()
        trainer.session.close()
        discarded = sum(report.discarded for report in reports)
        events = of_ranks(learned, self._ranks)
        return {
            "seed": self._seed,
            **self._test_figures(parts, numbers),
            "label_lost": lost,
            "epochs": 1,
            "discarded": discarded,
            "cut": discarded / max(1, discarded + sum(events)),
            "event_balance": max(events) * len(events) / max(1, sum(events)),
            **work(reports, self._ranks),
            "epoch_s": seconds,
            "peak_mib": peak_mib(),
            "rank_events": events,
            "rank_cpu_s": of_ranks(cpu_s, self._ranks),
            **{
                f"rank_{name}_bytes": of_ranks(most, self._ranks)
                for name, most in zip(("memory", "graph", "mapped"), held_bytes.tolist(), strict=True)
            },
        }

    def _take(
        self, scores: LabelScores, judged: Int64, parts: list[LabelScores], numbers: list[Int64]
    ) -> None:
        """Keep the judged events of the test."""
        of_test = self._split.test(scores.time_us)
        parts.append(_chosen(scores, of_test))
        numbers.append(judged[of_test])

    def _test_figures(self, parts: Sequence[LabelScores], numbers: Sequence[Int64]) -> dict[str, float]:
        """Figures of the test on rank 0; sets ``judged`` and ``cautions``."""
        if self._ranks.rank != 0:
            return {}
        together: LabelScores = self._trainer.session.task.join(parts)  # type: ignore[assignment]  # of this task
        number = np.concatenate(numbers)
        in_order = np.argsort(number)
        together, number = _chosen(together, in_order), number[in_order]
        snapshots = self._lane.log.snapshots
        begins = np.cumsum([0, *(one.num_inserts for one in snapshots)])
        of_snapshot = np.searchsorted(begins, number, "right") - 1
        for place in np.unique(of_snapshot).tolist():
            here = of_snapshot == place
            judged = DelayedSnapshot(_chosen(together, here), number[here] - begins[place])
            self.judged.append((snapshots[place].tau, judged))
        self.cautions = together.cautions
        return {**named(together.figures()), "judged": len(number)}


def _chosen(scores: LabelScores, rows: Bool | Int64) -> LabelScores:
    """Some of judged events, without links."""
    columns = {field.name: getattr(scores, field.name) for field in fields(scores)}
    some: dict[str, Any] = {
        name: column[rows] for name, column in columns.items() if isinstance(column, np.ndarray)
    }
    links = {field.name: getattr(scores.links, field.name)[:0] for field in fields(scores.links)}
    return replace(scores, **some, links=Predictions(**links))
