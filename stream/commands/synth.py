"""``freshet-stream synth``: write a synthetic event file."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from freshet_graph.schemas.errors import system_call
from freshet_graph.stream.commands.options import parameters
from freshet_graph.stream.service.config_file import validated
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.output import Debug, Json, finish, print_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from freshet_graph.stream.synthetic.payments import Part

_DAY_S = 86_400.0


def synth(
    out: Annotated[
        Path, typer.Option("--out", help="File to write: CSV if it ends in .csv, Parquet otherwise.")
    ],
    nodes: Annotated[int | None, typer.Option("--nodes", min=2, help="Nodes of a plain stream.")] = None,
    edges: Annotated[int | None, typer.Option("--edges", min=1, help="Inserts of a plain stream.")] = None,
    features: Annotated[
        int | None,
        typer.Option("--features", min=0, help="Width of node features. Default: 0; with --paper 128."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same arguments and seed, same file.")] = 0,
    shape: Annotated[
        Literal["community", "rmat"],
        typer.Option("--shape", help="community: structure worth learning; rmat: the skew of load tests."),
    ] = "community",
    span: Annotated[
        float | None,
        typer.Option(
            "--span", help="Seconds of event time of a plain stream. Default: 30 days; with --fraud 90 days."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Events per second of event time of a plain stream, instead of --span."),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            "--paper", help="A graph of DistDy's Table 2: uni500k, ex500k, 10k-sparse … 100k-dense."
        ),
    ] = None,
    snapshots: Annotated[
        int | None, typer.Option("--snapshots", min=1, help="With --paper: T, each of 1,000 s.")
    ] = None,
    change: Annotated[
        float | None,
        typer.Option(
            "--change", min=0, max=1, help="With --paper: share replaced per snapshot. Default: 0.3."
        ),
    ] = None,
    fraud: Annotated[
        bool,
        typer.Option(
            "--fraud",
            help="Payments with --nodes and --edges: taken-over merchants, stolen cards, mules, rings; labels and truth beside "
            "the file.",
        ),
    ] = False,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="With --fraud: a share or a delay, such as rings=0.002. May be repeated.",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a synthetic stream of interactions, sorted by time from 2024-01-01 on.

    Example: freshet-stream synth --nodes 2000 --edges 100000 --features 16 --out demo.parquet
    """
    if (paper is None) == (nodes is None and edges is None):
        raise typer.BadParameter("give --nodes and --edges, or --paper")
    if paper is None and (nodes is None or edges is None):
        raise typer.BadParameter("give both --nodes and --edges")
    if paper is None and (snapshots is not None or change is not None):
        raise typer.BadParameter("--snapshots and --change go with --paper")
    if paper is not None and (span is not None or rate is not None or shape != "community"):
        raise typer.BadParameter("--span, --rate and --shape go with --nodes and --edges")
    if fraud and (paper is not None or shape != "community" or features):
        raise typer.BadParameter("--fraud goes with --nodes and --edges, without --features and --shape")
    if param and not fraud:
        raise typer.BadParameter("--param goes with --fraud")
    if span is not None and rate is not None:
        raise typer.BadParameter("give --span or --rate, not both")
    if any(value is not None and not 0 < value < math.inf for value in (span, rate)):
        raise typer.BadParameter("--span and --rate must be positive and finite")

    def body() -> None:
        from freshet_graph.stream.synthetic.event_writer import write_events, write_payments

        if paper is not None:
            tables, interval_s = _paper_tables(paper, snapshots, features, change, seed)
            with system_call("write", out):
                result = write_events(out, tables, interval_s=interval_s)
        else:
            assert nodes is not None and edges is not None
            span_s = span or (edges / rate if rate else None)
            if fraud:
                parts = _payments(nodes, edges, parameters(param), seed, span_s)
                with system_call("write", out):
                    result = write_payments(out, parts, interval_s=_DAY_S)
            else:
                plain = _plain(nodes, edges, features or 0, seed, shape, span_s)
                with system_call("write", out):
                    result = write_events(out, [plain], interval_s=_DAY_S)
        print_result(f"Wrote {out}", result, as_json=json)

    finish(body, debug=debug)


def _plain(
    nodes: int,
    edges: int,
    features: int,
    seed: int,
    shape: Literal["community", "rmat"],
    span_s: float | None,
) -> "pa.Table":
    from freshet_graph.stream.synthetic import DEFAULT_SPAN_S, interactions

    try:
        return interactions(
            nodes, edges, features=features, seed=seed, shape=shape, span_s=span_s or DEFAULT_SPAN_S
        )
    except ValueError as error:
        raise Failure(f"synth: {error}") from error


def _payments(
    nodes: int, edges: int, params: dict[str, Any], seed: int, span_s: float | None
) -> "Iterator[Part]":
    from freshet_graph.stream.synthetic import FraudOptions, payments
    from freshet_graph.stream.synthetic.payments import DEFAULT_PAYMENTS_SPAN_S

    options = validated(FraudOptions, params, "synth --param")
    try:
        return payments(nodes, edges, options=options, seed=seed, span_s=span_s or DEFAULT_PAYMENTS_SPAN_S)
    except ValueError as error:
        raise Failure(f"synth --fraud: {error}") from error


def _paper_tables(
    name: str, snapshots: int | None, features: int | None, change: float | None, seed: int
) -> "tuple[Iterable[pa.Table], float]":
    from dataclasses import replace

    from freshet_graph.stream.synthetic import PAPER_GRAPHS, paper_snapshots
    from freshet_graph.stream.synthetic.table2 import CHANGE, FEATURES, INTERVAL_S

    if name not in PAPER_GRAPHS:
        raise Failure(f"unknown graph {name!r} of --paper, expected one of {', '.join(PAPER_GRAPHS)}")
    graph = PAPER_GRAPHS[name]
    graph = replace(graph, snapshots=graph.snapshots if snapshots is None else snapshots)
    tables = paper_snapshots(
        graph,
        features=FEATURES if features is None else features,
        change=CHANGE if change is None else change,
        seed=seed,
    )
    return tables, float(INTERVAL_S)
