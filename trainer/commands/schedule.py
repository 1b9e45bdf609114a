"""``freshet-trainer schedule``: which GPU trains which snapshot group in which iteration."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from stream.service.failure import Failure
from stream.service.output import Debug, Json, finish, print_json, print_table

Algorithm = Annotated[
    str,
    typer.Option(
        "--algorithm",
        help="greedy; paper: DyGNeX-G; ilp: DyGNeX-L; psg: one group per GPU and iteration; psg-sorted.",
    ),
]
Alpha = Annotated[
    float, typer.Option("--alpha", help="α, seconds of the gradients' all-reduce that ends each iteration.")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**31 - 1, help="Same input, same seed: same schedule.")
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
        int, typer.Option("--per-gpu", min=1, max=100, help="L, groups per GPU and iteration at most.")
    ] = 2,
    alpha: Alpha = 0.0,
    gap: Annotated[
        float, typer.Option("--gap", min=0, help="ilp: stop at this share above the lower bound.")
    ] = 0.02,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=0, help="ilp: stop the solver after so many seconds.")
    ] = 30.0,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=1,
            max=10_000,
            help="Snapshots of a group: neighbours stay on one GPU where an epoch gets at most 0.5 % longer.",
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
    """Schedule snapshot groups so that no GPU waits, and print what an epoch takes beside the lower bound.

    Example: freshet-trainer schedule --times times.json --gpus 8 --algorithm greedy --out schedule.json --json
    """

    def body() -> None:
        from trainer.scheduling.schedule import Limits, Problem
        from trainer.scheduling.solve import require_algorithm, solve
        from trainer.scheduling.workloads import read_times, require_seconds

        require_algorithm(algorithm)
        for name, value in (("--alpha", alpha), ("--gap", gap), ("--time-limit", time_limit)):
            require_seconds(name, value)
        problem = Problem(read_times(times), gpus, per_gpu, alpha)
        solved = solve(problem, algorithm, Limits(gap, time_limit, seed), window)
        if out is not None:
            write_whole(out, json_text.dumps(solved.schedule.iterations()).encode())
        figures = solved.figures()
        print_json(figures) if json else print_table(f"{algorithm} for {times}", figures)

    finish(body, debug=debug)


def write_whole(out: Path, content: bytes) -> None:
    """Write a file that appears whole, or not at all.

    Raises:
        Failure: It cannot be written.
    """
    temporary = out.with_name(out.name + ".tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(out)
    except OSError as error:
        raise Failure(f"--out {out} cannot be written: {error.strerror}. Give another path") from None
    finally:
        temporary.unlink(missing_ok=True)
