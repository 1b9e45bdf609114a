"""The dead letters' outbox: refused messages in commits that are not published yet."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from schemas.events import REJECT_SCHEMA
from schemas.store import CommitRecord
from stream.store.files.data import read_table
from stream.store.files.records import read_record
from stream.store.log.layout import commit_name
from stream.store.places.place import Place


@dataclass(frozen=True, slots=True)
class RejectedMessages:
    """The refused messages of one commit, ``schemas.events.REJECT_SCHEMA``."""

    commit: int
    table: pa.Table


class Outbox:
    """The commits whose refused messages are not published yet.

    Publishing is at least once: 1. read ``unpublished``; 2. publish, keyed by topic/partition/offset, and wait for the broker;
    3. ``mark_published``; 4. the next commit records the position. A crash between 2 and 4 publishes the same messages again.
    Another thread may do 1 to 3 while the writer commits.
    """

    def __init__(self, root: Place, with_rejects: list[int], published: int) -> None:
        """Continue an outbox.

        Args:
            root: Folder of the log.
            with_rejects: Numbers of the commits with refused messages, ascending; a live view.
            published: Messages of commits before this one are published.
        """
        self._root = root
        self._with_rejects = with_rejects
        self.published = published

    def unpublished(self) -> Iterator[RejectedMessages]:
        """Refused messages not known to be published, commit by commit, oldest first.

        Raises:
            CorruptError: A file isn't what its commit says.
        """
        for n in [n for n in self._with_rejects if n >= self.published]:
            record = read_record(self._root / commit_name(n), CommitRecord)
            assert record.rejects is not None
            yield RejectedMessages(n, read_table(self._root, record.rejects, schema=REJECT_SCHEMA))

    def mark_published(self, through: int) -> None:
        """Record that all refused messages up to commit ``through`` are published."""
        self.published = max(self.published, through + 1)
