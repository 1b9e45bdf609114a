"""Logs go to standard error as it is at each line."""

import io
import json

import pytest
import structlog

from stream.service.logs import configure_logs


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
