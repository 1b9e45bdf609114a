"""``freshet-stream partition``: a file through any partitioner, with its quality."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from schemas.errors import system_call
from stream.commands.options import AsOfMoment, Params, parameters
from stream.commands.partition_table import comparison, draw_comparison, print_comparison
from stream.service.failure import Failure
from stream.service.logs import configure_logs
from stream.service.output import Columns, Debug, Json, finish, note, print_json, print_table

if TYPE_CHECKING:
    from stream.partition.comparison import Compared
    from stream.partition.offline import OfflineResult

_ALL = "all"

_LONGEST_INTERVAL_S = 9e12
"""Snapshots are cut in int64 microseconds."""


def partition(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Parquet, CSV or TSV with columns src, dst, t (seconds or RFC 3339), optionally op, features; or a "
            "store's folder or address.",
        ),
    ],
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help="A partitioner, such as distdy, sep or hash; all: every one, in one table. An unknown name lists them.",
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
    hubs: Annotated[
        float | None,
        typer.Option(
            "--hubs", help="k, share of the nodes that may be in several parts. Default of sep: 0.05."
        ),
    ] = None,
    time_constant: Annotated[
        float | None,
        typer.Option(
            "--time-constant",
            help="Seconds after which an event counts 1/e. Default: a tenth of the file's span.",
        ),
    ] = None,
    mode: Annotated[
        Literal["online", "two-pass"],
        typer.Option("--mode", help="two-pass: look at the whole file first, if the algorithm can."),
    ] = "online",
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
            "--plot", help="With all: the PNG to write. Default: FILE's name with -partitioners.png, here."
        ),
    ] = None,
    as_of: AsOfMoment = None,
    columns: Columns = None,
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

    if algorithm == _ALL and out is not None:
        raise typer.BadParameter("--out takes the parts of one algorithm; with all there is --plot")
    if algorithm != _ALL and plot is not None:
        raise typer.BadParameter("--plot goes with --algorithm all")

    from stream.partition.interface import PartitionError
    from stream.store.errors import StoreError

    def body() -> None:
        from stream.store.places.place import place_of

        configure_logs(level="WARNING", as_json=False)
        source = place_of(file)
        params = parameters(param)
        if mode == "two-pass" and params.get("rule") == "need":
            raise Failure("--mode two-pass is the paper's rule: leave rule=need out, or take --mode online")
        given = {"hubs": hubs, "time_constant": time_constant}
        own = {name: value for name, value in given.items() if value is not None and name not in params}
        cut = {"interval_s": interval, "snapshots": snapshots, "as_of": as_of, "columns": columns}
        how: dict[str, Any] = {"parts": parts, "mode": mode, "window": window, "seed": seed, "params": params}
        if algorithm == _ALL:
            params |= own
            picture = _writable("--plot", plot or Path(f"{source.stem}-partitioners.png"))
            title, compared = f"{source.name} in {parts} parts", _compare(file, **cut, **how)
            draw_comparison(title, compared, picture)
            if json:
                print_json({**comparison(compared), "plot": str(picture)})
            else:
                print_comparison(title, compared)
                note(f"drawn in {picture}")
            return
        if out is not None:
            _writable("--out", out)
        params |= _taken(algorithm, own)
        result = _partitioned(file, algorithm, **cut, **how)
        if out is not None:
            import pyarrow.parquet as pq

            with system_call("write", out):
                pq.write_table(result.placement, out)
        if json:
            print_json(result.figures)
            return
        shown = {key: value for key, value in result.figures.items() if key != "snapshot_seconds"}
        print_table(f"{source.name} by {algorithm}", shown)

    finish(body, PartitionError, StoreError, debug=debug)


def _partitioned(file: str, algorithm: str, **how: Any) -> "OfflineResult":
    from stream.commands.progress import counting
    from stream.offline import partition_file

    with counting("partitioned {:,} of {:,} events") as progress:
        return partition_file(file, algorithm, **how, progress=progress)


def _compare(file: str, **how: Any) -> "list[Compared]":
    from stream.commands.progress import Display, Shown
    from stream.offline import compare_file

    running, done, events = "", 0, 0

    def begun(name: str) -> None:
        nonlocal running, done
        running, done = name, 0

    def progress(finished: int, of: int) -> None:
        nonlocal done, events
        done, events = finished, of

    with Display(lambda: Shown(f"{running}: partitioned {done:,} of {events:,} events")):
        return compare_file(file, **how, begun=begun, progress=progress)


def _taken(algorithm: str, options: dict[str, float]) -> dict[str, float]:
    """The options that are parameters of an algorithm; of the others a note says that they change nothing."""
    from stream.partition.offline import accepted_params

    takes = accepted_params(algorithm)
    for name in options:
        if takes and name not in takes:
            note(f"{algorithm} has no --{name.replace('_', '-')}: it changes nothing")
    return {name: value for name, value in options.items() if not takes or name in takes}


def _writable(option: str, path: Path) -> Path:
    """A file to write at the end, checked before hours of work."""
    if path.is_dir() or not path.parent.is_dir():
        raise Failure(f"{option} {path}: it must be a file in a folder that exists")
    return path
