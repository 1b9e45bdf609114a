"""Refused messages by reason: how many, and the newest one of each as an example."""

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.events import REJECT_SCHEMA
from schemas.store import CommitRecord
from stream.store.errors import ConfigMissingError, MissingError
from stream.store.files.data import read_record, read_table
from stream.store.log.layout import commit_name
from stream.store.log.reader import LogReader

EXAMPLE_CHARACTERS = 300
"""Of an example at most: a sentence may quote what was refused."""


@dataclass(slots=True)
class Refused:
    """Messages refused for one reason.

    Attributes:
        count: How many.
        example: Where one of them is, and what is wrong with it; None: no longer kept.
    """

    count: int = 0
    example: str | None = None

    def __str__(self) -> str:
        return f"{self.count:,}" if self.example is None else f"{self.count:,}, such as {self.example}"


def example_of(rejects: pa.Table, reason: str) -> str | None:
    """The first message refused for a reason, ``topic[partition] offset: sentence``; None where there is none.

    Args:
        rejects: ``REJECT_SCHEMA``.
        reason: Such as ``not_json``.
    """
    at = pc.index(rejects["reason"], reason).as_py()
    if at < 0:
        return None
    (found,) = rejects.slice(at, 1).drop_columns(["raw"]).to_pylist()
    row = "" if found["row"] is None else f" row {found['row']}"
    place = f"{found['topic']}[{found['partition']}] offset {found['offset']}{row}"
    text = f"{place}: {' '.join(found['sentence'].split())}"
    return text if len(text) <= EXAMPLE_CHARACTERS else f"{text[: EXAMPLE_CHARACTERS - 1]}…"


def newest_refused(log: LogReader, counts: Mapping[str, int]) -> dict[str, Refused]:
    """Refused messages by reason with an example each, of the newest commit that has one.

    Commits have running totals by reason, so it is found by halving: a few records and at most one file of rejects a
    reason are read, however many there are.

    Args:
        log: A view of the log.
        counts: What is to be shown, by reason.

    Raises:
        CorruptError: A file isn't what its commit says.
    """
    found = {reason: Refused(count) for reason, count in counts.items()}
    for reason, refused in found.items():
        with suppress(ConfigMissingError, MissingError):  # dropped with the snapshots that were sealed then
            refused.example = _newest(log, reason)
    return found


def _newest(log: LogReader, reason: str) -> str | None:
    if log.last is None:
        return None

    def total(n: int) -> int:
        return _record(log, n).refused.get(reason, 0)

    at = bisect_left(log.with_rejects, log.last.refused.get(reason, 0), key=total)
    if at == len(log.with_rejects):
        return None
    reference = _record(log, log.with_rejects[at]).rejects
    assert reference is not None, "the list is of commits that have some"
    return example_of(read_table(log.root, reference, schema=REJECT_SCHEMA), reason)


def as_json(refused: Mapping[str, Refused]) -> dict[str, Any]:
    """As commands print it, most frequent first."""
    ordered = sorted(refused.items(), key=lambda one: -one[1].count)
    return {reason: {"count": one.count, "example": one.example} for reason, one in ordered}


def as_rows(refused: Mapping[str, Any]) -> dict[str, str]:
    """What ``as_json`` gives, as rows of a table."""
    return {f"refused: {reason}": str(Refused(**one)) for reason, one in refused.items()}


def _record(log: LogReader, n: int) -> CommitRecord:
    return read_record(log.root / commit_name(n), CommitRecord)
