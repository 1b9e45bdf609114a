"""Rules and fixtures of the whole test run."""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import structlog
from double_precision import double  # noqa: F401  a fixture for all tests
from forked import commands, processes, warm  # noqa: F401  fixtures for all tests
from hypothesis import HealthCheck, settings
from kafka_broker import admin, kafka  # noqa: F401  fixtures for all tests
from oauth_broker import oauth_broker  # noqa: F401  for all tests
from once import trouble  # noqa: F401  for all tests
from own_broker import own, pair  # noqa: F401  for all tests
from placed import change, places  # noqa: F401  for all tests
from s3_server import (
    S3Server,
    s3,  # noqa: F401  for all tests
)
from secure_broker import secure  # noqa: F401  for all tests
from warm_popen import pytest_runtestloop  # noqa: F401  a hook

from freshet_graph.stream.store.places.place import Place, place_of

pytest_plugins = ["exploring", "quick", "skip_guard"]

# How long an example takes says how busy the machine is, and nothing of what is tested. CI judges by the same examples each
# time, and then draws new ones for a while (exploring.py); a developer's own runs draw new ones.
settings.register_profile(
    "any machine",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("FRESHET_REQUIRE_KAFKA") == "1",
)
settings.load_profile("any machine")

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30
"""More than the folders of all tests but the slow ones take."""


def pytest_configure(config: pytest.Config) -> None:
    """Folders of tests lie in memory where it has the room: on a disk, a fifth of the time of tests that write is waiting.

    Slow tests install whole environments, and stay on the disk.
    """
    if (
        "not slow" in config.option.markexpr
        and _MEMORY.is_dir()
        and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    ):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def pytest_collection_finish() -> None:
    """The garbage collector does not walk all modules and tests again at the end of every job."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_power_failure() -> Iterator[None]:
    """Nobody cuts this machine's power: this process does not wait for the disk, which would be most of many tests' time.

    What a power failure leaves is tested on a disk of its own (crash_disk.py). Processes that tests start do sync.
    """

    def fsync(file: int | IO[Any]) -> None:
        os.fstat(file if isinstance(file, int) else file.fileno())  # a closed file is an error as before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """What a command called in this process made of logs ends with its test: its level would hide lines from the next."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No FRESHET_ variable of the caller's shell reaches the test."""
    for name in [name for name in os.environ if name.startswith("FRESHET_")]:
        monkeypatch.delenv(name)
    yield monkeypatch


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place for a store, in a folder and in a bucket: what holds in the one holds in the other.

    ``make test`` has buckets in memory (``places``), and those of the tests about buckets.
    """
    if request.param == "folder":
        return tmp_path
    server: S3Server = request.getfixturevalue("s3")
    return place_of(server.store())
