"""Logs go to standard error as it is at each line."""

import io
import json
import re

import pytest
import structlog

from freshet_graph.stream.service.logs import configure_logs, show_seconds


@pytest.fixture(autouse=True)
def _no_rank() -> None:
    """A trainer that ran in this process before has bound its rank."""
    structlog.contextvars.clear_contextvars()


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


def test_a_sentence_for_people_stands_in_place_of_the_fields_that_machines_get(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = structlog.get_logger()
    configure_logs(form="text", level="warning")
    log.info("below the level")
    log.warning("snapshot", tau=17, for_people="snapshot 17 of 20")
    log.warning("checkpoint", sequence=3, for_people="")
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[warning +\] snapshot 17 of 20 *", line)
    with monkeypatch.context() as patch, Terminal() as terminal:
        patch.setattr("sys.stderr", terminal)
        configure_logs(form="json", debug=True)
        log.debug("snapshot", tau=17, for_people="snapshot 17 of 20")
        entry = json.loads(terminal.getvalue())
    assert (entry.pop("timestamp") is not None, entry) == (
        True, {"event": "snapshot", "level": "debug", "tau": 17}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (5400, "90 min"), (1e6, "12 d")]
)
def test_durations_for_people(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown
