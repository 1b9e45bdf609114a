"""What a check of a log, a lane or a whole store finds."""

from dataclasses import dataclass, field
from typing import Protocol, Self

from stream.store.places.place import Place


class DoubtError(Exception):
    """Something seems wrong, and compaction has dropped files since the look began: it may be that."""


class Doubt(Protocol):
    """Who knows whether a problem may come from what goes on beside the look."""

    def doubts(self, problems: tuple[str, ...]) -> bool:
        """Whether these may."""


@dataclass(slots=True)
class Check:
    """What was read, and what is wrong with it.

    Attributes:
        problems: A sentence each, naming file and snapshot; empty: all is whole.
        files: Files that were read.
        bytes: Their bytes.
        doubt: Asked before anything is noted; None: what is found is noted.
    """

    problems: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    doubt: Doubt | None = field(default=None, repr=False)
    listed: dict[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def begun(cls, root: Place, doubt: Doubt | None = None) -> Self:
        """Nothing was read so far of what lies below a folder.

        In a bucket that is listed once, a thousand objects a request: asking each for its length takes as long as reading it.
        """
        listed = root.rglob("*") if root.remote else ()
        return cls(doubt=doubt, listed={str(path): path.stat().st_size for path in listed})

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def tell(self, *problems: str) -> None:
        """Note what is wrong.

        Raises:
            DoubtError: They may come from what goes on beside the look: it has to begin again.
        """
        if problems and self.doubt is not None and self.doubt.doubts(problems):
            raise DoubtError
        self.problems.extend(problems)

    def read(self, path: Place) -> None:
        """Count a file, if it is there: a writer beside may sweep one at any moment."""
        size = self.listed.get(str(path)) if self.listed else None
        if size is None:
            try:
                size = path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return
        self.files += 1
        self.bytes += size

    def add(self, other: "Check") -> None:
        """Take in what another check found.

        Raises:
            DoubtError: As ``tell``.
        """
        self.tell(*other.problems)
        self.files += other.files
        self.bytes += other.bytes
