"""The results of a matrix as a table: mean ± standard deviation over seeds, by model and data."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from stream.service.failure import Failure

Format = Literal["text", "markdown", "latex"]

FIGURES = ("ap", "auroc", "mse")
"""Default figures: the first that a cell has."""

BASELINES = (
    "edgebank", "edgebank_window", "recency", "recency_popularity", "activity", "zero", "mean", "persistence",
    "age_persistence",
)  # fmt: skip
"""Scorers of an evaluation that do not depend on its model."""

_Place = tuple[str, str, int]
"""Data, lane, ranks."""

_NO_FIGURES = {"model", "lane", "ranks", "seed", "data", "seconds"}
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One model, or one of ``BASELINES``, on one data set, over seeds.

    Attributes:
        mean: Over the seeds that have the figure; None: none has.
        sd: Sample standard deviation; None: fewer than two seeds.
        seeds: How many seeds have the figure.
        failed: How many cells ended with an error.
    """

    model: str
    data: str
    lane: str
    ranks: int
    figure: str
    mean: float | None
    sd: float | None
    seeds: int
    failed: int

    def shown(self) -> str:
        """For people: ``0.9123 ± 0.0012``, and the number of failed cells."""
        if self.mean is None:
            return "failed" if self.failed else "–"
        spread = "" if self.sd is None else f" ± {self.sd:.4f}"
        return f"{self.mean:.4f}{spread}{f' ({self.failed} failed)' if self.failed else ''}"


def entries(rows: Sequence[Mapping[str, Any]], figure: str | None) -> list[Entry]:
    """Summarise cells over their seeds, in the order of the cells; then the baselines that have the figure.

    Args:
        rows: One per cell, as in the file of results.
        figure: Its column; None: the first of ``FIGURES`` that a cell has.

    Raises:
        Failure: No cell has the figure, though some has others.
    """
    known = sorted(
        {key for row in rows for key, value in row.items() if isinstance(value, float)} - _NO_FIGURES
    )
    if figure is not None and known and figure not in known:
        raise Failure(f"--figure {figure}: no cell has it. Cells have {', '.join(known)}")
    figure = figure or next((name for name in FIGURES if name in known), known[0] if known else FIGURES[0])
    models: dict[tuple[str, _Place], list[Mapping[str, Any]]] = {}
    for row in rows:
        models.setdefault((row["model"], (row["data"], row["lane"], row["ranks"])), []).append(row)
    found = []
    for (model, place), group in models.items():
        failed = sum(row["error"] is not None for row in group)
        found.append(_entry(model, place, figure, [row.get(figure) for row in group], failed))
    for place, scorer in product(dict.fromkeys(place for _, place in models), BASELINES):
        groups = {model: group for (model, where), group in models.items() if where == place}
        sides = _sides(groups, f"{scorer}_{figure}")
        for names, by_seed in sides:
            of = "" if len(sides) == 1 else f" of {', '.join(names)}"
            found.append(_entry(f"{scorer} (baseline{of})", place, figure, list(by_seed.values()), 0))
    return found


def _entry(model: str, place: _Place, figure: str, values: Sequence[float | None], failed: int) -> Entry:
    known = [value for value in values if value is not None]
    data, lane, ranks = place
    return Entry(
        model, data, lane, ranks, figure,
        mean=statistics.fmean(known) if known else None,
        sd=statistics.stdev(known) if len(known) > 1 else None,
        seeds=len(known),
        failed=failed,
    )  # fmt: skip


def _sides(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], column: str
) -> list[tuple[list[str], dict[int, float]]]:
    """Models beside which a baseline has the same figures, and these by seed; its moment is that of the model beside it."""
    sides: list[tuple[list[str], dict[int, float]]] = []
    for model, group in groups.items():
        own = {row["seed"]: row[column] for row in group if row.get(column) is not None}
        same = next(
            (side for side in sides if all(side[1].get(seed, own[seed]) == own[seed] for seed in own)), None
        )
        if own and same is None:
            sides.append(([model], own))
        elif own and same is not None:
            same[0].append(model)
            same[1].update(own)
    return sides


def as_dicts(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """Entries for JSON."""
    return [asdict(entry) for entry in found]


def render(found: Sequence[Entry], form: Format) -> str:
    """The table of one figure: a row per model (with lane and ranks if there are several), a column per data set.

    ``form`` is text for a terminal, markdown, or latex (a tabular with the rules of booktabs).
    """
    data = _short([entry.data for entry in found])
    several = [name for name in ("lane", "ranks") if len({getattr(entry, name) for entry in found}) > 1]
    rows: dict[str, dict[str, Entry]] = {}
    for entry in found:
        more = [entry.lane if name == "lane" else _counted(entry.ranks, "rank") for name in several]
        rows.setdefault(", ".join([entry.model, *more]), {})[entry.data] = entry
    header = ["model", *data.values()]
    lines = [
        [name, *(cells[one].shown() if one in cells else "–" for one in data)] for name, cells in rows.items()
    ]
    if form == "markdown":
        rule = ["---", *["---:"] * len(data)]
        escaped = ([cell.replace("|", r"\|") for cell in line] for line in (header, rule, *lines))
        return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
    if form == "latex":
        body = [" & ".join(map(_latex, line)) + r" \\" for line in (header, *lines)]
        return "\n".join(
            [rf"\begin{{tabular}}{{l{'r' * len(data)}}}", r"\toprule", body[0], r"\midrule", *body[1:],
             r"\bottomrule", r"\end{tabular}"]
        )  # fmt: skip
    table = Table(*header)
    for line in lines:
        table.add_row(*line)
    console = Console(
        width=max(80, 4 + sum(3 + max(map(len, column)) for column in zip(header, *lines, strict=True)))
    )
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")


def caption(found: Sequence[Entry]) -> str:
    """A sentence about the table."""
    seeds = sorted({entry.seeds for entry in found if entry.seeds} or {0})
    most = _counted(seeds[-1], "seed")
    counted = most if len(seeds) == 1 else f"{seeds[0]} to {most}"
    return f"{found[0].figure if found else ''}: mean ± standard deviation over {counted}"


def _counted(number: int, of: str) -> str:
    return f"{number} {of}{'' if number == 1 else 's'}"


def _short(files: Sequence[str]) -> dict[str, str]:
    """Names of files without folder and ending, if they are still distinct."""
    names = {file: Path(file).name.split(".")[0] for file in files}
    return names if len(set(names.values())) == len(names) else {file: file for file in names}


def _latex(text: str) -> str:
    escaped = re.sub(
        r"[&%$#_{}]", lambda found: f"\\{found[0]}", re.sub(r"[\\~^]", lambda found: _LATEX[found[0]], text)
    )
    return escaped.replace(" ± ", r" $\pm$ ").replace("–", "--")
