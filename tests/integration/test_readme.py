"""The README's own way: its Python produces events, its commands turn them into a log, lanes and a model."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from streaming import command, fresh_topic

pytestmark = pytest.mark.integration

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_readme_leads_from_five_lines_of_python_to_a_checkpoint(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    produced = program.replace("127.0.0.1:9092", kafka).replace('"edges"', f'"{topic}"')
    subprocess.run([sys.executable, "-c", produced], check=True, timeout=60)

    text = command("config", "--example").stdout
    assert "127.0.0.1:9092" in text
    assert "name: edges" in text
    text = text.replace("127.0.0.1:9092", kafka).replace("name: edges", f"name: {topic}")
    text = text.replace("edges.dead", f"{topic}.dead").replace("./store", str(tmp_path / "store"))
    (tmp_path / "stream.yaml").write_text(text.replace("port: 9108", "port: 0"), encoding="utf-8")
    ran = command("run", "--config", tmp_path / "stream.yaml", "--until-idle", "2", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["events"] == 3
    inspected = json.loads(command("inspect", tmp_path / "store", "--json").stdout)
    assert (inspected["events"], inspected["nodes"]) == (3, 4)
    assert set(inspected["lanes"]) == {"distdy", "sep"}

    trainer = [sys.executable, "-m", "trainer.cli"]
    shown = subprocess.run(
        [*trainer, "config", "--example"], check=True, capture_output=True, text=True
    ).stdout
    shown = shown.replace("./store", str(tmp_path / "store")).replace(
        "./checkpoints", str(tmp_path / "checkpoints")
    )
    (tmp_path / "trainer.yaml").write_text(shown.replace("port: 9109", "port: 0"), encoding="utf-8")
    trained = subprocess.run(
        [
            *trainer,
            "run",
            "--config",
            tmp_path / "trainer.yaml",
            "--ranks",
            "2",
            "--until-idle",
            "3",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout)
    assert (result["snapshots"], result["events"]) == (1, 3)
    assert Path(result["checkpoint"]).exists()
