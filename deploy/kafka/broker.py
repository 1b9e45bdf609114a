#!/usr/bin/env python3
"""A single-node Apache Kafka (KRaft, one JVM) on 127.0.0.1 for development and tests.

    python deploy/kafka/broker.py start [--port 9092] [--data FOLDER] [--property key=value ...] [--cluster-id ID]
    python deploy/kafka/broker.py stop [--data FOLDER]
    python deploy/kafka/broker.py resume [--data FOLDER]
    python deploy/kafka/broker.py available

``start`` resolves the broker's jars with Maven once, formats a fresh data folder, starts the JVM, waits until it
serves and prints ``host:port`` as the last line of standard output. It refuses while a broker runs in that data folder,
because a start is always fresh; ``resume`` starts a broker that was stopped or killed again, with its data and at its
address. Where Java 17 and Maven are missing and a Docker engine answers, the
official image of the same version is run instead. Needs nothing but Python's standard library.
"""

import argparse
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
JARS = HERE / "target" / "jars"
DEVELOPMENT = HERE / "target" / "development"
HOST = "127.0.0.1"
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 30
SERVING = "Kafka Server started"  # the broker's own last word before it answers clients
STATE = "broker.json"

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",  # a mistyped topic is an error, not an empty topic
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "message.max.bytes": str(32 << 20),
    "replica.fetch.max.bytes": str(32 << 20),
    "log.retention.ms": "-1",
}


class BrokerError(Exception):
    """The broker cannot be started or stopped; the message is for the person at the terminal."""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["start", "stop", "resume", "available"])
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--data", type=Path, default=DEVELOPMENT, help="data folder")
    parser.add_argument(
        "--property", action="append", default=[], metavar="KEY=VALUE", help="broker property"
    )
    parser.add_argument("--cluster-id", help="of the cluster that a further broker joins; default: a new one")
    arguments = parser.parse_args()
    data = arguments.data.resolve()
    try:
        if arguments.action == "available":
            print(_way())
        elif arguments.action == "stop":
            _say("stopped" if stop(data) else f"no broker runs in {data}")
        elif arguments.action == "resume":
            print(resume(data))
        else:
            extra = dict(_pair(text) for text in arguments.property)
            print(start(data, arguments.port, extra, arguments.cluster_id))
    except BrokerError as error:
        _say(f"error: {error}")
        return 1
    return 0


def start(data: Path, port: int, extra: dict[str, str], cluster: str | None = None) -> str:
    """Start a fresh broker in a data folder and return its host:port."""
    way = _way()
    if way == "none":
        raise BrokerError("neither Java 17 with Maven nor a Docker engine is here; install one of them")
    if runs_at := _runs_at(data):
        end = "make kafka-stop" if data == DEVELOPMENT else f"{Path(__file__).name} stop --data {data}"
        raise BrokerError(
            f"a broker runs at {runs_at}. Use it, or end it ({end}): the next start deletes its topics"
        )
    _require_free(port)
    stop(data)  # a container that has ended is removed
    if data.exists() and any(data.iterdir()) and not (data / STATE).exists():
        raise BrokerError(f"{data} is not empty and not a broker's data folder; give another --data")
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    if way == "docker":
        return _start_docker(data, port, extra)
    return _start_java(
        data, port, extra, cluster or urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    )


def resume(data: Path) -> str:
    """Start the broker of a data folder again, with what it holds; returns its host:port."""
    state = json.loads((data / STATE).read_text()) if (data / STATE).exists() else {}
    if "pid" not in state:
        raise BrokerError(f"no broker that ran as a process of this machine has its data in {data}")
    if _runs_at(data):
        raise BrokerError(f"the broker of {data} runs, process {state['pid']}")
    address, log = state["address"], data / "broker.log"
    process = _launched(data, address)
    if not _serves(log, process):
        raise BrokerError(f"the broker didn't start again; see {log}")
    return str(address)


def stop(data: Path) -> bool:
    """Stop the broker of a data folder; False if none runs."""
    state_file = data / STATE
    if not state_file.exists():
        return False
    state = json.loads(state_file.read_text())
    if "container" in state:
        command = ["docker", "rm", "--force", state["container"]]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    pid = state["pid"]
    if not _is_ours(pid, data):
        return False
    os.kill(pid, signal.SIGTERM)
    if not _gone(pid, data, STOP_TIMEOUT_S):
        os.kill(pid, signal.SIGKILL)
        _gone(pid, data, STOP_TIMEOUT_S)
    return True


def _way() -> str:
    """How a broker can be run here: java, docker or none."""
    if shutil.which("java") and shutil.which("mvn") and _java_major() >= 17:
        return "java"
    if shutil.which("docker"):
        engine = subprocess.run(["docker", "info"], capture_output=True, check=False)
        if engine.returncode == 0:
            return "docker"
    return "none"


