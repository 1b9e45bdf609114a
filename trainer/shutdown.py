"""Requests to end: signals, and the end of the parent process."""

import os
import signal
import threading
from types import FrameType

from freshet_graph.trainer.launch import launched
from freshet_graph.trainer.untrained import end_untrained

_WATCH_S = 1.0

WITH_PARENT = "FRESHET_WITH_PARENT"
"""Environment: if set, a command ends with the process that started it."""


class Shutdown:
    """A request to end, made by SIGTERM or Ctrl-C and honoured by the loop between snapshots.

    Attributes:
        wanted: Whether it was made.
        training: Whether there may be something to save. Until then a request ends the process at once.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.training = True

    def on_signals(self) -> None:
        """Let SIGTERM and SIGINT set ``wanted`` (main thread only)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def at_once_until_training(self) -> None:
        """Let them end the process until ``training`` is set, also while the main thread waits for other ranks in C."""
        self.training = False
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=[reading], name="signals", daemon=True).start()

    def _watch(self, reading: int) -> None:
        while number := os.read(reading, 1):
            if not self.training and number[0] in (signal.SIGTERM, signal.SIGINT):
                end_untrained()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.wanted = True


def rank_dies_with_launcher() -> None:
    """In a rank: end at once when its launcher is gone. Elsewhere: do nothing.

    A killed launcher cannot stop its ranks. They would continue to write checkpoints beside the ranks of the next start.
    """
    if launched() or WITH_PARENT in os.environ:
        end_with_parent()


def end_with_parent() -> None:
    """End at once when the parent process is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            stop.wait(_WATCH_S)
        os._exit(1)

    stop = threading.Event()
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
