"""The events of a log as a file of past events, for a new log with other snapshots."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.store import Key
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.snapshots.border import HISTORY, HISTORY_LABELS
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.sealed import load_tail_file, open_rows
from freshet_graph.stream.store.places.place import place_of
from freshet_graph.stream.store.undisturbed import undisturbed


def log_as_file(store: str, config: StreamConfig, folder: Path) -> tuple[Path, list[Path], dict[Key, int]]:
    """Write the events of a log in order of time, open ones included, and its labels, with what Kafka has to add to them.

    A later call writes the same bytes if the log is the same.

    Args:
        store: Folder or address of the log's store.
        config: Of the new log.
        folder: Of the new file.

    Returns:
        A Parquet file of events, those of labels, and for each topic partition the offset of the first message that is in none.

    Raises:
        Failure: The new log cannot have these events.
        StoreError: The log cannot be read.
    """
    if place_of(store) == place_of(config.store):
        raise Failure(
            f"{store} is the store of the configuration, and its snapshots are fixed. Choose a new store in the key store, and "
            "replace the old one afterwards"
        )
    log, events, labels = undisturbed(store, lambda: _read(store))
    if log.header.ids != config.ids:
        raise Failure(
            f"{store} has {log.header.ids} ids, and the configuration says ids: {config.ids}. Set the same"
        )
    if events.num_rows == 0:
        raise Failure(f"{store} has no events")
    in_order = np.argsort(events["t"].to_numpy(), kind="stable")  # late events return to their own time
    events = events.take(pa.array(in_order))
    events = events.set_column(
        events.schema.get_field_index("t"), "t", events["t"].cast(pa.timestamp("us", "UTC"))
    )
    path = folder / f"{log.header.graph}.parquet"
    with system_call("write", path):
        pq.write_table(events, path)
    offsets = {key: position.next for key, position in log.positions.items()}
    labelled = _write_labels(labels, folder)
    for of_files in (HISTORY, HISTORY_LABELS):
        offsets.pop(of_files, None)
    return path, labelled, offsets


def _write_labels(labels: pa.Table, folder: Path) -> list[Path]:
    """A file of the labels of events and one of those of nodes, visible no earlier than they were; none without such."""
    paths = []
    for of in ("event_id", "node"):
        chosen = labels.filter(pc.is_valid(labels[of]))
        if chosen.num_rows:
            named = chosen.select([of, "label", "t", "source", "visible_us"])
            for name in ("t", "visible_us"):
                place = named.schema.get_field_index(name)
                named = named.set_column(place, name, named[name].cast(pa.timestamp("us", "UTC")))
            paths.append(folder / f"labels-{of}.parquet")
            with system_call("write", paths[-1]):
                pq.write_table(named.rename_columns([of, "label", "t", "source", "visible"]), paths[-1])
    return paths


def _read(store: str) -> tuple[LogReader, pa.Table, pa.Table]:
    """A view of a log; its events, ``event_schema``: sealed ones, then open ones; and its labels, ``label_schema``."""
    log = LogReader(store)
    schema, last = event_schema(log.header.ids), log.last
    tail = [load_tail_file(log.root, one, log.header.ids) for one in (last.tail if last is not None else ())]
    through = last.sealed_through if last is not None else None
    still_open = open_rows(tail, through, log.header.ids).select(schema.names)
    return log, pa.concat_tables([log.sealed_events(), still_open]), log.labels()
