"""A page about a model: what it was trained on and how, what it scores, how it is loaded."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from freshet_graph.trainer.continual.drift import weighted_mean
from freshet_graph.trainer.trackers.interface import TrackedRun

NEWEST = 20
"""Snapshots in the means."""

FIGURES = ("ap", "auc", "mrr", "auroc", "accuracy", "macro_f1", "mse")
"""Figures on the card; beside each are those of all baselines."""


def model_card(run: TrackedRun, lines: Sequence[dict[str, Any]], checkpoint: str) -> str:
    """The page, in Markdown.

    Args:
        run: What was trained.
        lines: Of the score file, at least one.
        checkpoint: Name of the checkpoint's file.
    """
    newest = list(lines[-NEWEST:])
    events = sum(line["trained"] for line in lines)
    rows = [
        f"| {name} | {mean:.4f} |"
        for figure in FIGURES
        for name in sorted(
            {key for line in newest for key in line if key == figure or key.endswith(f"_{figure}")}
        )
        if (mean := weighted_mean(newest, name, "scored")) is not None
    ]
    keys = [f"| {key} | {value} |" for key, value in run.params.items()]
    return "\n".join(
        [
            f"# {run.name}",
            "",
            f"Trained by Freshet {run.tags['freshet.version']} on lane {run.tags['freshet.lane']} of graph "
            f"{run.tags['freshet.graph']}: {events} events in {len(lines)} snapshots, from {_day(lines[0]['t_min'])} to "
            f"{_day(lines[-1]['t_max'])}.",
            "",
            f"## Figures of the newest {len(newest)} snapshots",
            "",
            "Every event was predicted before it was learned. Rows with a first word are baselines, or the same model "
            "with random weights (`random`), or a subset of events. Means are weighted by events.",
            "",
            "| figure | mean |",
            "|---|---|",
            *rows,
            "",
            "## How to load it",
            "",
            f"Put `{checkpoint}` into an empty folder. Name the folder in the key `checkpoint` of the configuration below, and "
            "the store in `store`. Then `freshet_graph.Predictor(config)` answers, and `freshet-trainer run` continues.",
            "",
            "## Configuration",
            "",
            "| key | value |",
            "|---|---|",
            *keys,
            "",
        ]
    )


def _day(seconds: float) -> str:
    """Of an event time; times of some files are no dates, and are seconds then."""
    try:
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    except (OverflowError, ValueError):
        return f"{seconds:g} s"
