"""A Kafka-protocol broker inside a Python process: librdkafka's mock cluster, for the demo on machines without Java.

It keeps about 5 MB or 100,000 messages a partition and drops older ones, so producers must not run far ahead of their
readers. Clients need ``api_version`` [2, 1]. It proves nothing about Kafka: tests run a real broker.

    python -m freshet_graph.stream.kafka.embedded --port-file FILE    writes host:port to FILE and serves until SIGTERM
"""

import argparse
import signal
import threading
from pathlib import Path
from typing import Self

from confluent_kafka import Producer

API_VERSION = (2, 1)
"""What kafka-python has to assume about the mock cluster."""


class EmbeddedBroker:
    """Runs a mock cluster of one broker until ``close``.

    Attributes:
        address: host:port for clients.
    """

    def __init__(self) -> None:
        # The cluster lives inside this handle, which produces nothing itself.
        self._handle = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 3})
        metadata = self._handle.list_topics(timeout=10)
        broker = next(iter(metadata.brokers.values()))
        self.address = f"{broker.host}:{broker.port}"

    def close(self) -> None:
        """Stop serving; its content is gone."""
        del self._handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description="A Kafka-protocol broker for demos.")
    parser.add_argument(
        "--port-file", type=Path, required=True, help="Gets host:port once clients can connect."
    )
    arguments = parser.parse_args()
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with EmbeddedBroker() as broker:
        staged = arguments.port_file.with_suffix(".tmp")
        staged.write_text(broker.address, encoding="ascii")
        staged.replace(arguments.port_file)
        done.wait()


if __name__ == "__main__":
    main()
