"""``freshet-trainer`` called inside this process."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs
from typer.testing import CliRunner

from freshet_graph.trainer.cli import app

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _no_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The runner's standard error is closed after each command, and configured loggers would keep it."""
    for command in ("run", "evaluate", "export"):
        module = import_module(f"freshet_graph.trainer.commands.{command}")
        monkeypatch.setattr(module, "configure_logs", lambda **_: None)
    with capture_logs():
        yield


def write(folder: Path, **keys: object) -> str:
    values = {
        "lane": "hash",
        "model": "sage-linear",
        "strategy": "vertex",
        "model_params": {"hidden": 8, "signature": 8},
        "window": 2,
        "checkpoint": str(folder / "checkpoints"),
        "metrics": {"port": 0},
        **keys,
    }
    (folder / "trainer.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(folder / "trainer.yaml")


def invoke(*arguments: str) -> tuple[int, dict, str]:
    result = RUNNER.invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout) if result.exit_code == 0 else {}, result.stderr
