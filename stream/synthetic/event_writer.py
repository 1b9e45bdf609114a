"""Tables of events to a Parquet or CSV file, counted on the way."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from freshet_graph.schemas.events import Op

_LARGEST_ROW_GROUP = 1 << 20


def write_events(path: Path, tables: Iterable[pa.Table], *, interval_s: float) -> dict[str, Any]:
    """Write tables of events to one file, which is replaced: CSV if its name ends in ``.csv``, else Parquet.

    Returns:
        The result of ``synth --json``: file, nodes (distinct ids, not negative), edges (inserts), snapshots (intervals of
        ``interval_s`` that are not empty) and events.
    """
    seen = np.zeros(0, bool)
    intervals: set[int] = set()
    edges = events = 0
    writer: Any = None
    try:
        for table in tables:
            if writer is None:
                writer = _open(path, table.schema)
            _write(writer, table)
            seen = _seen(seen, table)
            intervals.update(np.unique(table["t"].to_numpy() // interval_s).tolist())
            edges += pc.sum(pc.equal(table["op"], int(Op.INSERT))).as_py()
            events += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return {
        "file": str(path),
        "nodes": int(seen.sum()),
        "edges": edges,
        "snapshots": len(intervals),
        "events": events,
    }


def _open(path: Path, schema: pa.Schema) -> Any:
    if path.suffix == ".csv":
        fields = [pa.field(f.name, pa.string() if f.name == "features" else f.type) for f in schema]
        return pacsv.CSVWriter(path, pa.schema(fields))
    return pq.ParquetWriter(path, schema, compression="zstd")


def _write(writer: Any, table: pa.Table) -> None:
    if isinstance(writer, pq.ParquetWriter):
        writer.write_table(table, row_group_size=_LARGEST_ROW_GROUP)
        return
    if "features" in table.schema.names:
        lists = table["features"].combine_chunks()
        lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
        texts = pc.binary_join(pc.cast(lists, pa.list_(pa.string())), " ")
        place = table.schema.get_field_index("features")
        table = table.set_column(place, "features", pc.binary_join_element_wise("[", texts, "]", ""))
    writer.write_table(table)


def _seen(seen: np.ndarray[tuple[int], np.dtype[np.bool_]], table: pa.Table) -> Any:
    for name in ("src", "dst"):
        ids = table[name].drop_null().to_numpy()
        if len(ids) and ids.max() >= len(seen):
            seen = np.concatenate((seen, np.zeros(int(ids.max()) + 1 - len(seen), bool)))
        seen[ids] = True
    return seen
