"""A continuous-integration run must not pass with an integration test skipped."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GUARD = Path(__file__).parents[2] / "support" / "skip_guard.py"
ROOT = Path(__file__).parents[3]


def run_tests(
    folder: Path, body: str, *, required: bool, processes: int = 0
) -> subprocess.CompletedProcess[str]:
    shutil.copy(GUARD, folder / "conftest.py")
    (folder / "test_it.py").write_text(body)
    (folder / "test_other.py").write_text("def test_passes(): assert True")
    environment = {
        **os.environ,
        "FRESHET_REQUIRE_KAFKA": "1" if required else "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    several = ["-p", "xdist", "-n", str(processes)] if processes else []
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder, *several, folder],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "required", "passes"),
    [
        ("import pytest\ndef test_a(): pytest.skip('neither Java nor Docker')", True, False),
        ("import pytest\npytest.skip('no broker', allow_module_level=True)", True, False),
        ("import pytest\n@pytest.mark.skipif(True, reason='not today')\ndef test_a(): pass", True, False),
        ("import pytest\ndef test_a(): pytest.skip('neither Java nor Docker')", False, True),
        ("import pytest\ndef test_a(): pytest.skip('prometheus is not installed')", True, True),
        ("import pytest\ndef test_a(): pytest.skip('needs a GPU')", True, True),
        ("import pytest\ndef test_a(): pytest.skip('../shared/data/x.parquet is missing')", True, True),
    ],
)
def test_a_skip_that_hides_a_missing_broker_fails_the_run(
    tmp_path: Path, body: str, required: bool, passes: bool
) -> None:
    run = run_tests(tmp_path, body, required=required)
    assert (run.returncode == 0) is passes, run.stdout
    assert ("forbids it" in run.stdout) is not passes


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("import pytest\npytest.skip('no broker', allow_module_level=True)", id="module"),
        pytest.param(
            "import pytest\ndef test_a(): pytest.skip('neither Java nor Docker')",
            id="test",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_fails_a_run_in_two_processes_too(tmp_path: Path, body: str) -> None:
    run = run_tests(tmp_path, body, required=True, processes=2)
    assert run.returncode == 1, run.stdout
    assert run.stdout.count("test_it.py") >= 1
    assert "forbids it" in run.stdout


def test_ci_runs_the_tests_and_the_slow_ones_where_none_may_be_skipped(tmp_path: Path) -> None:
    """Followed with a ``make`` that writes down what it is asked for and whether skips are forbidden then."""
    project, tools = tmp_path / "project", tmp_path / "tools"
    (project / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", project / ".ci/run")
    tools.mkdir()
    for name in ("make", "python3.11", "java", "mvn", "promtool", "kcat"):
        (tools / name).write_text('#!/bin/sh\necho "$1 ${FRESHET_REQUIRE_KAFKA:-0}"\n')
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    run = subprocess.run([project / ".ci/run"], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["test 1", "test-slow 1", "explore 0", "lint 0"]


def test_each_test_is_either_slow_or_not() -> None:
    """``make test``, ``make test-slow`` and ``make lint`` leave nothing out between them."""
    chosen = [
        subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for target in ("test", "test-slow", "lint")
    ]
    selections = ('-m "not slow and not lint"', "-m slow", "-m lint")
    assert all(selection in commands for selection, commands in zip(selections, chosen, strict=True))
