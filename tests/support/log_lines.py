"""What services leave on standard error: lines of JSON without a terminal, and a plain sentence of commands that don't log."""

import json
import re
from typing import Any


def log_lines(text: str) -> list[dict[str, Any]]:
    """Every line of a log; each must be a JSON object that says what happened, how grave it is, and when."""
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise AssertionError(f"no JSON: {line!r}") from None
        assert {"event", "level", "timestamp"} <= set(lines[-1]), line
        assert "\x1b" not in line, "no colours"
    return lines


def error_of(text: str) -> str:
    """The one sentence with which a command ended, whether its standard error is a log or plain."""
    found = [line.removeprefix("error: ") for line in text.splitlines() if line.startswith("error: ")]
    for line in text.splitlines():
        if line.startswith("{") and "exit_code" in (told := json.loads(line)):
            found.append(told["event"])
    assert len(found) == 1, text
    assert "Traceback" not in text
    return found[0]


def served_at(text: str) -> str | None:
    """Base address of the endpoint that a stream job has told of; None: it has not yet."""
    told = re.search(r'"event": "metrics".*?"url": "(http[^"]+)"', text)
    return told[1] if told else None
