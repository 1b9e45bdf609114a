"""Events of a file, or of a store as of any kept moment, for offline commands."""

from collections.abc import Sequence
from pathlib import Path

from freshet_graph.schemas.file_options import AS_EVENTS, FileOptions
from freshet_graph.stream.decode.files import EventFile, read_events
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.as_of import AsOf, Moment
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.undisturbed import undisturbed

Source = str | Place | Sequence[str]
"""A store's folder or address; or files, globs and folders of files."""


def is_store(source: Source) -> bool:
    """Whether the source of a command is a store (a folder or an address) and not files."""
    sources = _list(source)
    place = place_of(sources[0])
    return len(sources) == 1 and (place.remote or (place.is_dir() and not _has_files(place.disk())))


def _list(source: Source) -> Sequence[str | Place]:
    return source if isinstance(source, Sequence) and not isinstance(source, str) else [source]


def _has_files(folder: Path) -> bool:
    """Whether a folder is one of data files, as Spark writes them, and none of a store."""
    names = (path.name for path in folder.rglob("*"))
    return not (folder / "log").exists() and any(
        name.startswith("part-") or name.endswith(".parquet") for name in names
    )


def read_source(source: Source, as_of: Moment | None = None, options: FileOptions = AS_EVENTS) -> EventFile:
    """Read the events that an offline command was given.

    Args:
        source: A store's folder or address, or files.
        as_of: A moment of the store, as for ``AsOf.of``; None: all sealed events.
        options: How the files are read.

    Raises:
        Failure: The file can't be read, has no events, or was given with a moment; or a store was given with options of files.
        StoreError: The store can't be read, or not so far back.
    """
    sources = _list(source)
    shown = " ".join(map(str, sources))
    if is_store(source):
        if options.flags:
            raise Failure(f"{options.flags[0]} is for files, but {shown} is a store. Leave it out")
        read = store_events(sources[0], None if as_of is None else AsOf.of(as_of))
    elif as_of is not None:
        raise Failure(
            f"{shown} is not a store, so it has no moment {AsOf.of(as_of)}. Leave the moment out, or name a store"
        )
    else:
        read = read_events([*map(str, sources)], options=options)
    if read.events.num_rows == 0:
        raise Failure(f"{shown} has no events")
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
