"""``freshet-stream`` in a process forked from one that has loaded it: a start costs milliseconds."""

import os
import sys

import stream.commands.run
import stream.job.loop
import stream.metrics
import stream.pipeline
from stream.start import main
from stream.store.crash import arm


def begin(command: list[str], log: str) -> None:
    """Be a command that was just started: its arguments, no settings of the caller's shell, its output in ``log``."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    stream.service.output.notes.file = sys.stderr
    for name in [name for name in os.environ if name.startswith(("FRESHET_STREAM", "FRESHET_TRAINER"))]:
        del os.environ[name]
    sys.argv = command


def freshet_stream(arguments: list[str], log: str, crash_at: str) -> None:
    """The whole command; ends the process."""
    begin(["freshet-stream", *arguments], log)
    arm(crash_at)
    main()
