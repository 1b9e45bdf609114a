"""Folders for work in progress: none outlives its process for longer than until the next is made."""

import signal
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from freshet_graph.stream.pipeline import InProcess, run_locally
from freshet_graph.stream.service.scratch import LOCK, WITHIN, scratch_folder

HOLDER = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests may ignore them, and so would this
signal.signal(signal.SIGINT, signal.default_int_handler)
from freshet_graph.stream.service.scratch import scratch_folder
with scratch_folder("held") as folder:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "file").write_text("bytes")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test and the processes that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv(WITHIN, raising=False)
    return tmp_path


def holder() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_s_folder_goes_when_the_next_is_made_and_a_living_one_s_stays(
    temporary: Path,
) -> None:
    killed, left = holder()
    alive, kept = holder()
    with killed, alive:
        killed.kill()
        killed.wait()
        assert (left / "deep" / "er" / "file").exists()
        with scratch_folder("next") as own:
            assert not left.exists()
            assert (kept / "deep" / "er" / "file").exists()
            assert sorted(temporary.iterdir()) == sorted([own, kept])
        assert alive.stdin is not None
        alive.stdin.close()
        assert alive.wait(30) == 0
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_block_and_removes_the_folder(temporary: Path, number: signal.Signals) -> None:
    process, folder = holder()
    with process:
        process.send_signal(number)
        ended = process.wait(30)
    assert ended == (-number if number == signal.SIGINT else 128 + number)
    assert not folder.exists()


def test_what_is_not_known_to_be_forsaken_is_left_alone(temporary: Path) -> None:
    unlocked, elsewhere = temporary / "freshet-evaluate-old", temporary / "freshet-evaluate-far"
    unlocked.mkdir()
    elsewhere.mkdir()
    (elsewhere / LOCK).write_text("another machine")
    (temporary / "freshet-evaluate-link").symlink_to(elsewhere)
    with scratch_folder("next"):
        pass
    assert sorted(path.name for path in temporary.iterdir()) == [
        "freshet-evaluate-far",
        "freshet-evaluate-link",
        "freshet-evaluate-old",
    ]


def test_folders_of_processes_that_a_command_starts_lie_in_its_own(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scratch_folder("outer") as outer:
        monkeypatch.setenv(WITHIN, str(outer))
        killed, left = holder()
        with killed:
            assert left.parent == outer
            killed.kill()
    assert not list(temporary.iterdir())


def test_handlers_are_as_before_after_the_block(temporary: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with scratch_folder("next"):
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_pipeline_at_work_has_no_temporary_folder_that_a_kill_would_leave(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []

    class Result:
        def wait_until_finish(self) -> None:
            found.append([path.name for path in temporary.iterdir()])

    def run_pipeline(self: FnApiRunner, pipeline: beam.Pipeline, options: object) -> Result:
        found.append([path.name for path in temporary.iterdir()])
        return Result()

    monkeypatch.setattr(FnApiRunner, "run_pipeline", run_pipeline)
    run_locally([], InProcess("cycle"), ())
    assert found == [[], []]
