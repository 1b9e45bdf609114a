"""``freshet-stream plan``: the size of a store."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.output import Debug, Json, finish, note, print_json, print_table, with_units


def plan(
    rate: Annotated[float | None, typer.Option("--rate", min=0, max=1e12, help="Events per second.")] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, max=2**31 - 1, help="Distinct nodes in all.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option("--interval", min=1e-6, max=1e11, help="Length of a snapshot in seconds."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="STORE",
            help="Store to measure whatever is not given: rate, nodes, pairs …",
        ),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option("--features", min=0, max=1_000_000, help="F, width of node features. Default: 0."),
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option("--lanes", min=0, max=4096, help="Lanes that follow the log. Default: 1."),
    ] = None,
    changed: Annotated[
        float | None,
        typer.Option(
            "--changed", min=0, max=1, help="Share of nodes with a new vector in a snapshot. Default: 0.3."
        ),
    ] = None,
    repeated: Annotated[
        float | None,
        typer.Option(
            "--repeated", min=0, max=1, help="Share of events whose pair is live already. Default: 0."
        ),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option("--pairs", min=1, max=2**62, help="Or the number of distinct pairs in all."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", min=1, max=1_000_000, help="w, snapshots that trainers hold. Default: 4."),
    ] = None,
    keep_days: Annotated[
        float, typer.Option("--keep-days", min=0, max=1_000_000, help="Days that retention keeps.")
    ] = 365.0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Estimate a stream's store: disk per day, files per day, memory, and the time to open it.

    Example: freshet-stream plan --rate 500 --nodes 1000000 --features 128 --interval 3600 --pairs 20000000
    """
    if store is None and (rate is None or nodes is None or interval is None):
        raise typer.BadParameter("give --rate, --nodes and --interval, or --store to measure them")
    if repeated is not None and pairs is not None:
        raise typer.BadParameter("give --repeated or --pairs, not both")
    given = {
        "rate": rate,
        "nodes": nodes,
        "features": features,
        "interval_s": interval,
        "lanes": lanes,
        "changed": changed,
        "repeated": repeated,
        "window": window,
        "pairs": pairs,
    }

    def body() -> None:
        from freshet_graph.stream.store.plan import Stream
        from freshet_graph.stream.store.plan import plan as work_out

        measured, begins = ({}, datetime.now(UTC)) if store is None else _measured(store, lanes)
        if pairs is not None:
            measured.pop("repeated", None)
        stream = Stream(
            **{
                "features": 0,
                **measured,
                **{key: value for key, value in given.items() if value is not None},
            },
            keep_days=keep_days,
        )
        figures = {
            **work_out(stream).figures(),
            "reached_on": (begins + timedelta(days=stream.present_days + stream.days_left))
            .date()
            .isoformat(),
        }
        assumptions = stream.assumptions()
        if store is not None:
            assumptions.insert(
                0, f"Numbers that are not given were measured in {store}: {_listed(measured)}."
            )
        if json:
            print_json({**figures, "assumptions": assumptions, "stream": asdict(stream)})
            return
        print_table(
            f"{stream.rate:,g} events/s, {stream.nodes:,} nodes, {stream.features} features, snapshots of "
            f"{stream.interval_s:,g} s",
            with_units(figures),
        )
        for sentence in assumptions:
            note(f"assumed: {sentence}")

    finish(body, debug=debug)


def _measured(store: str, lanes: int | None) -> tuple[dict[str, Any], datetime]:
    """The stream of a store, and the begin of its first kept snapshot; as if it had ``lanes`` lanes, if that is given."""
    from freshet_graph.schemas.events import US_PER_S
    from freshet_graph.stream.store.inspect import inspect
    from freshet_graph.stream.store.log.reader import LogReader
    from freshet_graph.stream.store.plan import DAY_S

    log, description = LogReader(store), inspect(store)
    if not log.snapshots:
        raise Failure(f"{store} has no sealed snapshot to measure. Give --rate, --nodes and --interval")
    snapshots = log.snapshots[log.snapshots.first :]
    events, edges = (
        sum(s.num_events for s in snapshots),
        sum(s.num_inserts + s.num_deletes for s in snapshots),
    )
    interval_s = log.header.interval_us / US_PER_S
    windows = [lane["window"] for lane in description["lanes"].values()]
    lane_bytes = [lane["disk_bytes"] for lane in description["lanes"].values()]
    present_lanes = len(lane_bytes) if lanes is None else lanes
    days = (snapshots[-1].tau + 1 - snapshots[0].tau) * interval_s / DAY_S
    begins = datetime.fromtimestamp(0, UTC) + timedelta(
        microseconds=snapshots[0].tau * log.header.interval_us
    )
    return {
        "rate": edges / (days * DAY_S),
        "nodes": max(1, description["nodes"]),
        "features": log.header.node_features,
        "interval_s": interval_s,
        "lanes": len(description["lanes"]),
        "changed": min(1.0, (events - edges) / (len(snapshots) * max(1, description["nodes"]))),
        "repeated": max(0.0, 1 - description["live_edges"] / max(1, description["inserts"])),
        "window": max(windows, default=4),
        "present_pairs": description["live_edges"],
        "present_bytes": description["log_bytes"] + sum(lane_bytes) / max(1, len(lane_bytes)) * present_lanes,
        "present_days": days,
    }, begins


def _listed(measured: dict[str, Any]) -> str:
    shown = {name: value for name, value in measured.items() if not name.startswith("present_")}
    return ", ".join(f"{name} {value:,.4g}" for name, value in shown.items())
