"""``freshet-trainer evaluate``: evaluate a model on a file by the published protocol."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.failure import FAILED
from freshet_graph.stream.service.file_flags import reads_files
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import (
    Debug,
    Json,
    LogFormat,
    LogLevel,
    finish,
    note,
    print_json,
    print_table,
)
from freshet_graph.trainer.commands.ranks import AsOfMoment, RankCount, in_ranks
from freshet_graph.trainer.launch import RankRange, launched
from freshet_graph.trainer.shutdown import WITH_PARENT, end_with_parent


@reads_files
def evaluate(
    file: Annotated[
        Path | None, typer.Option("--config", help="The configuration. See freshet-trainer config --example.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="A file or a glob of files with columns src, dst, t; or a store's folder or address.",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="Shares of training, validation and test by time.")
    ] = "0.7,0.15,0.15",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Repetitions; means and spread are shown.")
    ] = 1,
    negatives: Annotated[
        str | None,
        typer.Option(
            "--negatives",
            metavar="FILE",
            help="Judge by the negatives of this Parquet file, which is created if it is missing.",
        ),
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            "--scores",
            metavar="FILE",
            help="Judge another model by its scores (Parquet or CSV) for the test events and --negatives.",
        ),
    ] = None,
    scores_out: Annotated[
        Path | None,
        typer.Option(
            "--scores-out",
            metavar="FILE",
            help="Write a row per test event with the model's own scores: Parquet, or CSV by its name. --scores reads it.",
        ),
    ] = None,
    per_snapshot: Annotated[
        Path | None,
        typer.Option(
            "--per-snapshot",
            metavar="FILE",
            help="Write a row per test snapshot with figures and baselines: Parquet.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE.png", help="Draw the figure and its baselines per test snapshot."
        ),
    ] = None,
    model_out: Annotated[
        Path | None,
        typer.Option(
            "--model-out",
            metavar="FOLDER",
            help="Leave the first seed's model there, with its store and configuration, for Predictor, export and run.",
        ),
    ] = None,
    masked_nodes: Annotated[
        float,
        typer.Option(
            "--masked-nodes",
            metavar="SHARE",
            min=0,
            max=0.9,
            help="Share of all nodes, drawn by the seed among those of validation and test, that are hidden from training.",
        ),
    ] = 0.0,
    label_delay: Annotated[
        float | None,
        typer.Option(
            "--label-delay",
            metavar="SECONDS",
            min=0,
            help="Labels of events are unknown until this many seconds after them. One pass as in run: test, then train.",
        ),
    ] = None,
    matrix: Annotated[
        Path | None,
        typer.Option(
            "--matrix",
            metavar="FILE",
            help="Run every evaluation of this YAML file (models × data × lanes × ranks × seeds) and write the results to "
            "--out. Finished ones are skipped.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="With --matrix: Parquet of all results.")
    ] = None,
    form: Annotated[
        Literal["text", "markdown", "latex"],
        typer.Option("--format", help="With --matrix: format of the printed table."),
    ] = "text",
    figure: Annotated[
        str | None,
        typer.Option(
            "--figure", help="With --matrix: figure in its table, such as mrr. Default: ap, or auroc."
        ),
    ] = None,
    as_of: AsOfMoment = None,
    reading: FileOptions = AS_EVENTS,
    ranks: RankCount = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train on the first events of a file or store, choose an epoch by validation, test on the last events, beside the baselines.

    Example: freshet-trainer evaluate --config trainer.yaml --data interactions.parquet --seeds 3 --json
    """

    def body() -> int | None:
        from freshet_graph.stream.store.as_of import AsOf
        from freshet_graph.trainer.evaluation.details import Details
        from freshet_graph.trainer.evaluation.left_model import require_no_model
        from freshet_graph.trainer.validation import require_evaluable

        configure_logs(level=log_level, form=log_format, debug=debug)
        if WITH_PARENT in os.environ:
            end_with_parent()
        if matrix is not None and out is not None:
            outcome = _matrix(matrix, out, figure)
            print_json(outcome) if json else _print_matrix(outcome, form)
            return FAILED if outcome["failed"] else None
        assert file is not None and data is not None, "checked below"
        details = Details(per_snapshot, plot, scores_out)
        details.require_writable()
        if model_out is not None and not launched():
            require_no_model(model_out)
        number = ranks or int(os.environ.get("WORLD_SIZE", "1"))
        config = load_config(
            TrainerConfig, file, lambda loaded: require_evaluable(loaded, number)
        )  # before ranks are started
        options = {
            "seeds": seeds,
            "as_of": None if as_of is None else AsOf.parse(as_of),
            "negatives": negatives,
            "scores": scores,
            "reading": reading,
            "masked_nodes": masked_nodes,
            "details": details,
            "model_out": model_out,
            "label_delay_s": label_delay,
        }
        result = in_ranks(
            None if ranks is None else RankRange(ranks, ranks),
            lambda: _evaluate(config, data, split, options),
        )
        if result is not None:
            print_json(result) if json else print_table(f"{result['model']} on {data}", _shown(result))
        return None

    if matrix is None and (file is None or data is None):
        raise typer.BadParameter("give --config FILE and --data FILE, or --matrix FILE and --out FILE")
    if matrix is None and (form != "text" or figure is not None):
        raise typer.BadParameter("--format and --figure go with --matrix")
    if matrix is not None and (out is None or file is not None or data is not None):
        raise typer.BadParameter("--matrix needs --out FILE, and has --config and --data in its file")
    if matrix is not None and (masked_nodes or scores_out or per_snapshot or plot or label_delay is not None):
        raise typer.BadParameter(
            "--label-delay, --masked-nodes, --scores-out, --per-snapshot and --plot go with --config and --data"
        )
    if scores is not None and scores_out is not None:
        raise typer.BadParameter(
            "--scores-out has the scores of a model that is trained, and --scores trains none"
        )
    finish(body, debug=debug)


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of the table for people: a figure of several seeds stands in one row with its deviation."""
    left_out = {"runs", "cautions", *(key for key in result if key.endswith("_spread"))}
    rows = {key: value for key, value in result.items() if key not in left_out}
    spreads = {key: result[f"{key}_spread"] for key in rows if f"{key}_spread" in result}
    return rows | {key: f"{rows[key]:,.4g} ± {spread:,.2g}" for key, spread in spreads.items()}


def _matrix(file: Path, out: Path, figure: str | None) -> dict[str, Any]:
    from freshet_graph.schemas.matrix import Matrix
    from freshet_graph.trainer.evaluation.matrix import run_matrix

    return run_matrix(load_config(Matrix, file), out, figure, file.parent)


def _print_matrix(outcome: Mapping[str, Any], form: Literal["text", "markdown", "latex"]) -> None:
    from freshet_graph.trainer.evaluation.matrix import Entry, caption, render

    results = [Entry(**entry) for entry in outcome["results"]]
    counts = ", ".join(f"{key} {outcome[key]:,}" for key in ("cells", "run", "skipped", "failed"))
    note(f"{caption(results)}; {counts}; all figures in {outcome['file']}")
    typer.echo(render(results, form))


def _evaluate(
    config: TrainerConfig, data: str, split: str, options: dict[str, Any]
) -> Mapping[str, Any] | None:
    from freshet_graph.trainer.evaluation.evaluate import evaluate as evaluate_file
    from freshet_graph.trainer.evaluation.split import parse_shares
    from freshet_graph.trainer.session.session import join_ranks
    from freshet_graph.trainer.shutdown import rank_dies_with_launcher

    shares = parse_shares(split)
    rank_dies_with_launcher()
    group = join_ranks(config)
    try:
        return evaluate_file(config, data, group, shares=shares, **options)
    finally:
        group.close()
