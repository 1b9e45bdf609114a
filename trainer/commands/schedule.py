"""``freshet-trainer schedule``: assign snapshot groups to GPUs and iterations."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from freshet_graph.stream.service.output import Debug, Json, finish, print_json, print_table
from freshet_graph.trainer.commands.whole_file import whole_file

Algorithm = Annotated[
    str,
    typer.Option(
        "--algorithm",
        help="greedy; paper: DyGNeX-G; ilp: DyGNeX-L; auto: ilp below 100 groups, greedy from there on; psg: one group per GPU "
        "and iteration; psg-sorted.",
    ),
]
Alpha = Annotated[
    float, typer.Option("--alpha", help="α, seconds of the all-reduce of gradients that ends each iteration.")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**31 - 1, help="The same input and seed give the same schedule.")
]
MOST_GPUS = 100_000


def schedule(
    times: Annotated[
        Path,
        typer.Option("--times", metavar="FILE.json", help="A JSON list of seconds, one per snapshot group."),
    ],
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=MOST_GPUS, help="G, the number of GPUs.")],
    algorithm: Algorithm = "greedy",
    per_gpu: Annotated[
        int, typer.Option("--per-gpu", min=1, max=100, help="L, the most groups per GPU and iteration.")
    ] = 2,
    alpha: Alpha = 0.0,
    gap: Annotated[
        float, typer.Option("--gap", min=0, help="ilp: stop at this share above the lower bound.")
    ] = 0.02,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=0, help="ilp: stop the solver after this many seconds.")
    ] = 30.0,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=1,
            max=10_000,
            help="Snapshots per group: keep neighbouring groups on one GPU, at 0.5 % of an epoch at most.",
        ),
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the schedule: a JSON list of iterations, each a list of G lists of group numbers from 0.",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Schedule snapshot groups so that no GPU waits, and print the length of an epoch beside its lower bound.

    Example: freshet-trainer schedule --times times.json --gpus 8 --algorithm greedy --out schedule.json --json
    """

    def body() -> None:
        from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import Problem, SearchLimits
        from freshet_graph.trainer.strategies.dygnex.scheduling.solve import require_algorithm, solve
        from freshet_graph.trainer.strategies.dygnex.scheduling.workloads import read_times, require_seconds

        require_algorithm(algorithm)
        for name, value in (("--alpha", alpha), ("--gap", gap), ("--time-limit", time_limit)):
            require_seconds(name, value)
        problem = Problem(read_times(times), gpus, per_gpu, alpha)
        solved = solve(problem, algorithm, SearchLimits(gap, time_limit, seed), window)
        if out is not None:
            with whole_file(out) as temporary:
                temporary.write_text(json_text.dumps(solved.schedule.iterations()), encoding="utf-8")
        figures = solved.figures()
        print_json(figures) if json else print_table(f"{solved.algorithm} for {times}", figures)

    finish(body, debug=debug)
