"""freshet-trainer as a command, with a configuration of the test's own."""

import json
import os
from pathlib import Path

import yaml
from warm_popen import run


def trainer(folder: Path, *arguments: str, **keys: object) -> dict:
    """``freshet-trainer`` with a configuration, in a process of its own; its JSON."""
    values = {
        "checkpoint": str(folder / "checkpoints"),
        "checkpoint_every": 1,
        "metrics": {"port": 0},
        **keys,
    }
    (folder / "trainer.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    command = ["freshet-trainer", arguments[0], "--config", str(folder / "trainer.yaml"), *arguments[1:]]
    done = run([*command, "--json"], environment=os.environ, timeout_s=550)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