def _java_major() -> int:
    text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def _start_java(data: Path, port: int, extra: dict[str, str], cluster: str) -> str:
    _resolve_jars()
    attempts = 1 if port else 3  # a free port may be taken between asking for it and binding it
    for attempt in range(1, attempts + 1):
        broker_port, controller_port = port or _free_port(), _free_port()
        properties = PROPERTIES | {
            "listeners": f"PLAINTEXT://{HOST}:{broker_port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{broker_port}",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "log.dirs": str(data / "log"),
        }
        config = data / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in (properties | extra).items()))
        if not (data / "log").exists():
            # In one word: an id may begin with a dash.
            _run(_java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(config)))
        log, address = data / "broker.log", f"{HOST}:{broker_port}"
        process = _launched(data, address)
        if _serves(log, process):
            return address
        if process.poll() is None:
            process.kill()
            process.wait()
        if attempt == attempts or "Address already in use" not in log.read_text(errors="replace"):
            break
    last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    raise BrokerError(f"the broker didn't start; {log} ends with\n{last_lines}")


def _launched(data: Path, address: str) -> "subprocess.Popen[bytes]":
    with (data / "broker.log").open("wb") as output:
        process = subprocess.Popen(
            _java("kafka.Kafka", str(data / "server.properties")),
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    (data / STATE).write_text(json.dumps({"pid": process.pid, "address": address}))
    return process


def _serves(log: Path, process: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if SERVING in log.read_text(errors="replace"):
            return True
        time.sleep(0.1)
    return False


def _java(main_class: str, *arguments: str) -> list[str]:
    jvm = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={HERE / 'log4j2.yaml'}"]
    return ["java", *jvm, "-cp", f"{JARS}/*", main_class, *arguments]


def _resolve_jars() -> None:
    """Have Maven put the jars that the pom names into JARS, unless that was done for this very pom."""
    done = JARS / "resolved.pom"
    JARS.parent.mkdir(exist_ok=True)
    with (JARS.parent / "jars.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who starts at the same moment waits for the jars
        if not (done.exists() and done.read_bytes() == POM.read_bytes()):
            _copy_jars(done)


def _copy_jars(done: Path) -> None:
    _say("resolving Apache Kafka's jars with Maven (once)")
    shutil.rmtree(JARS, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={JARS}", "-DincludeScope=runtime"]
    _run(["mvn", "--batch-mode", "--quiet", "-f", str(POM), *goal])
    done.write_bytes(POM.read_bytes())


def _start_docker(data: Path, port: int, extra: dict[str, str]) -> str:
    version = re.search(r"<kafka.version>(.+)</kafka.version>", POM.read_text())
    assert version is not None
    name, broker_port = f"freshet-kafka-{uuid.uuid4().hex[:8]}", port or _free_port()
    properties = PROPERTIES | {
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{broker_port}",
        "controller.quorum.voters": "1@localhost:9093",
    }
    environment = [
        f"--env=KAFKA_{key.upper().replace('.', '_')}={value}" for key, value in (properties | extra).items()
    ]
    image = f"apache/kafka:{version.group(1)}"
    (data / STATE).write_text(json.dumps({"container": name, "address": f"{HOST}:{broker_port}"}))
    _run(
        [
            "docker",
            "run",
            "--detach",
            "--name",
            name,
            f"--publish={HOST}:{broker_port}:9092",
            *environment,
            image,
        ]
    )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        logs = subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=False)
        if SERVING in logs.stdout + logs.stderr:
            return f"{HOST}:{broker_port}"
        time.sleep(0.5)
    stop(data)
    raise BrokerError(f"the container {name} of {image} didn't serve within {START_TIMEOUT_S} s")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = " ".join((done.stdout + done.stderr).split())[-600:]
        raise BrokerError(f"{command[0]} failed with exit code {done.returncode}: {told}")


def _runs_at(data: Path) -> str | None:
    """host:port of the broker that runs in a data folder."""
    state = json.loads((data / STATE).read_text()) if (data / STATE).exists() else None
    if state is None:
        return None
    if "container" in state:
        command = ["docker", "inspect", "--format", "{{.State.Running}}", state["container"]]
        runs = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "true"
    else:
        runs = _is_ours(state["pid"], data)
    return str(state["address"]) if runs else None


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker does
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            in_use = getattr(error, "errno", None) == errno.EADDRINUSE
            why = "is in use" if in_use else f"can't be used: {error}".rstrip(".")
            raise BrokerError(f"port {port} {why}. Choose another (KAFKA_PORT)") from error


def _is_ours(pid: int, data: Path) -> bool:
    """Whether the process is a broker of this data folder, and not a later one with the same number."""
    if Path("/proc/self/cmdline").exists():  # slim images have no ps
        try:
            told = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return False
    else:
        command = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return str(data / "server.properties") in told


def _gone(pid: int, data: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not _is_ours(pid, data):
            return True
        time.sleep(0.1)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise BrokerError(f"--property takes key=value, found {text!r}")
    return key, value


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
