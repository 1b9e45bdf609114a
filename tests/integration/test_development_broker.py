"""deploy/kafka/broker.py: one broker per folder, fresh after a stop, ended by its own pid, in Docker where there is no Java."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient
from kafka_broker import BROKER, broker
from streaming import fresh_topic, settings

FAKE_DOCKER = """#!/bin/sh
echo "$@" >> {calls}
if [ "$1" = logs ]; then echo "INFO Kafka Server started"; fi
if [ "$1" = inspect ]; then echo true; fi
"""


@pytest.mark.integration
@pytest.mark.slow
def test_a_running_broker_keeps_its_topics_until_it_is_stopped_and_the_next_is_fresh(
    kafka: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    first = broker("start", "--data", str(data))
    topic = fresh_topic(first)
    first_pid = json.loads((data / "broker.json").read_text())["pid"]
    refused = launched("start", "--data", str(data), path=os.environ["PATH"])
    assert refused.returncode == 1 and f"a broker runs at {first}. " in refused.stderr
    assert topics(first) == [topic]
    broker("stop", "--data", str(data))
    assert not runs(first_pid)
    second = broker("start", "--data", str(data), "--property", "num.partitions=3")
    assert topics(second) == []
    second_pid = json.loads((data / "broker.json").read_text())["pid"]
    broker("stop", "--data", str(data))
    assert not runs(second_pid)
    assert broker("stop", "--data", str(data)) == ""  # nothing to stop is fine


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = launched("start", "--data", str(tmp_path), path=os.environ["PATH"])
    assert done.returncode == 1
    assert "not empty" in done.stderr or "neither Java" in done.stderr
    assert (tmp_path / "thesis.tex").exists()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs without Java, with a Docker that writes down its calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "docker").write_text(FAKE_DOCKER.format(calls=tmp_path / "calls"))
    (programs / "docker").chmod(0o755)
    for name in ("sh", "ps", "env"):
        (programs / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    return programs


def test_a_port_in_use_is_said_before_anything_is_started(programs: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = launched("start", "--data", str(tmp_path / "data"), "--port", port, path=str(programs))
    assert done.returncode == 1
    assert done.stderr == f"error: port {port} is in use. Choose another (KAFKA_PORT)\n"
    assert "run" not in (tmp_path / "calls").read_text()


def test_docker_is_used_where_there_is_no_java(programs: Path, tmp_path: Path) -> None:
    calls, data = tmp_path / "calls", str(tmp_path / "data")
    assert launched("available", path=str(programs)).stdout == "docker\n"
    done = launched("start", "--data", data, "--port", "19093", path=str(programs))
    assert done.stdout.splitlines()[-1] == "127.0.0.1:19093", done.stderr
    run = next(line for line in calls.read_text().splitlines() if line.startswith("run"))
    assert "--publish=127.0.0.1:19093:9092" in run
    assert "--env=KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:19093" in run
    assert "apache/kafka:" in run
    again = launched("start", "--data", data, path=str(programs))
    assert again.returncode == 1 and "a broker runs at 127.0.0.1:19093. " in again.stderr
    launched("stop", "--data", data, path=str(programs))
    assert calls.read_text().splitlines()[-1].startswith("rm --force freshet-kafka-")


def test_nothing_to_run_a_broker_with_is_said(tmp_path: Path) -> None:
    assert launched("available", path=str(tmp_path)).stdout == "none\n"
    done = launched("start", "--data", str(tmp_path / "data"), path=str(tmp_path))
    assert done.returncode == 1
    assert "neither Java 17 with Maven nor a Docker engine" in done.stderr


def topics(address: str) -> list[str]:
    admin = KafkaAdminClient(**settings(address))
    try:
        return admin.list_topics()  # type: ignore[no-any-return]
    finally:
        admin.close()


def runs(pid: int) -> bool:
    """Whether the process is there, and not only as a zombie that nobody waits for."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def launched(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BROKER), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": path},
    )
