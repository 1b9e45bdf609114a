"""The launchers of development servers: what two of them started at once do to each other."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[3] / "deploy"
MAVEN = """#!/bin/sh
echo called >>"$CALLS"
for argument; do case $argument in -DoutputDirectory=*) folder=${argument#*=};; esac; done
mkdir -p "$folder"
sleep 0.5
echo bytes >"$folder/a.jar"
"""


@pytest.mark.parametrize("launcher", ["kafka/broker.py", "flink/job_server.py"])
def test_two_started_at_once_resolve_the_jars_once_and_both_wait_for_them(
    tmp_path: Path, launcher: str
) -> None:
    script = tmp_path / "here" / Path(launcher).name
    script.parent.mkdir()
    shutil.copy(DEPLOY / launcher, script)
    shutil.copy(DEPLOY / Path(launcher).parent / "pom.xml", script.parent)
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(MAVEN)
    maven.chmod(0o755)
    calls = tmp_path / "calls"
    path = f"{maven.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CALLS": str(calls), "PYTHONPATH": str(script.parent)}
    resolve = f"import {script.stem} as it; it._resolve_jars(); assert (it.JARS / 'a.jar').read_text() == 'bytes\\n'"
    started = [subprocess.Popen([sys.executable, "-c", resolve], env=environment) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert calls.read_text() == "called\n"
