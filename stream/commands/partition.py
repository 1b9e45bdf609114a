"""``freshet-stream partition``: a file through one, several or all partitioners, as figures, a table and a picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.schemas.quality import FIGURES, FigureDisplay
from freshet_graph.stream.commands.options import AsOfMoment, Params, parameters
from freshet_graph.stream.optional import package
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.file_flags import reads_files
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import Debug, Json, finish, note, print_json, print_table
from freshet_graph.stream.service.written_table import TableForm, WrittenForm, written_table

if TYPE_CHECKING:  # matplotlib is loaded only once there is something to draw
    from matplotlib.axes import Axes

    from freshet_graph.stream.partition.comparison import Compared
    from freshet_graph.stream.partition.offline import OfflineResult

_ALL = "all"

_LONGEST_INTERVAL_S = 9e12
"""Snapshots are cut in int64 microseconds."""

_SHOWN = FIGURES | {"seconds": FigureDisplay(column=("seconds", ",.2f"), panel="Seconds in all")}
_COLUMNS = [(*shown.column, name, shown.scale) for name, shown in _SHOWN.items() if shown.column is not None]
_PANELS = [(name, shown.scale, shown.panel) for name, shown in _SHOWN.items() if shown.panel is not None]
_HEADER = ["algorithm", "kind", *(heading for heading, *_ in _COLUMNS)]
_WORDS = 2
"""Columns of words; the others are numbers."""
_COLOURS = {"vertex": "#2f6f9f", "edge": "#c8713a"}
_INK, _FAINT = "#1f2933", "#9aa5b1"


@reads_files
def partition(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Files with columns src, dst, t, optionally op, features; or a store's folder or address.",
        ),
    ],
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help="A partitioner, such as distdy, sep or hash; several with commas, or all, in one table. An unknown name "
            "lists them.",
        ),
    ],
    parts: Annotated[int, typer.Option("--parts", help="K, the number of parts.")],
    interval: Annotated[
        float | None,
        typer.Option("--interval", help="Length of a snapshot in seconds, aligned to the epoch."),
    ] = None,
    snapshots: Annotated[
        int | None,
        typer.Option(
            "--snapshots",
            min=1,
            help="Or this many snapshots of equal event count. Neither: the file is one snapshot.",
        ),
    ] = None,
    param: Params = None,
    window: Annotated[int, typer.Option("--window", min=1, help="w, snapshots that trainers look back.")] = 4,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Same file, arguments and seed: same parts.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Parquet to write: node, part; edge partitioners: src, dst, t, part."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="With several: the PNG to write. Default with all: FILE's name with -partitioners.png, here.",
        ),
    ] = None,
    form: Annotated[
        TableForm,
        typer.Option(
            "--format",
            help="Format of the printed table; csv has all figures, unrounded. --json takes precedence.",
        ),
    ] = "text",
    as_of: AsOfMoment = None,
    reading: FileOptions = AS_EVENTS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Partition a file as a stream of snapshots and print the quality.

    Example: freshet-stream partition events.parquet --algorithm sep --parts 4 --snapshots 50 --json
    """
    if interval is not None and snapshots is not None:
        raise typer.BadParameter("give --interval or --snapshots, not both")
    if interval is not None and not 1e-6 <= interval <= _LONGEST_INTERVAL_S:
        raise typer.BadParameter(
            f"--interval must be from a microsecond to {_LONGEST_INTERVAL_S:.0e} seconds, found {interval}"
        )

    names = list(dict.fromkeys(algorithm.split(",")))
    several = algorithm == _ALL or len(names) > 1
    if several and out is not None:
        raise typer.BadParameter("--out takes the parts of one algorithm; with several there is --plot")
    if not several and plot is not None:
        raise typer.BadParameter("--plot goes with several algorithms, or --algorithm all")

    def body() -> None:
        from freshet_graph.stream.store.as_of import AsOf

        configure_logs(level="WARNING", as_json=False)
        name = Path(files[0].rstrip("/")).name + (f" and {len(files) - 1} more" if files[1:] else "")
        params = parameters(param)
        cut = {
            "interval_s": interval,
            "snapshots": snapshots,
            "as_of": None if as_of is None else AsOf.parse(as_of),
            "reading": reading,
        }
        how: dict[str, Any] = {"parts": parts, "window": window, "seed": seed, "params": params}
        if several:
            picture = plot
            if algorithm == _ALL and plot is None:
                picture = Path(f"{Path(files[0]).stem}-partitioners.png")
            if picture is not None:
                _require_writable("--plot", picture)
            compared = _compare(files, None if algorithm == _ALL else names, **cut, **how)
            title = f"{name} in {parts} parts"
            if picture is not None:
                _draw_comparison(title, compared, picture)
            if json:
                print_json({**_comparison(algorithm, compared), "plot": picture and str(picture)})
                return
            _print_comparison(title, compared, form)
            if picture is not None:
                note(f"drawn in {picture}")
            return
        if out is not None:
            _require_writable("--out", out)
        result = _partitioned(files, algorithm, **cut, **how)
        if out is not None:
            import pyarrow.parquet as pq

            with system_call("write", out):
                pq.write_table(result.placement, out)
        if json:
            print_json(result.figures)
        elif form != "text":
            typer.echo(_written([result.figures], [], form))
        else:
            shown = {key: value for key, value in result.figures.items() if key != "snapshot_seconds"}
            print_table(f"{name} by {algorithm}", shown)

    finish(body, debug=debug)


