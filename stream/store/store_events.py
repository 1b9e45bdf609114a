"""Events of a file, or of a store as of any kept moment, for offline commands."""

from pathlib import Path

from freshet_graph.stream.decode.files import EventFile, FileColumns, read_events
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.undisturbed import undisturbed


def is_store(source: str | Place) -> bool:
    """Whether the source of a command is a store (a folder or an address) and not a file."""
    place = place_of(source)
    return place.remote or place.is_dir()


def read_source(source: str | Place, as_of: str | None = None, columns: str | None = None) -> EventFile:
    """Read the events that an offline command was given.

    Args:
        source: A Parquet, CSV or TSV file, or a store's folder or address.
        as_of: A moment of the store, as for ``AsOf.parse``; None: all sealed events.
        columns: Names of the file's columns, as for ``FileColumns.parse``; None: those of an event.

    Raises:
        Failure: The file can't be read, has no events, or was given with a moment; or a store was given with columns.
        StoreError: The store can't be read, or not so far back.
    """
    place = place_of(source)
    if is_store(place):
        if columns is not None:
            raise Failure(f"--columns is for files, but {place} is a store. Leave it out")
        read = store_events(place, None if as_of is None else AsOf.parse(as_of))
    elif as_of is not None:
        raise Failure(f"--as-of needs a store's folder, and {place} is not one")
    else:
        read = read_events(place.disk(), columns=FileColumns.parse(columns))
    if read.events.num_rows == 0:
        raise Failure(f"{place} has no events")
    return read


def store_events(store: str | Place, as_of: AsOf | None = None) -> EventFile:
    """Sealed events of a store's log in order, up to a moment.

    Args:
        store: Folder of the store.
        as_of: The last snapshot or time included; None: all sealed events.

    Returns:
        The kept events. If older snapshots were dropped, events that rebuild their graph come first.

    Raises:
        ConfigMissingError: There is no log at this place.
        RetainedError: No snapshot is that old, or it is no longer kept.
        CorruptError: A file of the log is damaged.
    """
    header = LogReader(store).header
    return EventFile(
        path=Path(str(store)),
        events=undisturbed(store, lambda: LogReader(store).sealed_events(as_of)),
        ids=header.ids,
        node_features=header.node_features,
        edge_features=header.edge_features,
        sorted_by_time=False,  # late events stand in the snapshot that took them
    )
