"""What a check of a log, a lane or a whole store finds."""

from dataclasses import dataclass, field

from stream.store.places.place import Place


@dataclass(slots=True)
class Check:
    """What was read, and what is wrong with it.

    Attributes:
        problems: A sentence each, naming file and snapshot; empty: all is whole.
        files: Files that were read.
        bytes: Their bytes.
    """

    problems: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def read(self, path: Place) -> None:
        """Count a file, if it is there: a writer beside may sweep one at any moment."""
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return
        self.files += 1
        self.bytes += size

    def add(self, other: "Check") -> None:
        """Take in what another check found."""
        self.problems.extend(other.problems)
        self.files += other.files
        self.bytes += other.bytes
