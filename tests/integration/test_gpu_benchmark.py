"""The benchmark for machines with a GPU, tried where there is none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.models.interface import MODELS

ROOT = Path(__file__).resolve().parents[2]


def gpu(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=900,  # 40 s of processor time
        check=False,
    )


def test_without_cuda_it_says_so_and_succeeds() -> None:
    ended = gpu(CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("torch finds no CUDA device here, so nothing is measured.")


@pytest.mark.slow
def test_in_small_on_the_cpu_it_prints_tables_of_all_strategies_models_and_ways_to_send() -> None:
    ended = gpu("--device", "cpu", "--small", "--ranks", "2", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 0, ended.stderr
    lines, rest = ended.stdout.split("| an epoch of `whole`")
    timed, ways = rest.split("| a snapshot of 10 intervals as |")
    rows = [cells(line) for line in lines.splitlines() if line.startswith("|")]
    assert rows[0] == [
        "what", "ranks", "scores differ", "waits a step", "ms a step", "of it kernels", "events/s", "MiB",
    ]  # fmt: skip
    rows = rows[2:]
    models = sorted(name for name, made in MODELS.all().items() if made.kind == "snapshot")
    found = [(*re.findall("`(.*?)`", row[0]), row[1]) for row in rows]
    expected = [
        ("vertex", "sage-linear", "1"), ("vertex", "sage-linear", "2"), ("sequential", "tgn-history", "1"),
        ("pac", "tgn-history", "1"), ("pac", "tgn-history", "2"), *(("whole", name, "1") for name in models),
    ]  # fmt: skip
    assert found[: len(expected)] == expected
    assert found[len(expected) :][:2] == [("tgn", "1"), ("tgn-history", "1")]
    assert all(float(row[2]) <= 1e-4 for row in rows[: len(expected)])
    assert all(float(row[6]) > 0 for row in rows)
    seconds = dict(cells(line)[:2] for line in timed.splitlines() if line.startswith("| `"))
    assert list(seconds) == [f"`{name}`" for name in models]
    assert all(float(each) > 0 for each in seconds.values())
    told = dict(cells(line)[:2] for line in ways.splitlines() if line.startswith(("| `", "| int")))
    assert list(told) == ["`whole`", "`esdg`", "`derived`", "`counts`", "`auto`", "int64 COO", "int32 COO"]


def cells(line: str) -> list[str]:
    return line.strip("| ").split(" | ")
