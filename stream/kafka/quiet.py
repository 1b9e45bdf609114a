"""Topic partitions with nothing unread, and since when, as brokers said; their silence means nothing."""

import time
from collections.abc import Iterable

from kafka import TopicPartition

from stream.microbatch import Quiet
from stream.snapshots.event_time import BREAK_S


class QuietPartitions:
    """Keeps for each topic partition the time over which brokers confirmed that nothing in it is unread.

    To a consumer a partition without messages looks the same whether it is empty or its broker is gone, so quiet
    partitions are asked about regularly, also while others are busy.
    """

    def __init__(self, ask_s: float) -> None:
        """Know nothing yet; a quiet partition is asked about again after ``ask_s``, which is less than ``BREAK_S``."""
        self._ask_s = ask_s
        self._spans: dict[TopicPartition, tuple[float, float]] = {}
        self._asked_s = 0.0

    def said(self, tp: TopicPartition, *, unread: bool, messages: bool = False) -> None:
        """Brokers have said where a partition ends.

        Args:
            tp: The topic partition.
            unread: It has messages that were not read.
            messages: New ones came with the answer.
        """
        if unread:
            self._spans.pop(tp, None)
            return
        now = time.monotonic()
        before = self._spans.get(tp)
        unbroken = before is not None and not messages and now - before[1] <= BREAK_S
        self._spans[tp] = (before[0] if before is not None and unbroken else now, now)

    def to_ask(self, unanswered: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Quiet partitions without news for too long, and those unanswered; empty if the last question is younger than that."""
        now = time.monotonic()
        if now - self._asked_s < self._ask_s:
            return set()
        return {tp for tp, (_, until) in self._spans.items() if now - until >= self._ask_s} | set(unanswered)

    def mark_asked(self) -> None:
        """Brokers were asked, whether or not they answered."""
        self._asked_s = time.monotonic()

    def of(self, tp: TopicPartition) -> Quiet | None:
        """The quiet time of a partition, as ages; None: it has unread messages, or nothing is known."""
        span = self._spans.get(tp)
        now = time.monotonic()
        return None if span is None else Quiet(now - span[0], now - span[1])
