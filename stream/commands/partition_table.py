"""Partitioners side by side, as a table for people, an object for machines and a picture."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from schemas.errors import system_call
from schemas.quality import FIGURES, Shown

if TYPE_CHECKING:  # matplotlib is loaded only once there is something to draw
    from matplotlib.axes import Axes

    from stream.partition.comparison import Compared

_SHOWN = FIGURES | {"seconds": Shown(column=("s", ",.2f"), panel="Seconds in all")}
_COLUMNS = [(*shown.column, name, shown.scale) for name, shown in _SHOWN.items() if shown.column is not None]
_PANELS = [(name, shown.scale, shown.panel) for name, shown in _SHOWN.items() if shown.panel is not None]
_COLOURS = {"vertex": "#2f6f9f", "edge": "#c8713a"}
_INK, _FAINT = "#1f2933", "#9aa5b1"


def comparison(compared: "list[Compared]") -> dict[str, Any]:
    """The comparison as one object: shared figures, then each partitioner's figures or its refusal."""
    figures = [c.figures for c in compared if c.figures is not None]
    shared = ("parts", "nodes", "edges", "snapshots")
    return {
        "algorithm": "all",
        **{key: figures[0][key] if figures else None for key in shared},
        "algorithms": [
            {"algorithm": c.algorithm, "kind": c.kind, "error": c.refusal} if c.figures is None else c.figures
            for c in compared
        ],
    }


def print_comparison(title: str, compared: "list[Compared]") -> None:
    """Print one table on standard output, vertex partitioners first, the lowest cut first; refusals below it."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("algorithm", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for name, *_ in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for one in _ordered(compared):
        assert one.figures is not None
        cells = (_cell(one.figures[key], scale, form) for _, form, key, scale in _COLUMNS)
        table.add_row(one.algorithm, one.kind, *cells)
    console = Console()
    console.print(table)
    for one in compared:
        if one.refusal is not None:
            console.print(f"{one.algorithm}: {one.refusal}", highlight=False, markup=False)


def draw_comparison(title: str, compared: "list[Compared]", path: Path) -> None:
    """Draw the comparison as bars, a PNG."""
    import matplotlib as mpl

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
    for at, value in enumerate(values):
        axes.annotate(
            f"{value:.3g}", (value, at), xytext=(3, 0), textcoords="offset points", va="center", color=_INK
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


def _cell(value: float | None, scale: float, form: str) -> str:
    return "–" if value is None or math.isnan(value) else format(scale * value, form)
