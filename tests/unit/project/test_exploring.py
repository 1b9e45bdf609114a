"""The tests that draw new examples end in time, print the seed of what failed, and draw the same again by it."""

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "support"
TIMED = """
import time
from hypothesis import given, settings, strategies as st

now = [0]
time.monotonic = lambda: now[0]  # seconds pass with examples alone

@settings(max_examples=20)
@given(st.integers(0, 10**9))
def test_numbers(number):
    now[0] += 1
    with open("drawn", "a") as file:
        print(number, file=file)
    assert {condition}
"""


def explored(folder: Path, condition: str, *, seed: int, seconds: int = 100) -> tuple[int, str, list[int]]:
    """Exit code, output and what was drawn of a test that takes a second an example."""
    (folder / "test_it.py").write_text(TIMED.format(condition=condition))
    (folder / "drawn").write_text("")
    plugins = ["-p", "_hypothesis_pytestplugin", "-p", "exploring", "-p", "no:cacheprovider"]
    options = ["-c", os.devnull, "--rootdir", ".", *plugins]
    profile = ["--hypothesis-profile=exploring", f"--hypothesis-seed={seed}"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *profile],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(SUPPORT),
            "FRESHET_EXPLORE_S": str(seconds),
        },
    )
    drawn = [int(line) for line in (folder / "drawn").read_text().split()]
    return run.returncode, run.stdout, drawn


def test_a_seed_draws_its_examples_again_and_another_one_others(tmp_path: Path) -> None:
    first, again, other = (explored(tmp_path, "True", seed=seed) for seed in (7, 7, 8))
    assert (first[0], len(first[2])) == (0, 20)
    assert first[2] == again[2] != other[2]
    assert "new examples of seed 7" in first[1]
    assert "make explore" not in first[1]


def test_examples_end_with_the_time(tmp_path: Path) -> None:
    passed, _, drawn = explored(tmp_path, "True", seed=7, seconds=5)
    assert (passed, len(drawn)) == (0, 6)
    assert drawn == explored(tmp_path, "True", seed=7)[2][:6]


def test_a_failure_is_made_small_though_time_is_over_and_says_how_to_draw_it_again(tmp_path: Path) -> None:
    failed, told, drawn = explored(tmp_path, "number < 1000", seed=3, seconds=5)
    assert failed == 1
    assert len(drawn) > 6
    assert drawn[-1] == 1000, "the smallest that fails"
    assert "make explore SEED=3" in told
    assert "@reproduce_failure(" in told
