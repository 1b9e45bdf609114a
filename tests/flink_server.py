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

SERVER = Path(__file__).resolve().parents[1] / "deploy" / "flink" / "job_server.py"
WORKER = "sdk_worker"


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
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it calls its workers `python`
    command = [sys.executable, "-u", "-c", POOL]
    with log.open("wb") as output:
        pool = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "PATH": path}
        )
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"at localhost:(\d+)", log.read_text())):
            assert pool.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{found.group(1)}", psutil.Process(pool.pid)
    finally:
        for process in [*psutil.Process(pool.pid).children(recursive=True), pool]:
            process.kill()
        pool.wait()


# What `python -m apache_beam.runners.worker.worker_pool_main` does, at any free port.
POOL = """
import time
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer as Pool
address, server = Pool.start(use_process=True)
print("serving at", address, flush=True)
server.wait_for_termination()
"""
