#!/usr/bin/env python3
"""Beam's Flink job server on 127.0.0.1, with a Flink inside it or in front of a cluster.

    python deploy/flink/job_server.py start [--port 8099] [--data FOLDER] [--flink-master HOST:PORT]
    python deploy/flink/job_server.py stop [--data FOLDER]
    python deploy/flink/job_server.py available

``start`` resolves the jars with Maven once, starts the server, waits until it serves and prints ``host:port`` as the
last line of standard output: what ``runner.job_server`` wants. Without ``--flink-master`` jobs run on a Flink
inside the server's own process, for development and tests. Needs Java 17 and Maven, and nothing but Python's
standard library.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
JARS = HERE / "target" / "jars"
HOST = "127.0.0.1"
MAIN = "org.apache.beam.runners.flink.FlinkJobServerDriver"
SERVING = re.compile(r"JobService started on \S+?:(\d+)")  # the server's own last word before it takes jobs
START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 30
STATE = "job_server.json"

# Flink 1.19 reaches into java.base by reflection, which Java 17 allows only where it is told to.
OPENED = (
    "java.lang",
    "java.net",
    "java.io",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
)


class JobServerError(Exception):
    """The server cannot be started or stopped; the message is for the person at the terminal."""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["start", "stop", "available"])
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--data", type=Path, default=HERE / "target" / "development", help="data folder")
    parser.add_argument("--flink-master", default="[local]", help="host:port of a cluster's REST endpoint")
    arguments = parser.parse_args()
    data = arguments.data.resolve()
    try:
        if arguments.action == "available":
            print("java" if _available() else "none")
        elif arguments.action == "stop":
            _say("stopped" if stop(data) else f"no job server runs in {data}")
        else:
            print(start(data, arguments.port, arguments.flink_master))
    except JobServerError as error:
        _say(f"error: {error}")
        return 1
    return 0


def start(data: Path, port: int, flink_master: str) -> str:
    """Start a job server and return its host:port; one that runs in the data folder is stopped first."""
    if not _available():
        raise JobServerError("Java 17 with Maven is not here; install both")
    _resolve_jars()
    if stop(data):
        _say(f"stopped the job server that ran in {data}")
    data.mkdir(parents=True, exist_ok=True)
    log = data / "job_server.log"
    log.unlink(missing_ok=True)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    ports = ["--job-host", HOST, "--job-port", str(port), "--artifact-port", "0", "--expansion-port", "-1"]
    places = ["--artifacts-dir", str(data / "artifacts"), "--flink-conf-dir", str(HERE)]
    temporary = data / "temporary"  # Flink leaves folders there when it is killed
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    jvm = ["-Xms256m", "-Xmx1g", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={temporary}"]
    command = ["java", *jvm, *opened, "-cp", f"{JARS}/*", MAIN]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *ports, *places, "--flink-master", flink_master],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    (data / STATE).write_text(json.dumps({"pid": process.pid}))
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if serving := SERVING.search(log.read_text(errors="replace")):
            return f"{HOST}:{serving.group(1)}"
        time.sleep(0.1)
    if process.poll() is None:
        process.kill()
        process.wait()
    last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    raise JobServerError(f"the job server didn't start; {log} ends with\n{last_lines}")


def stop(data: Path) -> bool:
    """Stop the job server of a data folder; False if none runs."""
    state_file = data / STATE
    if not state_file.exists():
        return False
    pid = json.loads(state_file.read_text())["pid"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _is_ours(pid, data):
            break
        os.kill(pid, number)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while _is_ours(pid, data) and time.monotonic() < deadline:
            time.sleep(0.1)
    else:
        return True
    state_file.unlink()
    return number is not signal.SIGTERM


def _available() -> bool:
    if not (shutil.which("java") and shutil.which("mvn")):
        return False
    text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', text)
    return found is not None and int(found.group(1)) >= 17


def _resolve_jars() -> None:
    """Have Maven put the jars that the pom names into JARS, unless that was done for this very pom."""
    done = JARS / "resolved.pom"
    JARS.parent.mkdir(exist_ok=True)
    with (JARS.parent / "jars.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who starts at the same moment waits for the jars
        if not (done.exists() and done.read_bytes() == POM.read_bytes()):
            _copy_jars(done)


def _copy_jars(done: Path) -> None:
    _say("resolving Flink's and Beam's jars with Maven (once)")
    shutil.rmtree(JARS, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={JARS}", "-DincludeScope=runtime"]
    command = ["mvn", "--batch-mode", "--quiet", "-f", str(POM), *goal]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        told = " ".join((finished.stdout + finished.stderr).split())[-600:]
        raise JobServerError(f"Maven failed with exit code {finished.returncode}: {told}")
    done.write_bytes(POM.read_bytes())


def _is_ours(pid: int, data: Path) -> bool:
    """Whether the process is a job server of this data folder, and not a later one with the same number."""
    command = ["ps", "-ww", "-o", "stat=,args=", "-p", str(pid)]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return not told.startswith("Z") and str(data / "artifacts") in told


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
