"""Removals after a durable record. If one fails, it is repeated later, and the commit stands."""

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from pathlib import Path

import structlog

from schemas.errors import one_line
from stream.store.errors import StoreError
from stream.store.places.place import Place

_log = structlog.get_logger()


class CleanUp:
    """Removals that are due after a commit.

    The commit is in the store by then, so an error must not reach the caller, who would commit the same again. It is logged
    once until a run succeeds, and the removal stays due for the next commit. The sweep at the next start finds the rest.

    Args:
        folder: The folder that is cleaned up, for the log.
    """

    def __init__(self, folder: Path | Place) -> None:
        self._folder = folder
        self._due: dict[Hashable, Callable[[], object]] = {}
        self._warned = False

    def add(self, work: Callable[[], object]) -> None:
        """Have work done by the next ``run``, and again until it succeeds; work that is due already is not added twice."""
        self._due.setdefault(work, work)

    def add_removal(self, files: Iterable[Path | Place]) -> None:
        """Have files removed, each on its own."""
        for file in files:
            self._due.setdefault(file, partial(file.unlink, missing_ok=True))

    def run(self) -> None:
        """Do due work up to the first failure, because with an unreachable bucket every further try would take its time.

        The failed work goes to the end, so that one file that can't be removed doesn't block the others.
        """
        while self._due:
            name = next(iter(self._due))
            work = self._due.pop(name)
            try:
                work()
            except (OSError, StoreError) as error:
                self._due[name] = work
                if not self._warned:
                    _log.warning(
                        "the store is not cleaned up, trying again with the next commit",
                        folder=str(self._folder),
                        error=one_line(error),
                    )
                self._warned = True
                return
        self._warned = False
