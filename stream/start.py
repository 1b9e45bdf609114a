"""The command ``freshet-stream`` from its first instruction to its last: what no command can do for itself."""

import os
import signal
import sys


def main() -> None:
    """Entry point.

    SIGTERM ends ``run`` with exit code 0 also while it loads, when there is nothing to commit yet.
    """
    if sys.argv[1:2] == ["run"]:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    from stream.cli import app

    try:
        app()
    except SystemExit as end:
        if _lane_at_work():
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise


def _lane_at_work() -> bool:
    """Whether a lane was left in the middle of a snapshot: the interpreter must not be taken down under its thread."""
    lanes = sys.modules.get("stream.job.lane_threads")
    return lanes is not None and lanes.left_behind()
