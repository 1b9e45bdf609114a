"""Structured logs on standard error: one line per event, JSON unless a person looks on.

Numbers are fields of a line, never inside its text. An event that people would rather read as a sentence also has that, as
``for_people``; an empty one leaves the line out on a terminal.
"""

import logging
import sys
from typing import Literal

import structlog

from freshet_graph.stream.service.json_lines import lines_are_json

LogForm = Literal["json", "text"]
FOR_PEOPLE = "for_people"


def configure_logs(
    *, level: str = "INFO", as_json: bool | None = None, form: LogForm | None = None, debug: bool = False
) -> None:
    """Set up logging of a command; libraries never call this.

    Python's own logging takes the same way, and so do warnings if lines are JSON.

    Args:
        level: Lowest level shown.
        as_json: JSON lines; False: plain sentences, of commands without a log; None: as ``form`` says.
        form: JSON lines, or lines for people; None: JSON lines unless standard error is a terminal.
        debug: Show all levels.
    """
    as_sentences = as_json is False
    if as_json is None:
        as_json = form == "json" or (form is None and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True)
        if as_json or as_sentences
        else structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        structlog.processors.format_exc_info,
        lambda _, __, line: {"event": line.pop("event"), "level": line.pop("level"), **line},  # read first
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if as_json
        else _sentence
        if as_sentences
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    )
    shared.append(_without_sentence if as_json or as_sentences else _for_people)
    numeric_level = logging.DEBUG if debug else logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(numeric_level),
        # Standard error as it is at each line: a redirection leaves no closed stream behind.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    if not any(isinstance(handler, _Libraries) for handler in root.handlers):
        root.addHandler(_Libraries())
    root.setLevel(max(numeric_level, logging.WARNING))
    if lines_are_json():
        logging.captureWarnings(True)


def _without_sentence(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    line.pop(FOR_PEOPLE, None)
    return line


def _for_people(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A line without empty fields, and with short numbers, or its sentence; the end's figures are in the table below it."""
    sentence = line.pop(FOR_PEOPLE, None)
    if line["event"] == "ended" or sentence == "":
        raise structlog.DropEvent
    if sentence is not None:
        return {"event": sentence, "level": line["level"], "timestamp": line["timestamp"]}
    return {key: _short(value) for key, value in line.items() if value not in ([], {}, ())}


def show_seconds(seconds: float) -> str:
    """A duration in the largest unit of which it has two, such as 90 min."""
    unit, length = next(
        (one for one in (("d", 86_400), ("h", 3_600), ("min", 60)) if seconds >= 2 * one[1]), ("s", 1)
    )
    return f"{seconds / length:,.0f} {unit}"


def _short(value: object) -> object:
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 1)


def _sentence(_: object, __: str, line: structlog.typing.EventDict) -> str:
    """A line as a sentence, with its level and without the time; other fields in brackets."""
    event, level, exception = line.pop("event"), line.pop("level"), line.pop("exception", None)
    del line["timestamp"]
    fields = ", ".join(f"{key} {value}" for key, value in line.items())
    return f"{level}: {event}{f' ({fields})' if fields else ''}" + (f"\n{exception}" if exception else "")


def take_over(*names: str) -> None:
    """Have a library with handlers of its own log like all others; call it once the library is loaded."""
    for name in names:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True


class _Libraries(logging.Handler):
    """Log records of libraries, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line."""
        structlog.get_logger().log(
            record.levelno, record.getMessage().strip(), logger=record.name, exc_info=record.exc_info
        )
