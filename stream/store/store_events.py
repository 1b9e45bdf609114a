"""A store's events as those of a file: what offline commands take, as of any moment that is kept."""

from pathlib import Path

import pyarrow as pa

from schemas.events import event_schema
from stream.decode.event_file import EventFile
from stream.store.as_of import AsOf
from stream.store.log.reader import LogReader
from stream.store.places.place import Place


def store_events(store: str | Place, as_of: AsOf | None = None) -> EventFile:
    """Sealed events of a store's log in order, up to a moment.

    Args:
        store: Folder of the store.
        as_of: The last snapshot or time that counts; None: all that is sealed.

    Returns:
        The events that are kept; where older snapshots were dropped, what their graph came to stands before them.

    Raises:
        ConfigMissingError: There is no log at this place.
        RetainedError: The moment is older than what is kept.
        CorruptError: A file of the log is damaged.
    """
    log = LogReader(store)
    end = len(log.snapshots)
    if as_of is not None:
        number = log.as_of(tau=as_of.tau, t_us=as_of.t_us)
        end = 0 if number is None else number + 1
    schema = event_schema(log.header.ids)
    base = log.base()
    tables = [schema.empty_table()] + ([] if base is None else [base.select(schema.names)])
    tables += [log.events(snapshot.tau).select(schema.names) for snapshot in log.snapshots[:end]]
    return EventFile(
        path=Path(str(store)),
        events=pa.concat_tables(tables),
        ids=log.header.ids,
        node_features=log.header.node_features,
        edge_features=log.header.edge_features,
        sorted_by_time=False,  # late events stand in the snapshot that took them
    )
