"""Clients of brokers that are away are closed: an outage of days costs neither threads nor sockets."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from schemas.config import Kafka
from stream.kafka import broker_clock
from stream.kafka.broker_clock import BrokerClock
from stream.kafka.client import connected


@pytest.fixture
def nowhere() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def held() -> tuple[int, int]:
    """Threads of clients, and selectors of the process."""
    clients = sum(thread.name.startswith("kafka-io") for thread in threading.enumerate())
    opened = (str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return clients, sum("eventpoll" in target for target in opened)


@pytest.mark.parametrize("kind", [KafkaAdminClient, KafkaConsumer, KafkaProducer])
def test_a_client_that_reaches_no_broker_leaves_nothing_open(kind: Any, nowhere: str) -> None:
    before = held()
    for _ in range(3):
        with pytest.raises(KafkaError):
            connected(kind, {"bootstrap_servers": nowhere, "bootstrap_timeout_ms": 50})
    assert held() == before


def test_a_clock_that_asks_all_through_an_outage_leaves_nothing_open(
    nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_clock, "ANSWER_MS", 50)
    clock = BrokerClock(Kafka.model_validate({"bootstrap": nowhere, "topics": [{"name": "edges"}]}))
    before = held()
    assert [clock.ask() for _ in range(3)] == [None] * 3
    assert held() == before
