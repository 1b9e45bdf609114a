"""The columns of a file that hold an event, under their own names or those of ``--columns``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from schemas.events import Reason
from stream.decode.columns import REQUIRED
from stream.decode.reading import RefusedError
from stream.decode.validate import draft_schema
from stream.service.failure import Failure

KNOWN = tuple(draft_schema("int").names)
"""Columns of events."""


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Names of a file's columns that differ from an event's.

    Attributes:
        names: The file's column by the event's.
    """

    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """The option ``--columns``, such as ``src=user,dst=item,t=ts``; None: all columns have their own names.

        Raises:
            Failure: An event has no such column, or one is named twice.
        """
        names: dict[str, str] = {}
        for pair in text.split(",") if text else []:
            name, sign, column = (part.strip() for part in pair.partition("="))
            if not sign or not column:
                raise Failure(f"--columns takes pairs such as src=user,dst=item,t=ts, found {pair!r}")
            if name not in KNOWN:
                raise Failure(
                    f"--columns names {name}, which events don't have. They have {', '.join(KNOWN)}"
                )
            if name in names or column in names.values():
                raise Failure(f"--columns names {name if name in names else column} twice")
            names[name] = column
        return cls(names)

    def found(self, header: Sequence[str]) -> dict[str, str]:
        """The event's column for each column of a file that is read, in the file's order.

        Raises:
            RefusedError: A required or named one is missing, or one is repeated.
        """
        taken = set(self.names.values())
        events = {column: name for name, column in self.names.items()}
        events |= {name: name for name in KNOWN if name not in self.names and name not in taken}
        by_name = {name: column for column, name in events.items()}
        for name in (*REQUIRED, *self.names):
            if name not in by_name or by_name[name] not in header:
                there = ", ".join(header) or "none"
                raise RefusedError(
                    Reason.MISSING_FIELD,
                    f"column {self.names.get(name, name)} is missing; found {there}. Name the columns of the file, such as "
                    "--columns src=user,dst=item,t=ts",
                )
        read = {column: events[column] for column in header if column in events}
        twice = next((column for column in read if header.count(column) > 1), None)
        if twice is not None:
            raise RefusedError(Reason.WRONG_TYPE, f"column {twice} stands {header.count(twice)} times")
        return read

    def shown(self, name: str) -> str:
        """An event's column in a sentence: its name, and the file's if it differs."""
        return f"{name} ({self.names[name]})" if name in self.names else name


OWN = FileColumns()
"""Columns with the names of events."""
