"""A look at a log or a lane that is compacted, or removed, meanwhile: what seems wrong may be what nothing names any more."""

from collections.abc import Callable

from stream.store.places.place import Place
from stream.store.undisturbed import Mark, mark
from stream.store.verify.check import Check, DoubtError

MOST_LOOKS = 100
"""How often a look begins again; each ends at the first problem, and the oldest snapshots come first in it."""


class Compaction:
    """What compaction does to some folders while they are looked at.

    A new index comes before anything is dropped. So a problem that is found without one is real, and so is one that
    comes back in a look that began with the new index.

    Args:
        folders: The log's and the lane's, if it is a lane that is looked at.
    """

    def __init__(self, *folders: Place) -> None:
        self._folders = folders
        self._doubted: set[str] = set()
        self._damaged = False
        self.begin()

    def begin(self) -> None:
        """A look begins."""
        self._indexes = self._now()

    def doubts(self, problems: tuple[str, ...]) -> bool:
        """Whether problems may be its doing; never, once one has come back: what is damaged is told whole."""
        self._damaged |= not self._doubted.isdisjoint(problems)
        if self._damaged or self._now() == self._indexes:
            return False
        self._doubted.update(problems)
        return True

    def _now(self) -> list[Mark]:
        return [mark(folder) for folder in self._folders]


def settled(look: Callable[[Compaction | None], Check], *folders: Place) -> Check:
    """Look until no problem may be compaction's doing.

    Args:
        look: One look; raises ``DoubtError`` where it is to begin again.
        folders: Those whose compaction matters.
    """
    compaction = Compaction(*folders)
    for _ in range(MOST_LOOKS):
        try:
            return look(compaction)
        except DoubtError:
            compaction.begin()
    return look(None)
