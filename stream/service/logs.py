"""Structured logs on standard error: one line an event; JSON where no person looks on."""

import logging
import sys

import structlog


def configure_logs(*, level: str = "INFO", as_json: bool | None = None) -> None:
    """Set up logging of a command; libraries never call this.

    Args:
        level: Lowest level shown.
        as_json: JSON lines; None: unless standard error is a terminal.
    """
    as_json = not sys.stderr.isatty() if as_json is None else as_json
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    numeric_level = logging.getLevelNamesMapping()[level]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(numeric_level),
        # Standard error as it is at each line: whoever redirects it for a while leaves no closed stream behind.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        stream=sys.stderr,
        level=max(numeric_level, logging.WARNING),
        format="%(levelname)s %(name)s: %(message)s",
    )
