"""The topic of scores on arrival: where it ends, and the next commit's messages."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from kafka import KafkaProducer
from kafka.errors import KafkaError

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.kafka_config import Brokers, Kafka, Topic
from freshet_graph.stream.kafka.client import IN_ORDER, kafka_failures
from freshet_graph.stream.kafka.topics import producer_to, send_all
from freshet_graph.stream.kafka.trial import NoMessagesError, newest
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat

FLUSH_S = 30.0
"""How long brokers have to acknowledge the messages of a commit, before they are sent again."""
AGAIN_S = 1.0

log = structlog.get_logger()


class ScoredTopic:
    """A producer of scores, which are sent commit by commit: the next only once brokers have the one before.

    Args:
        brokers: Where it is.
        topic: Made with one partition if it is missing.
        stop: Whether to give up when brokers are away.

    Attributes:
        obstacle: Why nothing is sent; None: brokers answer.

    Raises:
        Failure: No broker answers, or the topic can't be made.
    """

    def __init__(self, brokers: Brokers, topic: str, stop: Callable[[], bool]) -> None:
        self._kafka = Kafka(**dict(brokers), topics=[Topic(name=topic)])
        self._topic, self._stop = topic, stop
        self.obstacle: str | None = None
        self._producer: KafkaProducer | None = self._open()

    def newest(self, messages: int) -> list[dict[str, Any]]:
        """The newest messages of each partition, oldest first; those that are no JSON object are left out.

        Raises:
            Failure: Brokers refuse.
        """
        try:
            polls = newest(self._kafka, self._topic, messages)
        except NoMessagesError:
            return []
        if not polls:  # to take it for an empty topic would score all again, or leave events out
            raise Failure(
                f"topic {self._topic} at {self._kafka.bootstrap} has messages, but its brokers did not send them in time. "
                "Start again"
            )
        contents = []
        for value in (value for poll in polls for value in poll.values.to_pylist() if value is not None):
            try:
                content = json.loads(value)
            except ValueError:
                continue
            if isinstance(content, dict):
                contents.append(content)
        return contents

    def send(self, messages: Sequence[tuple[bytes, bytes]]) -> bool:
        """Send a commit's keys and values until brokers have all of them; False: asked to stop before."""
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
