"""Lanes at work: each follows the log on a thread of its own and retries after failures."""

from collections.abc import Callable, Collection, Iterable

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.background import Background
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.places.place import Place

CLOSE_S = 5.0
"""How long the end of a job waits for the snapshot that a lane is at; a lane that is cut off recovers as after a kill."""


class LaneThread:
    """Keeps one lane up to date with the log until ``close``; a failure doesn't stop the log.

    Attributes:
        name: The lane's.
        lag: Sealed snapshots that it lacked when it last looked.
    """

    def __init__(self, store: str | Place, lane: Lane, metrics: StreamMetrics) -> None:
        """Open the lane and start following the log.

        Raises:
            StoreError: The lane can't be opened: another process writes it, or it was made with other parameters.
            PartitionError: Unknown algorithm, or parameters it doesn't take.
        """
        self.name = lane.name
        self.lag = 0
        self._metrics = metrics
        self._writer = LaneWriter(store, lane, observer=self._committed)
        manifests = self._writer.manifests
        metrics.opened_lane(self.name, manifests[-1] if manifests else None, self._writer.totals)
        self._work = Background(
            f"lane-{lane.name}", self._catch_up, on_retry=lambda: metrics.restarted("lane")
        )
        self._work.start()

    @property
    def error(self) -> str | None:
        """Why the lane is not up to date; None if it works."""
        return self._work.error

    def wake(self) -> None:
        """Snapshots were sealed: catch up."""
        self._work.ask()

    def bring_up_to_date(self, stop: Callable[[], bool]) -> None:
        """Wait until the lane has every snapshot that is sealed now, has failed, or ``stop`` returns True."""
        self._work.settle(stop=stop)

    def close(self) -> None:
        """Stop after the current snapshot and release the lane's lock.

        A snapshot that takes longer than a few seconds is left to the end of the process, which also releases the lock:
        no earlier, because until then the lane is being written.
        """
        if self._work.close(CLOSE_S):
            self._writer.close()

    def _catch_up(self) -> None:
        self._show(self._writer.lag)
        self._writer.catch_up(stop=lambda: self._work.stopping)
        self._show(self._writer.lag)

    def _committed(self, manifest: LaneManifest) -> None:
        self._metrics.lane_committed(manifest)
        self._show(max(0, self.lag - 1))

    def _show(self, lag: int) -> None:
        self.lag = lag
        self._metrics.lane_lag(self.name, lag)


def failures(lanes: Iterable[LaneThread]) -> list[str]:
    """Why lanes are not up to date, one clause per lane that fails."""
    return [f"lane {lane.name}: {lane.error}" for lane in lanes if lane.error]


def bring_up_to_date(lanes: Collection[LaneThread], stop: Callable[[], bool]) -> None:
    """Bring all lanes to the end of the log, unless the job is told to stop.

    Raises:
        Failure: One cannot be brought there.
    """
    for lane in lanes:
        lane.wake()  # all at once
    for lane in lanes:
        lane.bring_up_to_date(stop)
    failed = [f"lane {lane.name} is not up to date: {lane.error}" for lane in lanes if lane.error]
    if failed:
        raise Failure(f"{'; '.join(failed)}. The log is complete. Start again to resume")
