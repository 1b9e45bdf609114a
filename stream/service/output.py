"""The output of a command: one JSON object for machines on standard output, everything else on standard error."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from freshet_graph.stream.service.failure import run_command
from freshet_graph.stream.service.json_lines import json_line, lines_are_json
from freshet_graph.stream.service.logs import LogForm

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option("--log-level", help="Lowest level that is logged; --debug logs all."),
]
LogFormat = Annotated[
    LogForm | None,
    typer.Option(
        "--log-format",
        help="Form of the log on standard error. Default: text on a terminal, elsewhere JSON lines.",
    ),
]

Store = Annotated[
    str, typer.Argument(help="Folder of the store, or its address: s3://bucket/prefix.", metavar="STORE")
]

notes = Console(stderr=True)
"""Where people read: progress, captions of tables, warnings. ``note`` is for sentences that machines may read, too."""


def note(sentence: str, event: str | None = None, fields: Mapping[str, Any] | None = None) -> None:
    """Print a remark beside the result on standard error.

    If that consists of JSON lines, it is one with ``event`` and ``fields``, or with the sentence as its event.
    """
    if lines_are_json():
        print(json_line(event or sentence, **(fields or {})), file=sys.stderr)  # noqa: T201
    else:
        notes.print(sentence, highlight=False, markup=False, soft_wrap=True)


_NUMBERS = frozenset({"first", "last", "tau", "sequence"})
"""Keys of a table whose values name snapshots. They are shown as ``--as-of`` takes them, without separators."""


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object with finite numbers (NaN and infinities become null)."""
    json.dump(_finite(result), sys.stdout, separators=(",", ": "), default=str, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_table(title: str, rows: Mapping[str, Any]) -> None:
    """Print keys and values as a two-column table on standard output, below a title of any width."""
    table = Table(show_header=False)
    for key, value in rows.items():
        table.add_row(key, Text(str(value) if key in _NUMBERS and value is not None else _readable(value)))
    console = Console()
    console.print(Text(title, style="italic"), soft_wrap=True)
    console.print(table)


def print_end(title: str, rows: Mapping[str, Any]) -> None:
    """Print the table of a service that came to its end, unless a log of JSON lines has its figures in ``ended``.

    On a terminal it is printed all the same. In a journal it would stand between the lines of the log.
    """
    if sys.stdout.isatty() or not lines_are_json():
        print_table(title, rows)


def with_units(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of a table, those whose keys name bytes with a unit."""
    return {
        key: show_bytes(value) if "bytes" in key and isinstance(value, int | float) else value
        for key, value in rows.items()
    }


def show_bytes(count: float) -> str:
    """A number of bytes in the largest unit that it reaches, such as 3.6 TiB."""
    exponent = min(max(int(count).bit_length() - 1, 0) // 10, 5)
    if not exponent:
        return f"{count:,.0f} B"
    return f"{count / 1024**exponent:,.1f} {'KMGTP'[exponent - 1]}iB"


def print_result(title: str, result: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a result as one JSON object or as a table."""
    print_json(result) if as_json else print_table(title, result)


def finish(command: Callable[[], int | None], *, debug: bool = False) -> None:
    """Run a command body and exit with its code: 1 and one sentence for a ``FreshetError`` or ``OSError``."""
    raise typer.Exit(run_command(command, debug=debug))


def _readable(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_readable(entry)}" for key, entry in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(_readable, value)) or "–"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _finite(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
