"""Flink for the tests that need one: Beam's job server with a Flink inside, and worker pools of processes of their own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

SERVER = Path(__file__).resolve().parents[2] / "deploy" / "flink" / "job_server.py"


def job_server(*arguments: str) -> str:
    """Run the launcher; returns the last line of its standard output."""
    command = [sys.executable, str(SERVER), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a job server whose jobs run on a Flink inside it."""
    if job_server("available") == "none":
        reason = "NO FLINK: Java 17 with Maven is not here, this is NOT tested"
        if os.environ.get("FRESHET_REQUIRE_KAFKA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    data = str(tmp_path_factory.mktemp("flink"))
    yield job_server("start", "--data", data)
    job_server("stop", "--data", data)


@contextmanager
def worker_pool(log: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A pool that starts a process for each worker Flink asks for: its host:port and its process."""
    command = [sys.executable, "-m", "freshet_graph.stream.cluster.worker_pool", "--port", "0"]
    with log.open("wb") as output:
        pool = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"serving at (\S+)\n", log.read_text())):
            assert pool.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield found.group(1), psutil.Process(pool.pid)
    finally:
        for process in [*psutil.Process(pool.pid).children(recursive=True), pool]:
            process.kill()
        pool.wait()
