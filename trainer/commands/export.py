"""``freshet-trainer export``: embeddings of a checkpoint into a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import (
    Debug,
    Json,
    LogFormat,
    LogLevel,
    finish,
    print_json,
    print_table,
)
from freshet_graph.trainer.commands.ranks import ConfigFile
from freshet_graph.trainer.commands.whole_file import whole_file

if TYPE_CHECKING:
    import pyarrow as pa


def export(
    file: ConfigFile,
    out: Annotated[
        Path, typer.Option("--out", help="File to write, .arrow or .parquet. It appears whole or not at all.")
    ],
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", help="The producers' ids, comma-separated. Default: all nodes."),
    ] = None,
    nodes_file: Annotated[
        Path | None, typer.Option("--nodes-file", help="The same from a file, one per line.")
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="MOMENT",
            help="After this snapshot (18262), time (2024-05-01T12:00, UTC) or second (@1714564800), by the newest checkpoint "
            "up to it.",
        ),
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the embeddings of all or given nodes after the newest checkpoint. A trainer may keep running.

    Example: freshet-trainer export --config trainer.yaml --out vectors.parquet --nodes 7,42 --json
    """

    def body() -> None:
        from freshet_graph.trainer.validation import require_trainable

        configure_logs(level=log_level, form=log_format, debug=debug)
        config = load_config(TrainerConfig, file, require_trainable)
        if out.suffix not in (".arrow", ".parquet"):
            raise Failure(f"--out must end in .arrow or .parquet, found {out}")
        result = _export(config, out, _wanted(nodes, nodes_file), as_of)
        print_json(result) if json else print_table(f"{config.model} after {result['checkpoint']}", result)

    finish(body, debug=debug)


def _wanted(nodes: str | None, nodes_file: Path | None) -> list[str] | None:
    if nodes is not None and nodes_file is not None:
        raise Failure("give --nodes or --nodes-file, not both")
    if nodes_file is not None:
        try:
            text = nodes_file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise Failure(
                f"--nodes-file {nodes_file} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from None
        return [line for line in text.splitlines() if line]
    return None if nodes is None else [node.strip() for node in nodes.split(",")]


def _export(config: TrainerConfig, out: Path, nodes: list[str] | None, as_of: str | None) -> dict[str, Any]:
    from freshet_graph.stream.store.as_of import AsOf
    from freshet_graph.trainer.exports.predictor import Predictor

    predictor = Predictor(config, None if as_of is None else AsOf.parse(as_of))
    about = {"model": config.model, "tau": str(predictor.tau), "sequence": str(predictor.sequence)}
    table = predictor.embeddings(nodes).replace_schema_metadata(about)
    with whole_file(out) as temporary:
        _write(table, temporary, parquet=out.suffix == ".parquet")
    return {
        "file": str(out),
        "nodes": len(table),
        "width": table.schema.field("embedding").type.list_size,
        "model": config.model,
        "model_version": predictor.version,
        "tau": predictor.tau,
        "sequence": predictor.sequence,
        "checkpoint": str(predictor.checkpoint),
    }


def _write(table: "pa.Table", path: Path, *, parquet: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if parquet:
        pq.write_table(table, path)
        return
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
