"""The event ids of a log's newest events, for a new sink to find duplicates."""

import numpy as np

from schemas.config import StreamConfig
from schemas.events import US_PER_S
from stream.snapshots.event_ids import EventIds
from stream.store.log.writer import LogWriter


def known_ids(writer: LogWriter, config: StreamConfig) -> EventIds | None:
    """The ids within ``dedup_window_s`` of the newest event; None if the configuration has no such window.

    Raises:
        CorruptError: A file of the log doesn't match its commit.
    """
    if config.dedup_window_s is None:
        return None
    window_us = round(config.dedup_window_s * US_PER_S)
    times = [writer.totals.max_t_us] if writer.totals.max_t_us is not None else []
    open_times = writer.open_tail()["t"].to_numpy()
    times += [int(open_times.max())] if len(open_times) else []
    newest_us = max(times, default=None)
    event_ids = EventIds(window_us, config.dedup_max_ids, newest_us)
    if newest_us is not None:
        for table in writer.events_since(newest_us - window_us):
            event_ids.duplicates(table["event_id"], table["t"].to_numpy(), np.zeros(len(table), bool))
        event_ids.missed = 0
    return event_ids
