"""A real Apache Kafka for the tests that need one, started by deploy/kafka once a test run."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

BROKER = Path(__file__).resolve().parents[2] / "deploy" / "kafka" / "broker.py"


def broker(*arguments: str) -> str:
    """Run the launcher; returns the last line of its standard output."""
    command = [sys.executable, str(BROKER), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
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
    """host:port of a real, single-node Apache Kafka."""
    if broker("available") == "none":
        reason = "NO KAFKA: neither Java 17 with Maven nor a Docker engine is here, this is NOT tested"
        if os.environ.get("FRESHET_REQUIRE_KAFKA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    data = str(tmp_path_factory.mktemp("kafka"))
    # Compaction is looked at 10 times a second: tests wait for it.
    yield broker("start", "--data", data, "--property", "log.cleaner.backoff.ms=100")
    broker("stop", "--data", data)
