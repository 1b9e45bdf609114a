"""``freshet-stream plan``: what a store will take."""

from typing import Annotated

import typer

from stream.service.output import Debug, Json, finish, print_json, print_table
from stream.store.errors import StoreError


def plan(
    rate: Annotated[float, typer.Option("--rate", min=0, max=1e12, help="Events a second.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=2**31 - 1, help="Distinct nodes, all told.")],
    interval: Annotated[
        float, typer.Option("--interval", min=1e-6, max=1e11, help="Length of a snapshot in seconds.")
    ],
    features: Annotated[
        int, typer.Option("--features", min=0, max=1_000_000, help="F, width of node features.")
    ] = 0,
    lanes: Annotated[int, typer.Option("--lanes", min=0, max=4096, help="Lanes that follow the log.")] = 1,
    changed: Annotated[
        float, typer.Option("--changed", min=0, max=1, help="Share of nodes with a new vector in a snapshot.")
    ] = 0.3,
    repeated: Annotated[
        float, typer.Option("--repeated", min=0, max=1, help="Share of events whose pair is live already.")
    ] = 0.0,
    window: Annotated[
        int, typer.Option("--window", min=1, max=1_000_000, help="w, snapshots that trainers hold.")
    ] = 4,
    keep_days: Annotated[
        float, typer.Option("--keep-days", min=0, max=1_000_000, help="Days that retention keeps.")
    ] = 365.0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a stream's store takes: disk a day, files a day, memory, and the time to open it.

    Example: freshet-stream plan --rate 500 --nodes 1000000 --features 128 --interval 3600
    """

    def body() -> None:
        from stream.store.plan import Stream
        from stream.store.plan import plan as work_out

        found = work_out(
            Stream(rate, nodes, features, interval, lanes, changed, repeated, window, keep_days)
        ).figures()
        print_json(found) if json else print_table(
            f"{rate:,g} events/s, {nodes:,} nodes, {features} features, snapshots of {interval:,g} s", found
        )

    finish(body, StoreError, debug=debug)
