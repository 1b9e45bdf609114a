"""A store from a file of events, without Kafka: log first, then its lanes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog
from numpy.typing import NDArray

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import US_PER_S, event_schema
from freshet_graph.schemas.store import LogHeader, Position
from freshet_graph.stream.decode.files import EventFile, read_events
from freshet_graph.stream.decode.labels import taken_schema
from freshet_graph.stream.snapshots.border import HISTORY_LABELS
from freshet_graph.stream.store.errors import MismatchError
from freshet_graph.stream.store.lane.writer import LaneObserver, LaneWriter
from freshet_graph.stream.store.log.labels import arrived
from freshet_graph.stream.store.log.writer import LogWriter
from freshet_graph.stream.store.places.place import Place, place_of

_log = structlog.get_logger()

_STRAY = 0.001
"""Share of the events at each end, at least one event, that the default interval ignores."""
_COLLAPSED = 10
"""With fewer snapshots than this, the other events would hardly be ordered."""

SNAPSHOTS_A_COMMIT = 1024
"""Limits the size of commit records."""


def build_store(
    source: str | Path | EventFile | pa.Table,
    store: str | Place,
    *,
    interval_us: int | None = None,
    lanes: Sequence[Lane] = (),
    graph: str = "file",
    node_features: int | None = None,
    edge_features: int | None = None,
    segments: int = 4,
    observer: LaneObserver | None = None,
    labels: pa.Table | None = None,
) -> Place:
    """Write a log with all events of a file, every snapshot sealed, and bring its lanes up to date.

    Events are ordered by time, equal times stay in file order.

    Args:
        source: Parquet or CSV file, what ``read_events`` made of one, or canonical events (``event_schema``).
        store: Folder to make the store in; it must not have a log yet.
        interval_us: Length of a snapshot, microseconds; snapshots are aligned to the epoch. None: ``default_interval``.
        lanes: Partitioners that follow the log.
        graph: Name of the graph.
        node_features: F; None: as in the file, 0 for a table.
        edge_features: Width of edge features; None: as in the file, 0 for a table.
        segments: S, slices of a node's feature vector.
        observer: Called with the manifest of every lane snapshot.
        labels: ``label_schema``: come before all events, and are visible from their ``visible_us`` on; None: there are none.

    Returns:
        The store's folder.

    Raises:
        Failure: The file cannot be read; the sentence names file, column and row.
        MismatchError: The folder already has a log with commits.
        PartitionError: A lane's partitioner can't do what is asked.
        OSError: The disk refuses.
    """
    if isinstance(source, str | Path):
        source = read_events(source)
    if isinstance(source, EventFile):
        events, ids = source.events, source.ids
        node_features = source.node_features if node_features is None else node_features
        edge_features = source.edge_features if edge_features is None else edge_features
    else:
        ids = "string" if pa.types.is_string(source.schema.field("src").type) else "int"
        events = source.cast(event_schema(ids))
    interval_us = interval_us or default_interval(events["t"].to_numpy())
    header = LogHeader(
        graph=graph,
        interval_us=interval_us,
        ids=ids,
        node_features=node_features or 0,
        edge_features=edge_features or 0,
        segments=segments,
    )
    with LogWriter.open(store, header) as log:
        if log.last is not None:
            raise MismatchError(
                f"{store} has a log with {log.last.n + 1} commits already. Choose another folder"
            )
        if labels is not None and labels.num_rows:
            offset = pa.array(np.arange(len(labels)))
            first = (
                labels.drop_columns(["commit"])
                .append_column("offset", offset)
                .select(taken_schema(ids).names)
            )
            topic, partition = HISTORY_LABELS
            read = Position(topic=topic, partition=partition, next=len(labels))
            log.commit(positions={HISTORY_LABELS: read}, labels=arrived(first, HISTORY_LABELS))
        for seal in _commits(events, interval_us):
            log.commit(seal=seal)
    for lane in lanes:
        with LaneWriter(store, lane, observer=observer) as writer:
            writer.catch_up()
    return place_of(store)


def default_interval(t: NDArray[np.int64]) -> int:
    """A hundredth of the span of the given times, rounded up; 1 if all times are equal.

    A few outliers, such as rows of 1970, would put all other events into a few snapshots. If the times without a thousandth
    at each end would fill fewer than ten, the result is a hundredth of their span, and a warning is logged.

    Args:
        t: Microseconds, in any order.

    Returns:
        Microseconds, at least 1.
    """
    if not len(t):
        return 1
    span, stray = int(t.max() - t.min()), max(1, int(len(t) * _STRAY))
    interval = max(1, -(-span // 100))
    if len(t) <= 2 * stray:
        return interval
    ordered = np.partition(t, [stray, len(t) - 1 - stray])
    first, last = int(ordered[stray]), int(ordered[-1 - stray])
    if first == last or last - first >= _COLLAPSED * interval:
        return interval
    narrow = -(-(last - first) // 100)
    _log.warning(
        "a few events lie far from all others in time, so snapshots are a hundredth of the span of the others. Set "
        "interval_s to choose their length",
        interval_s=narrow / US_PER_S,
        instead_of_s=interval / US_PER_S,
        others_begin=_shown(first),
        others_end=_shown(last),
    )
    return narrow


def _shown(t: int) -> str:
    return str(np.datetime64(t, "us"))


def _commits(events: pa.Table, interval_us: int) -> Iterator[list[tuple[int, pa.Table]]]:
    """The snapshots of all events, grouped into commits."""
    t = events["t"].to_numpy()
    if len(t) == 0:
        return
    if (t[1:] < t[:-1]).any():
        events = events.take(pa.array(np.argsort(t, kind="stable")))
        t = events["t"].to_numpy()
    tau = t // interval_us
    starts = np.flatnonzero(np.concatenate(([True], tau[1:] != tau[:-1]))).tolist()
    ends = [*starts[1:], len(tau)]
    snapshots = [(int(tau[a]), a, b) for a, b in zip(starts, ends, strict=True)]
    for first in range(0, len(snapshots), SNAPSHOTS_A_COMMIT):
        yield [(k, events.slice(a, b - a)) for k, a, b in snapshots[first : first + SNAPSHOTS_A_COMMIT]]
