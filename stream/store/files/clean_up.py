"""What is removed once a record is durable: a removal that fails is done later, and never fails the commit."""

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from pathlib import Path

import structlog

from stream.store.errors import StoreError
from stream.store.places.place import Place

_log = structlog.get_logger()


class CleanUp:
    """Removals that are due after a commit.

    The commit is in the store by then. An error of its clean-up must not reach the caller, who would commit the same
    again. It is logged, once until all went well again, and what failed stays due for the next commit. What is still due
    when the process ends is found by the next start's sweep.

    Args:
        folder: What is cleaned up, for the log.
    """

    def __init__(self, folder: Path | Place) -> None:
        self._folder = folder
        self._due: dict[Hashable, Callable[[], object]] = {}
        self._told = False

    def add(self, work: Callable[[], object]) -> None:
        """Have work done by the next ``run``, and again until it succeeds; what is due already stays due once."""
        self._due.setdefault(work, work)

    def add_removal(self, files: Iterable[Path | Place]) -> None:
        """Have files removed, each by itself."""
        for file in files:
            self._due.setdefault(file, partial(file.unlink, missing_ok=True))

    def run(self) -> None:
        """Do what is due up to the first failure: where nobody answers, each further try would cost its time.

        What failed goes to the end, so that one file that can't be removed doesn't keep the others.
        """
        while self._due:
            name = next(iter(self._due))
            work = self._due.pop(name)
            try:
                work()
            except (OSError, StoreError) as error:
                self._due[name] = work
                self._tell(" ".join(str(error).split()))
                return
        self._told = False

    def _tell(self, reason: str) -> None:
        if not self._told:
            told = "the store is not cleaned up, trying again with the next commit"
            _log.warning(told, folder=str(self._folder), error=reason)
        self._told = True
