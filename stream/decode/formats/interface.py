"""A message format reads, writes and describes the messages of a topic; the registry finds it by name."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.schemas.events import IdKind
from freshet_graph.schemas.section import Section
from freshet_graph.stream.decode.mapping import VALUE
from freshet_graph.stream.decode.mapping import Mapping as Fields
from freshet_graph.stream.decode.reading import Limits, Read
from freshet_graph.stream.decode.times import TimeUnit
from freshet_graph.stream.registry import Registry
from freshet_graph.stream.service.failure import Failure


class UnavailableError(Exception):
    """A service that a format needs does not answer: messages are kept and read later."""


class MessageFormat(ABC):
    """Base of all formats. One object reads one topic.

    No content of a message may cost more than a bounded multiple of its bytes in memory and time. It becomes rows or
    refusals. ``freshet_graph.stream.decode.validate`` checks rows afterwards, so a format need not know the rules of meaning. If
    a
    method raises all the same, the message at fault is found and refused as ``decoder_error``, which takes far longer.

    Args:
        topic: Its fields, words of op, prefixes and time unit.
        kafka: Limits of messages, and the schema registry.
        ids: Kind of node ids of the graph.
        options: Its ``Options``, from the topic's ``format_params``.

    Raises:
        Failure: With the sentence of ``refuses``.
    """

    name: ClassVar[str]
    """Its name in configurations."""
    about: ClassVar[str]
    """A few words for help texts."""
    Options: ClassVar[type[Section]] = Section
    """Its own parameters, a section with defaults, descriptions and bounds; none by default."""
    default_unit: ClassVar[TimeUnit]
    """Unit of ``t`` in a topic without ``time_unit``."""
    many: ClassVar[bool] = False
    """Whether a message may hold several rows; each then has its place in the message."""
    atomic: ClassVar[bool] = False
    """Whether the rows of a message stand or fall together: if one is refused, or is a duplicate, all are."""
    lists: ClassVar[bool] = False
    """Whether a topic may have ``many``: events in the elements of an array."""
    inner_json: ClassVar[bool] = False
    """Whether a topic may have ``json``, a text that is JSON, and ``scale``, of decimals that come as bytes."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """Reasons of refusals besides ``freshet_graph.schemas.events.Reason``, each with its meaning: labels of a metric."""

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: Any) -> None:
        problem = self.refuses(topic, kafka)
        if problem is not None:
            raise Failure(f"topic {topic.label}: {problem}")
        self.topic, self.kafka, self.ids, self.options = topic, kafka, ids, options
        self.unit: TimeUnit = topic.time_unit or self.default_unit
        self.limits = Limits(kafka.max_message_rows, kafka.max_message_bytes)
        self.mapping = Fields.parts(topic)[VALUE]

    @classmethod
    def refuses(cls, topic: Topic, kafka: Kafka) -> str | None:
        """Why it cannot read such a topic, in a sentence without the topic's name; None if it can."""
        return None

    def prepare(self, values: pa.LargeBinaryArray) -> str | None:
        """Fetch what reading these messages needs from elsewhere.

        The job neither commits nor stops meanwhile. So return after about two seconds, even if more is to be fetched: then
        this is called again with the same messages.

        Returns:
            None: everything is there. Otherwise how far it is, in a few words.

        Raises:
            UnavailableError: It cannot be had now; try again. Any ``FreshetError`` or ``OSError`` counts as one, so catch those
                that the content of a message causes.
        """
        return None

    @abstractmethod
    def read(self, values: pa.LargeBinaryArray, at_once: Limits | None) -> Read:
        """Read messages, which are not null and at most ``limits.bytes`` long.

        ``prepare`` has seen them. Messages from the first one beyond ``at_once`` are left, but never the first of all;
        None: all are read. A format whose rows cost no more than their messages need not look at it. Each message that
        is read has rows or a refusal, in the order of the messages. ``freshet_graph.stream.decode.arrow.event_rows`` makes rows
        of columns.
        """

    def samples(self, values: pa.LargeBinaryArray) -> Iterator[dict[str, Any]]:
        """Messages as nested dictionaries, from which ``freshet-stream try`` proposes paths; none by default.

        Raises:
            UnavailableError: See ``prepare``.
        """
        return iter(())

    @abstractmethod
    def encode(self, events: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        """Canonical events (``freshet_graph.schemas.events.event_schema``) as messages, in order; reading gives them back.

        Yields:
            Each message with its row, None if it has several.

        Raises:
            Failure: A message of this format cannot express an event.
            freshet_graph.stream.decode.encode.EventTooLongError: One event alone is longer than a message may be.
            UnavailableError: See ``prepare``.
        """

    @classmethod
    @abstractmethod
    def schema(cls, ids: IdKind | None) -> dict[str, Any] | str:
        """The schema of messages for producers, with ids of one kind, or (None) of either if the format can express it.

        A text is printed as it is.
        """


def _require_format(candidate: Any) -> None:
    if not (isinstance(candidate, type) and issubclass(candidate, MessageFormat)):
        raise TypeError(f"{candidate!r} is no subclass of MessageFormat")


FORMATS: Registry[type[MessageFormat]] = Registry(
    "message format",
    "format_params",
    "freshet.formats",
    tuple(
        f"freshet_graph.stream.decode.formats.{name}" for name in ("plain", "avro", "protobuf", "debezium")
    ),
    error=Failure,
    check=_require_format,
)


def create_format(topic: Topic, kafka: Kafka, ids: IdKind) -> MessageFormat:
    """The format of a topic, ready to read and write its messages.

    Raises:
        Failure: It or a parameter is unknown, or it cannot read such a topic; the sentence names the topic.
    """
    try:
        format_class = FORMATS.find(topic.format)
        options = FORMATS.options(topic.format, topic.format_params)
    except Failure as error:
        raise Failure(f"kafka.topics[{topic.label}].format: {error}") from error
    for key, value, known in (
        ("many", topic.many, format_class.lists),
        ("json", topic.json_text, format_class.inner_json),
        ("scale", topic.scale, format_class.inner_json),
    ):
        if value is not None and not known:
            raise Failure(f"topic {topic.label}: format {topic.format} cannot have {key}. Leave it out")
    return format_class(topic, kafka, ids, options)
