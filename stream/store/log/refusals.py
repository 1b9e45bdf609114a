"""Refused messages by reason: their number, and the newest one of each as an example."""

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.store.errors import ConfigMissingError, MissingError
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.log.layout import commit_name
from freshet_graph.stream.store.log.reader import LogReader

EXAMPLE_CHARACTERS = 300
"""Most characters of an example: a sentence may quote a message."""


@dataclass(slots=True)
class Refused:
    """Messages refused for one reason.

    Attributes:
        count: Number of messages.
        example: Place and problem of one of them; None: no longer kept.
    """

    count: int = 0
    example: str | None = None

    def __str__(self) -> str:
        return f"{self.count:,}" if self.example is None else f"{self.count:,}, such as {self.example}"


def example_of(rejects: pa.Table, reason: str) -> str | None:
    """The first message refused for a reason such as ``not_json``; None if there is none.

    Args:
        rejects: ``REJECT_SCHEMA``.
        reason: The reason.

    Returns:
        ``topic[partition] offset: sentence``.
    """
    index = pc.index(rejects["reason"], reason).as_py()
    if index < 0:
        return None
    (reject,) = rejects.slice(index, 1).drop_columns(["raw"]).to_pylist()
    row = "" if reject["row"] is None else f" row {reject['row']}"
    place = f"{reject['topic']}[{reject['partition']}] offset {reject['offset']}{row}"
    text = f"{place}: {' '.join(reject['sentence'].split())}"
    return text if len(text) <= EXAMPLE_CHARACTERS else f"{text[: EXAMPLE_CHARACTERS - 1]}…"


def newest_refused(log: LogReader, counts: Mapping[str, int]) -> dict[str, Refused]:
    """Refused messages by reason, each with an example from the newest commit that has one.

    Commits have running totals by reason, so bisection finds it: a few records and at most one file of rejects per reason are
    read, whatever their number.

    Args:
        log: A view of the log.
        counts: Number of messages by reason.

    Raises:
        CorruptError: A file doesn't match its commit.
    """
    by_reason = {reason: Refused(count) for reason, count in counts.items()}
    for reason, refused in by_reason.items():
        with suppress(ConfigMissingError, MissingError):  # dropped with the snapshots sealed then
            refused.example = _newest(log, reason)
    return by_reason


def _newest(log: LogReader, reason: str) -> str | None:
    if log.last is None:
        return None

    def total(n: int) -> int:
        return _record(log, n).refused.get(reason, 0)

    index = bisect_left(log.with_rejects, log.last.refused.get(reason, 0), key=total)
    if index == len(log.with_rejects):
        return None
    reference = _record(log, log.with_rejects[index]).rejects
    assert reference is not None, "the commits listed have rejects"
    return example_of(read_table(log.root, reference, schema=REJECT_SCHEMA), reason)


def as_json(refused: Mapping[str, Refused]) -> dict[str, Any]:
    """As commands print it, most frequent first."""
    ordered = sorted(refused.items(), key=lambda one: -one[1].count)
    return {reason: {"count": one.count, "example": one.example} for reason, one in ordered}


def as_rows(refused: Mapping[str, Any]) -> dict[str, str]:
    """The result of ``as_json`` as rows of a table."""
    return {f"refused: {reason}": str(Refused(**one)) for reason, one in refused.items()}


def _record(log: LogReader, n: int) -> CommitRecord:
    return read_record(log.root / commit_name(n), CommitRecord)
