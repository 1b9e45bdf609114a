"""A real Apache Kafka for the tests that need one, started by deploy/kafka once a test run."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import Any, TextIO

import pytest

BROKER = Path(__file__).resolve().parents[2] / "deploy" / "kafka" / "broker.py"


def broker(*arguments: str, java: str = "") -> str:
    """Run the launcher, with further options for Java; returns the last line of its standard output."""
    command = [sys.executable, str(BROKER), *arguments]
    quickly = os.environ | {
        "JAVA_TOOL_OPTIONS": f"-XX:TieredStopAtLevel=1 {java}"
    }  # its best code is not worth the wait
    done = subprocess.run(command, env=quickly, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


def free_addresses(names: Sequence[str]) -> dict[str, str]:
    """host:port that nothing listens on, for each name."""
    with ExitStack() as stack:
        probes = {name: stack.enter_context(socket.socket()) for name in names}
        for probe in probes.values():
            probe.bind(("127.0.0.1", 0))
        return {name: f"127.0.0.1:{probe.getsockname()[1]}" for name, probe in probes.items()}


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a real, single-node Apache Kafka, the same one for all processes of a test run."""
    if broker("available") == "none":
        reason = "NO KAFKA: neither Java 17 with Maven nor a Docker engine is here, this is NOT tested"
        if os.environ.get("FRESHET_REQUIRE_KAFKA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    processes = "PYTEST_XDIST_WORKER" in os.environ  # each has a folder of its own in the run's
    run = tmp_path_factory.getbasetemp().parent if processes else tmp_path_factory.getbasetemp()
    with _shared(run / "kafka") as address:
        yield address


@contextmanager
def _shared(folder: Path) -> Iterator[str]:
    """A broker that the first process starts and the last one stops; each holds a lock while it uses it."""
    folder.mkdir(exist_ok=True)
    data, known = str(folder / "data"), folder / "address"
    with (folder / "users").open("a") as users:
        with _alone(folder):
            if _nobody_else(users):
                # Compaction is looked at 10 times a second: tests wait for it.
                known.write_text(broker("start", "--data", data, "--property", "log.cleaner.backoff.ms=100"))
            flock(users, LOCK_SH)
        try:
            yield known.read_text()
        finally:
            with _alone(folder):
                if _nobody_else(users):
                    broker("stop", "--data", data)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("a") as lock:
        flock(lock, LOCK_EX)
        yield


def _nobody_else(users: TextIO) -> bool:
    try:
        flock(users, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def admin(kafka: str) -> Iterator[Any]:
    """An administrator's client of the broker, ``KafkaAdminClient``."""
    from kafka import KafkaAdminClient  # which most tests do not need

    client = KafkaAdminClient(bootstrap_servers=kafka)
    yield client
    client.close()
