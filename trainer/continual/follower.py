"""The next snapshot of all ranks: rank 0 looks for it, and the others follow."""

import time
from collections.abc import Callable

import structlog

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.files.follow import FolderWatch
from freshet_graph.stream.store.lane.layout import COMMITS
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.pace import LoadPolicy
from freshet_graph.trainer.ranks import Ranks

TICK_S = 0.5
"""How often waiting ranks agree on whether to continue waiting."""
NEXT_SNAPSHOT = "next_snapshot"
"""Label of other ranks' waiting while rank 0 looks for a snapshot."""

log = structlog.get_logger()


class Follower:
    """Follows a lane in lock step. Only rank 0 decides, so ranks that see new files at different times never diverge.

    Args:
        ranks: All ranks; every method is a collective.
        until_idle_s: End when nothing new has come for so long; None: never.
        stop: Whether this rank was asked to end; one rank is enough.
        waiting: Gets the reason for waiting (None: there is work), and whether it is an obstacle: all is learned without one.

    Attributes:
        end_after: Sequence number of the last snapshot to take, the same on all ranks; None: there is no last one.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        until_idle_s: float | None,
        stop: Callable[[], bool],
        waiting: Callable[[str | None, bool], None],
    ) -> None:
        self._ranks = ranks
        self._until_idle_s = until_idle_s
        self._stop = stop
        self._waiting = waiting
        self._watch: FolderWatch | None = None
        self._moved = time.monotonic()
        self._silence: OSError | None = None  # why the store could not be read
        self.end_after: int | None = None

    def open_lane(self, store: str, name: str, choose: Callable[[], str] | None = None) -> LaneReader | None:
        """Wait until store and lane exist; None: asked to end, or idle, before.

        Args:
            store: The store.
            name: The lane's.
            choose: Gives its name on rank 0 instead, and raises ``ConfigMissingError`` while there is none.
        """
        logged = ""
        while True:
            beat()
            lane = None
            reason = ""
            if self._ranks.rank == 0:
                try:
                    lane = LaneReader(store, name if choose is None else choose())
                except ConfigMissingError as error:
                    reason = str(error)
            lane_exists, ended = self._ranks.any(lane is not None, self._stop() or self._idle())
            if lane_exists:
                self._moved = time.monotonic()
                opened = self._ranks.text_from_first(lane.header.lane if lane is not None else "")
                return lane if lane is not None else LaneReader(store, opened)
            reason = self._ranks.text_from_first(reason)
            self._waiting(f"waiting for lane {name}: {reason}", True)
            if ended:
                return None
            if self._ranks.rank == 0 and reason != logged:  # again when other lanes have come meanwhile
                log.info("waiting for the lane", store=store, lane=name, reason=reason)
            logged = reason
            time.sleep(TICK_S)

    def next(
        self,
        lane: LaneReader,
        after: int,
        load: LoadPolicy,
        unwritten: Callable[[], str | None] = lambda: None,
    ) -> LaneManifest | None:
        """The next snapshot to train, waiting for it; None: it is time to end.

        Args:
            lane: This rank's reader.
            after: Sequence number of the last one trained, −1 for none.
            load: Policy for training that is behind.
            unwritten: Why files of the last one are not written yet, on rank 0; until they are, no other is taken.

        Raises:
            Failure: ``until_idle_s`` is over, and the store does not answer.
        """
        if self.end_after is not None and after >= self.end_after:
            return None
        try:
            return self._awaited(lane, after, load, unwritten)
        finally:
            self._watch_no_more()

    def _awaited(
        self, lane: LaneReader, after: int, load: LoadPolicy, unwritten: Callable[[], str | None]
    ) -> LaneManifest | None:
        while True:
            beat()
            obstacle = unwritten()
            if obstacle is None:
                chosen = self._look(lane, after, load)
            else:
                time.sleep(TICK_S)
                chosen, self._moved = -1, time.monotonic()  # not idle
            rank_numbers = [chosen, self._stop(), chosen < 0 and self._idle()]
            sequence, stopped, idle = self._ranks.maximum(rank_numbers, NEXT_SNAPSHOT)
            if idle and not stopped:
                self._require_answer()
            if idle or stopped:
                return None
            if sequence >= 0:
                self._moved = time.monotonic()
                self._waiting(None, False)
                return _manifest(lane, sequence)
            if obstacle is not None:
                self._waiting(obstacle, True)
                continue
            silent = f"the store does not answer: {one_line(self._silence)}; " if self._silence else ""
            learned = f"{silent}lane {lane.header.lane} has no snapshot after number {after}"
            self._waiting(learned, self._silence is not None)

    def _look(self, lane: LaneReader, after: int, load: LoadPolicy) -> int:
        """The snapshot to take, −1: there is none yet; on other ranks always −1."""
        if self._ranks.rank != 0:
            return -1
        try:
            first = after if after >= 0 else None
            for _ in lane.follow(first, timeout_s=TICK_S, stop=self._stop, watch=self._watch):
                newest = lane.manifests[-1].sequence
                if self.end_after is not None:
                    newest = min(newest, self.end_after)
                self._heard(None)
                return load.next(max(after, lane.manifests.first - 1), newest)
            self._heard(None)
            if self._watch is None:  # a longer wait: one watch for all of it
                self._watch = FolderWatch(lane.root / COMMITS)
        except OSError as error:  # a disk or a bucket that is away for a while: its content does not change
            self._heard(error)
            time.sleep(TICK_S)
        return -1

    def _watch_no_more(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _require_answer(self) -> None:
        """Fail if the store is silent: without an answer a trainer is not idle."""
        self._ranks.on_first(self._raise_silence)

    def _raise_silence(self) -> None:
        if self._silence is not None:
            raise Failure(
                f"the store does not answer, so whether there is something to learn is not known: {one_line(self._silence)}"
            )

    def _heard(self, error: OSError | None) -> None:
        """Log once when the store stops answering, and once when it answers again."""
        if error is not None and self._silence is None:
            log.warning("the store does not answer; it is asked again", reason=one_line(error))
        elif error is None and self._silence is not None:
            log.info("the store answers again")
        self._silence = error

    def _idle(self) -> bool:
        """Whether nothing has come for too long; rank 0 decides."""
        if self._until_idle_s is None or self._ranks.rank != 0:
            return False
        return time.monotonic() - self._moved > self._until_idle_s


def _manifest(lane: LaneReader, sequence: int) -> LaneManifest:
    """Manifest ``sequence``, which rank 0 has seen: on a shared file system it may still be on its way here."""
    while len(lane.manifests) <= sequence:
        lane.refresh()
        if len(lane.manifests) <= sequence:
            time.sleep(0.01)
    return lane.manifests[sequence]
