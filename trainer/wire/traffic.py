"""The cost of communication between ranks, by purpose: bytes sent, seconds waited."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from freshet_graph.trainer.wire.link import Link, PendingWork


class Traffic:
    """Bytes and seconds of one rank, by purpose.

    Attributes:
        begun: Number of collectives. They are the same on all ranks, and so are their purposes.
        sent_bytes: Payload sent to other ranks.
        seconds: In collectives, until the slowest rank came and the bytes arrived, without seconds in which a rank computes
            during a collective.
    """

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}

    @property
    def wait_s(self) -> float:
        """Seconds in collectives of all purposes."""
        return sum(self.seconds.values())

    def copy(self) -> "Traffic":
        """A copy, which does not grow."""
        return Traffic.sum([self])

    def since(self, before: "Traffic") -> "Traffic":
        """The traffic since an earlier copy, for purposes that had any."""
        difference = Traffic()
        difference.begun = self.begun - before.begun
        for purpose in difference.begun:
            difference.sent_bytes[purpose] = self.sent_bytes[purpose] - before.sent_bytes[purpose]
            difference.seconds[purpose] = self.seconds[purpose] - before.seconds.get(purpose, 0.0)
        return difference

    @staticmethod
    def sum(parts: Iterable["Traffic"]) -> "Traffic":
        """The sum of several."""
        total = Traffic()
        for part in parts:
            total.begun.update(part.begun)
            total.sent_bytes.update(part.sent_bytes)
            for purpose, seconds in part.seconds.items():
                total.seconds[purpose] = total.seconds.get(purpose, 0.0) + seconds
        return total

    @contextmanager
    def timed(self, purpose: str, now: Callable[[], float]) -> Iterator[None]:
        """Add the seconds of the body."""
        began = now()
        try:
            yield
        finally:
            self.seconds[purpose] = self.seconds.get(purpose, 0.0) + now() - began


class Flight:
    """A collective, from its beginning until it was waited for.

    Args:
        traffic: Counts its cost.
        link: Between the ranks.
        purpose: Label of the cost.
        sent_bytes: Payload that this rank sends to others.
        begin: Begins it.
        out: Its result.
        sent_rows: Its input.
    """

    def __init__(
        self,
        traffic: Traffic,
        link: Link,
        purpose: str,
        sent_bytes: int,
        begin: Callable[[], PendingWork],
        out: Tensor,
        sent_rows: Any = None,
    ) -> None:
        self.out = out
        self._traffic, self._link, self._purpose, self._sent_rows = traffic, link, purpose, sent_rows
        traffic.begun[purpose] += 1
        traffic.sent_bytes[purpose] += sent_bytes
        with traffic.timed(purpose, link.now):
            self._pending = begin()

    def wait(self) -> Tensor:
        """Wait; returns the result."""
        with self._traffic.timed(self._purpose, self._link.now):
            self._pending.wait()
        self._sent_rows = None
        return self.out
