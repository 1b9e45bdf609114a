"""The store of an offline evaluation, made of a file or of another store's events."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from schemas.config import Lane
from schemas.events import US_PER_S
from schemas.trainer_config import TrainerConfig
from stream.store.from_file import build_store
from stream.store.lane.reader import LaneReader
from stream.store.log.event_columns import event_columns
from stream.store.log.reader import LogReader
from stream.store.store_events import is_store, read_source
from trainer.data.examples import insert_events
from trainer.data.history import NO_EVENTS, Inserts
from trainer.ranks import Ranks


def build_store_of(
    config: TrainerConfig,
    data: str | Path,
    as_of: str | None,
    folder: str,
    parts: int,
    ranks: Ranks,
    columns: str | None = None,
) -> bool:
    """Make a store of a file, or of a store's events, on rank 0 while the others wait; a collective.

    Args:
        config: Its ``lane`` is the algorithm of the store's one lane.
        data: Parquet, CSV or TSV; or a store's folder or address.
        as_of: A moment of the store; None: all sealed snapshots.
        folder: Of the new store.
        parts: Of the lane.
        ranks: All ranks.
        columns: The file's names of an event's columns, as in the option; None: the standard names.

    Returns:
        False on other ranks if rank 0 failed, which raises the error.
    """
    lane = Lane(
        name=config.lane,
        algorithm=config.lane,
        parts=parts,
        window=config.window,
        edge_life=config.edge_life,
        seed=config.seed,
        params=config.lane_params,
    )
    interval_us = round(config.interval_s * US_PER_S) if config.interval_s else None
    error: Exception | None = None
    if ranks.rank == 0:
        try:
            source = read_source(str(data), as_of, columns)
            if interval_us is None and is_store(str(data)):
                interval_us = LogReader(str(data)).header.interval_us
            build_store(source, folder, interval_us=interval_us, lanes=[lane])
        except Exception as caught:  # noqa: BLE001  raised below, after the others know
            error = caught
    (failed,) = ranks.any(error is not None)
    if error is not None:
        raise error
    return not failed


def all_inserts(lane: LaneReader) -> Inserts:
    """The insert events of all snapshots, in log order."""
    parts = [
        insert_events(event_columns(lane.log.events(snapshot.tau), snapshot.tau, lane.header.interval_us, 0))
        for snapshot in lane.log.snapshots
    ]
    columns = ("src", "dst", "visible_us", "late")
    parts.append(NO_EVENTS)  # so that an empty log has columns of the right types
    return Inserts(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def snapshot_ends(lane: LaneReader) -> NDArray[np.int64]:
    """The last microsecond of every snapshot that has events, int64."""
    taus = np.array([manifest.tau for manifest in lane.manifests], np.int64)
    return (taus + 1) * lane.header.interval_us - 1
