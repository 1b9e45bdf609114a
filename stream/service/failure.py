"""The end of a command: exit code 0 done, 1 failed with one sentence, 2 usage."""

import select
import sys
import traceback
from collections.abc import Callable

from freshet_graph.schemas.errors import FreshetError, one_line
from freshet_graph.stream.service.json_lines import json_line, lines_are_json

DONE, FAILED = 0, 1


class Failure(FreshetError):  # noqa: N818  a sentence for the user, not a defect
    """A command cannot continue; its message is the sentence that the user reads."""


def run_command(command: Callable[[], int | None], *, debug: bool) -> int:
    """Run a command body and turn a ``FreshetError`` or ``OSError`` into one sentence on standard error.

    Args:
        command: Returns an exit code, or None for 0.
        debug: Print tracebacks as well.

    Raises:
        BrokenPipeError: The reader of standard output is gone (``| head``). Click then exits with code 1 and says nothing.
    """
    try:
        code = command() or DONE
        sys.stdout.flush()
        return code
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_has_left():
            raise
        if not isinstance(error, (FreshetError, OSError)):
            raise
        complain(one_line(error), error if debug else None)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return 130


def _reader_has_left() -> bool:
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def complain(sentence: str, error: Exception | None = None) -> None:
    """Report why a command failed, as a JSON line if standard error consists of them; with the traceback of ``error``."""
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    if lines_are_json():
        line = json_line(sentence, level="error", exit_code=FAILED, **({"exception": trace} if trace else {}))
    else:
        line = f"{trace}error: {sentence}"
    print(line, file=sys.stderr)  # noqa: T201
