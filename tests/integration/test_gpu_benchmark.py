"""The command for machines with a GPU, tried where there is none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.strategies.interface import STRATEGIES, strategies_for

ROOT = Path(__file__).resolve().parents[2]


def gpu(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--out", str(out), *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, env=environment, cwd=out, capture_output=True, text=True, timeout=1800, check=False
    )


@pytest.mark.slow
def test_without_cuda_nothing_but_the_machine_is_looked_at(tmp_path: Path) -> None:
    ended = gpu(tmp_path)
    assert ended.returncode == 1
    assert "WRONG: torch finds no CUDA device here" in ended.stdout
    assert ended.stdout.endswith("The machine is not as expected, so nothing else was tried.\n")
    assert [each.name for each in tmp_path.iterdir()] == ["machine.txt"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_small_on_the_processor_every_part_ends_well_and_the_table_has_its_rows(tmp_path: Path) -> None:
    ended = gpu(tmp_path, "--device", "cpu", "--small")
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr
    files = {each.name for each in tmp_path.iterdir()}
    assert files == {
        f"{name}.txt" for name in ("machine", "warm", "right", "speed", "ranks", "stream", "table")
    }
    table = (tmp_path / "table.txt").read_text()
    right = {
        tuple(found)
        for found in re.findall(r"^\| `(.+?)`, `(.+?)` \| .+? \| .+? \| .+? \| – ", table, re.MULTILINE)
    }
    models = MODELS.all()
    assert right == {(strategy, name) for name in models for strategy in strategies_for(name)}
    for name in ("tgn", "tgn-history"):
        assert re.search(rf"^\| `{name}` \| 30 \| [\d.]+ \| ", table, re.MULTILINE)
    for name in (name for name, made in models.items() if getattr(made, "kind", "") == "snapshot"):
        assert re.search(rf"^\| `{name}` \| \d", table, re.MULTILINE), name
    for row in (
        r"PyG \| 30", r"WD-GCN by `torch.sparse`, CSR", r"WD-GCN by `GCNConv`", r"copy on the device", r"`esdg` \|", r"int64 COO",
        r"`snapshot`, `wdgcn`, blocks 4", r"`hybrid`, `tgcn`", r"`pac`, `tgn`",
    ):  # fmt: skip
        assert re.search(rf"^\| {row} ", table, re.MULTILINE), row
    ranks = {
        strategy
        for strategy in STRATEGIES.all()
        if re.search(rf"^\| `{strategy}`, `\S+` \| 1 ", table, re.MULTILINE)
    }
    assert ranks == {"vertex", "pac", "snapshot", "group", "hybrid"}
    assert "events/s" in (tmp_path / "stream.txt").read_text()
