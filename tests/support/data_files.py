"""Single data files of a store."""

from pathlib import Path

import pyarrow as pa

from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.store.places.interface import Write
from freshet_graph.stream.store.places.place import Place, place_of


def write_file(root: Path | Place, relative: str, write: Write) -> FileRef:
    """Write one data file of a store, as a commit does."""
    with place_of(root).stage(token="") as staging:
        reference = staging.add(relative, write)
        staging.finish()
    return reference


def write_table(root: Path | Place, relative: str, table: pa.Table | list[pa.RecordBatch]) -> FileRef:
    """Write a table, or record batches of one schema, as one durable Arrow IPC file."""
    with place_of(root).stage(token="") as staging:
        reference = staging.add_table(relative, table)
        staging.finish()
    return reference
