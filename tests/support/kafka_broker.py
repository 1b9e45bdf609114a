"""A real Apache Kafka for the tests that need one, started by deploy/kafka once a test run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BROKER = Path(__file__).resolve().parents[2] / "deploy" / "kafka" / "broker.py"


def broker(*arguments: str) -> str:
    """Run the launcher; returns the last line of its standard output."""
    command = [sys.executable, str(BROKER), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


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
