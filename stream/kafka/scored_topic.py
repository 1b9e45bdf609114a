"""The topic of scores on arrival: where it ends, and the next commit's messages, in one of three formats."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Literal

import pyarrow as pa
import structlog
from kafka import KafkaProducer
from kafka.errors import KafkaError

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import US_PER_S, IdKind
from freshet_graph.schemas.kafka_config import Brokers, Kafka, Topic
from freshet_graph.schemas.written import arrow_schema, avro_schema
from freshet_graph.stream.decode.encode import encode_arrow
from freshet_graph.stream.decode.formats.interface import UnavailableError
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient, UnknownSchemaError
from freshet_graph.stream.kafka.client import IN_ORDER, kafka_failures
from freshet_graph.stream.kafka.topic_schemas import announce
from freshet_graph.stream.kafka.topics import producer_to, send_all
from freshet_graph.stream.kafka.trial import NoMessagesError, newest
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat

FLUSH_S = 30.0
"""How long brokers have to acknowledge the messages of a commit, before they are sent again."""
AGAIN_S = 1.0
FEW = 100
"""Messages that are read first. With Arrow they have a commit each, and suffice."""

Row = tuple[str, Mapping[str, Any]]
"""Key and fields of a message, times in seconds."""
Form = Literal["json", "avro", "arrow"]
KNOWN = ["commit", "graph", "score"]
"""Fields of all that a start asks of messages."""
TIMES = ("t", "learned_until", "scored_at")
_AVRO, _ARROW = b"\0", b"\xff\xff\xff\xff"
"""First bytes of messages: Confluent's header, and that of an IPC stream. JSON begins with neither."""
_HEADER_BYTES = 5

log = structlog.get_logger()


