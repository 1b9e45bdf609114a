"""What the sink tells whoever counts: one small protocol, so that metrics need no hand in the sink."""

from typing import Protocol

from schemas.events import Op
from schemas.store import CommitRecord
from stream.snapshots.held_back import OpenEventTime


class SinkObserver(Protocol):
    """Told what commits made durable; counts are never told twice, also when a batch is read again."""

    def accepted(self, topic: str, op: Op, count: int) -> None:
        """Events of one kind are in the log now."""
        ...

    def refused(self, topic: str, reason: str, count: int, example: str) -> None:
        """Messages, or rows of one, are in the rejects now; late events aren't among them. One of them as an example."""
        ...

    def late(self, topic: str, policy: str, count: int) -> None:
        """Late events are in the log or the rejects now, as the policy says."""
        ...

    def in_history(self, topic: str, count: int) -> None:
        """Events were skipped, because the log has them from its history."""
        ...

    def tombstones(self, topic: str, count: int) -> None:
        """Null messages were skipped."""
        ...

    def watermark(self, topic: str, partition: int, t_us: int) -> None:
        """Event time up to which a topic partition is taken to be complete, microseconds."""
        ...

    def open_event_time(self, now: OpenEventTime) -> None:
        """Which snapshot is open, and what keeps it from being sealed."""
        ...

    def pending(self, batches: int, open_bytes: int) -> None:
        """Batches not yet committed, and bytes of all open events, durable ones included."""
        ...

    def remembered(self, ids: int, missed: int) -> None:
        """Event ids that duplicates are looked for among, and how many more were not remembered since told last."""
        ...

    def commit_phase(self, phase: str, seconds: float) -> None:
        """How long a phase of a commit took: order, files, record, sweep."""
        ...

    def committed(self, record: CommitRecord) -> None:
        """A commit is durable; its ``sealed`` says which snapshots it closed."""
        ...


class Unobserved:
    """Counts nothing."""

    def accepted(self, topic: str, op: Op, count: int) -> None:
        """Nothing."""

    def refused(self, topic: str, reason: str, count: int, example: str) -> None:
        """Nothing."""

    def late(self, topic: str, policy: str, count: int) -> None:
        """Nothing."""

    def in_history(self, topic: str, count: int) -> None:
        """Nothing."""

    def tombstones(self, topic: str, count: int) -> None:
        """Nothing."""

    def watermark(self, topic: str, partition: int, t_us: int) -> None:
        """Nothing."""

    def open_event_time(self, now: OpenEventTime) -> None:
        """Nothing."""

    def pending(self, batches: int, open_bytes: int) -> None:
        """Nothing."""

    def remembered(self, ids: int, missed: int) -> None:
        """Nothing."""

    def commit_phase(self, phase: str, seconds: float) -> None:
        """Nothing."""

    def committed(self, record: CommitRecord) -> None:
        """Nothing."""
