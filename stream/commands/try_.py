"""``freshet-stream try``: what a file or a topic would become, without writing anything."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from freshet_graph.schemas.config import SchemaRegistry, StreamConfig, Topic
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.commands.replay import Addresses, brokers
from freshet_graph.stream.commands.schema import Format
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.file_flags import reads_files
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import Debug, Json, finish, note, print_json, print_table


@reads_files
def try_(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A file of events; or give --topic.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="A topic, whose newest messages are read.")] = None,
    bootstrap: Addresses = None,
    config: Annotated[
        Path | None, typer.Option(help="A stream's configuration: with the topic's fields, ids and login.")
    ] = None,
    message_format: Format = "json",
    registry: Annotated[
        str | None, typer.Option(metavar="URL", help="The schema registry, if messages name schemas.")
    ] = None,
    messages: Annotated[
        int, typer.Option(min=1, max=100_000, help="Most messages, or rows of the file.")
    ] = 100,
    reading: FileOptions = AS_EVENTS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Read a few messages or rows, and show events, refusals and the fields they were read from; nothing is written.

    Example: freshet-stream try --topic payments --bootstrap 127.0.0.1:9092
    """
    if (file is None) == (topic is None):
        raise typer.BadParameter("give FILE, or --topic with --bootstrap or --config")
    if topic is not None and bootstrap is None and config is None:
        raise typer.BadParameter("give --bootstrap HOST:PORT, or --config FILE of a stream")

    def body() -> None:
        from freshet_graph.stream.decode.trial import try_file

        configure_logs(level="WARNING", as_json=False)
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # an error is this command's own sentence
        if file is not None:
            trial = try_file(file, reading, messages)
        else:
            assert topic is not None, "checked above"
            trial = _topic(topic, message_format, config, bootstrap, registry, messages)
        result = {key: getattr(trial, key) for key in ("messages", "events", "refused", "fields", "examples")}
        result |= {"many": trial.many} if trial.many is not None else {}
        result |= {"proposal": trial.proposal} if trial.proposal is not None else {}
        print_json(result) if json else print_table(str(file or topic), _shown(result))
        if trial.proposal is not None and not json and file is not None:
            print(f"--columns {trial.proposal['columns']}")  # noqa: T201  a result, to copy
        elif trial.proposal is not None and not json:
            missing = [name for name in ("src", "dst", "t") if name not in trial.fields]
            if missing:
                note(f"No key of the messages looks like {' or '.join(missing)}. Name its path in fields.")
            else:
                print(yaml.safe_dump(trial.proposal, sort_keys=False), end="")  # noqa: T201  a result, to copy
        if not trial.events:
            none = "rows became an event" if file is not None else "messages became an event or a label"
            raise Failure(
                f"none of {trial.messages:,} {none}. The "
                "examples have the reasons. Correct the fields, the format or the producer"
            )

    finish(body, debug=debug)


try_.__name__ = "try"


def _topic(
    name: str,
    message_format: str,
    file: Path | None,
    bootstrap: str | None,
    registry: str | None,
    messages: int,
) -> Any:
    from freshet_graph.stream.decode.formats.interface import UnavailableError
    from freshet_graph.stream.decode.trial import try_messages
    from freshet_graph.stream.kafka.trial import newest

    kafka = brokers(file, bootstrap, None)
    if registry is not None:
        try:
            kafka = kafka.model_copy(update={"schema_registry": SchemaRegistry(url=registry)})
        except ValidationError as error:
            raise Failure(f"--registry {error.errors()[0]['msg'].partition(', ')[2]}") from error
    config = load_config(StreamConfig, file) if file is not None else None
    known = config.kafka.topic_of(name) if config is not None else None
    topic = known or Topic(name=name, format=message_format)
    try:
        return try_messages(kafka, topic, newest(kafka, name, messages), None if known is None else config)
    except UnavailableError as error:
        raise Failure(f"topic {name}: {error}") from error


def _shown(result: dict[str, Any]) -> dict[str, Any]:
    rows = {key: value for key, value in result.items() if key not in ("examples", "proposal")}
    for example in result["examples"]:
        place = f"partition {example['partition']}, offset" if "partition" in example else "offset"
        rows[f"{place} {example['offset']}"] = str(
            example.get("event") or example.get("label") or f"{example['reason']}: {example['sentence']}"
        )
    return rows
