"""What a job waits for between its readers, and when the last message came, as a new cycle knows it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from streaming import configuration

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.job import loop
from freshet_graph.stream.job.loop import Connecting
from freshet_graph.stream.kafka.greeting import NoBrokerError
from freshet_graph.stream.kafka.tls import LOGIN_AGAIN_S, CredentialError, LoginRefusedError
from freshet_graph.stream.kafka.topics import NoLeaderError
from freshet_graph.stream.service.failure import Failure

MADE_S, ARRIVAL_S = 100.0, 7.0
NO_BROKER = NoBrokerError("no broker answers")
UNTRUSTED = CredentialError("the certificate of b:1 is not trusted")
REFUSED = LoginRefusedError("b:1 refused the login of freshet")
NO_LEADER = NoLeaderError({TopicPartition("edges", 1): "has no leader"})


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[Failure]:
    """What the next readers meet, before one is made."""
    met: list[Failure] = []

    def connect(*_: object, **__: object) -> SimpleNamespace:
        if met:
            raise met.pop(0)
        return SimpleNamespace(last_arrival_s=MADE_S)

    monkeypatch.setattr(loop, "PartitionReader", connect)
    monkeypatch.setattr(loop, "AGAIN_S", 0.0)
    monkeypatch.setattr(loop, "LOGIN_AGAIN_S", 0.0)
    return met


@pytest.fixture
def made(tmp_path: Path) -> Connecting:
    config = StreamConfig(**configuration(tmp_path / "store", "b:1", "edges"))
    return Connecting(config, lambda: False, lambda topic, offsets: None)


@pytest.mark.parametrize(
    "fault", [NO_BROKER, UNTRUSTED, REFUSED, NO_LEADER], ids=lambda fault: type(fault).__name__
)
def test_the_end_of_a_wait_that_a_cycle_meets_while_it_connects_counts_as_an_arrival(
    faults: list[Failure], made: Connecting, fault: Failure
) -> None:
    assert made.reader(lambda key: None, ARRIVAL_S) is not None
    made.begin()
    faults += [fault, fault]
    after_wait, after_that = (made.reader(lambda key: None, ARRIVAL_S) for _ in range(2))
    assert after_wait is not None and after_wait.last_arrival_s == MADE_S
    assert after_that is not None and after_that.last_arrival_s == ARRIVAL_S
    assert (made.answers.reason, made.no_leader) == (None, None)


def test_a_refused_login_is_not_tried_again_at_once(
    faults: list[Failure], made: Connecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.begin()
    monkeypatch.setattr(loop, "LOGIN_AGAIN_S", LOGIN_AGAIN_S)
    pauses: list[float] = []
    monkeypatch.setattr(loop.time, "sleep", pauses.append)
    faults += [UNTRUSTED, REFUSED, NO_BROKER]
    assert made.reader(lambda key: None, ARRIVAL_S) is not None
    assert pauses == [0, LOGIN_AGAIN_S, 0]


@pytest.mark.parametrize("fault", [NO_BROKER, UNTRUSTED, REFUSED], ids=lambda fault: type(fault).__name__)
def test_a_first_reader_that_reaches_no_broker_ends_the_job(
    faults: list[Failure], made: Connecting, fault: Failure
) -> None:
    faults.append(fault)
    with pytest.raises(type(fault), match=str(fault)):
        made.reader(lambda key: None, ARRIVAL_S)


def test_the_reason_of_a_wait_is_known_while_it_lasts(
    faults: list[Failure], made: Connecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str | None, str | None]] = []

    def look(_: float) -> None:
        told.append((made.no_leader, made.answers.reason))

    monkeypatch.setattr(loop.time, "sleep", look)
    faults.append(NO_LEADER)
    made.reader(lambda key: None, ARRIVAL_S)
    assert told.pop() == (str(NO_LEADER), None)
    made.begin()
    faults.append(UNTRUSTED)
    made.reader(lambda key: None, ARRIVAL_S)
    assert told == [(None, f"no answer for 0 s: {UNTRUSTED}")]


def test_of_many_partitions_without_a_leader_a_sentence_names_a_few() -> None:
    missing = {TopicPartition("edges", k): "has no leader" for k in range(5)}
    assert str(NoLeaderError(missing)).startswith(
        "topic edges partition 0 has no leader, topic edges partition 1 has no leader, topic edges partition 2 has no "
        "leader, and 2 more. Start the brokers"
    )
