"""``freshet-stream build``: a store from a file of events, without Kafka."""

import time
from typing import Annotated

import typer

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.commands.options import AsOfMoment, Params, parameters
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.file_flags import reads_files
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import Debug, Json, finish, print_result


@reads_files
def build(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Files with columns src, dst, t and optionally more; or a store's folder or address.",
        ),
    ],
    store: Annotated[str, typer.Option("--store", help="Folder or address of the new store.")],
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help="Partitioners, with commas. Each has a lane of its name, for trainers to follow.",
        ),
    ] = "hash",
    parts: Annotated[int, typer.Option("--parts", min=1, help="K, the number of parts of every lane.")] = 1,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            min=1e-6,
            help="Length of a snapshot in seconds, aligned to the epoch. Default: a hundredth of the file's span.",
        ),
    ] = None,
    edge_life: Annotated[
        float | None,
        typer.Option(
            "--edge-life",
            metavar="SECONDS",
            min=1e-6,
            help="Life of an edge in the lanes after its last occurrence, a whole number of intervals; needs --interval. "
            "Default: edges live until they are deleted.",
        ),
    ] = None,
    param: Params = None,
    window: Annotated[int, typer.Option("--window", min=1, help="w, snapshots that trainers look back.")] = 4,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the partitioners' draws.")] = 0,
    as_of: AsOfMoment = None,
    reading: FileOptions = AS_EVENTS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Build a store from a file: a log with all events, every snapshot sealed, and a lane per partitioner.

    Example: freshet-stream build events.parquet --store ./store --algorithm distdy,sep --parts 4 --interval 86400
    """

    def body() -> None:
        from freshet_graph.stream.partition.comparison import chosen_params, require_known
        from freshet_graph.stream.partition.interface import create_for_lane
        from freshet_graph.stream.store.as_of import AsOf
        from freshet_graph.stream.store.from_file import build_store
        from freshet_graph.stream.store.log.reader import LogReader
        from freshet_graph.stream.store.store_events import read_source

        configure_logs(level="WARNING", as_json=False)
        life = None if edge_life is None or interval is None else _intervals(edge_life, interval)
        names, params = list(dict.fromkeys(algorithm.split(","))), parameters(param)
        require_known(names, params)
        lanes = [
            Lane(
                name=name,
                algorithm=name,
                parts=parts,
                window=window,
                edge_life=life,
                seed=seed,
                params=chosen_params(name, params),
            )
            for name in names
        ]
        for lane in lanes:  # before hours of work
            create_for_lane(lane.algorithm, lane.params, parts=parts, seed=seed, window=window)
        moment = None if as_of is None else AsOf.parse(as_of)
        began_s = time.monotonic()
        interval_us = None if interval is None else round(interval * US_PER_S)
        build_store(read_source(files, moment, reading), store, interval_us=interval_us, lanes=lanes)
        log = LogReader(store)
        result = {
            "store": store,
            "interval_s": log.header.interval_us / US_PER_S,
            "snapshots": len(log.snapshots),
            "events": log.totals.events,
            "nodes": len(log.external_ids()),
            "lanes": names,
            "seconds": time.monotonic() - began_s,
        }
        print_result(f"{' '.join(files)} in {store}", result, as_json=json)

    if edge_life is not None and interval is None:
        raise typer.BadParameter("--edge-life is a number of intervals. Give --interval SECONDS, too")
    finish(body, debug=debug)


def _intervals(life_s: float, interval_s: float) -> int:
    """The lanes' ``edge_life``: seconds as a whole number of intervals, at least 1."""
    life_us, interval_us = round(life_s * US_PER_S), round(interval_s * US_PER_S)
    life, rest = divmod(life_us, interval_us)
    if rest:
        lower = f"{life * interval_us / US_PER_S:.15g} or " if life else ""
        raise Failure(
            f"--edge-life {life_s:.15g} is no whole number of intervals of {interval_s:.15g} s. Give {lower}"
            f"{(life + 1) * interval_us / US_PER_S:.15g}"
        )
    return life
