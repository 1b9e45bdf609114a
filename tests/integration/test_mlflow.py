"""A run beside a real MLflow server that comes and goes."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from pathlib import Path

import pytest
from trainer_streams import make_lane

pytestmark = pytest.mark.slow


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command ``mlflow`` in an environment of its own, because its server needs other versions of much."""
    folder = tmp_path_factory.mktemp("mlflow")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "mlflow>=3.1,<4"], check=True, timeout=500)
    return folder / "bin" / "mlflow"


class Server:
    """An MLflow server on a port of its own."""

    def __init__(self, command: Path, folder: Path) -> None:
        self.port, self._command, self._folder = _free_port(), command, folder
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                self._command, "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
                "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db",
                "--artifacts-destination", str(self._folder / "artifacts"),
            ],
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        until = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            except OSError:
                assert self._process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.5)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def ask(self, path: str, content: dict | None = None) -> dict:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}", data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def test_a_run_is_whole_although_the_server_was_away_and_the_trainer_killed(
    mlflow_server: Path, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow", reason="extra mlflow")
    make_lane(tmp_path / "store")
    config = tmp_path / "trainer.yaml"
    server = Server(mlflow_server, tmp_path)
    keys = {
        "store": str(tmp_path / "store"), "lane": "hash", "model": "sage-linear", "strategy": "vertex",
        "model_params": {"hidden": 8, "signature": 8}, "window": 2, "checkpoint": str(tmp_path / "checkpoints"),
        "metrics": {"port": 0}, "tracker": "mlflow", "tracker_params": {"uri": server.uri, "experiment": "streets"},
    }  # fmt: skip
    config.write_text(json.dumps(keys), encoding="utf-8")
    command = [sys.executable, "-m", "freshet_graph.trainer.cli", "run", "--config", str(config), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(*arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*command, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    first = run()  # without a server
    scores = tmp_path / "checkpoints" / "scores.jsonl"
    until = time.monotonic() + 200
    while not scores.exists() or len(scores.read_text().splitlines()) < 6:
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.2)
    server.start()
    try:
        note = tmp_path / "checkpoints" / "tracker.json"
        while not note.exists() or json.loads(note.read_text())["sequence"] < 5:
            assert first.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
        first.kill()
        assert "the tracker fails" in first.communicate()[1]
        printed, errors = run("--until-idle", "1").communicate(timeout=300)
        assert isinstance(json.loads(printed), dict), errors  # MLflow prints nothing there
        (experiment,) = [
            entry
            for entry in server.ask("experiments/search", {"max_results": 10})["experiments"]
            if entry["name"] == "streets"
        ]
        (found,) = server.ask("runs/search", {"experiment_ids": [experiment["experiment_id"]]})["runs"]
        assert found["info"]["status"] == "FINISHED"
        assert {"key": "model", "value": "sage-linear"} in found["data"]["params"]
        run_id = found["info"]["run_id"]
        history = server.ask(f"metrics/get-history?run_id={run_id}&metric_key=ap")["metrics"]
        lines = [json.loads(line) for line in scores.read_text().splitlines()]
        assert {entry["step"]: entry["value"] for entry in history} == {
            line["sequence"]: line["ap"] for line in lines if "ap" in line
        }
        files = {entry["path"] for entry in server.ask(f"artifacts/list?run_id={run_id}")["files"]}
        assert files == {"checkpoints", "model-card.md"}
    finally:
        server.stop()
