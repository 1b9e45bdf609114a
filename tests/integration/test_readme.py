"""The README's own way: its Python sends events, its commands make a log, lanes and a model of them, its Python asks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from streaming import fresh_topic

pytestmark = [pytest.mark.integration, pytest.mark.slow]

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## Five lines in, five lines out\n")[1].split("\n## ")[0]


def test_the_readme_leads_from_five_lines_of_python_to_five_lines_of_python(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka)
    here = {"127.0.0.1:9092": kafka, '"edges"': f'"{topic}"', "name: edges": f"name: {topic}"}
    here |= {"edges.dead": f"{topic}.dead", "port: 9108": "port: 0", "port: 9109": "port: 0"}
    (tmp_path / ".venv").symlink_to(sys.prefix)

    def done(line: str) -> str:
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=tmp_path, env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert run.returncode == 0, f"{line}\n{run.stdout}\n{run.stderr}"
        return run.stdout or run.stderr  # a service's figures are in its log

    named = re.findall(r"Save them as `(\w+\.py)`", SECTION)
    programs = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    for name, program in zip(named, programs, strict=True):
        (tmp_path / name).write_text(_replaced(program, here), encoding="utf-8")
    printed = {}
    for line in "".join(re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)).splitlines():
        if not line.startswith("make "):  # which the fixtures stand for
            printed[line.split("/")[-1]] = done(line)
            if " > " in line:
                file = tmp_path / line.split(" > ")[1]
                file.write_text(_replaced(file.read_text(encoding="utf-8"), here), encoding="utf-8")
    (asked,) = re.findall(r"run `(\.venv/bin/python \w+\.py)`", SECTION)
    printed["ask"] = done(asked)

    assert re.search(
        r'"ended".*"events": 3,', printed["freshet-stream run --config stream.yaml --until-idle 10"]
    )
    assert "sep" in re.findall(r"\w+", printed["store"])
    assert re.search(
        r'"ended".*"ap": 0\.5', printed["freshet-trainer run --config trainer.yaml --until-idle 10"]
    )
    edges, ranked = printed["ask"].splitlines()
    assert edges == "[(1, 7, 1.0), (1, 9, 1.0), (2, 7, 1.0)]"
    assert re.fullmatch(r"\[\([79], [-+\de.]+\), \([79], [-+\de.]+\)\]", ranked)


def _replaced(text: str, here: dict[str, str]) -> str:
    for word, by in here.items():
        text = text.replace(word, by)
    return text
