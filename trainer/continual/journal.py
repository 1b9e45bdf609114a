"""What is written down of a snapshot that was learned: a line of the score file, and metrics."""

import time
from dataclasses import dataclass, field
from typing import Any

import structlog

from schemas.store import LaneManifest
from trainer.continual.drift import DRIFTED, Sliding
from trainer.continual.forgetting import Forgotten
from trainer.continual.phases import Phases
from trainer.continual.score_file import ScoreFile, flat_figures
from trainer.data.examples import Examples
from trainer.exports.gate import HELD
from trainer.metrics import TrainerMetrics
from trainer.scoring.predictions import Figures, Predictions
from trainer.strategies.interface import StepReport

log = structlog.get_logger()

LOGGED = ("sequence", "tau", "events", "loss", "ap", "random_ap", "edgebank_ap", "recency_ap")


@dataclass(slots=True)
class Step:
    """All that happened with a snapshot on one rank, filled in as it goes.

    Attributes:
        manifest: The snapshot.
        phases: Where the time went.
        skipped: Snapshots just before it that were left out.
        lag: Snapshots that waited after it when it was taken.
        examples: What it asked.
        predictions: Before it was learned, on rank 0.
        figures: Of the predictions.
        sliding: Of the newest snapshots, on rank 0.
        passes: Over its events.
        report: What was learned.
        held: Why its export was held back; None: it was not.
        evicted: What was forgotten afterwards.
    """

    manifest: LaneManifest
    phases: Phases = field(default_factory=Phases)
    skipped: int = 0
    lag: int = 0
    examples: Examples | None = None
    predictions: Predictions | None = None
    figures: Figures = field(default_factory=dict)
    sliding: Sliding = field(default_factory=lambda: Sliding({}))
    passes: float = 0.0
    report: StepReport = field(default_factory=lambda: StepReport(0, 0, None))
    held: str | None = None
    evicted: Forgotten = field(default_factory=Forgotten)


def write_line(scores: ScoreFile, step: Step, *, newest_us: int, oldest_us: int, lag: int) -> None:
    """On rank 0: the snapshot's line.

    Args:
        scores: Where to.
        step: The snapshot.
        newest_us: Time of its newest event.
        oldest_us: Of its oldest one that is not late.
        lag: Snapshots of the lane that are not trained yet.
    """
    assert step.examples is not None
    assert step.predictions is not None
    line: dict[str, Any] = {
        "sequence": step.manifest.sequence,
        "tau": step.manifest.tau,
        "events": step.manifest.num_events,
        "scored": len(step.predictions.positive),
        "trained": step.report.events,
        "discarded": step.report.discarded,
        "skipped": step.skipped,
        "passes": step.passes,
        "evicted": step.evicted.nodes,
        "excluded": step.examples.excluded,
        "steps": step.report.steps,
        "seconds": dict(step.phases.seconds),
        "t_max": newest_us / 1e6,
        "t_min": oldest_us / 1e6,
        "lag": lag,
        "wall_time": time.time(),
        **flat_figures(step.figures),
    }
    if step.report.loss is not None:
        line["loss"] = step.report.loss
    if step.report.replayed:
        line["replayed"] = step.report.replayed
    if step.report.nonfinite:
        line["nonfinite"] = step.report.nonfinite
    if step.held is not None:
        line[HELD] = step.held
    if step.sliding.drifted:
        line[DRIFTED] = True
    scores.append(line)
    log.info(
        "snapshot",
        **{
            key: round(line[key], 4) if isinstance(line[key], float) else line[key]
            for key in LOGGED
            if key in line
        },
    )


def observe(metrics: TrainerMetrics, step: Step, *, newest_us: int, oldest_us: int) -> None:
    """On rank 0, whose counts are those of all ranks, so that sums over ranks are right.

    Args:
        metrics: Rank 0's.
        step: The snapshot.
        newest_us: Time of its newest event.
        oldest_us: Of its oldest one that is not late.
    """
    assert step.examples is not None
    inserts, report = len(step.examples.inserts), step.report
    metrics.scored(step.figures)
    metrics.slid(step.sliding)
    metrics.excluded(step.examples.excluded)
    metrics.used("trained", report.events)
    metrics.used("discarded", report.discarded)
    metrics.used("replayed", report.replayed)
    metrics.used("state_only", max(0, inserts - report.events - report.discarded))
    if inserts:
        metrics.trained_share(report.events / inserts)
    metrics.learned(report.loss, report.nonfinite, newest_event_us=newest_us, oldest_event_us=oldest_us)
