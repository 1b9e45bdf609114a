"""The heartbeat of a process: its main work beats, and /healthz fails if it has not for too long."""

import time

_last_s = time.monotonic()


def beat() -> None:
    """Show that the main work continues: once per round of a loop, per look of a wait, and per part of long work.

    Only the thread that must not hang may beat, and threads that it waits for. Other work would hide that it hangs.
    """
    global _last_s  # noqa: PLW0603  a process has one heart
    _last_s = time.monotonic()


def silent_s() -> float:
    """Seconds since the last beat; before the first, since this module was loaded."""
    return time.monotonic() - _last_s
