"""Records of a learned snapshot: a line of the score file, and metrics."""

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.events import show_time
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.service.logs import show_seconds
from freshet_graph.stream.store.places.durable import sync_file, sync_folder
from freshet_graph.trainer.continual.drift import DRIFTED, Sliding
from freshet_graph.trainer.continual.forgetting import Forgotten
from freshet_graph.trainer.exports.exporter import HELD
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.scoring.metrics import Figures, flat_figures
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.tasks.interface import Evaluation, SnapshotExamples, Task, label_report

NAME = "scores.jsonl"


class ScoreFile:
    """The lines of one checkpoint folder, in order of sequence, each snapshot once.

    A line is on the disk before the checkpoint of its snapshot or of a later one. So after a crash there may be lines beyond
    the checkpoint: ``cut_after`` removes them, and training writes them again.

    Args:
        folder: The checkpoint folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / NAME

    def cut_after(self, sequence: int | None) -> None:
        """Keep lines up to ``sequence`` (None: no line), drop later ones and a torn last line."""
        if not self.path.exists():
            return
        lines = [line for line in self.lines() if sequence is not None and line["sequence"] <= sequence]
        temporary = self.path.with_suffix(".tmp")
        try:
            with system_call("write", temporary):
                temporary.write_text("".join(_text(line) for line in lines), encoding="utf-8")
        except OSError:
            temporary.unlink(missing_ok=True)  # a full disk has no room for half a file
            raise
        sync_file(temporary)
        temporary.replace(self.path)
        sync_folder(self.path.parent)

    def append(self, line: dict[str, Any]) -> None:
        """Add a snapshot's line; it is durable after ``sync``.

        Raises:
            OSError: The disk refuses; the file is as it was.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with system_call("write", self.path), self.path.open("ab", buffering=0) as file:
            whole_bytes = file.tell()
            left = memoryview(_text(line).encode())
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(whole_bytes)
                raise

    def sync(self) -> None:
        """Flush all lines to the disk."""
        if self.path.exists():
            sync_file(self.path)

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines.

        Raises:
            Failure: A line is damaged; the sentence names it.
        """
        if not self.path.exists():
            return []
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1].splitlines()
        return [self._read(number, line) for number, line in enumerate(whole, 1)]

    def _read(self, number: int, text: bytes) -> dict[str, Any]:
        try:
            line = json.loads(text)
        except ValueError:  # UnicodeDecodeError is one too
            line = None
        if not isinstance(line, dict) or not isinstance(line.get("sequence"), int):
            raise Failure(
                f"{self.path}: line {number} is damaged. Remove the line, or move the file away to begin a new one: models "
                "don't need it, only the means over older snapshots that gates and drift look at"
            )
        return line


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"


class Phases:
    """Measures named phases: ``with phases("train"): …``.

    Attributes:
        seconds: Wall seconds by phase, in order of their end.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the seconds of the body to a phase."""
        beat()
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began


log = structlog.get_logger()

_SHOWN = {
    "ap": ("recency", "recency_popularity", "edgebank", "random"),
    "auroc": ("activity", "random"),
    "macro_f1": ("last_label", "majority", "random"),
    "mse": ("age_persistence", "persistence", "zero", "random"),
}
"""Figures in a line for people, and the baselines beside each."""


class Remaining:
    """Seconds until the trainer has caught up with its lane, from the mean of the last snapshots."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=20)

    def after(self, seconds: float, lag: int) -> float:
        """Seconds left, once a snapshot took ``seconds`` and ``lag`` are to come."""
        self._seconds.append(seconds)
        return lag * sum(self._seconds) / len(self._seconds)


LOGGED = (
    "sequence",
    "tau",
    "events",
    "loss",
    "ap",
    "random_ap",
    "edgebank_ap",
    "recency_ap",
    "recency_popularity_ap",
    "auroc",
    "mse",
    "persistence_mse",
    "age_persistence_mse",
)


@dataclass(slots=True)
class SnapshotStep:
    """All that happened with a snapshot on one rank, filled in as it goes.

    Attributes:
        manifest: The snapshot.
        phases: Where the time went.
        skipped: Snapshots just before it that were left out.
        examples: Its examples.
        evaluation: Predictions before it was learned, on rank 0.
        figures: Of the predictions.
        errors: Standard errors of sampled figures.
        sizes: Events of sampled figures, by kind.
        sliding: Of the newest snapshots, on rank 0.
        passes: Over its events.
        step_events: Most events of a step.
        report: Of training.
        held_reason: Why its export was held back; None: it was not.
        evicted: Counts forgotten afterwards.
    """

    manifest: LaneManifest
    phases: Phases = field(default_factory=Phases)
    skipped: int = 0
    examples: SnapshotExamples | None = None
    evaluation: Evaluation | None = None
    figures: Figures = field(default_factory=dict)
    errors: Figures = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    sliding: Sliding = field(default_factory=lambda: Sliding({}))
    passes: float = 0.0
    step_events: int = 0
    report: StepReport = field(default_factory=StepReport)
    held_reason: str | None = None
    evicted: Forgotten = field(default_factory=Forgotten)


