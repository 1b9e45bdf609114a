"""Open a store from other programs: its lanes, and their last snapshots as graphs of other libraries."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.stream.optional import package
from freshet_graph.stream.store.as_of import AsOf, Moment
from freshet_graph.stream.store.errors import RetainedError, StoreError
from freshet_graph.stream.store.graph import Frames, SnapshotGraph, read_graph, read_graphs
from freshet_graph.stream.store.lane.layout import lane_names
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.undisturbed import undisturbed

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, slots=True)
class Window:
    """The live graphs of a lane's last snapshots.

    Attributes:
        graphs: At most w, oldest first.
    """

    graphs: tuple[SnapshotGraph, ...]

    def __len__(self) -> int:
        return len(self.graphs)

    def __iter__(self) -> Iterator[SnapshotGraph]:
        return iter(self.graphs)

    def to_pandas(self) -> Frames:
        """Nodes and edges of all snapshots, oldest first, distinguished by ``tau``: ΣN and ΣE rows."""
        frames = [graph.to_pandas() for graph in self.graphs]
        concat = package("pandas", "to_pandas()").concat
        return Frames(*(concat(tables, ignore_index=True) for tables in zip(*frames, strict=True)))

    def to_networkx(self) -> "list[networkx.DiGraph[Any]]":
        """``SnapshotGraph.to_networkx`` of each snapshot, oldest first."""
        return [graph.to_networkx() for graph in self.graphs]

    def to_pyg(self) -> list[Any]:
        """``SnapshotGraph.to_pyg`` of each snapshot, oldest first."""
        return [graph.to_pyg() for graph in self.graphs]

    def to_dgl(self) -> list[Any]:
        """``SnapshotGraph.to_dgl`` of each snapshot, oldest first."""
        return [graph.to_dgl() for graph in self.graphs]


class Store:
    """A store. Each call reads its current state; a job may keep writing to it.

    Attributes:
        place: Its folder or prefix.
    """

    def __init__(self, place: str | Place) -> None:
        self.place = place_of(place)
        LogReader(self.place)

    @property
    def lanes(self) -> list[str]:
        """Names of its lanes."""
        return lane_names(self.place)

    def window(self, lane: str, w: int = 1, *, as_of: Moment | None = None) -> Window:
        """The last ``w`` snapshots of a lane.

        Args:
            lane: Its name.
            w: The number of snapshots, at least 1; fewer if the lane has no more.
            as_of: The newest of them: a snapshot (18262), time (a datetime, or "2024-05-01T12:00"; UTC without a zone) or
                second ("@1714564800"); None: the lane's newest.

        Raises:
            ValueError: ``w`` is below 1.
            ConfigMissingError: The lane does not exist.
            RetainedError: The lane has no snapshot yet, or none that old.
            StoreError: ``as_of`` is no moment.
            CorruptError, FormatVersionError: A file is damaged, or from another release.
        """
        return Window(tuple(read_graphs(self.place, lane, w, as_of=_moment(as_of))))

    def graph(self, *, as_of: Moment | None = None) -> SnapshotGraph:
        """The live graph after a snapshot, from the log alone: edges live until they are deleted.

        Raises:
            RetainedError, CorruptError, FormatVersionError, StoreError: As for ``window``.
        """
        return read_graph(self.place, as_of=_moment(as_of))

    def events(self, *, as_of: Moment | None = None) -> pa.Table:
        """Sealed events in the order of the log, in the columns of ``freshet_graph.schemas.events.event_schema``.

        Raises:
            RetainedError, CorruptError, FormatVersionError, StoreError: As for ``window``.
        """
        return undisturbed(self.place, lambda: LogReader(self.place).sealed_events(_moment(as_of)))

    def with_labels(self, rows: pa.Table) -> pa.Table:
        """Events or their scores, each with its newest label of a label topic.

        Of several labels the newest of the best source counts (docs/labels.md). A row without one has the label that came
        with the event: its own column ``label``, or of exported scores that of the log, null once the snapshot is dropped.

        Args:
            rows: With the producer's ids in ``event_id``: of ``events``, ``load_scores``, or your own.

        Returns:
            The rows, in their order, with ``label`` (int32), ``label_visible`` (timestamp[us, UTC], the time from which later
            events may know it) and ``label_source`` (string). The last two are null without a label of a topic.

        Raises:
            StoreError: ``event_id`` is missing.
            CorruptError, FormatVersionError: A file is damaged, or from another release.
        """
        return undisturbed(self.place, lambda: joined_labels(LogReader(self.place), rows))


def joined_labels(log: LogReader, rows: pa.Table) -> pa.Table:
    """See ``Store.with_labels``."""
    if "event_id" not in rows.column_names:
        raise StoreError(
            f"the rows have columns {', '.join(rows.column_names)}, and labels are joined by event_id. Keep that column"
        )
    labels = log.labels()
    labels = labels.filter(labels["event_id"].is_valid())
    best = np.lexsort(
        [-np.arange(len(labels)), -labels["visible_us"].to_numpy(), -labels["priority"].to_numpy()]
    )
    ids = labels["event_id"].take(pa.array(best)).combine_chunks().dictionary_encode()
    labels = labels.take(pa.array(best[np.unique(ids.indices.to_numpy(), return_index=True)[1]]))
    place = pc.index_in(rows["event_id"].cast(pa.string()), labels["event_id"].combine_chunks())
    columns = {
        "label": pc.coalesce(labels["label"].take(place), _own_labels(log, rows)),
        "label_visible": labels["visible_us"].take(place).cast(pa.timestamp("us", "UTC")),
        "label_source": labels["source"].take(place),
    }
    rows = rows.drop_columns([name for name in columns if name in rows.column_names])
    for name, column in columns.items():
        rows = rows.append_column(name, column)
    return rows


def _own_labels(log: LogReader, rows: pa.Table) -> pa.Array:
    """The labels that came with events, int32."""
    if "label" in rows.column_names:
        return rows["label"].combine_chunks().cast(pa.int32())
    if not {"tau", "row"} <= set(rows.column_names):
        return pa.nulls(len(rows), pa.int32())
    tau, row = rows["tau"].to_numpy(), rows["row"].to_numpy()
    parts, places = [pa.array([], pa.int32())], np.argsort(tau, kind="stable")
    for one in np.unique(tau).tolist():
        try:
            came_with = log.events(one)["label"].combine_chunks().take(pa.array(row[tau == one]))
        except RetainedError:
            came_with = pa.nulls(np.count_nonzero(tau == one), pa.int32())
        parts.append(came_with)
    return pa.concat_arrays(parts).take(pa.array(np.argsort(places)))


def open_store(place: str | Place) -> Store:
    """Open a store for reading.

    Args:
        place: Its folder, or its address in a bucket (docs/object-stores.md).

    Raises:
        ConfigMissingError: There is no store.
        StoreError: The address is malformed, or the store is from another release.
    """
    return Store(place)


def _moment(as_of: Moment | None) -> AsOf | None:
    return None if as_of is None else AsOf.of(as_of)
