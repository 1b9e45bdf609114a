"""``freshet-stream savings``: what additive storage saves on a file."""

from typing import Annotated

import typer

from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.commands.options import Params, parameters
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.file_flags import reads_files
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import Debug, Json, finish, note, print_result


@reads_files
def savings(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Files with columns src, dst, t, optionally op, features.",
        ),
    ],
    algorithm: Annotated[str, typer.Option("--algorithm", help="Partitioner of the lane.")] = "distdy",
    parts: Annotated[int, typer.Option("--parts", min=1, max=4096, help="K, the number of parts.")] = 4,
    snapshots: Annotated[
        int, typer.Option("--snapshots", min=1, help="N: snapshots that the file's span is cut into.")
    ] = 10,
    window: Annotated[
        int, typer.Option("--window", min=1, max=1_000_000, help="w, snapshots that are held.")
    ] = 4,
    segments: Annotated[
        int,
        typer.Option("--segments", min=1, max=1024, help="S, slices in which a feature vector is stored."),
    ] = 4,
    features: Annotated[
        int,
        typer.Option(
            "--features", min=0, max=1_000_000, help="F: binary features to generate if the file has none."
        ),
    ] = 0,
    change: Annotated[
        float,
        typer.Option(
            "--change", min=0, max=1, help="Share of nodes whose generated features change per snapshot."
        ),
    ] = 0.3,
    param: Params = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Same file, arguments and seed: same bytes.")
    ] = 0,
    reading: FileOptions = AS_EVENTS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure a lane of a file in memory and on disk, against storing every snapshot whole.

    Example: freshet-stream savings events.parquet --features 128 --snapshots 10 --window 4 --parts 4 --json
    """

    def body() -> None:
        from freshet_graph.stream.decode.files import read_events
        from freshet_graph.stream.partition.interface import create_for_lane
        from freshet_graph.stream.service.progress import counting
        from freshet_graph.stream.store.savings import measure

        configure_logs(level="WARNING", as_json=False)
        params = parameters(param)
        create_for_lane(
            algorithm, params, parts=parts, seed=seed, window=window
        )  # refuses before the file is read
        read, shown = read_events(files, options=reading), " ".join(files)
        if read.events.num_rows == 0:
            raise Failure(f"{shown} has no events")
        if read.node_features and features:
            note(f"{shown} has features of its own: --features changes nothing")
        with counting("stored {} of {} snapshots") as progress:
            measurements = measure(
                read,
                algorithm=algorithm,
                parts=parts,
                snapshots=snapshots,
                window=window,
                segments=segments,
                features=features,
                change=change,
                params=params,
                seed=seed,
                progress=progress,
            )
        print_result(f"Savings on {shown}", measurements, as_json=json)

    finish(body, debug=debug)
