"""Refused messages into the dead-letter topic, after the commit that holds them, at least once."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer
from kafka.errors import KafkaError

from freshet_graph.schemas.config import Kafka
from freshet_graph.stream.background import Background
from freshet_graph.stream.kafka.client import kafka_failures
from freshet_graph.stream.kafka.topic_schemas import announce
from freshet_graph.stream.kafka.topics import producer_to, send_all
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.log.writer import LogWriter

FLUSH_S = 30.0
"""How long brokers have to take letters. Others stay in the log's outbox for the next try."""

CLOSE_S = 2.0


class DeadLetters:
    """Publishes the log's outbox from a thread of its own, so that a slow broker delays no commit.

    A letter's key is ``topic/partition/offset``, and ``/row`` if one row of a message is refused, so that a compacted
    topic keeps every letter. Its value is JSON with topic, partition, offset, row (or null), reason, sentence and raw
    (the message's first bytes, base64; null for a tombstone).

    Args:
        kafka: Broker and topic; ``dead_letters`` must be set.
        log: Has the outbox.

    Raises:
        Failure: No broker answers, or the topic can be neither found nor made.
    """

    def __init__(self, kafka: Kafka, log: LogWriter) -> None:
        assert kafka.dead_letters is not None
        self._kafka, self._topic, self._outbox = kafka, kafka.dead_letters, log
        self._announced = False
        self._producer: KafkaProducer | None = producer_to(kafka, self._topic, 1)
        self._work = Background("dead-letters", self._empty_outbox, on_end=self._leave)
        self._work.start()

    def committed(self) -> None:
        """A commit was made: look into the outbox."""
        self._work.ask()

    def drain(self, timeout_s: float, *, stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the outbox is empty; False if it isn't in time or before ``stop``, and its content stays in the log."""
        return self._work.settle(timeout_s, stop=stop)

    def close(self) -> None:
        """Stop; the next start publishes the rest."""
        self._work.close(CLOSE_S)

    def _leave(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaError):  # what it has not sent is in the outbox
                producer.close(timeout=CLOSE_S / 2)

    def _empty_outbox(self) -> None:
        for refused in self._outbox.unpublished_rejects():
            if self._work.stopping:
                return
            if not self._announced:
                announce(self._kafka, self._topic, "dead-letters", None)
                self._announced = True
            try:
                with kafka_failures(self._kafka.bootstrap, f"writing to topic {self._topic}", "Write"):
                    if self._producer is None:
                        self._producer = producer_to(self._kafka, self._topic, 1)
                    send_all(self._producer, self._topic, letters(refused.table), FLUSH_S)
            except Failure:
                self._leave()  # the next try looks for the brokers again, and reads certificates and passwords again
                raise
            crash_point("letters.sent")
            self._outbox.mark_published(refused.commit)
            crash_point("letters.marked")


def letters(refused: pa.Table) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each dead letter of ``freshet_graph.schemas.events.REJECT_SCHEMA``."""
    for row in refused.to_pylist():
        row["raw"] = None if row["raw"] is None else base64.b64encode(row["raw"]).decode("ascii")
        place = [row[name] for name in ("topic", "partition", "offset", "row")]
        yield "/".join(str(part) for part in place if part is not None).encode(), _json(row)


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()
