"""The results of a matrix as a table: mean ± standard deviation over seeds, by model and data."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from stream.service.failure import Failure

Format = Literal["text", "markdown", "latex"]

FIGURES = ("ap", "auroc", "mse")
"""Default figures: the first that a cell has."""

_NO_FIGURES = {"model", "lane", "ranks", "seed", "data", "seconds"}
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One model on one data set, over seeds.

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
    """Summarise cells over their seeds, in the order of the cells.

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
    grouped: dict[tuple[str, str, str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["model"], row["data"], row["lane"], row["ranks"]), []).append(row)
    found = []
    for (model, data, lane, ranks), group in grouped.items():
        values = [row[figure] for row in group if row.get(figure) is not None]
        found.append(
            Entry(
                model, data, lane, ranks, figure,
                mean=statistics.fmean(values) if values else None,
                sd=statistics.stdev(values) if len(values) > 1 else None,
                seeds=len(values),
                failed=sum(row["error"] is not None for row in group),
            )
        )  # fmt: skip
    return found


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
