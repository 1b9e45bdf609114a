"""Which signals a process has handlers for."""

import signal
from pathlib import Path


def caught(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    status = Path(f"/proc/{pid}/status")
    line = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
