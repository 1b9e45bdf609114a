"""Results of a check of a log, a lane or a whole store, and its repetition beside compaction or removal."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.undisturbed import Mark, mark

MOST_LOOKS = 100
"""Most repetitions of a check; each ends at the first problem, and checks the oldest snapshots first."""


class DoubtError(Exception):
    """Something seems wrong, but compaction has dropped files since the check began, which may explain it."""


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


@dataclass(slots=True)
class Check:
    """Files read, and problems found.

    Attributes:
        problems: One sentence each, naming file and snapshot; empty: everything is intact.
        files: Number of files read.
        bytes: Their bytes.
        doubt: Consulted before problems are reported; None: all are.
    """

    problems: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    doubt: Compaction | None = field(default=None, repr=False)
    listed: dict[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def begun(cls, root: Place, doubt: Compaction | None = None) -> Self:
        """An empty check of everything below a folder.

        A bucket is listed once, a thousand objects per request: a request for each length would take as long as reading.
        """
        listed = root.rglob("*") if root.remote else ()
        return cls(doubt=doubt, listed={str(path): path.stat().st_size for path in listed})

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def report(self, *problems: str) -> None:
        """Add problems.

        Raises:
            DoubtError: They may come from a concurrent compaction, so the check has to start again.
        """
        if problems and self.doubt is not None and self.doubt.doubts(problems):
            raise DoubtError
        self.problems.extend(problems)

    def read(self, path: Place) -> None:
        """Count a file if it exists: a concurrent writer may sweep it at any moment."""
        size = self.listed.get(str(path)) if self.listed else None
        if size is None:
            try:
                size = path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return
        self.files += 1
        self.bytes += size

    def add(self, other: "Check") -> None:
        """Add the result of another check; raises as ``report`` does."""
        self.report(*other.problems)
        self.files += other.files
        self.bytes += other.bytes


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
