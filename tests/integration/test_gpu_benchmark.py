"""The benchmark for machines with a GPU, tried where there is none."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def gpu(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_without_cuda_it_says_so_and_succeeds() -> None:
    ended = gpu(CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("torch finds no CUDA device here, so nothing is measured.")


def test_in_small_on_the_cpu_it_prints_a_table_of_all_strategies_and_event_models() -> None:
    ended = gpu("--device", "cpu", "--small", "--ranks", "2", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 0, ended.stderr
    lines, ways = ended.stdout.split("| a snapshot of 10 intervals as |")
    rows = [line.strip("| ").split(" | ") for line in lines.splitlines() if line.startswith("|")]
    assert rows[0] == [
        "what", "ranks", "scores differ", "waits a step", "ms a step", "of it kernels", "events/s", "MiB",
    ]  # fmt: skip
    found = [(row[0].split("`")[1], row[1]) for row in rows[2:]]
    expected = [("vertex", "1"), ("vertex", "2"), ("sequential", "1"), ("pac", "1"), ("pac", "2")]
    assert found[:5] == expected
    assert found[5:7] == [("tgn", "1"), ("tgn-history", "1")]
    assert all(float(row[2]) <= 1e-4 for row in rows[2:7])
    assert all(float(row[6]) > 0 for row in rows[2:])
    told = dict(
        line.strip("| ").split(" | ", 1) for line in ways.splitlines() if line.startswith(("| `", "| int"))
    )
    assert list(told) == ["`whole`", "`esdg`", "`derived`", "`counts`", "`auto`", "int64 COO", "int32 COO"]
