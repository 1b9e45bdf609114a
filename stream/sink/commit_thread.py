"""Runs one piece of work at a time, on its own thread or at once; commits use it."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Result = TypeVar("Result")


class OneAtATime(Generic[Result]):
    """Runs work and hands its result over once, when the caller asks for it.

    Args:
        thread: Name of the thread that works beside the caller; None: work is done before ``start`` returns.
    """

    def __init__(self, thread: str | None) -> None:
        self._pool = None if thread is None else ThreadPoolExecutor(1, thread_name_prefix=thread)
        self._future: Future[Result] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is work whose result was not taken."""
        return self._future is not None

    def start(self, work: Callable[[], Result]) -> None:
        """Begin; there must be no other work whose result was not taken."""
        assert self._future is None
        if self._pool is not None:
            self._future = self._pool.submit(work)
            return
        self._future = Future()
        try:
            self._future.set_result(work())
        except Exception as error:  # noqa: BLE001  raised where the result is taken
            self._future.set_exception(error)

    def take(self, *, wait: bool) -> Result | None:
        """The result, once; raises what the work raised.

        Args:
            wait: Wait for it; without, None if it isn't ready.
        """
        future = self._future
        if future is None or not (wait or future.done()):
            return None
        try:
            return future.result()
        finally:
            self._future = None

    def close(self) -> None:
        """Wait for running work; its result or exception is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._future = None
