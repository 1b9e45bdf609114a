"""``freshet-stream backfill``: a new log begins with files, or another log's events; ``run`` continues from Kafka."""

import re
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import EARLIEST_US, LATEST_US, US_PER_S
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.commands.config import require_parts
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.file_flags import reads_files
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import (
    Debug,
    Json,
    LogFormat,
    LogLevel,
    finish,
    print_result,
)
from freshet_graph.stream.service.progress import counting
from freshet_graph.stream.service.scratch import scratch_folder


@reads_files
def backfill(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Files with columns src, dst, t and optionally more; or one store, whose events are cut into the snapshots of "
            "the new configuration.",
        ),
    ],
    config_file: Annotated[Path, typer.Option("--config", help="The stream's configuration.")],
    labels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A file of labels, Parquet or CSV with columns event_id or node, label, t, and maybe source and visible; read "
            "before the events. May be repeated.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Events before it come from the files, later ones from Kafka; seconds or RFC 3339. "
            "Needed if the topics have messages already. Default: all of the files.",
        ),
    ] = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC/PARTITION=N",
            help="First offset to read of that topic partition, whatever the times. May be repeated. "
            "Default: its first retained message, and events of the files are skipped.",
        ),
    ] = None,
    reading: FileOptions = AS_EVENTS,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Begin a log with files of past events; run then continues from Kafka without a gap or an overlap.

    After a stop or a kill, call it again to resume.

    Example: freshet-stream backfill 2024.parquet 2025.parquet --config stream.yaml --until 2025-12-01T00:00:00Z
    """

    def body() -> None:
        from freshet_graph.stream.job.backfill import backfill as begin
        from freshet_graph.stream.job.recut import log_as_file
        from freshet_graph.stream.store.store_events import is_store

        configure_logs(level=log_level, form=log_format, debug=debug)
        config = load_config(StreamConfig, config_file, require_parts)
        paths, labelled, offsets = list(files), list(labels or []), dict(map(_place, offset or []))
        with ExitStack() as stack:
            if any(map(is_store, files)):
                if len(files) > 1 or labels or until is not None or offset or reading.given:
                    raise Failure(
                        "a store is cut again as a whole, and reading continues from its own offsets. Leave other files, "
                        "--labels, --until, --offset and flags of files out"
                    )
                folder = stack.enter_context(scratch_folder("recut"))
                path, label_paths, offsets = log_as_file(files[0], config, folder)
                paths, labelled = [str(path)], [str(one) for one in label_paths]
            progress = stack.enter_context(
                counting("{:,} of {:,} rows read, {:,} snapshots sealed, {:,.0f} rows per second")
            )
            done = begin(
                config,
                paths,
                labels=labelled,
                until_us=None if until is None else _time_us(until),
                offsets=offsets,
                options=reading,
                progress=progress,
            )
        result = {
            "rows": done.history.rows,
            "events": done.events,
            "refused": done.refused,
            "labels": done.labels,
            "after": done.history.after,
            "until": done.history.until_us / US_PER_S,
            "snapshots": done.snapshots,
            "seconds": done.seconds,
            "rows_per_s": done.rows / done.seconds if done.seconds > 0 else 0.0,
        }
        print_result(f"{config.graph} in {config.store}", result, as_json=json)

    finish(body, debug=debug)


def _time_us(text: str) -> int:
    if re.fullmatch(r"-?\d+(\.\d*)?", text, re.ASCII):
        t_us = round(float(text) * US_PER_S)
        if not EARLIEST_US <= t_us <= LATEST_US:
            raise Failure(
                f"--until {text} is in seconds, and outside the years 1 to 9999. Give an earlier or later time"
            )
        return t_us
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Failure(
            f"--until takes seconds or RFC 3339 such as 2025-12-01T00:00:00Z, found {text!r}"
        ) from None
    if moment.tzinfo is None:
        raise Failure(f"--until {text} has no time zone. Write {moment.isoformat()}Z for UTC")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * US_PER_S + since.microseconds


def _place(text: str) -> tuple[tuple[str, int], int]:
    place, _, offset = text.partition("=")
    topic, _, partition = place.rpartition("/")
    if not topic or not all(re.fullmatch(r"\d+", number, re.ASCII) for number in (partition, offset)):
        raise Failure(f"--offset takes topic/partition=number, found {text!r}")
    return (topic, int(partition)), int(offset)
