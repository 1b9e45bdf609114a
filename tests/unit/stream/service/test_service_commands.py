"""How a command ends and what it prints: exit codes, one sentence, one JSON object, structured logs."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner
from warm_popen import WarmPopen, run

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.stream.cli import app as stream_app
from freshet_graph.stream.service.failure import Failure, run_command
from freshet_graph.stream.service.json_lines import JsonLines
from freshet_graph.stream.service.output import print_end, print_json, print_table
from freshet_graph.trainer.cli import app as trainer_app


class OfAPackageError(FreshetError):
    """An error of some package."""


def fail_with(error: BaseException) -> None:
    raise error


def test_a_failure_is_one_sentence_and_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(lambda: fail_with(Failure("the file\n  x is missing")), debug=False)
    assert code == 1
    assert capsys.readouterr().err == "error: the file x is missing\n"


def test_errors_of_packages_and_of_the_operating_system_are_sentences_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(lambda: fail_with(OfAPackageError("odd")), debug=False) == 1
    assert run_command(lambda: fail_with(OSError(28, "No space left", "x")), debug=False) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda: fail_with(Failure("no")), debug=True) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_defect_is_not_dressed_up_as_a_sentence() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: fail_with(ZeroDivisionError()), debug=False)


def test_an_interrupt_leaves_with_the_code_of_the_signal() -> None:
    assert run_command(lambda: fail_with(KeyboardInterrupt()), debug=False) == 130


@pytest.mark.parametrize(
    "arguments",
    ["config --example", "config --example --json", "plan --rate 1 --nodes 9 --interval 60"],
    ids=["print", "print_json", "print_table"],
)
def test_a_reader_that_leaves_early_ends_a_command_without_a_word(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with WarmPopen(
        ["freshet-stream", *arguments.split()], stdout=writer, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writer)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (1, "")


def test_another_broken_pipe_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda: fail_with(BrokenPipeError(32, "Broken pipe")), debug=False) == 1
    assert "Broken pipe" in capfd.readouterr().err


def test_done_is_zero_and_a_commands_own_code_is_kept() -> None:
    assert run_command(lambda: None, debug=False) == 0
    assert run_command(lambda: 1, debug=False) == 1


def test_json_is_one_object_of_finite_plain_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(
        {"ap": np.float32(0.5), "auc": float("nan"), "seconds": np.array([1.0, np.inf]), "n": np.int64(3)}
    )
    assert json.loads(capsys.readouterr().out) == {"ap": 0.5, "auc": None, "seconds": [1.0, None], "n": 3}


def test_the_table_of_an_ended_service_is_left_out_where_its_log_has_the_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for lines_are_json, terminal in ((True, False), (True, True), (False, False)):
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
            if lines_are_json:
                patch.setattr(sys, "stderr", JsonLines(2))
            print_end("graph in store", {"events": 3})
        assert ("events" in capsys.readouterr().out) is (terminal or not lines_are_json)


def test_a_table_shows_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("a title far wider than its table, of a/file[1].parquet", {"events": 1234567, "ap": 0.91234})
    out = capsys.readouterr().out
    assert out.startswith("a title far wider than its table, of a/file[1].parquet\n")
    assert "1,234,567" in out
    assert "0.9123" in out
    print_table(
        "of",
        {
            "first": 89787255,
            "no_negative": {"training": 1200, "test": 0},
            "held": [],
            "gpus": [4, 8],
            "ok": True,
        },
    )
    out = capsys.readouterr().out
    for wanted in ("89787255", "training 1,200, test 0", "–", "4, 8", "yes"):
        assert f"│ {wanted} " in out
    print_table("none", {"utility": float("nan"), "file": "b[2].pt", "lag": None})
    out = capsys.readouterr().out
    assert "nan" not in out
    assert out.count("–") == 2
    assert "b[2].pt" in out


@pytest.mark.parametrize("app", [stream_app, trainer_app], ids=["stream", "trainer"])
def test_arguments_are_shown_in_one_style(app: typer.Typer) -> None:
    commands: Any = typer.main.get_command(app)
    shown = {
        (name, parameter.name): parameter.metavar
        for name, command in commands.commands.items()
        for parameter in command.params
        if parameter.param_type_name == "argument"
    }
    assert {metavar.strip("[]") for metavar in shown.values()} <= {"FILE", "STORE", "NAME"}, shown


@pytest.mark.parametrize(
    ("command", "begun", "whole"),
    [("freshet-stream", "part", "partition"), ("freshet-trainer", "eval", "evaluate")],
)
def test_a_shell_completes_commands(command: str, begun: str, whole: str) -> None:
    asked = {
        "COMP_WORDS": f"{command} {begun}",
        "COMP_CWORD": "1",
        f"_{command.upper().replace('-', '_')}_COMPLETE": "complete_bash",
    }
    assert run([command], environment={**os.environ, **asked}, timeout_s=60).stdout.split() == [whole]


@pytest.mark.parametrize("command", ["freshet-stream", "freshet-trainer"])
def test_a_wrong_option_is_exit_code_two_and_nothing_on_standard_output(command: str) -> None:
    done = run([command, "config", "--exmaple"], environment=os.environ, timeout_s=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--example" in done.stderr


def test_logs_are_json_lines_on_standard_error_where_no_terminal_is() -> None:
    program = (
        "from freshet_graph.stream.service.logs import configure_logs; import structlog; configure_logs(); "
        "structlog.get_logger().info('commit', n=3); structlog.get_logger().debug('hidden')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["n"], entry["level"]) == ("commit", 3, "info")
    assert entry["timestamp"].endswith("Z")


@pytest.mark.parametrize(("app", "name"), [(stream_app, "freshet-stream"), (trainer_app, "freshet-trainer")])
def test_the_version_is_the_installed_ones(app: typer.Typer, name: str) -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"{name} {version('freshet-graph')}\n")
    assert "--version" in CliRunner().invoke(app, ["--help"]).stdout
