"""Parts of kafka-python are replaced, so one version of it is taken, and its connections read as much as there is."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka.net import manager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from log_lines import error_of

from freshet_graph.stream.kafka import KNOWN_CLIENT
from freshet_graph.stream.kafka.client import READ_BYTES, LargeReads, large_reads_client

ROOT = Path(__file__).resolve().parents[4]

FAKED = """
from importlib import metadata
metadata.version = lambda name, real=metadata.version: "3.9.9" if name == "kafka-python" else real(name)
from freshet_graph.stream.start import main
main()
"""


def test_the_stream_does_not_begin_with_another_version_of_the_client(tmp_path: Path) -> None:
    config = tmp_path / "stream.yaml"
    config.write_text(
        f"graph: g\nstore: {tmp_path}/store\nsnapshots: {{interval_s: 1}}\n"
        "kafka: {bootstrap: '127.0.0.1:1', topics: [{name: edges}]}\nmetrics: {port: 0}\n"
    )
    command = [sys.executable, "-c", FAKED, "run", "--config", str(config)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=dict(os.environ)
    )
    assert done.returncode == 1
    assert "kafka-python 3.9.9 is not 3.0.12" in error_of(done.stderr)
    assert "Install kafka-python 3.0.12." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("file", ["constraints.txt", "pyproject.toml"])
def test_the_version_that_is_known_is_the_one_that_is_pinned(file: str) -> None:
    assert f"kafka-python=={KNOWN_CLIENT}" in (ROOT / file).read_text(encoding="utf-8")


def connected(security: str, monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaTCPTransport, socket.socket]:
    """A transport as the consumer's client makes it, and the other end of its socket."""
    near, far = socket.socketpair()
    near.setblocking(False)

    async def connection(*_: object, **__: object) -> socket.socket:
        return near

    async def agreed(_: object) -> None:
        pass

    monkeypatch.setattr(manager, "create_connection", connection)
    monkeypatch.setattr(KafkaSSLTransport, "handshake", agreed)
    client = large_reads_client(bootstrap_servers="127.0.0.1:1", security_protocol=security)
    building = client._manager._build_transport(SimpleNamespace(host="127.0.0.1", port=1))
    with pytest.raises(StopIteration) as made:
        building.send(None)
    return made.value.value, far


def test_a_connection_reads_all_that_came_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, far = connected("PLAINTEXT", monkeypatch)
    asked = []
    monkeypatch.setattr(
        LargeReads, "recv", lambda self, most, real=LargeReads.recv: asked.append(most) or real(self, most)
    )
    sent = bytes(range(256)) * 200
    far.sendall(sent)
    assert transport._sock_recv() == (sent, None)
    assert len(asked) == 2, "the second found nothing more"
    assert transport._sock.gettimeout() == 0
    far.close()
    received, error = transport._sock_recv()
    assert received == b""
    assert "disconnected" in str(error)
    transport.abort()


def test_a_read_has_a_bound() -> None:
    near, far = socket.socketpair()
    reading = LargeReads(fileno=near.detach())
    for each in (reading, far):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    far.setblocking(False)
    far.send(bytes(2 * READ_BYTES))
    assert 4096 < len(reading.recv(4096)) <= READ_BYTES
    reading.close()
    far.close()


def test_tls_stays_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, far = connected("SSL", monkeypatch)
    assert type(transport) is KafkaSSLTransport
    assert not isinstance(transport._sock, LargeReads)
    transport._sock.close()
    far.close()
