"""Brokers that a test may hurt."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_broker import broker, free_addresses


class Own:
    """A broker that a test may hurt.

    Attributes:
        address: host:port.
        pid: Of its process.
    """

    def __init__(self, data: Path, *options: str) -> None:
        self._data = data
        self.address = broker("start", "--data", str(data), *options)
        self._find()

    def _find(self) -> None:
        state = json.loads((self._data / "broker.json").read_text())
        if "pid" not in state:
            pytest.skip("the broker runs in a container: its process can't be stopped from here")
        self.pid = int(state["pid"])

    def resume(self, address: str | None = None) -> None:
        """Start it again after it was killed, with its data; at another address if one is given."""
        if address is not None:
            for name in ("server.properties", "broker.json"):
                file = self._data / name
                file.write_text(file.read_text().replace(self.address, address))
            self.address = address
        assert broker("resume", "--data", str(self._data)) == self.address
        self._find()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def joining(self) -> list[str]:
        """Options of a second broker of the cluster that this one controls."""
        lines = [*self._lines("server.properties"), *self._lines("log/meta.properties")]
        known = dict(line.split("=", 1) for line in lines if "=" in line)
        address = free_addresses(["second"])["second"]
        properties = {
            "node.id": "2",
            "process.roles": "broker",
            "controller.quorum.voters": known["controller.quorum.voters"],
            "listeners": f"PLAINTEXT://{address}",
        }
        place = ["--cluster-id", known["cluster.id"], "--port", address.rpartition(":")[2]]
        return place + [f"--property={key}={value}" for key, value in properties.items()]

    def _lines(self, name: str) -> list[str]:
        return (self._data / name).read_text().splitlines()


@pytest.fixture
def own(kafka: str, tmp_path: Path) -> Iterator[Own]:  # asked for to skip where there is none
    data = tmp_path / "broker"
    try:
        yield Own(data)
    finally:
        broker("stop", "--data", str(data))


@pytest.fixture
def pair(kafka: str, tmp_path: Path) -> Iterator[tuple[Own, Own]]:
    """Two brokers of one cluster; the first is its controller, and misses the second after a second and a half."""
    first, second = tmp_path / "first", tmp_path / "second"
    soon = ["--property=broker.session.timeout.ms=1500", "--property=broker.heartbeat.interval.ms=300"]
    try:
        controller = Own(first, *soon)
        yield controller, Own(second, *controller.joining(), soon[1])
    finally:
        for data in (second, first):
            broker("stop", "--data", str(data))