class ScoredTopic:
    """A producer of scores, which are sent commit by commit: the next only once brokers have the one before.

    Args:
        brokers: Where it is, and the registry of its schema.
        topic: Made with one partition if it is missing.
        form: Format of messages.
        ids: Kind of the graph's ids.
        stop: Whether to give up when brokers are away.

    Attributes:
        obstacle: Why nothing is sent; None: brokers answer.

    Raises:
        Failure: No broker answers, the topic can't be made, or the schema can't be registered.
    """

    def __init__(
        self, brokers: Brokers, topic: str, form: Form, ids: IdKind, stop: Callable[[], bool]
    ) -> None:
        self._kafka = Kafka(**dict(brokers), topics=[Topic(name=topic)])
        self._topic, self._ids, self._stop = topic, ids, stop
        self._encoded = {"json": json_messages, "avro": self._avro, "arrow": self._arrow}[form]
        self._schemas: dict[int, Any] = {}  # of Avro messages by their number
        self.obstacle: str | None = None
        self._producer: KafkaProducer | None = self._open()
        if form == "json":
            announce(self._kafka, topic, "arrival-scores", ids)
        elif form == "avro":
            schema, registry = avro_schema("arrival-scores", ids), self._registry()
            self._number = self._from_registry(lambda: registry.register(f"{topic}-value", schema))
            self._schemas[self._number] = schema

    def newest(self, messages: int) -> list[dict[str, Any]]:
        """``KNOWN`` fields of the newest messages of each partition in any of the formats, oldest first.

        What is none of the formats is left out. A row may have further fields.

        Args:
            messages: How many; of Arrow, which has many rows in one, ``FEW`` at most.

        Raises:
            Failure: Brokers refuse, or the schema of a message can't be had.
        """
        values = self._newest(min(FEW, messages))
        if messages > FEW == len(values) and not any(value.startswith(_ARROW) for value in values):
            values = self._newest(messages)
        return [row for value in values for row in self._rows_of(value)]

    def _newest(self, messages: int) -> list[bytes]:
        try:
            polls = newest(self._kafka, self._topic, messages)
        except NoMessagesError:
            return []
        if not polls:  # to take it for an empty topic would score all again, or leave events out
            raise Failure(
                f"topic {self._topic} at {self._kafka.bootstrap} has messages, but its brokers did not send them in time. "
                "Start again"
            )
        return [value for poll in polls for value in poll.values.to_pylist() if value is not None]

    def _rows_of(self, value: bytes) -> list[dict[str, Any]]:
        try:
            if value.startswith(_ARROW):
                return pa.ipc.open_stream(value).read_all().select(KNOWN).to_pylist()
            row: Any = self._record(value) if value.startswith(_AVRO) else json.loads(value)
        except (ValueError, KeyError, EOFError, IndexError, pa.ArrowException):
            return []
        return [row] if isinstance(row, dict) else []

    def _record(self, value: bytes) -> Any:
        from fastavro import schemaless_reader

        number = int.from_bytes(value[1:_HEADER_BYTES], "big")
        if number not in self._schemas:
            registry = self._registry()
            self._schemas[number] = self._from_registry(lambda: registry.schema(number))[-1]
        return schemaless_reader(BytesIO(value[_HEADER_BYTES:]), self._schemas[number], None)

    def _registry(self) -> RegistryClient:
        if self._kafka.schema_registry is None:
            raise Failure(
                f"key scoring.kafka.schema_registry is missing, and messages of topic {self._topic} are Avro. "
                "Give its address (schema_registry: {url: http://registry:8081})"
            )
        return RegistryClient(self._kafka.schema_registry)

    def _from_registry(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (UnavailableError, UnknownSchemaError) as error:
            raise Failure(f"the schema of topic {self._topic}: {one_line(error)}. Start again") from error

    def _avro(self, rows: Sequence[Row]) -> Iterator[tuple[bytes, bytes]]:
        from fastavro import parse_schema, schemaless_writer

        header = _AVRO + self._number.to_bytes(_HEADER_BYTES - 1, "big")
        schema = parse_schema(self._schemas[self._number])
        for key, row in rows:
            value = BytesIO()
            value.write(header)
            schemaless_writer(value, schema, _in_microseconds(row))
            yield key.encode(), value.getvalue()

    def _arrow(self, rows: Sequence[Row]) -> Iterator[tuple[bytes, bytes]]:
        """Streams of up to 4,096 rows and 900 kB; the key is ``commit/part``."""
        if not rows:
            return
        schema, commit = arrow_schema("arrival-scores", self._ids), rows[0][1]["commit"]
        table = pa.Table.from_pylist([_in_microseconds(row) for _, row in rows], schema)
        for part, value in enumerate(encode_arrow(table)):
            yield f"{commit}/{part}".encode(), value

    def send(self, rows: Sequence[Row]) -> bool:
        """Send a commit's rows until brokers have all of them; False: asked to stop before."""
        messages = list(self._encoded(rows))
        while True:
            beat()
            try:
                if self._producer is None:
                    self._producer = self._open()
                with kafka_failures(self._kafka.bootstrap, f"writing to topic {self._topic}", "Write"):
                    send_all(self._producer, self._topic, messages, FLUSH_S)
                if self.obstacle is not None:
                    log.info("the brokers answer again")
                self.obstacle = None
                return True
            except (KafkaError, Failure) as error:
                if self.obstacle is None:
                    log.warning("scores are not sent; they are sent again", reason=one_line(error))
                self.obstacle = one_line(error)
                self.close()
            if self._stop():
                return False
            time.sleep(AGAIN_S)

    def close(self) -> None:
        """Leave the brokers."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout=0)

    def _open(self) -> KafkaProducer:
        return producer_to(self._kafka, self._topic, 1, **IN_ORDER)


def json_messages(rows: Sequence[Row]) -> Iterator[tuple[bytes, bytes]]:
    """Key and JSON of each row."""
    for key, row in rows:
        yield key.encode(), json.dumps(row, ensure_ascii=False, allow_nan=False).encode()


def _in_microseconds(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{name: round(row[name] * US_PER_S) for name in TIMES}}
