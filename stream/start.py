"""The command ``freshet-stream`` from its first instruction to its last, before and after any command's own code."""

import json
import os
import signal
import sys

NOTHING_READ = {
    "snapshots": 0, "events": 0, "refused": 0, "late": 0, "seconds": 0.0, "events_per_s": 0.0, "ended": "stopped",
    "duplicates": 0, "in_history": 0, "refused_by_reason": {}, "held": [], "held_messages": 0,
}  # fmt: skip
"""Output of ``run --json`` if it must end before it has begun: its result's class may not be imported yet."""


def main() -> None:
    """Entry point.

    SIGTERM ends ``run`` with exit code 0 also while it loads and there is nothing to commit. Ctrl-C ends any command then
    without a traceback.
    """
    if sys.argv[1:2] == ["run"]:
        signal.signal(signal.SIGTERM, lambda *_: _end_unread())
    heeded = signal.getsignal(signal.SIGINT) == signal.default_int_handler  # ignored in a shell's background
    if heeded:
        signal.signal(signal.SIGINT, lambda *_: _interrupted())
    from freshet_graph.stream.service.collector import collect_rarely

    collect_rarely()
    try:
        from freshet_graph.stream.cli import LOGGING, app
        from freshet_graph.stream.service.command_line import run_application
    except ModuleNotFoundError as error:
        from freshet_graph.stream.optional import missing_extra

        sys.exit(f"error: {missing_extra('freshet-stream', error, 'stream')}")

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_application(app, logging=LOGGING, extra="stream")
    except SystemExit as end:
        if _threads_at_work():
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise


def _end_unread() -> None:
    if "--json" in sys.argv:
        os.write(1, f"{json.dumps(NOTHING_READ)}\n".encode())
    os._exit(0)


def _interrupted() -> None:
    plain = os.isatty(2) or sys.argv[1:2] not in (["run"], ["backfill"])
    os.write(2, b"interrupted\n" if plain else b'{"event": "interrupted", "level": "error"}\n')
    os._exit(130)


def _threads_at_work() -> bool:
    """Whether a thread was left at work: a lane in the middle of a snapshot, or a client that waits for brokers."""
    background = sys.modules.get("freshet_graph.stream.background")
    return background is not None and bool(background.left_behind())


if __name__ == "__main__":
    main()
