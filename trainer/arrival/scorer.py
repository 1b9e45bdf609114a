"""Follows the log, scores each commit's events under the newest checkpoint, and takes new checkpoints over."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import structlog

from freshet_graph.schemas.errors import FreshetError, one_line
from freshet_graph.schemas.events import US_PER_S, IdKind
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.arrivals import Arrivals, Arrived
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.sealed import UNKNOWN
from freshet_graph.trainer.arrival.memory import ArrivalMemory, Scored
from freshet_graph.trainer.arrival.snapshots import SnapshotMemory
from freshet_graph.trainer.arrival.turns import Turns
from freshet_graph.trainer.exports.exporter import version_of
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import Checkpoints, chosen, content_of, newest_checkpoint

NOTHING = UNKNOWN - 1
"""As the last scored commit: none."""
WAITING = 12
"""Most questions that wait for their turn."""
LOOK_S = 0.5
"""How often a new checkpoint is looked for."""

log = structlog.get_logger()


@dataclass(slots=True)
class CheckpointMemory:
    """The memory under a checkpoint, and the arrivals that go into it.

    Attributes:
        memory: All events of ``arrivals`` up to its ``done``.
        arrivals: From the checkpoint's snapshot on, or from the log's beginning.
        sequence: Number of the checkpoint's snapshot.
        learned: Whether the memory was the checkpoint's own up to there.
        said: What messages say of it.
        ids: The graph's kind of ids.
        interval_us: Length of a snapshot.
        edge_features: Of the graph.
        commit: The newest commit of which events are in the memory.
    """

    memory: ArrivalMemory | SnapshotMemory
    arrivals: Arrivals
    sequence: int
    learned: bool
    said: dict[str, Any]
    ids: IdKind
    interval_us: int
    edge_features: int
    commit: int = UNKNOWN

    @property
    def event_memory(self) -> ArrivalMemory:
        """The memory, of which questions may be asked."""
        assert isinstance(self.memory, ArrivalMemory), "serve is refused with snapshot models"
        return self.memory

    @property
    def position(self) -> dict[str, Any]:
        """The events that the memory knows, as answers say it."""
        rows, until_us = self.event_memory.rows, self.event_memory.known_us
        commit = self.commit if rows is not None else max(self.commit, self.arrivals.done)
        return {
            "known_commit": commit if commit > UNKNOWN else None,
            "known_rows": rows,
            "known_until": None if until_us is None else until_us / US_PER_S,
        }

    @property
    def open_us(self) -> int:
        """Where the first snapshot that is not sealed begins, microseconds; the events of earlier ones count from there on."""
        last = self.arrivals.last
        sealed = None if last is None else last.sealed_through
        return np.iinfo(np.int64).min if sealed is None else (sealed + 1) * self.interval_us

    def catch_up(self, done: int) -> Self:
        """Take in the commits up to one without scores."""
        for arrived in self.arrivals.new(until=done):
            self.take(arrived, scored=False)
        self.before(done + 1)
        self.commit = done
        return self

    def before(self, commit: int) -> None:
        """Get ready for a commit."""
        if isinstance(self.memory, SnapshotMemory):
            self.memory.before(commit)
        self.before_labels(commit)

    def before_labels(self, commit: int) -> None:
        """Read the labels that came before a commit, if the task has any."""
        if self.memory.labels is not None:
            self.memory.labels.before(commit)

    def take(self, arrived: Arrived, *, scored: bool = True) -> Scored | None:
        """Take in a commit; see ``ArrivalMemory.take``."""
        self.before_labels(arrived.commit)
        self.commit = arrived.commit
        return self.memory.take(arrived.events, scored=scored)


class Scorer:
    """Scores the commits of a log.

    An event is scored by the newest checkpoint when its turn comes, unless that has learned it. Then the newest one that has
    not is taken; if all have, the newest one's weights, with the memory of the log from its beginning instead of their own.

    A new checkpoint is prepared on a thread while the present one scores, and takes over between two commits.

    Args:
        config: Of the trainer, with its lane.
        ranks: This process alone.
        done: The last commit that needs no scores; ``NOTHING``: all do.

    Attributes:
        takeovers: Checkpoints that took over from another.
        turns: Whose turn it is to use the memory. Within a commit questions have theirs at each run.
        dropped: Snapshots that retention dropped before their events were looked at.
    """

    def __init__(self, config: TrainerConfig, ranks: Ranks, done: int) -> None:
        self._config, self._ranks = config, ranks
        self._checkpoints = Checkpoints(config.checkpoint, config.keep_checkpoints)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._next: Future[CheckpointMemory] | None = None
        self._looked_s = 0.0
        self.takeovers = self.dropped = 0
        self.turns = Turns(WAITING)
        log_reader = LogReader(self._store)
        first = Arrivals(log_reader, done=done)
        usable = [number for number in self._checkpoints.sequences() if first.covers(number)]
        self.known = self._prepared(usable[-1] if usable else None, done)

    @property
    def sequence(self) -> int:
        """Number of the snapshot of the checkpoint that scores."""
        return self.known.sequence

    def behind_s(self, now_s: float) -> float:
        """Age of the newest known commit while it has no scores, seconds; 0 once it has.

        For an older commit that came with it, this is the least that its scores can be late.
        """
        last = self.known.arrivals.last
        if last is None or last.n <= self.known.arrivals.done:
            return 0.0
        return max(0.0, now_s - last.wall_time_us / US_PER_S)

    def new(self, emit: Callable[[Arrived, Scored], bool]) -> int:
        """Score the commits that came since the last call.

        Args:
            emit: Gets each commit with its scores; False: it has ended, and the commit counts as not scored.

        Returns:
            Scored events.
        """
        self._take_over()
        events = 0
        for arrived in self.known.arrivals.new():
            with self.turns.scorer():
                self.known.before(arrived.commit)
                scored = self.known.take(arrived)
            assert scored is not None
            if not emit(arrived, scored):
                break
            events += len(scored.rows)
        else:
            with self.turns.scorer():  # questions know the labels of commits without events, too
                self.known.before_labels(self.known.arrivals.done + 1)
        if self.known.arrivals.dropped:
            log.warning(
                "retention dropped snapshots before scores had their events; they are missing in the memory, and those that "
                "came with unscored commits have no score. Keep more snapshots, or checkpoint more often",
                snapshots=self.known.arrivals.dropped, checkpoint=self.sequence,
            )  # fmt: skip
            self.dropped, self.known.arrivals.dropped = self.dropped + self.known.arrivals.dropped, 0
        return events

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    @cached_property
    def _store(self) -> str:
        assert self._config.store is not None
        return self._config.store

    def _take_over(self) -> None:
        """Let a newer checkpoint score from the next commit on, once it is prepared."""
        done = self.known.arrivals.done
        if self._next is not None and self._next.done():
            preparing, self._next = self._next, None
            try:
                self.known = preparing.result().catch_up(done)
            except (OSError, FreshetError) as error:  # removed meanwhile, or damaged: a newer one comes
                log.warning("a checkpoint cannot take over; the present one scores", reason=one_line(error))
                return
            self.takeovers += 1
            log.info(
                "checkpoint takes over", checkpoint=self.sequence, model=self.known.said["model_version"]
            )
        now_s = time.monotonic()
        if self._next is not None or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        newer = [
            number
            for number in self._checkpoints.sequences()
            if number > self.sequence - (not self.known.learned)
        ]
        usable = [number for number in newer if self.known.arrivals.covers(number)]
        if usable:
            self._next = self._thread.submit(self._prepared, usable[-1], done)

    def _prepared(self, number: int | None, done: int) -> CheckpointMemory:
        """A checkpoint, or the newest one's weights alone, and the memory of all commits up to one."""
        lane = LaneReader(self._store, self._config.lane)
        newest = newest_checkpoint(self._config, lane, number)
        if newest is None:
            raise Failure(
                f"{self._config.checkpoint} has no checkpoint any more. Train with freshet-trainer run"
            )
        path, state = newest
        sequence = int(state["sequence"])
        with content_of(path):
            of_kind = ArrivalMemory if MODELS.find(self._config.model).kind == "event" else SnapshotMemory
            memory = of_kind(
                chosen(self._config, state), lane, self._ranks, state, learned=number is not None,
                vectors=self._config.scoring.vectors,
            )  # fmt: skip
        if isinstance(memory, ArrivalMemory):
            memory.between = self.turns.between
        said = {
            "graph": lane.log.header.graph,
            "model_version": version_of(memory.model),
            "checkpoint": sequence,
            "memory": "checkpoint" if number is not None else "log",
            "learned_until": lane.log.snapshots[sequence].max_t_us / US_PER_S,
        }
        arrivals = Arrivals(lane.log, -1 if number is None else sequence)
        header = lane.log.header
        known = CheckpointMemory(
            memory,
            arrivals,
            sequence,
            number is not None,
            said,
            header.ids,
            header.interval_us,
            header.edge_features,
        )
        return known.catch_up(done)
