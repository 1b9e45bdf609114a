"""Which topic partitions have nothing unread, and since when: what brokers said, never what their silence suggests."""

import time

from kafka import TopicPartition

from stream.microbatch import Quiet
from stream.snapshots.event_time import BREAK_S


class QuietPartitions:
    """Keeps for each topic partition from when to when brokers confirmed that nothing in it is unread.

    A partition without messages looks the same to a consumer whether it is empty or its broker is gone, so quiet
    partitions are asked after every now and then, also while others are busy.
    """

    def __init__(self, ask_s: float) -> None:
        """Begin without any knowledge.

        Args:
            ask_s: After so many seconds a quiet partition is to be asked after again; less than ``BREAK_S``.
        """
        self._ask_s = ask_s
        self._spans: dict[TopicPartition, tuple[float, float]] = {}
        self._asked_s = 0.0

    def said(self, tp: TopicPartition, *, unread: bool, messages: bool = False) -> None:
        """Brokers have said how far a partition goes.

        Args:
            tp: Which one.
            unread: It goes further than it was read.
            messages: New ones came with that.
        """
        if unread:
            self._spans.pop(tp, None)
            return
        now = time.monotonic()
        before = self._spans.get(tp)
        unbroken = before is not None and not messages and now - before[1] <= BREAK_S
        self._spans[tp] = (before[0] if before is not None and unbroken else now, now)

    def to_ask(self) -> list[TopicPartition]:
        """Quiet partitions that nothing was heard of for too long; empty while the last question is as young."""
        now = time.monotonic()
        if now - self._asked_s < self._ask_s:
            return []
        return [tp for tp, (_, until) in self._spans.items() if now - until >= self._ask_s]

    def asked(self) -> None:
        """Brokers were asked, whether or not they answered."""
        self._asked_s = time.monotonic()

    def of(self, tp: TopicPartition) -> Quiet | None:
        """What is known of a partition now, as ages; None: it has unread messages, or nobody has said."""
        span = self._spans.get(tp)
        now = time.monotonic()
        return None if span is None else Quiet(now - span[0], now - span[1])
