"""Check a log or lane during compaction or removal, when a missing file need not be a problem."""

from collections.abc import Callable

from stream.store.places.place import Place
from stream.store.undisturbed import Mark, mark
from stream.store.verify.check import Check, DoubtError

MOST_LOOKS = 100
"""Most repetitions of a check; each ends at the first problem, and checks the oldest snapshots first."""


class Compaction:
    """Compaction of some folders during a check.

    A new index precedes every drop. So a problem without a new index is real, and so is one that recurs in a check that began
    with the new index.

    Args:
        folders: The log's and, when a lane is checked, the lane's.
    """

    def __init__(self, *folders: Place) -> None:
        self._folders = folders
        self._doubted: set[str] = set()
        self._damaged = False
        self.begin()

    def begin(self) -> None:
        """A check begins."""
        self._indexes = self._now()

    def doubts(self, problems: tuple[str, ...]) -> bool:
        """Whether compaction may explain the problems; never after one has recurred, so that all damage is reported."""
        self._damaged |= not self._doubted.isdisjoint(problems)
        if self._damaged or self._now() == self._indexes:
            return False
        self._doubted.update(problems)
        return True

    def _now(self) -> list[Mark]:
        return [mark(folder) for folder in self._folders]


def settled(look: Callable[[Compaction | None], Check], *folders: Place) -> Check:
    """Check until compaction can't explain any problem.

    Args:
        look: One check; raises ``DoubtError`` if it has to start again.
        folders: Folders whose compaction matters.
    """
    compaction = Compaction(*folders)
    for _ in range(MOST_LOOKS):
        try:
            return look(compaction)
        except DoubtError:
            compaction.begin()
    return look(None)
