"""Work beside the log on a thread: requested often, done once for all pending requests, retried after failures."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

import structlog

from freshet_graph.schemas.errors import one_line
from freshet_graph.stream.service.heartbeat import beat

RETRY_S = 5.0
"""Pause before a failed task is tried again."""

LOOK_S = 0.2
"""How often a wait looks whether it should stop."""

_log = structlog.get_logger()

_left_behind: list[str] = []


def left_behind() -> list[str]:
    """Names of threads that did not end in time; they end with the process.

    The interpreter must not be finalised under them, nor wait for them.
    """
    return list(_left_behind)


def ended(thread: threading.Thread, timeout_s: float | None) -> bool:
    """Wait for the end of a thread that was told to stop; returns whether it has ended in time."""
    thread.join(timeout_s)
    if thread.is_alive():
        _left_behind.append(thread.name)
        return False
    return True


class Background:
    """Runs a task whenever it is requested, from ``start`` to ``close``.

    Requests that arrive during a run are met by one more run. A failure stops nothing else: it is logged, shown by
    ``error``, and the task is tried again.

    Attributes:
        error: Why the last try failed; None if it succeeded.
        stopping: Whether ``close`` was called: a long task looks at it.
    """

    def __init__(
        self,
        name: str,
        task: Callable[[], None],
        *,
        retry_s: float | None = None,
        on_retry: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Run nothing before ``start``: the task may look at the object that holds this one.

        Args:
            name: Of the thread, and in logs.
            task: The work; runs on the thread only.
            retry_s: Pause before a failed task is tried again; None: RETRY_S.
            on_retry: Called before each such try.
            on_end: The thread's last call, even if ``close`` no longer waits for it: closes what the task has opened.
        """
        self.error: str | None = None
        self.stopping = False
        self._name, self._task, self._on_retry, self._on_end = name, task, on_retry, on_end
        self._retry_s = RETRY_S if retry_s is None else retry_s
        self._changed = threading.Condition()
        self._num_requested, self._tried = 1, 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, with one request."""
        self._thread.start()

    def ask(self) -> None:
        """Request a run."""
        with self._changed:
            self._num_requested += 1
            self._changed.notify_all()

    def settle(self, timeout_s: float = math.inf, *, stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the task has run after this call, for ``timeout_s`` or until ``stop`` returns True.

        Returns:
            Whether it ran, and without a failure.
        """
        self.ask()
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            num_requested = self._num_requested
            while self._tried < num_requested and not self.stopping:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or stop():
                    return False
                beat()
                self._changed.wait(min(left_s, LOOK_S))
        return self._tried >= num_requested and self.error is None

    def close(self, timeout_s: float | None = None) -> bool:
        """Stop after the current run; returns whether the thread has ended in time. Otherwise it ends with the process."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
        return ended(self._thread, timeout_s)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._on_end()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._num_requested > self._tried or self.stopping,
                    None if self.error is None else self._retry_s,
                )
                if self.stopping:
                    return
                num_requested = self._num_requested
            if self.error is not None:
                self._on_retry()
            try:
                self._task()
                if self.error is not None:
                    _log.info("works again", task=self._name)
                self.error = None
            except Exception as error:  # noqa: BLE001  no failure here ends the job
                self.error = one_line(error)
                _log.error("failed, trying again", task=self._name, error=self.error, retry_s=self._retry_s)
            with self._changed:
                self._tried = num_requested
                self._changed.notify_all()


class Closes(Protocol):
    """Has an end that may take a while."""

    def close(self) -> None:
        """End."""
        ...


C = TypeVar("C", bound=Closes)


class ClosedTogether:
    """Closes everything added to it at the same time, so that waits for brokers that are gone don't add up."""

    def __init__(self) -> None:
        self._things: list[Closes] = []

    def add(self, thing: C) -> C:
        """Close this with the others; returns it."""
        self._things.append(thing)
        return thing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._things:
            with ThreadPoolExecutor(len(self._things), thread_name_prefix="closing") as pool:
                for done in [pool.submit(thing.close) for thing in self._things]:
                    done.result()
