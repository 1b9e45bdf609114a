"""Clients of brokers that are away are closed: an outage of days costs neither threads nor sockets. None left is said."""

import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from freshet_graph.schemas.config import Kafka
from freshet_graph.stream.kafka import broker_clock
from freshet_graph.stream.kafka.broker_clock import BrokerClock
from freshet_graph.stream.kafka.client import connected
from freshet_graph.stream.kafka.discovery import TopicWatch
from freshet_graph.stream.kafka.greeting import NoBrokerError, greet


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
            connected(kind, {"bootstrap_servers": [nowhere], "bootstrap_timeout_ms": 50})
    assert held() == before


def test_a_clock_that_asks_all_through_an_outage_leaves_nothing_open(
    nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_clock, "ANSWER_MS", 50)
    clock = BrokerClock(Kafka.model_validate({"bootstrap": nowhere, "topics": [{"name": "edges"}]}))
    before = held()
    assert [clock.ask() for _ in range(3)] == [None] * 3
    assert held() == before


@pytest.fixture
def no_files_left() -> Iterator[None]:
    """All files that this process may have are open."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
        os.close(spare)


def gives_up(**_: object) -> None:
    """A client that concealed why no socket was to be had."""
    raise KafkaTimeoutError("Unable to bootstrap")


KAFKA = Kafka.model_validate({"bootstrap": "127.0.0.1:1", "topics": [{"name": "edges"}]})


@pytest.mark.usefixtures("no_files_left")
@pytest.mark.parametrize(
    "connect",
    [
        lambda: greet(KAFKA, "reading"),
        lambda: connected(gives_up, {"bootstrap_servers": KAFKA.servers}),
        lambda: TopicWatch(KAFKA).reading([("edges", 0)]),
    ],
    ids=["greeting", "client", "topics"],
)
def test_brokers_are_not_blamed_for_the_limit_of_open_files(connect: Callable[[], object]) -> None:
    with pytest.raises(NoBrokerError) as caught:
        connect()
    told = str(caught.value).removeprefix("reading: ")
    assert told.startswith("127.0.0.1:1: socket: Too many open files (EMFILE). This process may have ")
    assert told.endswith("Raise the limit (ulimit -n)")
