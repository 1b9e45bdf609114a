"""``freshet-trainer simulate``: the length of an epoch on clusters of several sizes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.output import Debug, Json, finish, note, print_json, print_table
from freshet_graph.trainer.commands.schedule import MOST_GPUS, Algorithm, Alpha, Seed

if TYPE_CHECKING:
    from freshet_graph.stream.arrays.kinds import Float64
    from freshet_graph.trainer.strategies.dygnex.scheduling.time_model import TimeModel


def simulate(
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="G,G,…", help="Numbers of GPUs, such as 4,16,64,256,1024.")
    ] = "4,8,16,32,64,128,256,512,1024",
    groups: Annotated[
        int | None,
        typer.Option(
            "--groups",
            min=1,
            max=1_000_000,
            help="Number of groups to make up. With a file or store: how many of the newest to use.",
        ),
    ] = None,
    algorithm: Algorithm = "greedy",
    times: Annotated[
        str | None,
        typer.Option(
            "--times",
            metavar="linear|lognormal|FILE.json",
            help="Made-up seconds of groups, or a file of them.",
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="Take sizes of snapshots from this store. Needs --lane.")
    ] = None,
    lane: Annotated[str | None, typer.Option("--lane", help="The store's lane.")] = None,
    window: Annotated[int, typer.Option("--window", min=1, help="With --store: snapshots per group.")] = 4,
    per_node: Annotated[
        float, typer.Option("--per-node", help="With --store: seconds per live node of a snapshot.")
    ] = 1e-6,
    per_edge: Annotated[
        float, typer.Option("--per-edge", help="With --store: seconds per live directed pair.")
    ] = 1e-6,
    per_snapshot: Annotated[
        float, typer.Option("--per-snapshot", help="With --store: further seconds per snapshot.")
    ] = 0.0,
    alpha: Alpha = 0.0,
    seed: Seed = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE.png", help="Plot efficiency and imbalance over the number of GPUs."
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Simulate an epoch on clusters of several sizes, by one or more algorithms: throughput, efficiency and imbalance.

    Example: freshet-trainer simulate --groups 10000 --gpus 4,128,1024 --algorithm greedy,psg --plot scale.png --json
    """
    if store is not None and times is not None:
        raise typer.BadParameter("give --times or --store, not both")
    if (store is None) != (lane is None):
        raise typer.BadParameter("--store and --lane go together")

    def body() -> None:
        from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import SearchLimits
        from freshet_graph.trainer.strategies.dygnex.scheduling.simulation import draw
        from freshet_graph.trainer.strategies.dygnex.scheduling.simulation import simulate as points_of
        from freshet_graph.trainer.strategies.dygnex.scheduling.solve import require_algorithm
        from freshet_graph.trainer.strategies.dygnex.scheduling.time_model import TimeModel
        from freshet_graph.trainer.strategies.dygnex.scheduling.workloads import require_seconds

        algorithms = [name.strip() for name in algorithm.split(",")]
        for name in algorithms:
            require_algorithm(name)
        per_unit = {"--per-node": per_node, "--per-edge": per_edge, "--per-snapshot": per_snapshot}
        for option, value in {"--alpha": alpha, **per_unit}.items():
            require_seconds(option, value)
        counts = _counts(gpus)
        times_s = _times(times, store, lane, groups, window, TimeModel(*per_unit.values()), seed)
        points = points_of(times_s, counts, algorithms, alpha, SearchLimits(seed=seed))
        source = f"{len(times_s):,} snapshot groups, {store or times or 'linear'}"
        if plot is not None:
            draw(points, source, plot)
        if json:
            print_json({"groups": len(times_s), "points": points, "plot": str(plot) if plot else None})
            return
        for point in points:
            print_table(f"{point['algorithm']} on {point['gpus']} GPUs, {source}", point)
        if plot is not None:
            note(f"plot written to {plot}")

    finish(body, debug=debug)


def _counts(gpus: str) -> list[int]:
    try:
        counts = [int(count) for count in gpus.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(1 <= count <= MOST_GPUS for count in counts):
        raise Failure(
            f"--gpus takes whole numbers from 1 to {MOST_GPUS} with commas, such as 4,8,16, found {gpus}"
        )
    return counts


def _times(
    times: str | None,
    store: str | None,
    lane: str | None,
    groups: int | None,
    window: int,
    model: "TimeModel",
    seed: int,
) -> "Float64":
    from freshet_graph.trainer.strategies.dygnex.scheduling.workloads import (
        MADE_UP,
        made_up_times,
        read_times,
        stored_times,
    )

    if store is not None and lane is not None:
        times_s = stored_times(store, lane, model, window)
    elif times is not None and times not in MADE_UP:
        times_s = read_times(Path(times))
    elif groups is None:
        raise Failure("--groups is missing. Give the number of groups to make up")
    else:
        return made_up_times(times or "linear", groups, seed)
    if groups is not None and groups > len(times_s):
        note(f"{store or times} has {len(times_s):,} groups, fewer than --groups {groups:,}. All are used")
    return times_s[-groups:] if groups is not None else times_s
