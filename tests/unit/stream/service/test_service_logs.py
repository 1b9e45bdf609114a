"""Logs go to standard error as it is at each line."""

import io
import json
import re

import pytest
import structlog

from freshet_graph.stream.service.logs import configure_logs


def test_a_redirected_standard_error_that_is_closed_again_breaks_no_later_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = structlog.get_logger()
    with monkeypatch.context() as redirected, io.StringIO() as elsewhere:
        redirected.setattr("sys.stderr", elsewhere)
        configure_logs(as_json=True)
        log.info("first", number=1)
        assert json.loads(elsewhere.getvalue())["number"] == 1
    log.info("second", number=2)
    assert json.loads(capsys.readouterr().err)["event"] == "second"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_for_people_are_in_the_order_of_the_program_short_and_without_the_ends_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch, Terminal() as terminal:
        patch.setattr("sys.stderr", terminal)
        configure_logs()
        structlog.get_logger().info("snapshot", tau=1_234_567, loss=0.27240877200165414, held=[], again=True)
        structlog.get_logger().info("ended", events=3)
        (line,) = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[info +\] snapshot +tau=1234567 loss=0\.2724 again=True", line)
