"""A broker that a test may hurt."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_broker import broker


class Own:
    """A broker that a test may hurt.

    Attributes:
        address: host:port.
        pid: Of its process.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self.address = broker("start", "--data", str(data))
        self._find()

    def _find(self) -> None:
        state = json.loads((self._data / "broker.json").read_text())
        if "pid" not in state:
            pytest.skip("the broker runs in a container: its process can't be stopped from here")
        self.pid = int(state["pid"])

    def resume(self) -> None:
        """Start it again after it was killed, with its data."""
        assert broker("resume", "--data", str(self._data)) == self.address
        self._find()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)


@pytest.fixture
def own(kafka: str, tmp_path: Path) -> Iterator[Own]:  # asked for to skip where there is none
    data = tmp_path / "broker"
    try:
        yield Own(data)
    finally:
        broker("stop", "--data", str(data))
