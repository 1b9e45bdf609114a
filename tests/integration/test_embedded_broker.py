"""The demo's broker speaks enough Kafka for replay and run; it proves nothing about Kafka itself."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from streaming import configuration, expected, interactions, log_table, result, triples, written


def test_replay_and_run_work_against_the_embedded_broker_process(tmp_path: Path) -> None:
    table = interactions(tmp_path / "events.parquet", events=3_000)
    port_file = tmp_path / "address"
    command = [sys.executable, "-m", "freshet_graph.stream.kafka.embedded", "--port-file", str(port_file)]
    broker = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 120
        while not port_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        address = port_file.read_text()
        sending = ["--bootstrap", address, "--topic", "edges", "--api-version", "2.1"]
        assert result("replay", tmp_path / "events.parquet", *sending)["sent"] == 3_000
        kafka = {"api_version": [2, 1], "dead_letters": "edges.dead"}
        content = configuration(tmp_path / "store", address, "edges", kafka=kafka)
        assert result("run", "--config", written(tmp_path, content), "--until-idle", "1")["events"] == 3_000
        assert sorted(triples(log_table(tmp_path / "store"))) == sorted(expected(table))
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(timeout=60) == 0
    finally:
        broker.kill()
        broker.wait()
