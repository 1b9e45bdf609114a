"""The demo's producer: synthetic interactions that happen now, as JSON messages, never far ahead of their reader."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from freshet_graph.stream.decode.encode import encode_json

AHEAD = 20_000
"""Messages sent and not yet read at most: the embedded broker forgets what is older than its 100,000."""


class LiveProducer(threading.Thread):
    """Sends events at their own times, shifted so that the first one happens now.

    Args:
        events: Canonical events, sorted by time.
        bootstrap: The broker.
        topic: Made by the broker when first asked for.
        unread: How many sent messages were not read yet, as far as is known.

    Attributes:
        sent: Events handed to the broker so far.
        failure: What went wrong, or None.
    """

    def __init__(self, events: pa.Table, bootstrap: str, topic: str, unread: Callable[[int], int]) -> None:
        super().__init__(name="producer", daemon=True)
        self._events, self._topic, self._unread = events, topic, unread
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 0})
        self._partitions = len(self._producer.list_topics(topic, timeout=10).topics[topic].partitions)
        self._ending = threading.Event()
        self.sent = 0
        self.failure: str | None = None

    @property
    def total(self) -> int:
        """Events to send in all."""
        return len(self._events)

    def run(self) -> None:
        """Send everything, then wait until the broker has it."""
        try:
            self._send()
            self._producer.flush(30)
        except (KafkaException, BufferError) as error:
            self.failure = f"the producer failed: {error}"

    def close(self) -> None:
        """Stop at the next event."""
        self._ending.set()
        self.join(timeout=5)

    def _send(self) -> None:
        t = self._events["t"].to_numpy()
        start_us = time.time_ns() // 1000 + 1_000_000  # encoding takes a moment
        shifted = t - t[0] + start_us
        column = self._events.schema.get_field_index("t")
        messages = encode_json(
            self._events.set_column(column, self._events.schema.field("t"), pa.array(shifted))
        )
        while self.sent < len(messages) and not self._ending.is_set():
            due = int(np.searchsorted(shifted, time.time_ns() // 1000, side="right"))
            due = min(due, self.sent + max(0, AHEAD - self._unread(self.sent)))
            for i in range(self.sent, due):
                # In turn over the partitions: each of them stays in time order.
                self._producer.produce(
                    self._topic, messages[i], partition=i % self._partitions, on_delivery=self._delivered
                )
            self.sent = max(self.sent, due)
            self._producer.poll(0)
            self._ending.wait(0.05)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.failure = f"the broker refused a message: {error}"
