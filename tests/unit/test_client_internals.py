"""What is replaced inside kafka-python is what it was written for, or one sentence says where it is not."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.consumer.fetcher import Fetcher
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaTCPTransport
from log_lines import error_of

from stream.kafka import internals
from stream.service.failure import Failure

ROOT = Path(__file__).resolve().parents[2]


def another_signature(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(Fetcher.PartitionRecords, "_unpack_records", lambda self, tp, records, format: None)
    return r"Fetcher\.PartitionRecords\._unpack_records takes \(self, tp, records, format\), not \(self, tp, records, key"


def another_name(patch: pytest.MonkeyPatch) -> str:
    patch.delattr(KafkaConnectionManager, "_build_transport")
    return r"there is no kafka\.net\.manager\.KafkaConnectionManager\._build_transport"


def another_module(patch: pytest.MonkeyPatch) -> str:
    patch.setitem(sys.modules, "kafka.net.compat", None)
    return r"there is no kafka\.net\.compat\.KafkaNetClient"


def another_attribute(patch: pytest.MonkeyPatch) -> str:
    def begun(self: object, net: object, sock: object, host: object = None) -> None:
        self._socket = sock  # type: ignore[attr-defined]

    patch.setattr(KafkaTCPTransport, "__init__", begun)
    return r"KafkaTCPTransport\.__init__ knows no _net"


@pytest.mark.parametrize("changed", [another_signature, another_name, another_module, another_attribute])
def test_a_client_that_is_another_inside_is_named_with_its_version_and_the_remedy(
    changed: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    internals.require_known()
    difference = changed(monkeypatch)
    monkeypatch.setattr(internals, "version", lambda name: "3.9.9")
    with pytest.raises(
        Failure,
        match=rf"kafka-python 3\.9\.9 differs from 3\.0\.12.*: .*{difference}.*\. Install kafka-python 3\.0\.12\.$",
    ):
        internals.require_known()


FAKED = """
from kafka.net.transport import KafkaTCPTransport
KafkaTCPTransport.abort = lambda self, error, how: None
from stream.start import main
main()
"""


def test_the_stream_does_not_begin_with_such_a_client(tmp_path: Path) -> None:
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
    assert "kafka-python" in error_of(done.stderr)
    assert "KafkaTCPTransport.abort takes (self, error, how), not (self, error). Install" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()


def test_the_version_that_is_known_is_the_one_that_is_pinned() -> None:
    assert f"kafka-python=={internals.KNOWN}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
