"""The events of a file into a topic, for the command and for other programs."""

from collections.abc import Callable
from pathlib import Path

from schemas.config import Kafka, Topic
from stream.decode.columns import id_kind
from stream.decode.files import FileColumns, read_events
from stream.decode.formats.interface import create_format
from stream.kafka.client import client_settings
from stream.kafka.greeting import greet
from stream.kafka.producer import Replayed, replay
from stream.service.config_file import validated


def replay_file(
    file: str | Path,
    kafka: str | Kafka,
    topic: str,
    *,
    message_format: str = "json",
    rate: float = 0.0,
    partitions: int | None = None,
    columns: str | None = None,
    progress: Callable[[int, int], None] = lambda sent, events: None,
) -> Replayed:
    """Send the events of a file to a topic, in file order, like ``freshet-stream replay``.

    Args:
        file: Parquet, CSV or TSV.
        kafka: host:port of the brokers, comma-separated; or a stream's section ``kafka``, with certificates and login.
        topic: Its name; made if it is missing.
        message_format: A name of docs/formats.md.
        rate: Events per second; 0: as fast as possible.
        partitions: Of a new topic (default 1); events are distributed by the hash of ``src``.
        columns: The file's names of the columns, as the option ``--columns`` takes them.
        progress: Called with the events sent, and all events.

    Raises:
        Failure: An address has no port, the file can't be read, no broker answers, or a message was not delivered; the
            sentence has the row.
    """
    if isinstance(kafka, str):
        given = {"bootstrap": kafka, "topics": [{"name": topic, "format": message_format}]}
        kafka = validated(Kafka, given, "brokers")
    names = FileColumns.parse(columns)
    greet(kafka, f"writing to topic {topic}")
    events = read_events(Path(file), columns=names).events
    return replay(
        events,
        settings=client_settings(kafka),
        bootstrap=kafka.bootstrap,
        topic=topic,
        message_format=create_format(Topic(name=topic, format=message_format), kafka, id_kind(events.schema)),
        rate=rate,
        partitions=partitions,
        progress=lambda sent: progress(sent, len(events)),
    )
