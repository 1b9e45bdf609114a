"""Structured logs on standard error: one line per event, JSON unless a person looks on."""

import logging
import sys

import structlog

from freshet_graph.stream.service.json_lines import lines_are_json


def configure_logs(*, level: str = "INFO", as_json: bool | None = None) -> None:
    """Set up logging of a command; libraries never call this.

    Python's own logging takes the same way, and so do warnings if lines are JSON.

    Args:
        level: Lowest level shown.
        as_json: JSON lines; False: plain sentences, of commands without a log; None: JSON lines unless standard error is a
            terminal.
    """
    as_sentences = as_json is False
    as_json = not sys.stderr.isatty() if as_json is None else as_json
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
    if not (as_json or as_sentences):
        shared.append(_for_people)
    numeric_level = logging.getLevelNamesMapping()[level]
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


def _for_people(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A line without empty fields, and with short numbers; the end's figures are in the table below it."""
    if line["event"] == "ended":
        raise structlog.DropEvent
    return {key: _short(value) for key, value in line.items() if value not in ([], {}, ())}


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
