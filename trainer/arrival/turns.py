"""Who may use the memory: the scorer, and questions in between, in order of their coming."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from freshet_graph.schemas.errors import FreshetError


class FullError(FreshetError):
    """More questions wait than may."""


class LateError(FreshetError):
    """A question waited for too long."""


class Turns:
    """A lock that is handed to those who wait in the order in which they came, so nobody who takes it often keeps it.

    Args:
        waiting: Most questions that may wait.
    """

    def __init__(self, waiting: int) -> None:
        self._most = waiting
        self._mutex = Lock()
        self._taken = False
        self._waiting: deque[Lock] = deque()

    @contextmanager
    def question(self, timeout_s: float) -> Iterator[None]:
        """The turn of a question.

        Raises:
            FullError: So many wait already.
            LateError: The turn did not come in time.
        """
        self._enter(self._most, timeout_s)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def scorer(self) -> Iterator[None]:
        """The scorer's turn."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def between(self) -> Iterator[None]:
        """Within the scorer's turn: all questions that wait have theirs, and further ones until the context ends."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    def _enter(self, most: int | None = None, timeout_s: float = -1) -> None:
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            if most is not None and len(self._waiting) >= most:
                raise FullError(
                    f"{most} questions wait already. Ask again in a second, or ask fewer at a time"
                )
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=timeout_s):
            return
        with self._mutex:
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise LateError(f"the scorer had no time for this question within {timeout_s:g} s. Ask again")
        # it was handed over just now

    def _leave(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
