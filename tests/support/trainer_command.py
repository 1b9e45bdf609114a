"""freshet-trainer as a command, with a configuration of the test's own."""

import json
import subprocess
import sys
from pathlib import Path

import yaml


def trainer(folder: Path, *arguments: str, **keys: object) -> dict:
    """``freshet-trainer`` with a configuration, in a process of its own; its JSON."""
    values = {
        "checkpoint": str(folder / "checkpoints"),
        "checkpoint_every": 1,
        "metrics": {"port": 0},
        **keys,
    }
    (folder / "trainer.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    command = [sys.executable, "-m", "trainer.cli", arguments[0], "--config", str(folder / "trainer.yaml")]
    done = subprocess.run(
        [*command, *arguments[1:], "--json"], capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
