"""Results of a check of a log, a lane or a whole store."""

from dataclasses import dataclass, field
from typing import Protocol, Self

from stream.store.places.place import Place


class DoubtError(Exception):
    """Something seems wrong, but compaction has dropped files since the check began, which may explain it."""


class Doubt(Protocol):
    """Decides whether a problem may come from a concurrent compaction."""

    def doubts(self, problems: tuple[str, ...]) -> bool:
        """Whether these may."""


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
    doubt: Doubt | None = field(default=None, repr=False)
    listed: dict[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def begun(cls, root: Place, doubt: Doubt | None = None) -> Self:
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
