"""The log lines of a stream job: where reading resumes, sealed snapshots, and refusals with their reasons."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow.compute as pc
import structlog

from schemas.events import REJECT_SCHEMA
from schemas.store import CommitRecord
from stream.store.errors import StoreError
from stream.store.files.data import read_table
from stream.store.log.layout import log_folder

TOLD_EVERY_S = 60.0
"""Shortest time between two lines about refusals for one reason; each has their number and an example."""

_log = structlog.get_logger()


class Journal:
    """Writes the lines.

    Args:
        graph: In every line.
        store: Has examples of refused messages.
        last: The commit that the job resumes from; None: there is none.
        clock: Seconds.
    """

    def __init__(
        self,
        graph: str,
        store: str,
        last: CommitRecord | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = _log.bind(graph=graph)
        self._root = log_folder(store)
        self._clock = clock
        self._told = Counter(last.refused if last is not None else {})  # totals by reason
        self._told_s: dict[str, float] = {}

    def reading(self, starts: Iterable[tuple[str, int, int]], last: CommitRecord | None) -> None:
        """Reading begins or resumes at topic, partition and offset, after the last commit."""
        self._log.info("reading", commit=last.n if last is not None else None, offsets=_by_topic(starts))

    def committed(self, record: CommitRecord) -> None:
        """A commit is durable."""
        if record.sealed:
            self._log.info(
                "sealed",
                snapshot=record.sealed[-1].tau,
                snapshots=len(record.sealed),
                events=sum(snapshot.num_events for snapshot in record.sealed),
                commit=record.n,
                offsets=_by_topic((p.topic, p.partition, p.next) for p in record.positions),
            )
        now_s = self._clock()
        for reason, total in record.refused.items():
            if total > self._told[reason] and now_s >= self._told_s.get(reason, -TOLD_EVERY_S) + TOLD_EVERY_S:
                self._log.warning(
                    "messages refused",
                    reason=reason,
                    messages=total - self._told[reason],
                    total=total,
                    **self._example(record, reason),
                )
                self._told[reason], self._told_s[reason] = total, now_s

    def _example(self, record: CommitRecord, reason: str) -> dict[str, Any]:
        """Place and sentence of a message that a commit refused for a reason; empty if it can't be read."""
        if record.rejects is None:
            return {}
        try:
            rejects = read_table(self._root, record.rejects, schema=REJECT_SCHEMA)
        except (OSError, StoreError):  # it is only an example
            return {}
        for row in rejects.filter(pc.field("reason") == reason).slice(0, 1).to_pylist():
            return {key: row[key] for key in ("topic", "partition", "offset", "sentence")}
        return {}  # the reason's messages were in a commit before


def _by_topic(offsets: Iterable[tuple[str, int, int]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, partition, offset in offsets:
        found.setdefault(topic, {})[partition] = offset
    return found
