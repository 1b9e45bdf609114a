"""``freshet-stream replay``: the events of a file into a Kafka topic."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from freshet_graph.schemas.config import Kafka, StreamConfig, Topic
from freshet_graph.schemas.fields import Fields
from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.schemas.kafka_config import require_addresses
from freshet_graph.stream.commands.schema import Format
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.file_flags import reads_files
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import Debug, Json, finish, print_result
from freshet_graph.stream.service.progress import counting


def _addresses(bootstrap: str | None) -> str | None:
    try:
        return None if bootstrap is None else require_addresses(bootstrap)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Addresses = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        help="host:port of the brokers, comma-separated; or give --config.",
        callback=_addresses,
    ),
]


@reads_files
def replay(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Files with columns src, dst, t and optionally more.",
        ),
    ],
    topic: Annotated[str, typer.Option(help="Target topic, made if it doesn't exist.")],
    bootstrap: Addresses = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A stream's configuration, whose section kafka has brokers, certificates and login."
        ),
    ] = None,
    message_format: Format = "json",
    labels: Annotated[
        bool,
        typer.Option(
            "--labels",
            help="The files have labels for a label topic: columns event_id or node, label, t, and maybe source. Parquet or CSV; "
            "sent as json or arrow.",
        ),
    ] = False,
    rate: Annotated[float, typer.Option(min=0, help="Events per second; 0: as fast as possible.")] = 0.0,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Partitions of a new topic (default 1: file order is topic order). The hash of src chooses one.",
        ),
    ] = None,
    api_version: Annotated[
        str | None,
        typer.Option(
            help="Kafka version to assume, such as 2.1 for the embedded broker of make demo. Default: ask."
        ),
    ] = None,
    reading: FileOptions = AS_EVENTS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Send the events of a file to a topic, in file order.

    Example: freshet-stream replay collegemsg.parquet --bootstrap 127.0.0.1:9092 --topic edges --format arrow
    """
    if bootstrap is None and config is None:
        raise typer.BadParameter("give --bootstrap HOST:PORT, or --config FILE of a stream")

    def body() -> None:
        from freshet_graph.stream.kafka.producer import replay_file

        configure_logs(level="WARNING", as_json=False)
        if not debug:
            logging.getLogger("kafka").setLevel(logging.CRITICAL)  # an error is this command's own sentence
        kafka = brokers(config, bootstrap, _version(api_version))
        if labels and reading.given:
            raise Failure("a file of labels has columns of fixed names. Leave flags of files out")
        _require_readable(kafka, topic, message_format, config, labels=labels)
        with counting("{:,} of {:,} events sent, {:,.0f} per second") as progress:
            sent = replay_file(
                files,
                kafka,
                topic,
                message_format=message_format,
                rate=rate,
                partitions=partitions,
                reading=reading,
                labels=labels,
                progress=progress,
            )
        result = {"sent": sent.sent, "seconds": sent.seconds, "events_per_s": sent.events_per_s}
        print_result(f"{' '.join(files)} → {topic}", result, as_json=json)

    finish(body, debug=debug)


def brokers(file: Path | None, bootstrap: str | None, api_version: tuple[int, ...] | None) -> Kafka:
    """The section of a file, or the defaults for a broker without security; options override it."""
    given = {"bootstrap": bootstrap, "api_version": api_version}
    given = {key: value for key, value in given.items() if value is not None}
    if file is not None:
        return load_config(StreamConfig, file).kafka.model_copy(update=given)
    return Kafka.model_validate({**given, "topics": [Topic(name="any")]})


def _require_readable(
    kafka: Kafka, name: str, message_format: str, file: Path | None, *, labels: bool
) -> None:
    """Refuse to send messages that the configuration of the topic would read differently."""
    from freshet_graph.stream.decode.formats.interface import FORMATS

    topic = kafka.topic_of(name)
    if topic is None:
        return
    place = f"topic {name} as {file} reads it"
    if topic.format != message_format:
        raise Failure(f"{place} has format {topic.format}. Give --format {topic.format}")
    if labels != (topic.kind == "labels"):
        what = "labels" if labels else "events"
        raise Failure(
            f"{place} has {topic.kind}, and these are {what}. Give --labels for files of labels only"
        )
    plain = Topic(name=name, format=topic.format)
    if labels:
        has_source = topic.fields is not None and topic.fields.source is not None
        names = [
            "event_id" if topic.labels_events else "node",
            "label",
            "t",
            *(["source"] if has_source else []),
        ]
        fields = Fields.model_validate({field: field for field in names})
        plain = Topic(name=name, kind="labels", format=topic.format, fields=fields)
    plain.time_unit = FORMATS.find(message_format).default_unit
    where = {"pattern": None, "start": None, "sources": None}  # none changes how a message is read
    if topic.model_copy(update={"time_unit": topic.time_unit or plain.time_unit, **where}) != plain:
        raise Failure(
            f"{place} has fields, ops, id_prefix or a time_unit of its own, but replay sends events in Freshet's "
            "own form. Send to a topic without them"
        )


def _version(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        raise Failure(f"--api-version takes numbers and dots, such as 2.1, found {text!r}") from None
