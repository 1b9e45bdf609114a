"""Compaction beside the job: indexes the store and drops old snapshots, on a thread of its own."""

import time
from collections.abc import Callable

import structlog

from schemas.config import StreamConfig
from stream.background import Background
from stream.store.compact.store import Keep, compact
from stream.store.errors import LaneBusyError

PAUSE_S = 60.0
"""Shortest time between two looks at the store."""

CLOSE_S = 5.0
"""How long the end of a job waits for a compaction; the next one completes it if it is cut off."""

_log = structlog.get_logger()


class Housekeeping:
    """Compacts a store while it is written, from the first ``wake`` to ``close``; a failure stops nothing else."""

    def __init__(self, config: StreamConfig, retried: Callable[[], None]) -> None:
        self._store = config.store
        self._keep = keep(config)
        self._looked_s = time.monotonic()
        self._work = Background("housekeeping", self._look, retry_s=PAUSE_S, on_retry=retried)
        self._started = False

    def wake(self) -> None:
        """Something was committed: look at the store, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked_s < PAUSE_S:
            return
        self._looked_s = now
        if self._started:
            self._work.ask()
        else:
            self._started = True
            self._work.start()

    def close(self) -> None:
        """Stop after the current step."""
        if self._started:
            self._work.close(CLOSE_S)

    def _look(self) -> None:
        try:
            done = compact(self._store, self._keep, stop=lambda: self._work.stopping)
        except LaneBusyError as error:  # freshet-stream compact, which does the same
            _log.info("another process compacts the store", store=self._store, reason=str(error))
            return
        if done.dropped or done.folded:
            _log.info(
                "compacted",
                store=self._store,
                dropped=done.dropped,
                folded=done.folded,
                first=done.first,
                held_by=done.held_by,
            )


def keep(config: StreamConfig) -> Keep:
    """The retention of a configuration."""
    return Keep(config.retention.snapshots, config.retention.time_s, config.dedup_window_s or 0.0)
