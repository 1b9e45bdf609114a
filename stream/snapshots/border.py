"""The border between a log's history and Kafka: every event comes from exactly one side."""

from typing import Final

from freshet_graph.schemas.store import HistoryRecord, Key
from freshet_graph.stream.arrays.kinds import Bool, Int64

HISTORY: Final[Key] = ("file:history", 0)
"""The topic partition of history files in the log; a Kafka topic can't have a colon."""

HISTORY_LABELS: Final[Key] = ("file:labels", 0)
"""That of the history's files of labels."""


class Border:
    """Decides which events of Kafka the history has already.

    It has those before the history's end in event time, in the part of a topic partition that existed before the history was
    read. Messages written later came after the files were made: if they lie before the border, they are late, not repeated.

    Args:
        history: The log's; None: it has no history.
    """

    def __init__(self, history: HistoryRecord | None) -> None:
        self._until_us = 0 if history is None else history.until_us
        self._ends = {} if history is None else {(e.topic, e.partition): e for e in history.ends}

    def start(self, key: Key) -> int | None:
        """Offset at which reading a topic partition begins; None: it is not given."""
        end = self._ends.get(key)
        return None if end is None else end.start

    def in_history(self, key: Key, offset: Int64, t: Int64) -> Bool | None:
        """Which events of a topic partition the history has.

        Args:
            key: Topic partition.
            offset: int64, ascending, shape (E,).
            t: int64 microseconds, shape (E,).

        Returns:
            Mask of shape (E,), or None if it has none of them.
        """
        end = self._ends.get(key)
        if end is None or len(offset) == 0 or int(offset[0]) >= end.end:
            return None
        mask = (offset < end.end) & (t < self._until_us)
        return mask if mask.any() else None
