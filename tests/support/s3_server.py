"""A local S3 service for tests: moto's server, which honours If-None-Match and If-Match, on a port of its own."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

BUCKET = "freshet-tests"
_numbers = count()


class S3Server:
    """A running service with a bucket for each store: moto lists one by looking at all keys of the bucket.

    Attributes:
        endpoint: Its URL.
    """

    def __init__(self, endpoint: str, cache: Path) -> None:
        self.endpoint = endpoint
        self._cache = cache
        self._made(BUCKET)

    def store(self, *, endpoint: str | None = None, name: str | None = None, **keys: object) -> str:
        """The address of a new store, or of one of a name, maybe through another endpoint."""
        own = f"{BUCKET}-{os.getpid()}-{next(_numbers)}"
        where = f"{BUCKET}/{name}" if name else f"{self._made(own)}/store"
        query = {"cache": self._cache, "lease_s": 1, "retry_s": 60, "region": "us-east-1", **keys}
        query["endpoint"] = endpoint or self.endpoint
        return f"s3://{where}?{'&'.join(f'{key}={value}' for key, value in query.items())}"

    def _made(self, bucket: str) -> str:
        request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        return bucket


@contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    """The service, with credentials in the environment that it takes; its log and the cache lie in a folder."""
    with (folder / "log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTKEY")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
        patch.setenv(
            "AWS_METADATA_ENDPOINT", "http://127.0.0.1:9"
        )  # no role of this machine is ever asked for
        service = Path(__file__).with_name("s3_service.py")
        command = [sys.executable, str(service), "-H", "127.0.0.1", "-p", "0"]  # any free port
        with subprocess.Popen(command, stdout=log, stderr=log) as server:
            try:
                yield S3Server(_served(folder / "log", server), folder / "cache")
            finally:
                server.terminate()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The service for all tests, started once."""
    with running(tmp_path_factory.mktemp("s3")) as server:
        yield server


def _served(log: Path, server: "subprocess.Popen[bytes]") -> str:
    """Where it serves, by its own word."""
    deadline = time.monotonic() + 120
    while not (found := re.search(r"Running on (http://\S+)", log.read_text(errors="replace"))):
        assert server.poll() is None, f"moto's server ended at its start: {log.read_text(errors='replace')}"
        assert time.monotonic() < deadline, "moto's server doesn't say where it serves"
        time.sleep(0.05)
    return found[1]
