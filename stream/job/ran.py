"""The result of a run, and the seconds that it was busy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a run: events and snapshots that it made durable.

    Attributes:
        seconds: From the first poll to the last commit, without the idle tail.
        idle: Whether it ended because nothing more came; otherwise it was stopped.
        held: Why topics were held, a sentence or two each.
        held_messages: Unread messages of these topics.
    """

    snapshots: int
    events: int
    refused: int
    late: int
    seconds: float
    idle: bool
    held: tuple[str, ...] = ()
    held_messages: int = 0

    @property
    def events_per_s(self) -> float:
        """Events per second."""
        return self.events / self.seconds if self.seconds > 0 else 0.0


class Busy:
    """Counts the seconds from the first poll until the last message is in the log or waits for its commit.

    Attributes:
        round_s: Monotonic seconds when the last poll, empty ones included, had been taken in; None: no poll yet.
    """

    def __init__(self) -> None:
        self.round_s: float | None = None
        self._first_poll_s: float | None = None
        self._until_s: float | None = None  # when the last message was taken in
        self._late_commits_s = 0.0  # commits since then, the idle time between them left out

    def took(
        self, *, messages: bool, committed: bool, begun_s: float, now_s: float, first_poll_s: float | None
    ) -> None:
        """One micro-batch was taken in."""
        self.round_s = now_s
        if self._first_poll_s is None:
            self._first_poll_s = first_poll_s
        if messages:
            self._until_s, self._late_commits_s = now_s, 0.0
        elif committed:
            self._late_commits_s += now_s - begun_s

    @property
    def seconds(self) -> float:
        """So far."""
        if self._first_poll_s is None or self._until_s is None:
            return 0.0
        return self._until_s - self._first_poll_s + self._late_commits_s
