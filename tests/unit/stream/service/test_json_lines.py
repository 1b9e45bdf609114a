"""Standard error without a terminal: whatever Python writes there becomes whole lines of JSON."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from log_lines import log_lines

from freshet_graph.stream.service.json_lines import JsonLines, json_line, last_error

PROGRAM = """
import logging, sys, threading, typer, warnings
from freshet_graph.stream.service.command_line import run_application
from freshet_graph.stream.service.logs import configure_logs

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

@app.command()
def run(what: str):
    configure_logs()
    if what == "library":
        logging.getLogger("a.library").warning("disk %s\\nis slow", "sdä")
        logging.getLogger("a.library").info("not worth a line")
    if what == "warning":
        warnings.warn("old way", DeprecationWarning, stacklevel=1)
        warnings.warn("take care", stacklevel=1)
    if what == "print":
        print("half", end="", file=sys.stderr)
        print(" a line\\n\\nand another", end="", file=sys.stderr)
    if what == "thread":
        thread = threading.Thread(target=lambda: 1 / 0, name="worker")
        thread.start()
        thread.join()
    if what == "defect":
        raise LookupError("a defect")

@app.command()
def other(what: str):
    raise SystemExit(what)

sys.argv[0] = "program"
run_application(app, logging=["run"], extra="stream")
"""


def ran(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_libraries_log_as_we_do() -> None:
    code, err = ran("run", "library")
    (line,) = log_lines(err)
    assert (code, line["event"], line["level"], line["logger"]) == (
        0, "disk sdä\nis slow", "warning", "a.library",
    )  # fmt: skip
    assert "sdä" in err


def test_warnings_are_lines_of_the_log() -> None:
    code, err = ran("run", "warning")
    lines = log_lines(err)
    assert (code, {(line["level"], line["logger"]) for line in lines}) == (0, {("warning", "py.warnings")})
    assert [
        "DeprecationWarning: old way" in lines[0]["event"],
        "UserWarning: take care" in lines[1]["event"],
    ] == [
        True,
        True,
    ]


def test_what_is_printed_becomes_a_line_for_each_of_its_own() -> None:
    code, err = ran("run", "print")
    assert (code, [line["event"] for line in log_lines(err)]) == (0, ["half a line", "and another"])


def test_a_thread_that_fails_is_one_line() -> None:
    code, err = ran("run", "thread")
    (line,) = log_lines(err)
    assert (code, line["event"], line["level"]) == (0, "thread worker failed", "error")
    assert "ZeroDivisionError" in line["exception"]


def test_a_defect_is_one_line_with_its_traceback() -> None:
    code, err = ran("run", "defect")
    (line,) = log_lines(err)
    assert (code, line["event"]) == (1, "unexpected LookupError: a defect")
    assert line["exception"].startswith("Traceback")


def test_wrong_usage_is_json_where_the_command_logs_and_plain_elsewhere() -> None:
    code, err = ran("run", "--colour")
    assert code == 2
    assert "No such option: --colour" in log_lines(err)[-1]["event"]
    code, err = ran("other", "--colour")
    assert code == 2
    assert err.startswith("Usage: ")


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        stream = JsonLines(file.fileno())

        def write(name: str) -> None:
            for k in range(200):
                print(json_line(name, number=k, padding="x" * 5_000), file=stream)

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    told = log_lines((tmp_path / "log").read_text())
    for name in "abcd":
        assert [line["number"] for line in told if line["event"] == name] == list(range(200))


def test_each_line_is_one_write_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """What several ranks write to one pipe doesn't mix."""
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, text: written.append(bytes(text)) or len(text))
    stream = JsonLines(2)
    print(json_line("long", padding="x" * 20_000), file=stream)
    print("short", file=stream)
    assert [line.endswith(b"\n") and line.count(b"\n") == 1 for line in written] == [True, True]


def test_the_sentence_of_an_end_is_found_among_other_lines() -> None:
    end = json_line("the disk is full", level="error", exit_code=1)
    text = f"[W socket.cpp] no JSON\n{json_line('lane failed', level='error')}\n{end}\n{{broken\n"
    assert last_error(text) == "the disk is full"
    assert last_error("Killed\n") is None
