"""The sink's events for metrics, so that the sink doesn't depend on them."""

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.snapshots.event_time import OpenEventTime


class SinkObserver:
    """Receives the effects of durable commits; here it ignores them.

    Nothing is counted twice, even if a batch is read again.
    """

    def accepted(self, topic: str, op: Op, count: int) -> None:
        """Events of one kind are in the log."""

    def labels(self, topic: str, count: int) -> None:
        """Labels of a label topic are in the log."""

    def refused(self, topic: str, reason: str, count: int, example: str) -> None:
        """Messages, or rows of one, are in the rejects, without late events; with one as an example."""

    def late(self, topic: str, policy: str, count: int) -> None:
        """Late events are in the log or the rejects, according to the policy."""

    def in_history(self, topic: str, count: int) -> None:
        """Events were skipped because the log's history has them."""

    def converted(self, topic: str, count: int) -> None:
        """Events with an id that is a number although ids are text, or the reverse."""

    def tombstones(self, topic: str, count: int) -> None:
        """Null messages were skipped."""

    def watermark(self, topic: str, partition: int, t_us: int) -> None:
        """Event time up to which a topic partition is assumed complete, microseconds."""

    def open_event_time(self, now: OpenEventTime) -> None:
        """The open snapshot, and the partition that keeps it from being sealed."""

    def pending(self, batches: int, open_bytes: int) -> None:
        """Batches not yet committed, and bytes of all open events, including durable ones."""

    def remembered(self, ids: int, missed: int) -> None:
        """Number of event ids remembered to find duplicates, and of those missed since the last call."""

    def commit_phase(self, phase: str, seconds: float) -> None:
        """Duration of a phase of a commit: order, files, record, sweep."""

    def committed(self, record: CommitRecord) -> None:
        """A commit is durable; its ``sealed`` names the snapshots it closed."""