def write_line(
    scores: ScoreFile,
    step: SnapshotStep,
    strategy_figures: dict[str, Any],
    *,
    newest_us: int,
    oldest_us: int,
    lag: int,
    remaining: Remaining,
) -> None:
    """On rank 0: the snapshot's line.

    Args:
        scores: Where to.
        step: The snapshot.
        strategy_figures: The strategy's figures, by their keys.
        newest_us: Time of its newest event.
        oldest_us: Of its oldest one that is not late.
        lag: Snapshots of the lane that are not trained yet.
        remaining: Of this process.

    Raises:
        Failure: A figure of the strategy has a key of every line.
    """
    assert step.examples is not None
    assert step.evaluation is not None
    line: dict[str, Any] = {
        "sequence": step.manifest.sequence,
        "tau": step.manifest.tau,
        "events": step.manifest.num_events,
        "scored": step.evaluation.scored,
        "trained": step.report.events,
        "discarded": step.report.discarded,
        "skipped": step.skipped,
        "passes": step.passes,
        "evicted": step.evicted.nodes,
        "excluded": step.examples.excluded,
        "steps": step.report.steps,
        "step_events": step.step_events,
        "seconds": dict(step.phases.seconds),
        "train_seconds": dict(step.report.seconds),
        "wait_s": step.report.traffic.wait_s,
        "comm_seconds": dict(step.report.traffic.seconds),
        "sent_bytes": dict(step.report.traffic.sent_bytes),
        "t_max": newest_us / 1e6,
        "t_min": oldest_us / 1e6,
        "lag": lag,
        "wall_time": time.time(),
        **flat_figures(step.figures),
    }
    line |= step.sizes | flat_figures(step.errors, "_error")
    if step.evaluation.cautions:
        line["cautions"] = step.evaluation.cautions
    if (labels := label_report(step.evaluation)) is not None:
        line["labels"] = labels.line()
    if step.report.loss is not None:
        line["loss"] = step.report.loss
    if step.report.replayed:
        line["replayed"] = step.report.replayed
    if step.report.nonfinite:
        line["nonfinite"] = step.report.nonfinite
    if step.held_reason is not None:
        line[HELD] = step.held_reason
    if step.sliding.drifted:
        line[DRIFTED] = True
    if taken := line.keys() & strategy_figures.keys():
        raise Failure(
            f"{', '.join(sorted(taken))} in {scores.path} is a figure of every strategy and of this one. Give the "
            "strategy's another key"
        )
    scores.append(line | strategy_figures)
    log.info(
        "snapshot",
        **{
            key: round(line[key], 4) if isinstance(line[key], float) else line[key]
            for key in LOGGED
            if key in line
        },
        for_people=_sentence(line, newest_us, remaining.after(sum(step.phases.seconds.values()), lag)),
    )


def _sentence(line: Mapping[str, Any], newest_us: int, left_s: float) -> str:
    number = line["sequence"] + 1
    parts = [
        f"{show_time(newest_us)[:19].replace('T', ' ')}  snapshot {number:,} of {number + line['lag']:,}"
    ]
    for metric, baselines in _SHOWN.items():
        if metric in line:
            beside = [f"{one} {line[key]:.3f}" for one in baselines if (key := f"{one}_{metric}") in line]
            parts.append(f"{metric} {line[metric]:.3f}" + (f" ({', '.join(beside)})" if beside else ""))
    if "loss" in line:
        parts.append(f"loss {line['loss']:.3f}")
    if line["lag"]:
        parts.append(f"{show_seconds(left_s)} left")
    return "  ".join(parts)


def observe(
    metrics: TrainerMetrics, step: SnapshotStep, task: Task, *, newest_us: int, oldest_us: int
) -> None:
    """On rank 0, whose counts are those of all ranks, so that sums over ranks are right.

    Args:
        metrics: Rank 0's.
        step: The snapshot.
        task: Names the figure that counts, and the baseline.
        newest_us: Time of its newest event.
        oldest_us: Of its oldest one that is not late.
    """
    assert step.examples is not None
    inserts, report = step.examples.items, step.report
    metrics.scored(step.figures, task.selection_metric, task.baseline)
    metrics.sampled(step.errors, step.sizes)
    metrics.slid(
        task.selection_metric[0], step.sliding.means, step.sliding.drop, drifted=step.sliding.drifted
    )
    metrics.excluded(step.examples.excluded)
    if (labels := label_report(step.evaluation)) is not None:
        metrics.labels(labels)
    metrics.used("trained", report.events)
    metrics.steps_of(step.step_events)
    metrics.used("discarded", report.discarded)
    metrics.used("replayed", report.replayed)
    metrics.used("state_only", max(0, inserts - report.events - report.discarded))
    if inserts:
        metrics.trained_share(report.events / inserts)
    metrics.learned(report.loss, report.nonfinite, newest_event_us=newest_us, oldest_event_us=oldest_us)
