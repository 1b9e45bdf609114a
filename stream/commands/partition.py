"""``freshet-stream partition``: a file through any partitioner, with its quality."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stream.commands.partition_table import comparison, draw_comparison, print_comparison
from stream.service.failure import Failure
from stream.service.output import Columns, Debug, Json, finish, note, print_json, print_table

if TYPE_CHECKING:
    from stream.partition.comparison import Compared
    from stream.store.places.place import Place

_ALL = "all"

_LONGEST_INTERVAL_S = 9e12
"""Snapshots are cut in int64 microseconds."""


def partition(
    file: Annotated[
        str,
        typer.Argument(
            help="Parquet, CSV or TSV with columns src, dst, t (seconds or RFC 3339), optionally op, features; or a "
            "store's folder or address."
        ),
    ],
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help="A partitioner, such as distdy, sep or hash; all: every one, in one table; another name lists them.",
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
        typer.Option("--mode", help="two-pass: look at the whole file first, where the algorithm can."),
    ] = "online",
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="Another parameter of the algorithm, as reward=paper; repeatable."),
    ] = None,
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
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="MOMENT",
            help="Of a store: events up to this snapshot (18262), time (2024-05-01T12:00, UTC) or second (@1714564800).",
        ),
    ] = None,
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
        from stream.commands.progress import Display
        from stream.offline import partition_file
        from stream.store.places.place import place_of

        source = place_of(file)
        params = parameters(param or [])
        if mode == "two-pass" and params.get("rule") == "need":
            raise Failure("--mode two-pass is the paper's rule: leave rule=need out, or take --mode online")
        options = {"hubs": hubs, "time_constant": time_constant}
        if algorithm == _ALL:
            params |= {
                name: value for name, value in options.items() if value is not None and name not in params
            }
            title = f"{source.name} in {parts} parts"
            picture = _writable("--plot", plot or Path(f"{source.stem}-partitioners.png"))
            compared = _compare(
                source,
                parts,
                interval,
                snapshots,
                params,
                mode=mode,
                window=window,
                seed=seed,
                as_of=as_of,
                columns=columns,
            )
            draw_comparison(title, compared, picture)
            if json:
                print_json({**comparison(compared), "plot": str(picture)})
            else:
                print_comparison(title, compared)
                note(f"drawn in {picture}")
            return
        if out is not None:
            _writable("--out", out)
        _taken(algorithm, params, options)
        at = (0, 0)

        def report(done: int, events: int) -> None:
            nonlocal at
            at = done, events

        with Display(lambda: "partitioned {:,} of {:,} events".format(*at)):
            result = partition_file(
                file,
                algorithm,
                parts=parts,
                interval_s=interval,
                snapshots=snapshots,
                mode=mode,
                seed=seed,
                window=window,
                params=params,
                as_of=as_of,
                columns=columns,
                progress=report,
            )
        if out is not None:
            import pyarrow.parquet as pq

            pq.write_table(result.placement, out)
        if json:
            print_json(result.figures)
            return
        shown = {key: value for key, value in result.figures.items() if key != "snapshot_seconds"}
        print_table(f"{source.name} by {algorithm}", shown)

    finish(body, PartitionError, StoreError, debug=debug)


def _compare(
    file: "Place",
    parts: int,
    interval_s: float | None,
    snapshots: int | None,
    params: dict[str, Any],
    *,
    mode: Literal["online", "two-pass"],
    window: int,
    seed: int,
    as_of: str | None,
    columns: str | None,
) -> "list[Compared]":
    from schemas.events import US_PER_S
    from stream.commands.progress import Display
    from stream.partition.comparison import compare
    from stream.partition.interface import check_parts
    from stream.store.store_events import read_source

    check_parts("every partitioner", parts)  # said before the file is read
    read = read_source(file, as_of, columns)
    running, done = "", 0

    def begun(name: str) -> None:
        nonlocal running, done
        running, done = name, 0

    def report(events: int) -> None:
        nonlocal done
        done = events

    with Display(lambda: f"{running}: partitioned {done:,} of {read.events.num_rows:,} events"):
        return compare(
            read.events,
            parts=parts,
            interval_us=None if interval_s is None else round(interval_s * US_PER_S),
            num_slices=snapshots,
            mode=mode,
            seed=seed,
            window=window,
            node_features=read.node_features,
            params=params,
            begun=begun,
            progress=report,
        )


def _taken(algorithm: str, params: dict[str, Any], options: dict[str, float | None]) -> None:
    """Options of their own become parameters of algorithms that take them; of others it is said that they change nothing."""
    from stream.partition.offline import accepted_params

    takes = accepted_params(algorithm)
    for name, value in options.items():
        if value is not None and takes and name not in takes:
            note(f"{algorithm} has no --{name.replace('_', '-')}: it changes nothing")
        elif value is not None:
            params.setdefault(name, value)


def _writable(option: str, path: Path) -> Path:
    """A file to write at the end, looked at before hours of work."""
    if path.is_dir() or not path.parent.is_dir():
        raise Failure(f"{option} {path}: it must be a file in a folder that exists")
    return path


def parameters(pairs: list[str]) -> dict[str, Any]:
    """Parameters given as name=value, values in YAML."""
    import yaml

    params: dict[str, Any] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise Failure(f"--param takes name=value, found {pair!r}")
        try:
            params[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise Failure(
                f"--param {name} takes a YAML value, such as 3, text or [1, 2], found {value!r}"
            ) from error
    return params
