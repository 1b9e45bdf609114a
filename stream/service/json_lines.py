"""Standard error without a terminal: everything written there becomes JSON lines."""

import atexit
import io
import json
import os
import sys
import threading
import traceback
from datetime import UTC, datetime
from typing import Any


def json_line(event: str, *, level: str = "info", **fields: Any) -> str:
    """One line with an event, its level, more fields and the time; text stays readable."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"event": event, "level": level, **fields, "timestamp": now}
    return json.dumps(line, ensure_ascii=False, default=str)


class JsonLines(io.TextIOBase):
    """A text stream that writes JSON lines to a file descriptor.

    Lines that are JSON objects pass unchanged. Others become ``{"event": line, "level": "warning", …}``: usage errors,
    warnings of libraries, and prints. Every line is one ``write`` of the system, so that lines of several processes on one
    pipe don't mix.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun: dict[
            int, str
        ] = {}  # of a line, by thread: print writes text and end of line one after the other
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """The file descriptor, for child processes."""
        return self._descriptor

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str) -> int:
        """Take text in, and write the lines that it completes."""
        thread = threading.get_ident()
        with self._lock:
            *whole, begun = (self._begun.pop(thread, "") + text).split("\n")
            if begun:
                self._begun[thread] = begun
            for line in whole:
                self._put(line)
        return len(text)

    def close(self) -> None:
        """Write what has no end of line yet; the descriptor stays open."""
        with self._lock:
            for begun in self._begun.values():
                self._put(begun)
            self._begun.clear()

    def _put(self, line: str) -> None:
        if not line.strip():
            return
        if _object(line) is None:
            line = json_line(line.rstrip(), level="warning")
        left = f"{line}\n".encode(errors="backslashreplace")
        while left:
            left = left[os.write(self._descriptor, left) :]


def _object(line: str) -> dict[str, Any] | None:
    """The JSON object of a line; None if it isn't one."""
    if not line.startswith("{"):
        return None
    try:
        content: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return content


def last_error(text: str) -> str | None:
    """The sentence with which a command with this standard error ended; None if there is none."""
    entries = [line for line in map(_object, text.splitlines()) if line is not None]
    return next((line["event"] for line in reversed(entries) if "exit_code" in line), None)


def lines_are_json() -> bool:
    """Whether standard error consists of JSON lines."""
    return isinstance(sys.stderr, JsonLines)


def take_to_json_lines(form: str | None = None) -> None:
    """Turn everything that Python writes to standard error into JSON lines if ``form`` is json; None: unless it is a terminal."""
    plain = sys.stderr
    if plain is None or (form != "json" and (form == "text" or plain.isatty())):
        return
    plain.flush()
    sys.stderr = lines = JsonLines(plain.fileno())
    atexit.register(lines.close)
    threading.excepthook = _failed_thread


def _failed_thread(failed: threading.ExceptHookArgs) -> None:
    trace = traceback.format_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    name = failed.thread.name if failed.thread is not None else "unknown"
    print(json_line(f"thread {name} failed", level="error", exception="".join(trace)), file=sys.stderr)  # noqa: T201
