"""Brokers that don't resolve, refuse or say nothing: every command says that, and not what it was about to do."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from streaming import configuration
from typer.testing import CliRunner

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.stream.cli import app
from freshet_graph.stream.kafka import greeting
from freshet_graph.stream.kafka.greeting import NoBrokerError, greet

CASES = {
    "unresolvable": r"nowhere\.invalid:9092 \((the name nowhere\.invalid|its name) does not resolve",
    "refused": r"127\.0\.0\.1:\d+ \(connection refused\)",
    "silent": r"127\.0\.0\.1:\d+ \(it accepts the connection and does not answer\)",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "PATIENCE_S", 1.0)
    for name in (
        "configure_logs",
        "calm_collector",
    ):  # which are the process's, and it goes on with other tests
        monkeypatch.setattr(f"freshet_graph.stream.commands.run.{name}", lambda **_: None)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """An address and the sentence about it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if request.param == "silent":
            listener.listen(16)  # the kernel takes connections that nobody ever looks at
        yield (
            "nowhere.invalid:9092" if request.param == "unresolvable" else address,
            rf"^error: no broker answers at {CASES[request.param]}.*\. Check the address \(kafka\.bootstrap or --bootstrap\)"
            rf"{' and kafka.security_protocol' if request.param == 'silent' else ''}$",
        )


@pytest.mark.parametrize("name", ["run", "backfill", "replay", "replay with a configuration"])
def test_a_command_that_meets_no_broker_says_so(name: str, case: tuple[str, str], tmp_path: Path) -> None:
    address, told = case
    events = tmp_path / "e.parquet"
    pq.write_table(pa.table({"src": [1], "dst": [2], "t": [1_700_000_000]}), events)
    content = configuration(tmp_path / "store", address, "edges", kafka={"dead_letters": "edges.dead"})
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(content))
    config = ["--config", str(tmp_path / "stream.yaml")]
    arguments = {
        "run": ["run", *config],
        "backfill": ["backfill", str(events), *config],
        "replay": ["replay", str(events), "--bootstrap", address, "--topic", "edges"],
    }.get(name, ["replay", str(events), *config, "--topic", "edges"])
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1, done.output
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.search(told, errors[0]), errors
    assert "creating topic" not in done.output


def test_an_address_without_a_port_is_wrong_usage_of_replay() -> None:
    done = CliRunner().invoke(app, ["replay", "e.parquet", "--bootstrap", "b1:1, b2", "--topic", "edges"])
    assert (done.exit_code, "b2 has no port" in done.stderr) == (2, True)


def test_one_broker_that_is_away_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "PATIENCE_S", 600.0)
    answered = greeting._greet

    def one_is_fine(kafka: Kafka, server: str, *rest: object) -> None:
        if not server.startswith("fine"):
            answered(kafka, server, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(greeting, "_greet", one_is_fine)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
        greet(Kafka(bootstrap=f"{silent},fine:9092", topics=[Topic(name="any")]), "connecting")


def test_a_broker_that_is_starting_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "PATIENCE_S", 600.0)
    tries: list[str] = []

    def starting(kafka: Kafka, server: str, *rest: object) -> None:
        if server != "one:9092":
            return  # a thread that an earlier test has left
        tries.append(server)
        if len(tries) < 3:
            raise greeting._NotYet("connection refused")

    monkeypatch.setattr(greeting, "_greet", starting)
    greet(Kafka(bootstrap="one:9092", topics=[Topic(name="any")]), "connecting")
    assert tries == ["one:9092"] * 3


def test_every_broker_is_told_with_its_reason() -> None:
    with pytest.raises(
        NoBrokerError, match=r"at 127\.0\.0\.1:1 \(.*refused\), nowhere\.invalid:2 \(.*resolve"
    ):
        greet(Kafka(bootstrap="127.0.0.1:1,nowhere.invalid:2", topics=[Topic(name="any")]), "connecting")