def _partitioned(files: list[str], algorithm: str, **how: Any) -> "OfflineResult":
    from freshet_graph.stream import offline
    from freshet_graph.stream.service.progress import counting

    with counting("partitioned {:,} of {:,} events") as progress:
        return offline.partition(files, algorithm, **how, progress=progress)


def _compare(files: list[str], names: list[str] | None, **how: Any) -> "list[Compared]":
    from freshet_graph.stream.offline import compare_file
    from freshet_graph.stream.service.progress import Display, StatusLine

    running, done, events = "", 0, 0

    def begun(name: str) -> None:
        nonlocal running, done
        running, done = name, 0

    def progress(finished: int, of: int) -> None:
        nonlocal done, events
        done, events = finished, of

    with Display(lambda: StatusLine(f"{running}: partitioned {done:,} of {events:,} events")):
        return compare_file(files, names, **how, begun=begun, progress=progress)


def _require_writable(option: str, path: Path) -> None:
    """Check a file that is written at the end, before hours of work."""
    if path.is_dir() or not path.parent.is_dir():
        raise Failure(f"{option} {path}: it must be a file in a folder that exists")


def _comparison(algorithm: str, compared: "list[Compared]") -> dict[str, Any]:
    """The comparison as one object: shared figures, then each partitioner's figures or its refusal."""
    figures = [c.figures for c in compared if c.figures is not None]
    shared = ("parts", "nodes", "edges", "snapshots")
    return {
        "algorithm": algorithm,
        **{key: figures[0][key] if figures else None for key in shared},
        "algorithms": [
            {"algorithm": c.algorithm, "kind": c.kind, "error": c.refusal} if c.figures is None else c.figures
            for c in compared
        ],
    }


def _print_comparison(title: str, compared: "list[Compared]", form: TableForm) -> None:
    """Print one table on standard output, vertex partitioners first, the lowest cut first; refusals below it."""
    refused = [one for one in compared if one.refusal is not None]
    rows = [one.figures for one in _ordered(compared) if one.figures is not None]
    if form != "text":
        typer.echo(_written(rows, refused, form))
        if form != "csv":  # which has a column for them
            for one in refused:
                note(f"{one.algorithm}: {one.refusal}")
        return
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(_HEADER):
        is_word = number < _WORDS
        lines = (
            name if is_word else fill(name, max(map(len, name.split())))
        )  # numbers are narrower than headings
        table.add_column(lines, justify="left" if is_word else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console = Console()
    console.print(table)
    for one in refused:
        console.print(f"{one.algorithm}: {one.refusal}", highlight=False, markup=False)


def _written(rows: Sequence[Mapping[str, Any]], refused: "Sequence[Compared]", form: WrittenForm) -> str:
    """Figures as a table for another program; of the forms only CSV has a row for a refusal."""
    if form != "csv":
        return written_table(_HEADER, [_cells(row) for row in rows], form, left=_WORDS)
    refusals = [{"algorithm": one.algorithm, "kind": one.kind, "error": one.refusal} for one in refused]
    every = [*rows, *refusals]
    columns = list(dict.fromkeys(key for row in every for key in row if key != "snapshot_seconds"))
    columns = [*(key for key in columns if key != "error"), "error"]
    values = [[row.get(key) for key in columns] for row in every]
    return written_table(
        columns, [["" if _absent(value) else str(value) for value in row] for row in values], form
    )


def _draw_comparison(title: str, compared: "list[Compared]", path: Path) -> None:
    """Draw the comparison as bars, a PNG."""
    mpl = package("matplotlib", "a drawing")
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        "font.size": 9,
        "font.family": "DejaVu Sans",
        "axes.edgecolor": _FAINT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "axes.titlecolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    rows = _ordered(compared)[::-1]
    with mpl.rc_context(style):
        figure, panels = plt.subplots(
            1, len(_PANELS), sharey=True, figsize=(16, 1.6 + 0.32 * len(rows)), layout="constrained"
        )
        for axes, (key, scale, name) in zip(panels, _PANELS, strict=True):
            _bars(axes, rows, key, scale)
            axes.set_title(name)
        figure.suptitle(
            f"{title}; vertex partitioners blue, edge partitioners orange",
            x=0.008,
            ha="left",
            fontsize=12,
            fontweight="bold",
            color=_INK,
        )
        with system_call("write", path):
            figure.savefig(path, dpi=130, facecolor="white", format="png")
        plt.close(figure)


def _bars(axes: "Axes", rows: "list[Compared]", key: str, scale: float) -> None:
    values = [_number((row.figures or {})[key], scale) for row in rows]
    axes.barh(
        [row.algorithm for row in rows], values, color=[_COLOURS[str(row.kind)] for row in rows], height=0.7
    )
    for row_number, value in enumerate(values):
        axes.annotate(
            f"{value:.3g}",
            (value, row_number),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            color=_INK,
        )
    axes.set_xlim(0, 1.2 * max(values, default=0.0) or 1.0)
    axes.tick_params(length=0)


def _ordered(compared: "list[Compared]") -> "list[Compared]":
    """Those with figures, vertex partitioners first, the lowest cut first."""
    rows = [one for one in compared if one.figures is not None]
    return sorted(rows, key=lambda one: (one.kind != "vertex", _number((one.figures or {})["cut"], 1.0)))


def _number(value: float | None, scale: float) -> float:
    """0 for NaN and None, figures without a meaning: a missing bar."""
    return 0.0 if value is None or math.isnan(value) else scale * value


def _cells(figures: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    numbers = ((figures[key], scale, form) for _, form, key, scale in _COLUMNS)
    return [
        figures["algorithm"],
        figures["kind"],
        *("–" if _absent(value) else format(scale * value, form) for value, scale, form in numbers),
    ]


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
