"""The border between a log's history and Kafka: every event comes from one side, and from one only."""

from typing import Final

from schemas.store import History
from stream.arrays.kinds import Bool, Int64
from stream.snapshots.event_time import Key

HISTORY: Final[Key] = ("file:history", 0)
"""The topic partition as which the files of a history are in the log; no Kafka topic can have a colon."""


class Border:
    """Says what of Kafka the history has already.

    An event of Kafka is in the history if it lies before the history's end in event time, and in a part of its topic
    partition that was there before the history was read. What was written later came after the files were made: if
    it lies before the border, it is late and not a repetition.

    Args:
        history: Of the log; None: it has none, and nothing is in it.
    """

    def __init__(self, history: History | None) -> None:
        self._until_us = 0 if history is None else history.until_us
        self._ends = {} if history is None else {(e.topic, e.partition): e for e in history.ends}

    def start(self, key: Key) -> int | None:
        """Offset at which reading a topic partition begins; None: no place was named."""
        end = self._ends.get(key)
        return None if end is None else end.start

    def in_history(self, key: Key, offset: Int64, t: Int64) -> Bool | None:
        """Which events of a topic partition the history has.

        Args:
            key: Topic partition.
            offset: int64, ascending, shape (E,).
            t: int64 microseconds, shape (E,).

        Returns:
            Mask of shape (E,), or None where none is.
        """
        end = self._ends.get(key)
        if end is None or len(offset) == 0 or int(offset[0]) >= end.end:
            return None
        mask = (offset < end.end) & (t < self._until_us)
        return mask if mask.any() else None
